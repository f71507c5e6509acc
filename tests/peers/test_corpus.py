"""Tags come off and running text remains."""

from agree.corpus import strip_tags


def test_tags_come_off_and_punctuation_closes_up() -> None:
    tagged = "\n\t``/`` Only/rb ,/, the/at jury/nn ''/'' (/( said/vbd 1/2/cd )/) ./.\n"
    assert strip_tags(tagged) == '"Only, the jury" (said 1/2).'


def test_lines_become_paragraphs_and_a_double_ending_one() -> None:
    assert strip_tags("\n\nWhere/wrb ?/. ?/.\n\n\n\tHere/rb ;/. ;/.\n") == "Where?\n\nHere;"
