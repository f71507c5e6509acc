"""Every operator but projection and attention against the oracle."""

import numpy as np
import pytest

from muser.devices import Limits
from muser.graph import (
    Activation,
    Add,
    Argmax,
    Embed,
    GatedAct,
    HeadNorm,
    Pairing,
    RmsNorm,
    Rope,
    RopeSpec,
    Scale,
    SigmoidGate,
    Softcap,
    TakeRows,
    oracle,
    rope_table,
)
from muser.kernels import bucket_of

from .bench import TYPES, Bench, Tensors, embed_oracle, random_blocks, random_rows, step_of

COUNTS = (1, 3, 16, 17, 41)
WIDTHS = (7, 96, 576, 8200)


def compare(tally, bench, what, kernel, expected, inputs, target="y"):
    for count in COUNTS:
        label = bench.label(kernel, bucket_of(count))
        actual = bench.play({name: x[:count] for name, x in inputs.items()}, target)
        tally.compare(what, bench, label, expected[:count], actual)
    bench.close()


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("width", [1, 255, 256, 576, 1023])
def test_rms_norm(library, threads, tally, rng, width, weighted):
    x, w = random_rows(rng, 41, width), random_rows(rng, 1, width)[0]
    tensors = Tensors()
    tensors.put_vector("w", w)
    op = RmsNorm("x", "y", "w" if weighted else None, 1e-5, "norm")
    bench = Bench(library, threads, [op], {"x": width, "y": width}, tensors)
    compare(
        tally, bench, "norm", "norm", oracle.rms_norm(x, w if weighted else None, 1e-5), {"x": x}
    )


def test_head_norm_in_place(library, threads, tally, rng):
    x, w = random_rows(rng, 41, 5 * 24), random_rows(rng, 1, 24)[0]
    tensors = Tensors()
    tensors.put_vector("w", w)
    op = HeadNorm("x", "x", "w", 5, 24, 1e-6, "norm")
    bench = Bench(library, threads, [op], {"x": 120}, tensors)
    compare(tally, bench, "norm", "norm", oracle.head_norm(x, w, 5, 1e-6), {"x": x}, "x")


@pytest.mark.parametrize("pairing", list(Pairing))
@pytest.mark.parametrize("rotated", [32, 20])
def test_rope(library, threads, tally, rng, pairing, rotated):
    x = random_rows(rng, 41, 3 * 32)
    spec = RopeSpec(rotated, 10000.0, pairing)
    table = rope_table(spec, 64)[:41]
    op = Rope("x", "y", 3, 32, "r", "rope")
    bench = Bench(library, threads, [op], {"x": 96, "y": 96}, ropes={"r": spec})
    compare(tally, bench, "rope", "rope", oracle.rope(x, table, 3, pairing), {"x": x})


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_embed(library, threads, tally, rng, kind):
    width, vocabulary = 512, 30
    raw = random_blocks(rng, kind, vocabulary, width)
    tensors = Tensors()
    tensors.put("w", kind, raw, width)
    bench = Bench(
        library, threads, [Embed("y", "w", "embd")], {"y": width}, tensors, vocabulary=vocabulary
    )
    for count in COUNTS:
        tokens = rng.integers(0, vocabulary, count)
        label = bench.label("embed", bucket_of(count))
        actual = bench.play({}, "y", step_of(count, tokens=tokens))
        tally.compare(kind.name, bench, label, embed_oracle(kind, raw[tokens]), actual)
    bench.close()


def gates(rng, width):
    """Gates on both sides of every clamp of exp."""
    x = random_rows(rng, 41, width)
    x[7] = rng.uniform(-100, 100, width)
    x[8] = rng.choice(np.array([80, -80, 88.7, -88.7, 0, 40, -40.5, 80.001], np.float32), width)
    return oracle.store(x, "gate")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["sigmoid", "silu", "gelu"])
def test_gates(library, threads, tally, rng, name, width):
    gate, up = gates(rng, width), random_rows(rng, 41, width)
    if name == "sigmoid":
        op, expected = SigmoidGate("up", "gate", "y", "g"), oracle.sigmoid_gate(up, gate)
    else:
        act = Activation(name)
        op, expected = GatedAct("gate", "up", "y", act, "g"), oracle.gated_act(gate, up, act)
    rows = {"gate": width, "up": width, "y": width}
    bench = Bench(library, threads, [op], rows)
    compare(tally, bench, f"{name}_gate", f"{name}_gate", expected, {"gate": gate, "up": up})


@pytest.mark.parametrize("width", WIDTHS)
def test_add_scale_softcap(library, threads, tally, rng, width):
    a, b = random_rows(rng, 41, width), random_rows(rng, 41, width)
    b[9] = -a[9]
    wide = {"a": width, "b": width, "y": width}
    bench = Bench(library, threads, [Add("a", "b", "y", "add")], wide)
    compare(tally, bench, "add", "add", oracle.add(a, b), {"a": a, "b": b})
    bench = Bench(library, threads, [Scale("a", "y", 0.37, "scale")], wide)
    compare(tally, bench, "scale", "scale", oracle.scale(a, 0.37), {"a": a})
    bench = Bench(library, threads, [Softcap("a", "y", 30.0, "cap")], wide)
    compare(tally, bench, "softcap", "softcap", oracle.softcap(a, 30.0), {"a": a})
    fused = [Scale("a", "y", 0.37, "scale"), Softcap("y", "y", 30.0, "cap")]
    bench = Bench(library, threads, fused, wide)
    both = oracle.softcap(oracle.scale(a, 0.37), 30.0)
    compare(tally, bench, "softcap", "scale_softcap", both, {"a": a})


def test_unfused_where_the_rows_between_are_kept(library):
    ops = [Scale("a", "b", 2.0, "scale"), Softcap("b", "y", 30.0, "cap")]
    bench = Bench(library, 1, ops, {"a": 4, "b": 4, "y": 4})
    isa = library.isa
    assert bench.runner.tapes["1"].labels == (f"scale[isa={isa}]", f"softcap[isa={isa}]")
    bench.close()


def test_take_rows_and_argmax(library, threads, tally, rng):
    x = random_rows(rng, 41, 50)
    x[:, 20] = x[:, 30] = 2**21  # ties go to the lower id
    outputs = [0, 3, 4, 17, 40]
    ops = [TakeRows(("x",), "take"), Argmax("x", "argmax")]
    bench = Bench(library, threads, ops, {"x": 50}, limits=Limits(context=64, slots=1, chunk=64))
    bench.play({"x": x}, "x", step_of(41, outputs=outputs))
    label = bench.label("take_rows", "chunk")
    tally.compare("take_rows", bench, label, x[outputs], bench.runner.rows["x"][:5])
    ids = bench.runner.rows["argmax"][:5, 0].view(np.int32)
    largest = oracle.argmax(x[outputs]).astype(np.int32)
    tally.compare("argmax", bench, bench.label("argmax", "chunk"), largest, ids)
    bench.close()
