"""The outer step's numbers: `outer_numbers.json` was computed in plain Python, each operation rounded by `struct`.

Every decimal there is exact for its dtype. Zeros and numbers are compared with their signs, by their bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swarm.core.tensorspec import TensorSpec
from swarm.tensors.commit import OuterStep, commit
from swarm.tensors.fold import Fold
from swarm.tensors.outer import Nesterov
from swarm.tensors.precision import DTYPES, F32

CASES = json.loads(Path(__file__).with_name("outer_numbers.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['theta_dtype']}-{case['delta_dtype']}")
def test_three_rounds(case: dict[str, Any]) -> None:
    first = theta = np.array(case["theta"], np.float64).astype(DTYPES[case["theta_dtype"]])
    spec = TensorSpec("w", case["theta_dtype"], theta.shape)
    how = OuterStep(Nesterov(case["lr"], case["beta"]), master_dtype=None)
    outer = None
    for round in case["rounds"]:
        fold = Fold([spec], round["weights"], merge="mean", dtype=case["delta_dtype"])
        for delta in round["deltas"]:
            fold.add("w", {"w": np.array(delta, np.float64).astype(DTYPES[case["delta_dtype"]])})
        done = commit(spec, how, theta=theta, outer=outer, delta=fold.result("w"))
        theta, outer = done.theta, done.outer
        assert outer["w"].tobytes() == np.array(round["momentum"], np.float64).astype(F32).tobytes()
        assert theta.tobytes() == np.array(round["theta"], np.float64).astype(theta.dtype).tobytes()
    assert (theta != first).any()
