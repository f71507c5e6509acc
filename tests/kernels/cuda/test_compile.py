"""Every unit by NVRTC for every architecture: names, rounding, and what a kernel may take."""

import re
from collections import Counter

import pytest

from muser.devices.cuda.projecting import QUANTISE_WARPS
from muser.kernels.cuda_registry import CUDA_KERNELS, UNITS, units_of
from muser.kernels.source import Source

from .budgets import REGISTERS, SHARED
from .images import ARCHITECTURES

PAIRS = [(name, unit) for name in ARCHITECTURES for unit in units_of(name)]
CONTRACTED = [
    *(("sm_90a", unit) for unit in UNITS),
    *(("sm_80", unit) for unit in ("matvec", "batch", "attention", "gemm")),  # copies of its own
]
FLOAT = re.compile(
    r"^\s*(?:@!?%p\d+ )?((?:fma|mad|mul|add|sub|div|sqrt|rcp|cvt)\.\S*f(?:32|64)\S*)",
    re.MULTILINE,
)
INEXACT = re.compile(r"\.approx|\.ftz|\.full\.f32|\.sat\.f32")
FLOOR = "add.rm.f32"
WIDENING = re.compile(r"cvt\.f(?:32|64)\.f(?:16|32|64)$|cvt\.rn?z?i?\.?[su](?:8|16|32|64)\.f32$")


@pytest.fixture(params=PAIRS, ids="-".join)
def image(request, images):
    return images.unit(*request.param)


@pytest.fixture
def unit(request):
    return request.node.callspec.params["image"][1]


def test_the_registry_names_every_kernel(image, unit):
    assert image.kernels == set(UNITS[unit].kernels)


def test_a_kernel_stands_in_one_unit():
    assert len(CUDA_KERNELS) == sum(len(unit.kernels) for unit in UNITS.values())


def test_every_float_is_rounded_once_to_nearest(image):
    """Neither an approximation nor a flush; sums and products say `.rn`, so nobody joins them.

    Attention takes the floor of an exponent by a sum rounded down.
    """
    assert not INEXACT.search(image.ptx)
    loose = {name for name in FLOAT.findall(image.ptx) if ".rn" not in name} - {FLOOR}
    assert {name for name in loose if not WIDENING.search(name)} == set()


@pytest.mark.parametrize(("architecture", "unit_"), CONTRACTED, ids=lambda x: x)
def test_the_text_leaves_nothing_to_join(images, architecture, unit_):
    """Where contraction is allowed, the same fused operations come out: those that are written."""
    kept, joined = images.unit(architecture, unit_).ptx, images.contracted(architecture, unit_)
    assert Counter(FLOAT.findall(kept)) == Counter(FLOAT.findall(joined))


def test_contraction_would_show(images):
    text = b'extern "C" __global__ void k(float* x) { x[3] = x[0] * x[1] + x[2]; }'
    found = [
        Counter(FLOAT.findall(images.nvrtc.compiled(Source({"k": text}), "k", "compute_80", m).ptx))
        for m in ((), ("--fmad=true",))
    ]
    assert found == [{"mul.rn.f32": 1, "add.rn.f32": 1}, {"fma.rn.f32": 1}]


def test_registers_spills_and_shared_memory_keep_to_the_budget(image):
    uses = image.uses
    assert set(uses) == image.kernels
    assert {name: use for name, use in uses.items() if use.spills or use.stack} == {}
    assert {name: n for name, use in uses.items() if (n := use.registers) > REGISTERS[name]} == {}
    assert {name: n for name, use in uses.items() if (n := use.shared) > SHARED.get(name, 0)} == {}


def test_a_block_of_the_most_threads_finds_its_registers(image):
    """65,536 registers a processor, given to warps in units of 8 a thread."""
    for name, use in image.uses.items():
        threads = use.threads or 1024
        assert -(-use.registers // 8) * 8 * threads <= 65_536, name


@pytest.mark.parametrize("architecture", ["sm_90", "sm_90a"])
@pytest.mark.parametrize(
    "small", ["decode_combine", "combine_256", "combine_more_256", "quantise_256"]
)
def test_a_small_kernel_stands_beside_a_projection(images, architecture, small):
    """So the projection begins meanwhile. A scheduler, of four, has 16,384 registers. The other
    chains, of 112 registers at most, do so beside one of 72, which not every compiler makes.
    """
    threads = {
        "matvec_256_1": 512,
        "decode_combine": 256,
        "combine_256": 256,
        "combine_more_256": 256,
        "quantise_256": 32 * QUANTISE_WARPS,
    }
    taken = 0
    for name in ("matvec_256_1", small):
        use = images.unit(architecture, CUDA_KERNELS[name]).uses[name]
        taken += -(-threads[name] // 128) * 32 * -(-use.registers // 8) * 8
    assert taken <= 16_384


def test_the_budget_has_no_kernel_that_is_gone():
    assert {*REGISTERS} == {*CUDA_KERNELS}
    assert {*SHARED} <= {*CUDA_KERNELS}
