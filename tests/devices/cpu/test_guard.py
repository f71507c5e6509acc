"""Weights that lose their bytes: a word and a status in place of a silent death, for these alone.

Each case runs in a process of its own, which is meant to end.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muser.models.synth import synthesise

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="this system has no SIGBUS")

BEGIN = """
import faulthandler, mmap, os, signal, sys
from muser.devices import CpuDevice
from muser.formats import GgufFile
path = sys.argv[1]
file = GgufFile.open(path)
device = CpuDevice(threads=1, isa="c")
def words(problem):
    return f"{type(problem).__name__} {problem.exit_status}: {problem.sentence}".encode()
device.guard(file, words)
"""
FILE = BEGIN + "os.truncate(path, 0); bytes(file.whole)"
SECOND = BEGIN + "device.guard(GgufFile.open(path), lambda problem: b'second')\n"
LAST_PAGE = BEGIN + "os.truncate(path, 4096); file.whole[:4096].tobytes(); bytes(file.whole[-9:])"
STRANGER = (
    BEGIN
    + """
open(path + "2", "wb").write(bytes(8192))
other = mmap.mmap(os.open(path + "2", os.O_RDONLY), 0, access=mmap.ACCESS_READ)
os.truncate(path + "2", 0)
bytes(other)
"""
)
SENT = BEGIN + "os.kill(os.getpid(), signal.SIGBUS)"
CHAIN = "import faulthandler; faulthandler.enable()\n" + STRANGER
MANY = (
    BEGIN
    + """
from muser.errors import DeviceError
try:
    for _ in range(64):
        device.guard(file, words)
except DeviceError as problem:
    print(problem.sentence)
"""
)

ONE_BY_ONE = (
    BEGIN
    + """
for _ in range(200):
    file = GgufFile.open(path)
    device.guard(file, words)
"""
)
GONE = (
    ONE_BY_ONE
    + """
import numpy as np
from pathlib import Path
from muser.devices.cpu.guard import Guard
for _ in range(200):
    other = mmap.mmap(os.open(path, os.O_RDONLY), 0, access=mmap.ACCESS_READ)
    Guard(device.library, words).packed(Path("packed"), np.frombuffer(other, np.uint8))
last = np.frombuffer(other, np.uint8)
del other
print(device.library.handle.muser_guard(None, 0, None, 0, 0))
"""
)


@pytest.fixture
def model(tmp_path, libraries, monkeypatch):
    """Kernels that read the weights where they lie, compiled before."""
    monkeypatch.setenv("MUSER_ISA", "c")
    path = tmp_path / "tiny.gguf"
    synthesise(path, layers=2, context=1 << 15)
    assert path.stat().st_size > 3 * 4096
    return path


def ended(text, model):
    return subprocess.run([sys.executable, "-c", text, str(model)], capture_output=True, text=True)


@pytest.mark.parametrize("text", [FILE, LAST_PAGE])
def test_last_words(model, text):
    done = ended(text, model)
    assert done.returncode == 3
    assert done.stderr == (
        f"FormatError 3: {model} lost bytes while it was in use:"
        " it was shortened, or its disk failed."
    )


def test_each_file_has_its_own(model):
    first = ended(SECOND + "os.truncate(path, 0); bytes(file.whole)", model)
    assert first.stderr.startswith("FormatError 3: ")


@pytest.mark.parametrize("text", [STRANGER, SENT])
def test_what_is_not_guarded_ends_as_before(model, text):
    done = ended(text, model)
    assert (done.returncode, done.stderr) == (-signal.SIGBUS, "")


def test_the_handler_before_is_asked(model):
    done = ended(CHAIN, model)
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr


def test_more_than_the_table_holds(model):
    done = ended(MANY, model)
    assert (done.returncode, done.stderr) == (0, "")
    assert "cannot be guarded" in done.stdout


def test_what_is_no_longer_mapped_makes_room(model):
    """400 mappings one after another; two live, so the next entry of the table is the third."""
    done = ended(GONE, model)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "2\n")


def test_the_last_of_many_has_its_words(model):
    done = ended(ONE_BY_ONE + "os.truncate(path, 0); bytes(file.whole)", model)
    assert done.returncode == 3
    assert done.stderr.startswith("FormatError 3: ")


RUN = """
import sys
from muser.cli.main import main
main(sys.argv[1:])
"""
LATE = """
import os, sys
from muser.engine import loading
class Late(loading.Weights):
    def __init__(self, file, *rest):
        os.truncate(file.path, 0)
        super().__init__(file, *rest)
