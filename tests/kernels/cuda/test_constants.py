"""Numbers that stand both in a text and in the Python that launches it."""

import re

import pytest

from muser.devices.cuda import attending, projecting, shapes
from muser.kernels.source import read_source

CONSTANT = r"constexpr int [^;]*\b{name} = (\d+)"


@pytest.mark.parametrize(
    ("text", "pattern", "value"),
    [
        ("matvec.cuh", CONSTANT.format(name="MOST_SLOTS"), shapes.SLOTS),
        ("blocks.cuh", CONSTANT.format(name="TILE_OUTPUTS"), shapes.TILE_OUTPUTS),
        ("attention_few.cuh", CONSTANT.format(name="FEW_TILES"), attending.FEW_TILES),
        ("attention_deep.cuh", CONSTANT.format(name="SIDES"), attending.DEEP_THREADS // 256),
        ("attention_few.cuh", CONSTANT.format(name="MORE_TILES"), attending.MORE_TILES),
        ("attention_few.cuh", CONSTANT.format(name="MOST_TILES"), attending.MOST_TILES),
        ("batch.cuh", CONSTANT.format(name="COPIES"), shapes.COPIES),
        ("held.cuh", CONSTANT.format(name="HELD_BYTES"), projecting.HELD_BYTES),
        ("batch.cuh", r"sizeof\(Chain\) == (\d+)", shapes.CHAIN),
        ("batch.cuh", r"sizeof\(Job\) == (\d+)", shapes.JOB),
    ],
)
def test_text_and_launch_agree(text, pattern, value):
    found = re.search(pattern, read_source("cuda").texts[text].decode())
    assert found is not None
    assert int(found[1]) == value


def test_a_row_is_held_by_as_many_groups_as_a_kernel_is_made_for():
    text = read_source("cuda").texts["quantise.cuh"].decode()
    assert tuple(map(int, re.findall(r"a\.held == (\d+)", text))) == projecting.HELD
