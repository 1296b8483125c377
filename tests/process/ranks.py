"""Ranks as real processes on the loopback interface."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from swarm.core.finetune import FineTune
from swarm.core.rankjob import RankEnded, RankEvent, RankPlan, decode_event

ROOT = Path(__file__).parents[2]
WAIT_S = 100
Told = TypeVar("Told")


class Rank:
    def __init__(self, plan: RankPlan, hosts: Path, log: Path) -> None:
        self.log = log
        self.events: list[RankEvent] = []
        self._changed = threading.Condition()
        self._over = False
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SWARM_STATE_DIR": str(log.parent / "state")}
        if plan.size > 1:
            environment |= {"MLX_RANK": str(plan.rank), "MLX_HOSTFILE": str(hosts)}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "swarm.parallel.rank", msgspec.json.encode(plan).decode()],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = decode_event(line)
            with self._changed:
                self.events.append(event)
                self._changed.notify_all()
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def until(self, wanted: Callable[[RankEvent], bool]) -> RankEvent:
        with self._changed:
            done = self._changed.wait_for(lambda: self._over or any(map(wanted, self.events)), WAIT_S)
            found = next(filter(wanted, self.events), None)
        assert found is not None, f"{'ended' if done else 'waited long'} without it: {self.words()}"
        return found

    def command(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def wait(self) -> int:
        code = self.process.wait(WAIT_S)
        with self._changed:
            assert self._changed.wait_for(lambda: self._over, WAIT_S)
        return code

    def of(self, kind: type[Told]) -> list[Told]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def ended(self) -> RankEnded:
        last = self.events[-1]
        assert isinstance(last, RankEnded), self.words()
        return last

    def words(self) -> str:
        return f"{self.events[-3:]}\n{self.log.read_text(errors='replace')[-3000:]}"


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


@contextmanager
def ranks(
    folder: Path,
    config: FineTune,
    *,
    size: int,
    model: Path,
    data: Path,
    generation: int = 0,
    shares: Sequence[int] = (),
    **values: Any,
) -> Iterator[list[Rank]]:
    """The ranks of one generation, which are gone when the block ends."""
    home = folder / str(generation)
    home.mkdir(parents=True, exist_ok=True)
    hosts = home / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in free_ports(size)]))
    started = []
    try:
        for rank in range(size):
            plan = RankPlan(
                rank=rank,
                size=size,
                generation=generation,
                spec=config,
                model=str(model),
                data=str(data),
                adapter_path=str(folder / "adapters"),
                checkpoints=str(folder / "checkpoints"),
                shares=tuple(shares),
                **values,
            )
            started.append(Rank(plan, hosts, home / f"rank-{rank}.log"))
        yield started
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()
