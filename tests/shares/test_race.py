"""Processes on two mounts of one share that all want the same names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = pytest.mark.share
ROOT = Path(__file__).parents[2]


def race(folders: Sequence[Path], keys: int) -> None:
    """What is checked besides: nothing is read torn, or seen to change, or left behind (race.py)."""
    options = ["--writers", "8", "--keys", str(keys), "--objects-every", "10", "--pause-s", "1"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/process/race.py"), *map(str, folders), *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    result = json.loads(done.stdout)
    print(result)
    assert result["violations"] == []
    assert done.returncode == 0
    assert sum(result["wins"]) == keys


def test_of_eight_processes_on_two_mounts_exactly_one_wins_each_key(shares: tuple[Path, Path]) -> None:
    contested = [share.parent / "contested" / share.name for share in shares]  # only SMB needs one of its own: guest.sh
    race(contested if contested[0].exists() else shares, keys=100)


def test_nor_do_two_win_where_clients_hold_oplocks(shares: tuple[Path, Path]) -> None:
    if not (shares[0].parent / "contested").exists():
        pytest.skip("this share has no oplocks")
    race(shares, keys=1)  # each of them takes a dozen seconds
