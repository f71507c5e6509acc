"""How fast a pool reads memory and does nothing else: what a tape's entries are compared with."""

import ctypes

import numpy as np
from numpy.typing import NDArray

from muser.devices.cpu.tape import Player, Tape
from muser.kernels import Args, Entry, Library, address

WORDS_BYTES = 256  # `read_through` reads such groups
LINE_WORDS = 8


def reading_times(
    library: Library, threads: int, buffer: NDArray[np.uint8], plays: int
) -> tuple[int, ...]:
    """Nanoseconds that `threads` workers take to read `buffer` once, for each of `plays` times.

    `buffer` is contiguous; the bytes beyond its last whole 256 are left out.
    """
    sums = np.zeros((threads, LINE_WORDS), np.uint64)
    size = buffer.size // WORDS_BYTES * WORDS_BYTES
    args = Args(weight=address(buffer), row_bytes=size, out=address(sums))
    entries = (Entry * 1)()
    function = ctypes.cast(library.handle.muser_read_through, ctypes.c_void_p)
    entries[0].run, entries[0].args = function.value, ctypes.addressof(args)
    label = f"read_through[isa={library.isa}]"
    tape = Tape(entries, (label,), ("memory",), ())
    player = Player(library, threads, 0)
    try:
        stamps = [player.play_timed(tape) for _ in range(plays)]
    finally:
        player.close()
    whole = buffer[:size].view(np.uint64).sum(dtype=np.uint64)
    assert sums[:, 0].sum(dtype=np.uint64) == whole
    return tuple(one.end - one.begin for one in stamps)
