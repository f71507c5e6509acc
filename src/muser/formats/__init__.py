"""File formats: GGUF containers and the tensor blocks inside them."""

from muser.formats.block_type import READABLE, BlockType
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
from muser.formats.unpacked import Unpacked

__all__ = [
    "READABLE",
    "BlockType",
    "GgufFile",
    "Metadata",
    "Strings",
    "TensorInfo",
    "Unpacked",
    "Value",
    "ValueType",
    "array_type",
    "dequantise",
    "natural_type",
    "quantise",
    "type_of",
    "unpack",
]
