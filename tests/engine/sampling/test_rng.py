"""MT19937 against known words and against NumPy's own."""

import numpy as np
import pytest

from muser.engine.sampling.rng import WORDS, Mt19937


def test_seed_42_gives_the_known_words() -> None:
    generator = Mt19937(42)
    assert [generator.next_u32() for _ in range(6)] == [
        1608637542,
        3421126067,
        4083286876,
        787846414,
        3143890026,
        3348747335,
    ]


def test_the_first_of_two_words_is_the_low_one() -> None:
    generator = Mt19937(42)
    assert generator.next_u64() == 1608637542 + 3421126067 * 2**32
    doubles = [1608637542 + 3421126067 * 2**32, *(generator.next_u64() for _ in range(2))]
    assert [d / 2**64 for d in doubles] == [
        0.796542984287846,
        0.18343478789336848,
        0.7796909976126612,
    ]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31, 2**32 - 1])
def test_words_are_numpys_over_several_refills(seed: int) -> None:
    theirs = np.random.RandomState(seed).randint(0, 2**32, size=3 * WORDS, dtype=np.uint32)
    generator = Mt19937(seed)
    assert [generator.next_u32() for _ in range(3 * WORDS)] == theirs.tolist()


@pytest.mark.parametrize("used", [0, 1, 623, 624, 625, 1000])
def test_a_snapshot_is_the_whole_state(used: int) -> None:
    generator = Mt19937(7)
    for _ in range(used):
        generator.next_u32()
    state = generator.snapshot()
    expected = [generator.next_u32() for _ in range(WORDS + 1)]
    other = Mt19937(8)
    other.restore(state)
    assert [other.next_u32() for _ in range(WORDS + 1)] == expected
    generator.restore(state)
    assert [generator.next_u32() for _ in range(WORDS + 1)] == expected
