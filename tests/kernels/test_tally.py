"""Runs last: no instruction set may pass by not being tried, or by being another one's copy."""


def test_every_instruction_set_was_compared(tally, libraries):
    for isa in libraries:
        assert tally.compared(isa) > 0, f"nothing was compared under {isa}"


def test_instruction_sets_are_different_libraries(libraries):
    hashes = [library.sha256 for library in libraries.values()]
    assert len(set(hashes)) == len(hashes)
