from math import isclose

from muser.bench import Sample, Spread, interleave, pair_ratios, speed_ratio


class Noting:
    def __init__(self, name, calls):
        self.name, self.calls = name, calls


def test_spread_is_that_of_the_population_and_the_median_the_upper_middle():
    spread = Spread.of([4, 1, 3, 2])
    assert (spread.ns, spread.median, spread.least, spread.most) == ((4, 1, 3, 2), 3, 1, 4)
    assert isclose(spread.cv, 1.25**0.5 / 2.5)
    assert Spread.of([9]).cv == 0


def test_ratios_are_in_speed():
    ours, theirs = Spread.of([10, 20, 30]), Spread.of([40, 30, 15])
    assert speed_ratio(ours, theirs) == 1.5
    assert pair_ratios(ours, theirs) == (4.0, 1.5, 0.5)


def test_sides_take_turns_as_abba():
    calls = []

    def work(side):
        calls.append(side.name)
        return Sample((), len(calls))

    pairs = interleave(Noting("a", calls), Noting("b", calls), 3, work)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert [(pair.ours.ns, pair.theirs.ns, pair.first) for pair in pairs] == [
        (1, 2, "a"),
        (4, 3, "b"),
        (5, 6, "a"),
    ]
