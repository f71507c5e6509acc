"""One door to all block types: unpack, dequantise, quantise."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from muser.errors import FormatError, ModelError, UsageError
from muser.formats import blocks_32, blocks_k
from muser.formats.block_type import FLOATS, BlockType
from muser.formats.unpacked import Unpacked

_UNPACK: Mapping[BlockType, Callable[[NDArray[np.uint8]], Unpacked]] = {
    BlockType.Q8_0: blocks_32.unpack_q8_0,
    BlockType.Q4_0: blocks_32.unpack_q4_0,
    BlockType.Q4_1: blocks_32.unpack_q4_1,
    BlockType.Q5_0: blocks_32.unpack_q5_0,
    BlockType.Q5_1: blocks_32.unpack_q5_1,
    BlockType.Q4_K: blocks_k.unpack_q4_k,
    BlockType.Q5_K: blocks_k.unpack_q5_k,
    BlockType.Q6_K: blocks_k.unpack_q6_k,
}

_QUANTISE: Mapping[BlockType, Callable[[NDArray[np.float32]], NDArray[np.uint8]]] = {
    BlockType.Q8_0: blocks_32.quantise_q8_0,
    BlockType.Q4_0: blocks_32.quantise_q4_0,
    BlockType.Q4_1: blocks_32.quantise_q4_1,
    BlockType.Q5_0: blocks_32.quantise_q5_0,
    BlockType.Q5_1: blocks_32.quantise_q5_1,
    BlockType.Q4_K: blocks_k.quantise_q4_k,
    BlockType.Q5_K: blocks_k.quantise_q5_k,
    BlockType.Q6_K: blocks_k.quantise_q6_k,
}


def unpack(kind: BlockType, raw: NDArray[np.uint8]) -> Unpacked:
    """Rows of quantised blocks, `uint8[..., row_bytes]`, as integers and scales.

    Raises ModelError for a type without blocks or that is not supported, FormatError if
    `row_bytes` is no multiple of the block.
    """
    codec = _UNPACK.get(kind)
    if codec is None:
        raise _unsupported(kind)
    return codec(_as_units(kind, raw).reshape(-1, raw.shape[-1] // kind.bytes, kind.bytes))


def dequantise(kind: BlockType, raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values of rows `uint8[..., row_bytes]` as `f32[rows, n]`. Raises as `unpack` does."""
    if kind in _UNPACK:
        return unpack(kind, raw).values()
    if kind not in FLOATS:
        raise _unsupported(kind)
    units = _as_units(kind, raw).reshape(-1, raw.shape[-1])
    if kind is BlockType.F32:
        return units.view("<f4").astype(np.float32)
    if kind is BlockType.F16:
        return units.view("<f2").astype(np.float32)
    return (units.view("<u2").astype(np.uint32) << 16).view(np.float32)


def quantise(kind: BlockType, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rows `f32[rows, n]` as blocks, `uint8[rows, row_bytes]`.

    Raises UsageError if a value for a quantised type is not finite or too large for it,
    FormatError if n is no multiple of the block, ModelError for an unsupported type.
    """
    rows, n = values.shape
    out = kind.row_bytes(n)
    if kind in FLOATS:
        return _narrow(kind, values).reshape(rows, out)
    codec = _QUANTISE.get(kind)
    if codec is None:
        raise _unsupported(kind)
    if not np.all(np.abs(values) <= np.float32(65504)):
        raise UsageError(
            f"Values beyond ±65504 or not finite cannot become {kind.name} blocks.",
            "Scale the tensor or keep it in F32.",
        )
    return codec(values.astype(np.float32, copy=False).reshape(-1, kind.elements)).reshape(
        rows, out
    )


def _narrow(kind: BlockType, values: NDArray[np.float32]) -> NDArray[np.uint8]:
    if kind is BlockType.F32:
        return np.ascontiguousarray(values, "<f4").view(np.uint8)
    if kind is BlockType.F16:
        with np.errstate(over="ignore"):
            return values.astype("<f2", order="C").view(np.uint8)
    bits = np.ascontiguousarray(values, "<f4").view(np.uint32)
    quiet = bits & np.uint32(0xFFFF0000) | np.uint32(0x00400000)
    bits = np.where(bits & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000), quiet, bits)
    wide = bits.astype(np.uint64)  # rounding up the largest bits must not wrap
    rounded = wide + np.uint64(0x7FFF) + (wide >> np.uint64(16) & np.uint64(1))
    return (rounded >> np.uint64(16)).astype("<u2").view(np.uint8)


def _as_units(kind: BlockType, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if raw.shape[-1] == 0 or raw.shape[-1] % kind.bytes:
        raise FormatError(
            f"A row of {raw.shape[-1]} bytes is no multiple of a {kind.name} block"
            f" of {kind.bytes}.",
            "Split the tensor at its rows.",
        )
    return np.ascontiguousarray(raw)


def _unsupported(kind: BlockType) -> ModelError:
    return ModelError(
        f"Tensors of type {kind.name} are not supported here.",
        "Use a file quantised to Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K_M, Q5_K_M or Q6_K.",
    )
