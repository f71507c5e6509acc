"""The switches of a peer's build follow the CPU's flags."""

from peers.building import CLANG_SWITCHES, ggml_switches
from peers.llama_cpp_python import SWITCHES, cmake_arguments

AVX2 = frozenset({"avx", "avx2", "fma", "f16c", "bmi2"})
AVX512 = AVX2 | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}


def switched_on(flags: frozenset[str]) -> set[str]:
    words = cmake_arguments(flags).split()
    assert {word[2:].split("=")[0] for word in words} == {*SWITCHES, "GGML_NATIVE", "LLAVA_BUILD"}
    return {word[2:-3] for word in words if word.endswith("=ON")}


def test_each_set_needs_its_flags() -> None:
    plain = {"GGML_AVX", "GGML_AVX2", "GGML_FMA", "GGML_F16C", "GGML_BMI2"}
    assert switched_on(frozenset()) == set()
    assert switched_on(AVX2) == plain
    assert switched_on(AVX512 | {"avx512_vnni", "amx_int8"}) == plain | {
        "GGML_AVX512",
        "GGML_AVX512_VNNI",
    }


def test_extensions_of_avx512_need_their_base() -> None:
    assert "GGML_AVX512_VNNI" not in switched_on(AVX2 | {"avx512_vnni", "avx512f"})


def test_amx_is_for_clang_and_needs_tiles_and_avx512() -> None:
    def amx(flags: frozenset[str]) -> set[str]:
        return {word for word in ggml_switches(flags, CLANG_SWITCHES) if "AMX" in word}

    tiles = AVX512 | {"amx_tile", "amx_int8"}
    on = {"-DGGML_AMX_TILE=ON", "-DGGML_AMX_INT8=ON", "-DGGML_AMX_BF16=OFF"}
    off = {word.replace("=ON", "=OFF") for word in on}
    assert amx(tiles) == on
    assert amx(tiles - {"amx_tile"}) == amx(tiles - {"avx512bw"}) == off
