"""File formats: GGUF containers and the tensor blocks inside them.

The writer is imported when it is asked for: few need it, and it costs a start some time.
"""

from typing import TYPE_CHECKING

from muser.formats.block_type import FLOATS, READABLE, BlockType
from muser.formats.blocks import dequantise, quantise, unpack
from muser.formats.gguf_header import TensorInfo
from muser.formats.gguf_reader import GgufFile
from muser.formats.gguf_values import (
    Metadata,
    Strings,
    Value,
    ValueType,
    array_type,
    natural_type,
    type_of,
)
from muser.formats.mapped import state_of
from muser.formats.unpacked import Unpacked

if TYPE_CHECKING:
    from muser.formats.gguf_writer import (
        GgufWriter,
        Layout,
        PackedTensor,
        TensorPlan,
        lay_out,
        write_gguf,
    )

__all__ = [
    "FLOATS",
    "READABLE",
    "BlockType",
    "GgufFile",
    "GgufWriter",
    "Layout",
    "Metadata",
    "PackedTensor",
    "Strings",
    "TensorInfo",
    "TensorPlan",
    "Unpacked",
    "Value",
    "ValueType",
    "array_type",
    "dequantise",
    "lay_out",
    "natural_type",
    "quantise",
    "state_of",
    "type_of",
    "unpack",
    "write_gguf",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from muser.formats import gguf_writer

    return getattr(gguf_writer, name)
