"""Processes on two mounts of one share that all want the same names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.share
ROOT = Path(__file__).parents[2]


def test_of_eight_processes_on_two_mounts_exactly_one_wins_each_key(shares: tuple[Path, Path]) -> None:
    """Nor is anything read torn, seen to change, or left behind: see race.py."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/process/race.py"), *map(str, shares), "--writers", "8", "--keys", "100"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    result = json.loads(done.stdout)
    assert result["violations"] == []
    assert done.returncode == 0
    assert sum(result["wins"]) == 100
    print(result)
