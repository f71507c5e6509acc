"""GGUF files written by hand, byte by byte, independent of the writer under test."""

import struct
from collections.abc import Sequence


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def record(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def strings(*items: str | bytes) -> bytes:
    return struct.pack("<IQ", 8, len(items)) + b"".join(text(item) for item in items)


def tensor(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def gguf(
    records: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: bytes = b"\3\0\0\0",
    counts: tuple[int, int] | None = None,
    alignment: int = 32,
) -> bytes:
    counts = counts or (len(tensors), len(records))
    head = magic + version + struct.pack("<QQ", *counts) + b"".join(records) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data


def small() -> bytes:
    """Two tensors, one of them Q8_0, and a value of every kind."""
    records = [
        record("general.architecture", 8, text("llama")),
        record("u8", 0, b"\xff"),
        record("i8", 1, b"\xff"),
        record("u16", 2, b"\xff\xff"),
        record("i16", 3, b"\xff\xff"),
        record("u32", 4, b"\xff" * 4),
        record("i32", 5, b"\xff" * 4),
        record("f32", 6, struct.pack("<f", 0.1)),
        record("yes", 7, b"\1"),
        record("tokens", 9, strings("a", "", "é")),
        record("numbers", 9, struct.pack("<IQ3h", 3, 3, -1, 0, 1)),
        record("flags", 9, struct.pack("<IQ", 7, 2) + b"\0\1"),
        record("nested", 9, struct.pack("<IQ", 9, 2) + strings("x") + struct.pack("<IQB", 0, 1, 7)),
        record("u64", 10, b"\xff" * 8),
        record("i64", 11, b"\xff" * 8),
        record("f64", 12, struct.pack("<d", 0.1)),
    ]
    tensors = [tensor("norm", [3], 0, 0), tensor("weight", [32, 2], 8, 32)]
    floats = struct.pack("<3f", 1.0, -2.0, 0.5)
    return gguf(records, tensors, floats + bytes(20) + bytes(range(68)) + bytes(28))
