"""`swarm bench` on a small model: that it measures everything, and says it. What it measures is nobody's business here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIGURES = {
    *("round", "closer_memory", "follower_memory", "mean", "rda", "publish_F8_E4M3", "publish_F4"),
    *("rate", "rate_beyond", "join", "operations"),
    *(f"{what}_{rounds}" for what in ("poll", "lists") for rounds in (10, 9_999)),
}


def bench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "swarm", "bench", "--params", "1000000", "--dir", str(folder), *arguments]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=280)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(300)
def test_it_measures_everything_and_leaves_nothing(tmp_path: Path) -> None:
    done = bench(tmp_path, "--json", "--rounds", "3", "--delta-dtype", "BF16", "--merge", "rda")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    figures = {figure["name"]: figure for figure in found["figures"]}
    assert set(figures) == FIGURES
    for name, figure in figures.items():
        assert figure["value"] is None or figure["holds"] == (round(figure["value"], 2) <= figure["bound"]), name
    assert figures["lists_10"]["value"] == figures["lists_9999"]["value"] == 4
    assert found["options"]["delta_dtype"] == "BF16"
    assert all(seconds > 0 for seconds in found["limits"].values())
    assert [history["rounds"] for history in found["histories"]] == [10, 9_999]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_what_cannot_be_measured_is_one_line(tmp_path: Path) -> None:
    done = bench(tmp_path, "--fragments", "101")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "--fragments" in done.stderr
    assert "Traceback" not in done.stderr
