"""From texts to a checked library: keys, the registry, forced instruction sets, no compiler."""

import shutil
import sys
from dataclasses import replace

import pytest

from muser.errors import DeviceError
from muser.kernels import (
    REGISTRY,
    Compiler,
    Shelf,
    Source,
    choose_library,
    compiler,
    find_compiler,
    library,
    load_library,
    pipeline,
    read_source,
)
from muser.kernels.library import library_key


def test_registry_is_the_library(libraries):
    """Every listed symbol has an address, in every library."""
    symbols = {entry.symbol for entry in REGISTRY.values()}
    for loaded in libraries.values():
        assert set(loaded.addresses) == symbols
        assert all(loaded.addresses.values())


def test_unknown_kernel_is_refused():
    with pytest.raises(DeviceError, match="no kernel 'project_q3_k'"):
        pipeline("project_q3_k", "1")
    with pytest.raises(DeviceError, match="row bucket '8'"):
        pipeline("project_q4_0", "8")


def test_library_that_lacks_a_listed_kernel_is_refused(tmp_path, monkeypatch):
    source = read_source()
    texts = dict(source.texts)
    texts["library.c"] = texts["library.c"].replace(b"PIPELINE(argmax,", b"PIPELINE(renamed,")
    monkeypatch.setattr(library, "read_source", lambda: Source(texts))
    fast = Quick.of(find_compiler())
    with pytest.raises(DeviceError, match="lacks muser_argmax"):
        load_library("c", Shelf(tmp_path), fast)


class Quick(Compiler):
    """Without optimisation: these libraries are looked at, not run."""

    @classmethod
    def of(cls, found):
        return cls(found.command, found.identity)

    def flags(self, isa):
        return tuple("-O0" if flag == "-O3" else flag for flag in super().flags(isa))


