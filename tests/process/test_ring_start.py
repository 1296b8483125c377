"""Real ranks of MLX's ring, each at a loopback address of its own, started in the order that a meeting gives them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swarm.core import meeting
from swarm.core.rankenv import VARIABLES, group_environment, group_file
from swarm.core.ranks import Plan, Seat
from swarm.network import ports

RANK = """
import mlx.core as mx
group = mx.distributed.init(strict=True, backend="ring")
total = mx.distributed.all_sum(mx.array([1.0 + group.rank()]), stream=mx.cpu)
print(group.rank(), group.size(), total.item())
"""
LIMIT_S = 60.0


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no loopback address but 127.0.0.1")
def test_ranks_that_are_seen_listening_wait_for_the_last_one(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    seats = []
    for n, name in enumerate(("air", "mini", "pro"), 2):
        place = f"127.0.0.{n}"
        port = ports.free_ports([place], meeting.ports(os.getpid(), name, 1), 1)[0]
        seats.append(Seat(learner=name, incarnation=1, address=place, port=port))
    plan = Plan(generation=0, leader="air", seats=tuple(seats), backend="ring", seed=0)
    hosts = tmp_path / "hosts.json"
    hosts.write_text(group_file(plan), encoding="utf-8")
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    ranks: list[subprocess.Popen[str]] = []

    def start(rank: int) -> None:
        env = clean | group_environment(plan, rank, str(hosts))
        ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env=env, stdout=subprocess.PIPE, text=True))

    try:
        start(0)
        start(1)
        until_s = time.monotonic() + LIMIT_S
        while not all(ports.listens(rank.pid, s.address, s.port) for rank, s in zip(ranks, plan.seats, strict=False)):
            assert time.monotonic() < until_s
            assert [rank.poll() for rank in ranks] == [None, None]
            time.sleep(0.05)
        assert "held by another program" in ports.obstacle(seats[0].address, seats[0].port), "not by an option of its socket"
        start(2)
        told = [rank.communicate(timeout=LIMIT_S)[0].split() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert told == [[str(n), "3", "6.0"] for n in range(3)]