loading.Weights = Late
from muser.cli.main import main
main(sys.argv[1:])
"""
LAST_WORDS = """\
error: {} lost bytes while it was in use: it was shortened, or its disk failed.
Load it again once it is whole; replace a model by renaming, not by writing into it.
"""


def arguments(model, *more):
    return ["run", "--raw", "--ignore-eos", "--model", str(model), "abc", *more]


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_model_shortened_while_it_answers(model, threads):
    more = ("-n", "30000", "--ctx-size", "32768", "--threads", threads)
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments(model, *more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        begun = process.stdout.read(1)
        os.truncate(model, 0)
        _, said = process.communicate()
    assert begun, said
    assert process.returncode == 3
    assert said.decode() == LAST_WORDS.format(model)


def test_a_model_shortened_while_it_is_loaded(model):
    done = subprocess.run(
        [sys.executable, "-c", LATE, *arguments(model)], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == LAST_WORDS.format(model)


def test_the_oracle_dies_with_a_report(model):
    done = subprocess.run(
        [sys.executable, "-c", LATE, *arguments(model, "--device", "oracle")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGBUS
    assert "Fatal Python error: Bus error" in done.stderr


PACKED = """
import os, sys
from muser.weights.kept import Kept
used = Kept._used
def late(kept, file):
    found = used(kept, file)
    os.truncate(sys.argv[1], 0)
    return found
Kept._used = late
from muser.cli.main import main
main(sys.argv[2:])
"""


PACKED_UNVERIFIED = """
import os, sys
from muser.kernels import Shelf
from muser.weights.kept import Kept
Shelf.note = lambda *_: None
verify = Kept._verify
def late(*given):
    os.truncate(sys.argv[1], 0)
    verify(*given)
Kept._verify = late
from muser.cli.main import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize("text", [PACKED, PACKED_UNVERIFIED])
def test_packed_weights_that_are_shortened(model, libraries, shelf, tmp_path, monkeypatch, text):
    """They are a mapped file too, of Muser's own."""
    isa = next((isa for isa, each in libraries.items() if each.constants.packed), None)
    if isa is None:
        pytest.skip("no library of this machine packs weights")
    monkeypatch.setenv("MUSER_ISA", isa)
    monkeypatch.setenv("MUSER_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "libraries").symlink_to(shelf.folder)
    synthesise(model, layers=2, width=512, ffn=8192, vocabulary=600)
    kept = run(RUN, model, "-n", "1")
    assert kept.returncode == 0, kept.stderr
    (packed,) = (tmp_path / "home").rglob("*.packed")
    done = subprocess.run(
        [sys.executable, "-c", text, str(packed), *arguments(model)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"error: {packed} lost bytes while it was in use"), done.stderr


def run(text, model, *more):
    command = [sys.executable, "-c", text, *arguments(model, *more)]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_model_written_to_while_it_answers(model):
    """The bytes are all there, but they are no longer those that were loaded."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN, *arguments(model, "-n", "200", "--json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_until_mapped(process.pid, model)
        os.utime(model, ns=(1, 1))
        made, said = process.communicate()
    assert (process.returncode, made) == (3, b"")
    assert said.decode().startswith(f"error: {model} has changed since it was opened.\n")


def wait_until_mapped(pid, model):
    maps = Path(f"/proc/{pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not show mappings")
    while str(model) not in maps.read_text():
        os.sched_yield()
