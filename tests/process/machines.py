"""Real workers over a real folder, for tests that kill some of them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from swarm import api, launcher
from swarm.core.events import Ended, Failed, RoundClosed, WorkerEvent
from swarm.core.jobs import CreateRun
from swarm.core.records import Role
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox import init_mailbox, open_mailbox
from swarm.manifests import read_manifest

HANG_S = 90.0  # nothing here takes so long on a machine that works


class Machine:
    """One worker, its events read as they come."""

    def __init__(self, order: object) -> None:
        # In the foreground: it leaves when the tests are ended from outside.
        self.worker = launcher.start(order, foreground=True)  # type: ignore[arg-type]
        self.events: list[WorkerEvent] = []

    def look(self) -> list[WorkerEvent]:
        self.events += self.worker.events.read()
        return self.events

    def until(self, wanted: Callable[[WorkerEvent], bool]) -> WorkerEvent:
        """The first event that is wanted. Fails if the worker ends or hangs before."""
        until_s = time.monotonic() + HANG_S
        while True:
            ended = self.worker.process.poll() is not None
            for event in self.look():
                if wanted(event):
                    return event
            assert not ended, self.words()
            assert time.monotonic() < until_s, self.words()
            time.sleep(0.02)

    def wait(self) -> int:
        code = self.worker.process.wait(HANG_S)
        self.look()
        return code

    def kill(self) -> None:
        os.kill(self.worker.process.pid, signal.SIGKILL)
        self.worker.process.wait(HANG_S)

    @property
    def ended(self) -> Ended | None:
        return next((e for e in self.look() if isinstance(e, Ended)), None)

    def words(self) -> str:
        failed = [e.message for e in self.look() if isinstance(e, Failed)]
        return f"{failed} {self.events[-5:]} {launcher.log_tail(self.worker.job / 'log.txt', 30)}"


def make_mailbox(folder: Path) -> str:
    location = str(folder / "mailbox")
    asyncio.run(init_mailbox(location))
    return location


def new_run(*, rounds: int | None, algorithm: DiLoCo, task: str = "mlp", **options: str) -> CreateRun:
    return api.new_run(task=task, options=options, algorithm=algorithm, rounds=rounds, seed=1, name="kill-test")


def start(mailbox: str, run: CreateRun, learner: str, framework: str, *, create: bool = False, role: Role = "both") -> Machine:
    order = api.learn_order(
        mailbox,
        run.run,
        create=run if create else None,
        learner_id=learner,
        framework=framework,
        device="cpu",
        threads=1,
        role=role,
    )
    return Machine(order)


def closed(round: int) -> Callable[[WorkerEvent], bool]:
    return lambda event: isinstance(event, RoundClosed) and event.round >= round


def check_mailbox(location: str, run: str) -> int:
    """Assert that the mailbox is whole; returns the number of rounds. Every record decodes and follows its parent, every
    payload in it has the hash of its name, and nothing is left of rounds that were given up long ago."""

    async def check() -> int:
        mailbox = open_mailbox(location)
        await mailbox.open()
        exchange = Exchange(mailbox, await read_manifest(mailbox, run))
        newest = await exchange.newest_round()
        records = [await exchange.round(r) for r in range(newest + 1)]
        assert [record.round for record in records if record] == list(range(newest + 1))
        for record in await exchange.newest_records(newest):
            if record is not None:
                await exchange.fetch(record.fragment, record.theta)
                if record.outer is not None:  # what stands in it is the outer optimizer's business
                    assert await mailbox.read(exchange.key_of(record.fragment, record.outer))
        return newest + 1

    rounds = asyncio.run(check())
    for path in Path(location).rglob("*.safetensors"):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem, path
    for path in Path(location, "runs").rglob("*.json"):
        body, envelope, rest = path.read_bytes().split(b"\n")
        assert not rest
        assert msgspec.json.decode(envelope)["sha256"] == hashlib.sha256(body).hexdigest()
    return rounds
