"""MT19937 with a 32-bit seed: the one source of chance.

M. Matsumoto and T. Nishimura, "Mersenne Twister", ACM TOMACS 8(1), 1998; seeding is `init_genrand`
of their 2002 revision. Integers only, so a seed means the same draws on every machine.
"""

import secrets
from dataclasses import dataclass

WORDS = 624
_SHIFT = 397
_MASK32 = 0xFFFFFFFF


def fresh_seed() -> int:
    """A 32-bit seed from the operating system."""
    return secrets.randbits(32)


@dataclass(frozen=True)
class Snapshot:
    """Everything a generator is: 624 words and how many of them were used."""

    words: tuple[int, ...]
    index: int


class Mt19937:
    """The 32-bit Mersenne Twister."""

    def __init__(self, seed: int) -> None:
        assert 0 <= seed <= _MASK32
        words = [seed]
        for i in range(1, WORDS):
            last = words[-1]
            words.append((1812433253 * (last ^ (last >> 30)) + i) & _MASK32)
        self._words = words
        self._index = WORDS

    def next_u32(self) -> int:
        """The next word, tempered."""
        if self._index == WORDS:
            self._twist()
        y = self._words[self._index]
        self._index += 1
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C5680
        y ^= (y << 15) & 0xEFC60000
        return y ^ (y >> 18)

    def next_u64(self) -> int:
        """Two words as lo + hi·2^32, the first being the low one."""
        low = self.next_u32()
        return low | (self.next_u32() << 32)

    def snapshot(self) -> Snapshot:
        """The state, for `restore`."""
        return Snapshot(tuple(self._words), self._index)

    def restore(self, state: Snapshot) -> None:
        """Continue as the generator that `state` was taken from would."""
        assert len(state.words) == WORDS
        assert 0 <= state.index <= WORDS
        self._words = list(state.words)
        self._index = state.index

    def _twist(self) -> None:
        words = self._words
        for i in range(WORDS):
            y = (words[i] & 0x80000000) | (words[(i + 1) % WORDS] & 0x7FFFFFFF)
            mixed = (y >> 1) ^ (0x9908B0DF if y & 1 else 0)
            words[i] = words[(i + _SHIFT) % WORDS] ^ mixed
        self._index = 0
