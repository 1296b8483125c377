"""A recorded round closes to the same keys on every machine: whatever framework its learners train with, and whatever vector
instructions the closer's CPU has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from swarm.core.specs import DiLoCo
from swarm.learners.numpy import NumpyAdapter
from swarm.learners.select import adapter_for
from swarm.tasks.blank import build
from swarm.tensors.codec import encode
from tests.golden.test_cpu_levels import USED
from tests.integration.closing_by_hand import SPEC, run_of
from tests.integration.simulation import virtually

SHAPES = {"layer000.weight": (70, 33), "layer001.weight": (129,)}
SPECS = [
    DiLoCo(delta_dtype=delta, commit_dtype=commit, merge=merge, momentum_dtype=momentum)
    for delta, commit, merge, momentum in (
        (None, None, "mean", "F32"),
        ("BF16", "F8_E4M3", "rda", "F32"),
        ("F8_E4M3", "F4", "mean", "BF16"),
        ("F4", "BF16", "rda", "F16"),
        ("F16", None, "rda", "F32"),
    )
]


async def close(spec: DiLoCo, frameworks: tuple[str, str]) -> list[str]:
    """SHA-256 of all that two rounds of two learners of these frameworks write."""
    fields = {name: getattr(spec, name) for name in ("delta_dtype", "commit_dtype", "merge", "momentum_dtype")}
    start = NumpyAdapter(build("numpy", SHAPES, seed=0)[0])
    bench = await run_of(start, msgspec.structs.replace(SPEC, **fields))
    written = []
    for round in range(2):
        anchor = await bench.theta()
        for k, framework in enumerate(frameworks):
            model, scale = build(framework, SHAPES, seed=0)
            adapter = adapter_for(model)
            adapter.apply(anchor)
            scale(1 - 2.0 ** -(5 + k))  # exactly the same in every framework
            delta: dict[str, Any] = {}
            for tensor in bench.exchange.schema:
                here = adapter.snapshot()[tensor.name]
                delta |= encode(np.ascontiguousarray(anchor[tensor.name]), here, spec=tensor, dtype=spec.delta_dtype)
            key = await bench.publish(f"learner-{k}", delta, round=round, dtype=spec.delta_dtype, tokens=100 + 7 * k)
            written.append(key.rpartition("/")[2])
        closed = await bench.close(round)
        assert closed is not None
        assert len(closed.record.participants) == 2
        bench.before = closed.record
        written += [ref.sha256 for ref in (closed.record.theta, closed.record.outer, closed.record.update) if ref is not None]
    return written


def all_of_it(frameworks: tuple[str, str]) -> list[list[str]]:
    return [virtually(close(spec, frameworks)) for spec in SPECS]


@pytest.mark.parametrize("pair", [("torch", "torch"), ("torch", "mlx"), ("mlx", "torch"), ("mlx", "mlx")])
def test_learners_of_both_frameworks_give_the_same_keys(pair: tuple[str, str]) -> None:
    for framework in set(pair):
        pytest.importorskip(f"{framework}.core" if framework == "mlx" else framework)
    assert all_of_it(pair) == all_of_it(("numpy", "numpy"))


def elsewhere(without: list[str]) -> list[list[str]]:
    """What a process without these CPU features writes."""
    script = (
        "import json; from tests.golden.test_closed_round import all_of_it; print(json.dumps(all_of_it(('numpy', 'numpy'))))"
    )
    root = Path(__file__).parents[2]
    env = os.environ | {"NPY_DISABLE_CPU_FEATURES": " ".join(without), "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-c", script], env=env, cwd=root, capture_output=True, text=True, check=True)
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.process
@pytest.mark.parametrize("level", range(len(USED)))
def test_the_same_keys_without_vector_instructions(level: int) -> None:
    assert elsewhere(USED[level:]) == all_of_it(("numpy", "numpy"))
