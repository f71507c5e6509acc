"""Whatever the bytes, the reader answers with a file or with FormatError, and in little memory."""

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from muser.errors import FormatError
from muser.formats import GgufFile, Strings
from tests.formats import gguf_bytes as gb

SMALL = gb.small()
MOST_MEMORY = 1 << 20

positions = st.integers(0, len(SMALL) - 1)
fuzz = settings(
    max_examples=250,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def read_all(path: Path, data: bytes) -> bool:
    """Open and read everything; True if the file was accepted."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with GgufFile.open(path) as file:
            for value in file.metadata.values():
                if isinstance(value, Strings):
                    list(value)
            assert sum(file.raw(name).size for name in file.tensors) <= len(data)
        return True
    except FormatError:
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MOST_MEMORY


def test_the_seed_file_is_accepted(tmp_path: Path) -> None:
    assert read_all(tmp_path / "f", SMALL)


@fuzz
@given(length=st.integers(0, len(SMALL) - 29))
def test_truncations_are_refused(tmp_path: Path, length: int) -> None:
    assert not read_all(tmp_path / "f", SMALL[:length])


@fuzz
@given(flips=st.lists(st.tuples(positions, st.integers(1, 255)), min_size=1, max_size=4))
@example(flips=[(15, 0x7F)])
@example(flips=[(23, 0x7F)])
def test_flipped_bytes(tmp_path: Path, flips: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for at, mask in flips:
        data[at] ^= mask
    read_all(tmp_path / "f", bytes(data))


@fuzz
@given(at=positions, word=st.sampled_from([0, 1, 1 << 31, 1 << 32, 1 << 63, (1 << 64) - 1]))
def test_large_numbers_anywhere(tmp_path: Path, at: int, word: int) -> None:
    data = SMALL[:at] + word.to_bytes(8, "little") + SMALL[at + 8 :]
    read_all(tmp_path / "f", data)


@fuzz
@given(head=st.integers(8, 200), tail=st.binary(max_size=300))
def test_random_tails(tmp_path: Path, head: int, tail: bytes) -> None:
    read_all(tmp_path / "f", SMALL[:head] + tail)


def test_memory_stays_small_with_the_largest_counts(tmp_path: Path) -> None:
    for most in (1 << 16, 1 << 17, 1 << 22):
        for counts in ((most, 0), (0, most)):
            assert not read_all(tmp_path / "f", gb.gguf(counts=counts))
    with pytest.raises(FormatError):
        GgufFile.open(tmp_path / "f")
