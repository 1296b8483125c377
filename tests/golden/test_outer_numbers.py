"""The outer step's numbers: `outer_numbers.json` was computed in plain Python, each operation rounded by `struct`.

Every decimal there is exact for its dtype. Zeros and numbers are compared with their signs, by their bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swarm.tensors.outer import merge_and_step
from swarm.tensors.precision import DTYPES, F32

CASES = json.loads(Path(__file__).with_name("outer_numbers.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['theta_dtype']}-{case['delta_dtype']}")
def test_three_rounds(case: dict[str, Any]) -> None:
    theta_dtype, delta_dtype = DTYPES[case["theta_dtype"]], DTYPES[case["delta_dtype"]]
    theta = np.array(case["theta"], np.float64).astype(theta_dtype)
    momentum = np.zeros(theta.shape, F32)
    for round in case["rounds"]:
        deltas = [np.array(delta, np.float64).astype(delta_dtype) for delta in round["deltas"]]
        merge_and_step(theta, momentum, deltas, round["weights"], lr=case["lr"], beta=case["beta"])
        assert momentum.tobytes() == np.array(round["momentum"], np.float64).astype(F32).tobytes()
        assert theta.tobytes() == np.array(round["theta"], np.float64).astype(theta_dtype).tobytes()
    assert (theta != np.array(case["theta"])).any()
