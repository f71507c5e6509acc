"""The oracle behind the device protocol."""

import numpy as np
import pytest

from muser.devices import Limits, OracleDevice, Step
from muser.errors import Cancelled
from muser.formats import GgufFile
from muser.models import build
from muser.models.synth import synthesise
from muser.weights import Weights


def test_cancel_stays_until_resume(tmp_path):
    synthesise(tmp_path / "m.gguf", architecture="llama", weights="f32", seed=1)
    with GgufFile.open(tmp_path / "m.gguf") as file:
        graph = build(file.metadata, file.tensors)
        runner = OracleDevice().load(graph, Weights(file, graph), Limits(8, 1, 8))
        one = np.zeros(1, np.int32)
        first = runner.forward(Step(one, one, one, one))
        runner.cancel()
        for _ in range(2):
            with pytest.raises(Cancelled):
                runner.forward(Step(one, one, one, one))
        runner.resume()
        assert runner.forward(Step(one, one, one, one)).tobytes() == first.tobytes()
