"""Digests of what was fed and what came out, bare lower-case hexadecimal."""

import hashlib
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

WORKLOAD_DOMAIN = b"muser-bench-workload-v1\0"


def token_digest(ids: Iterable[int]) -> str:
    """SHA-256 over each id as a little-endian u32."""
    return hashlib.sha256(_words(ids)).hexdigest()


def workload_digest(prompts: Sequence[Sequence[int]], fed: Sequence[Sequence[int]]) -> str:
    """SHA-256 over a domain, then for each slot its prompt and its fed tokens, each as a
    little-endian u64 count and u32 ids.
    """
    total = hashlib.sha256(WORKLOAD_DOMAIN)
    for pair in zip(prompts, fed, strict=True):
        for ids in pair:
            total.update(struct.pack("<Q", len(ids)) + _words(ids))
    return total.hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _words(ids: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<I", token) for token in ids)