def test_key_changes_with_all_that_decides_the_bytes():
    source, found = read_source(), find_compiler()
    edited = Source({**source.texts, "exact.h": source.texts["exact.h"] + b"\n"})
    keys = [
        library_key(source, found, "c"),
        library_key(source, found, "avx2"),
        library_key(edited, found, "c"),
        library_key(source, replace(found, identity="another version"), "c"),
        library_key(source, replace(found, command=(*found.command, "-g")), "c"),
        library_key(source, Quick.of(found), "c"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == library_key(read_source(), find_compiler(), "c")


def test_muser_isa_forces_a_set(shelf):
    assert choose_library(shelf, environment={"MUSER_ISA": "c"}).isa == "c"
    assert choose_library(shelf, "c", environment={"MUSER_ISA": "avx2"}).isa == "c"


def test_best_set_without_force(shelf, libraries):
    assert choose_library(shelf, environment={}).isa == list(libraries)[-1]


def test_unknown_set_is_refused(shelf):
    with pytest.raises(DeviceError, match="'sse9' is not an instruction set"):
        choose_library(shelf, environment={"MUSER_ISA": "sse9"})


def test_set_that_the_machine_lacks_is_refused(shelf, monkeypatch):
    monkeypatch.setattr(library, "supported_isas", lambda plain: ("c",))
    with pytest.raises(DeviceError, match="cannot run the avx2 kernels"):
        choose_library(shelf, "avx2")


def test_only_the_set_that_is_wanted_is_compiled(tmp_path, monkeypatch):
    """What asks the processor is a library of its own, and says the same as the whole one."""
    built, build = [], Compiler.build

    def watch(self, source, isa, target):
        built.append((isa, len(source.texts)))
        build(Quick.of(self), source, isa, target)

    monkeypatch.setattr(Compiler, "build", watch)
    shelf = Shelf(tmp_path)
    plain = choose_library(shelf, "c")
    assert built == [("c", 3), ("c", len(read_source().texts))]
    probe = library.load_probe(shelf, find_compiler(), read_source())
    assert library.supported_isas(probe) == library.supported_isas(plain)
    assert library.processor_of(probe) == library.processor_of(plain)
    assert len(built) == 2
    edited = Source({**read_source().texts, "exact.h": b""})
    library.load_probe(shelf, find_compiler(), edited)
    assert len(built) == 2, "other texts are not its own"


def test_no_compiler_says_so(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match="No C compiler is here"):
        find_compiler({})


def test_ziglang_is_the_last_resort(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(compiler, "find_spec", lambda name: object())
    monkeypatch.setattr(compiler, "_ask", lambda command, question: "zig")
    assert find_compiler({}).command == (sys.executable, "-m", "ziglang", "cc")


def test_muser_cc_that_cannot_run_is_refused():
    with pytest.raises(DeviceError, match="'/nowhere/cc' cannot be run"):
        find_compiler({"MUSER_CC": "/nowhere/cc"})


def test_a_compiler_is_asked_once_for_each_state_of_its_file(tmp_path, monkeypatch):
    program = tmp_path / "cc"
    program.write_bytes(b"\x7fELF")
    program.chmod(0o755)
    asked, shelf = [], Shelf(tmp_path / "shelf")
    monkeypatch.setattr(
        compiler, "_ask", lambda command, question: asked.append(question) or question
    )

    def find(*words):
        return find_compiler({"MUSER_CC": " ".join([str(program), *words])}, Shelf(shelf.folder))

    assert find() == find() == find_compiler({"MUSER_CC": str(program)})
    assert len(asked) == 2 + 2  # the last one has no shelf
    find("-m32")
    assert len(asked) == 6
    program.write_bytes(b"\x7fELF and more")
    find()
    assert len(asked) == 8
    program.write_bytes(b"#!/bin/sh\n")
    find()
    find()
    assert len(asked) == 12


def test_complaint_of_the_compiler_is_passed_on(tmp_path):
    broken = Source({"library.c": b"int f(void) { return missing; }\n"})
    with pytest.raises(DeviceError, match="missing"):
        find_compiler().build(broken, "c", tmp_path / "out.so")


def test_exact_contract_in_the_flags():
    for isa in ("c", "avx2"):
        flags = find_compiler().flags(isa)
        assert {"-std=c11", "-ffp-contract=off", "-fno-fast-math"} <= set(flags)
    assert {"-mavx2", "-mfma", "-mf16c"} <= set(find_compiler().flags("avx2"))


def test_avx2_without_fma_does_not_compile(tmp_path, libraries):
    if "avx2" not in libraries:
        pytest.skip("this machine has no avx2")

    class WithoutFma(Compiler):
        def flags(self, isa):
            return tuple(flag for flag in super().flags(isa) if flag != "-mfma")

    found = find_compiler()
    with pytest.raises(DeviceError, match="AVX2 without FMA is refused"):
        WithoutFma(found.command, found.identity).build(read_source(), "avx2", tmp_path / "x.so")


@pytest.mark.parametrize("named", ["   ", '"unbalanced'])
def test_compiler_setting_that_names_no_command(named):
    with pytest.raises(DeviceError, match="names no command"):
        find_compiler({"MUSER_CC": named})


def pretender(path, body):
    """A command that answers as a compiler would, and compiles as `body` says."""
    path.write_text(f'#!/bin/sh\ncase "$1" in --version|-dumpmachine) exit 0;; esac\n{body}\n')
    path.chmod(0o755)
    return find_compiler({"MUSER_CC": str(path)})


def test_compiler_that_writes_nothing_is_refused(tmp_path):
    with pytest.raises(DeviceError, match="it wrote nothing"):
        pretender(tmp_path / "cc", "exit 0").build(read_source(), "c", tmp_path / "out.so")


def test_the_complaint_is_the_line_that_says_why(tmp_path):
    said = "echo 'cc: error: no room left' >&2; echo 'collect2: error: ld returned 1' >&2; exit 1"
    with pytest.raises(DeviceError, match="cc: error: no room left"):
        pretender(tmp_path / "cc", said).build(read_source(), "c", tmp_path / "out.so")


def test_a_full_disk_is_not_the_compilers_fault(tmp_path):
    said = "echo 'ld: final link failed: No space left on device' >&2; exit 1"
    with pytest.raises(DeviceError, match=r"No space left.*Make room in .* TMPDIR"):
        pretender(tmp_path / "cc", said).build(read_source(), "c", tmp_path / "out.so")
