"""Hundreds of sums of mixed sizes over MLX's ring: all are right, and none of them hangs, as was reported of some versions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("mlx.core")

from swarm.parallel.hangs import advice
from tests.process.ranks import ROOT, free_ports

pytestmark = pytest.mark.process


def stress(folder: Path, *, size: int, count: int, seed: int, limit_s: float) -> None:
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(size)]))
    outs = [folder / f"rank-{rank}.log" for rank in range(size)]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, out in enumerate(outs):
            with out.open("wb") as file:
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts)}
                words = [sys.executable, "-m", "tests.process.ring_stress", *map(str, (rank, size, count, seed))]
                ranks.append(subprocess.Popen(words, cwd=ROOT, env=environment, stdout=file, stderr=file))
        until_s = time.monotonic() + limit_s
        while any(rank.poll() is None for rank in ranks):
            if any(rank.poll() for rank in ranks):
                break  # the others may wait for it
            if time.monotonic() > until_s:
                pytest.fail(f"no end after {limit_s:.0f} s: {told(outs)}\n{advice('ring', size)}")
            time.sleep(0.05)
        assert not any(rank.poll() for rank in ranks), told(outs)
        assert all(int(last(out)) >= count for out in outs), told(outs)
    finally:
        for each in ranks:
            each.kill()
            each.wait()


def last(out: Path) -> str:
    return (out.read_text(errors="replace").split("\n")[-2:] or [""])[0]


def told(outs: list[Path]) -> str:
    return "; ".join(f"rank {rank} came to {last(out)!r:.300}" for rank, out in enumerate(outs))


@pytest.mark.slow
@pytest.mark.parametrize("size", [3, 4])
def test_sums_of_mixed_sizes(tmp_path: Path, size: int) -> None:
    stress(tmp_path, size=size, count=120, seed=0, limit_s=100)


@pytest.mark.slow
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("size", [3, 4])
def test_many_sums_of_mixed_sizes(tmp_path: Path, size: int) -> None:
    stress(tmp_path, size=size, count=2000, seed=1, limit_s=900)


def test_a_hang_is_told_with_advice(tmp_path: Path) -> None:
    """The same ranks, given too little time."""
    with pytest.raises(pytest.fail.Exception, match=r"no end after 0 s: rank 0 came to[^\n]*\n.*newest MLX"):
        stress(tmp_path, size=3, count=10**9, seed=0, limit_s=0.3)
