"""Launches of a batch fit into cards of any kind, for every width that their models have."""

from types import SimpleNamespace

import pytest

from muser.devices.cuda import shapes
from muser.devices.cuda.layouts import FLOATS, Layout
from muser.formats import BlockType

CARDS = (((8, 9), 101_376, 128), ((8, 0), 166_912, 108), ((9, 0), 232_448, 132))
WIDTHS = (576, 2048, 3072, 4096, 5120, 5376, 6144, 6656, 8192, 14_336, 18_944, 19_968, 28_672)


def batch(card, kind, width, outputs, gated):
    capability, shared, processors = card
    facts = SimpleNamespace(shared=shared, capability=capability)
    low = SimpleNamespace(
        processors=processors, shared=SimpleNamespace(card=SimpleNamespace(facts=facts))
    )
    layouts = [Layout.of(kind, width, outputs)] * (1 + gated)
    line = shapes.line_of(low, layouts, gated=gated, each=1, last_share=0.8, lasts=16)
    block = 128 if kind in FLOATS else kind.elements
    return line, shapes.batch_shape(low, block, layouts, line, gated=gated)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: f"{card[1]}")
@pytest.mark.parametrize("kind", [BlockType.Q4_K, BlockType.Q6_K, BlockType.Q8_0, BlockType.F16])
@pytest.mark.parametrize("gated", [False, True])
def test_every_width_fits(card, kind, gated):
    for width in WIDTHS:
        for outputs in (256, 6656, 19_968, 131_072):
            line, form = batch(card, kind, width, outputs, gated)
            each, units = 1 + gated, Layout.of(kind, width, outputs).groups
            warps = form.threads // 32 - (form.table > 0)
            assert form.shared + shapes.OWN_BYTES <= card[1]
            assert form.threads <= (512 if kind.elements == 256 and card[0] == (9, 0) else 384)
            assert form.tiles % 2 == 0 or not gated
            assert form.copies in shapes.HELD
            if form.table == 0:  # runs
                assert form.slice * form.copies >= units
                assert line.least >= units
                assert line.least * each >= warps * units
