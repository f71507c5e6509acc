"""The oracle gives every digest that a device must give."""

import numpy as np
import pytest

from muser.formats import dequantise
from muser.graph import Activation, conformance, oracle, rope_table


@pytest.mark.parametrize("vector", conformance.WEIGHTS, ids=lambda v: v.type.name)
def test_weights(vector):
    weights, rows = vector.weights(), vector.rows()
    values = oracle.embed(vector.type, weights)
    assert np.array_equal(values, oracle.z(dequantise(vector.type, weights)))
    assert conformance.digest(values) == vector.values
    assert conformance.digest(oracle.project(rows, vector.type, weights)) == vector.products


@pytest.mark.parametrize("vector", conformance.ROPES, ids=lambda v: v.pairing)
def test_ropes(vector):
    table = rope_table(vector.spec(), conformance.ROWS)
    turned = oracle.rope(vector.rows(), table, 2, vector.pairing)
    assert conformance.digest(turned) == vector.digest


def test_gate_and_softcap():
    gate, up = conformance.gate_rows(), conformance.up_rows()
    gated = oracle.gated_act(gate, up, Activation.SILU)
    assert conformance.digest(gated) == conformance.SILU_GATE
    capped = oracle.softcap(gate, conformance.SOFTCAP_CAP)
    assert conformance.digest(capped) == conformance.SOFTCAP


def test_inputs_reach_both_signs_and_many_codes():
    """A digest over a few values would let much pass."""
    for vector in conformance.WEIGHTS:
        raw = vector.weights()
        assert np.unique(raw).size > 100
        products = oracle.project(vector.rows(), vector.type, raw)
        assert products.min() < 0 < products.max()
        assert np.unique(products).size > products.size * 0.9
