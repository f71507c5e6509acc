"""The text that measured runs read: numbered sentences, as many as are wanted, no two alike.

Numbered, because engines that round differently disagree at near-ties, which a chant is full of.
The words are drawn by a fixed generator, so that the text never repeats.
"""

from collections.abc import Callable, Iterator
from itertools import count, islice

NAME = "numbered-sentences-v1"
WHO = (
    "the gardener", "a young clerk", "the night watch", "her brother", "the old pilot",
    "a careful baker", "the second choir", "our neighbour", "the lighthouse keeper",
    "a tired judge", "the map maker", "his teacher", "the river guide", "a travelling nurse",
    "the clock mender", "the whole village",
)  # fmt: skip
DID = (
    "wrote down", "carried", "repaired", "counted", "painted", "forgot", "measured", "returned",
    "borrowed", "polished", "described", "hid", "sold", "mended", "weighed", "found",
)  # fmt: skip
WHAT = (
    "three copper kettles", "the broken ladder", "a letter from the coast", "seven lemons",
    "the missing chapter", "a box of screws", "the winter coats", "two maps of the harbour",
    "an unsigned contract", "the smallest violin", "a jar of honey", "the station clock",
    "four empty bottles", "a list of names", "the red umbrella", "some very dry bread",
)  # fmt: skip
WHERE = (
    "behind the mill", "before breakfast", "in the rain", "at the end of the pier",
    "without a word", "under the stairs", "on the ninth of May", "near the old bridge",
    "while the band played", "for the third time", "between two trains", "by candle light",
    "in the empty theatre", "after the meeting", "as the snow began", "across the square",
)  # fmt: skip
# Knuth's MMIX generator; its high bits choose.
FACTOR, INCREMENT, MODULUS = 6364136223846793005, 1442695040888963407, 1 << 64
TRIES = 24  # doublings of the text


def sentences() -> Iterator[str]:
    """`1. The gardener wrote down seven lemons in the rain. 2. …`, without end."""
    state = 1
    for number in count(1):
        state = (state * FACTOR + INCREMENT) % MODULUS
        who, did, what, where = ((state >> shift) % 16 for shift in (60, 54, 48, 42))
        begun = WHO[who][0].upper() + WHO[who][1:]
        yield f"{number}. {begun} {DID[did]} {WHAT[what]} {WHERE[where]}."


def fixture_ids(size: int, encode: Callable[[str], list[int]]) -> tuple[int, ...]:
    """The first `size` ids of the text, the tokenizer's own first token included."""
    lines = size // 8 + 1
    for _ in range(TRIES):
        ids = encode(" ".join(islice(sentences(), lines)))
        if len(ids) > size:  # the last id may depend on where the text ends
            return tuple(ids[:size])
        lines *= 2
    raise AssertionError("a tokenizer that makes no tokens of text")
