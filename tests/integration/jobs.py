"""Machines of a data-parallel job over a memory mailbox, in virtual time: their agents are real, their ranks are pretended.
What a pretended step leaves behind follows from the step alone, so that every start can be checked."""

from __future__ import annotations

import asyncio
import functools
import itertools
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from swarm.core.events import WorkerEvent
from swarm.core.finetune import FineTune, Places
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.manifest import DataRef, Manifest, ModelRef, TaskRef
from swarm.core.rankjob import HALTED, RankEnded, RankEvent, RankPlan, RankReady, RankStepped, Saved
from swarm.core.ranks import CheckpointAt, Plan
from swarm.core.records import Control, LearnerRecord
from swarm.exchange import Exchange
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.parallel.agent import Agent
from swarm.parallel.duty import Duty
from swarm.parallel.site import Site
from swarm.parallel.store import Store
from tests.integration.ranks import FakeNetwork, Lan, address, all_plans
from tests.integration.simulation import Machines
from tests.integration.wrappers import Mortal

STEP_S = 0.5
LISTENS_S = 0.5  # after it was started
SPEC = FineTune(iters=60, save_every=10, beat_s=1.0, lease_s=4.0)
PLACE = RunKeys("testrun1")
HASHES = {"model/model.safetensors": "ab" * 32, "data/train.jsonl": "cd" * 32}
PIDS = itertools.count(100)


def manifest(spec: FineTune) -> Manifest:
    model = ModelRef(name="tiny", files=(DataRef(name="model.safetensors", sha256="ab" * 32, size_bytes=1000),))
    task = TaskRef(name="mlx-lm", data=(DataRef(name="train.jsonl", sha256="cd" * 32, size_bytes=1000),))
    return Manifest(run="testrun1", name="ft", algorithm=spec, task=task, model=model)


def state(step: int) -> bytes:
    return f"state after step {step}".encode() * 10


def adapter(step: int) -> bytes:
    return f"adapter after step {step}".encode() * 10


@dataclass
class World:
    """A run, and all that its machines have in common."""

    folder: Path
    spec: FineTune = SPEC
    store: MemoryStore = field(default_factory=MemoryStore)
    lan: Lan = field(default_factory=Lan)
    machines: Machines = field(default_factory=Machines)
    groups: dict[int, Group] = field(default_factory=dict)
    started_at: list[tuple[int, int]] = field(default_factory=list)
    """(generation, step) of each rank 0 that began."""
    dies_early: set[str] = field(default_factory=set)  # learners whose ranks are killed before their first step
    ends: dict[int, RankEnded] = field(default_factory=dict)  # of all ranks, in the step of that number

    async def create(self) -> None:
        await self.mailbox.create(PLACE.manifest, encode(manifest(self.spec), nonce="n"))

    @property
    def mailbox(self) -> MemoryMailbox:
        return MemoryMailbox(self.store)

    @property
    def exchange(self) -> Exchange:
        return Exchange(self.mailbox, manifest(self.spec))

    async def command(self, action: Any) -> None:
        await self.exchange.control(Control(action=action, by="studio"))

    async def plans(self) -> dict[int, Plan]:
        return await all_plans(self.mailbox)

    async def checkpoints(self) -> list[tuple[int, int]]:
        """(generation, step) of all that have a record; each is whole."""
        found, store = [], Store(self.mailbox, PLACE)
        for generation in range(200):
            for step in await store.steps(generation):
                record = await store.record(CheckpointAt(generation=generation, step=step))
                assert record is not None
                for file, data in ((record.state, state(step)), (record.adapter, adapter(step))):
                    assert self.store.objects[PLACE.job_file(generation, step, file.sha256)] == data
                found.append((generation, step))
        return found


class Group:
    """The ranks of one generation: they make each step together, or none."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world, self.plan = world, plan
        self.ranks: dict[int, Rank] = {}
        self.begun_s: float | None = None
        self.step = self.first = 0

    def tick(self) -> None:
        now_s, size = asyncio.get_running_loop().time(), len(self.plan.seats)
        if self.begun_s is None:
            here = [rank for rank in self.ranks.values() if rank.code is None and now_s >= rank.born_s + LISTENS_S]
            if len(here) < size:
                return None
            self.begun_s, self.step = now_s, self.ranks[0].first
            self.first = self.step
            self._tell(RankReady(**self._ready, rank=0, size=size))
            if self.step >= self.world.spec.steps:
                self._save()
                return self._end("done", 0)
        while self.alive and self.begun_s + (self.step - self.first + 1) * STEP_S <= now_s:
            self._advance()
        return None

    @property
    def alive(self) -> bool:
        return any(rank.code is None for rank in self.ranks.values())

    @property
    def _ready(self) -> dict[str, Any]:
        counts = dict.fromkeys(("rows", "valid_rows", "cut_rows", "batches_per_epoch", "trainable"), 1)
        return {
            "step": self.step,
            "steps": self.world.spec.steps,
            "generation": self.plan.generation,
            "device": "cpu",
            **counts,
        }

    def _advance(self) -> None:
        spec = self.world.spec
        if any(rank.code is not None for rank in self.ranks.values()):
            return self._end("another rank is lost", 75, error="GroupBroken", again=True)
        if self.step + 1 in self.world.ends:
            words = self.world.ends[self.step + 1]
            return self._end(words.reason, 1, error=words.error)
        self.step += 1
        halting = any(rank.halting for rank in self.ranks.values())
        seconds = dict.fromkeys(("compute_s", "waiting_s", "exchange_s", "update_s"), STEP_S / 4)
        amounts = ("tokens", "own_tokens", "positions", "padding", "microbatch_rows", "microbatch_tokens", "memory_bytes")
        counts = dict.fromkeys(amounts, 1)
        self._tell(RankStepped(step=self.step, iteration=self.step, share=0.5, loss=1.0, **counts, **seconds))
        if halting or spec.due(spec.save_every, self.step - 1):
            self._save()
        if self.step >= spec.steps:
            return self._end("done", 0)
        return self._end("halted", HALTED, again=True) if halting else None

    def _tell(self, event: RankEvent) -> None:
        for rank in self.ranks.values():
            rank.told.append(event)

    def _end(self, reason: str, code: int, *, error: str = "", again: bool = False) -> None:
        for rank in self.ranks.values():
            if rank.code is None:
                rank.last, rank.code = RankEnded(reason=reason, step=self.step, error=error, again=again), code

    def _save(self) -> None:
        rank = self.ranks[0]
        path = Path(rank.plan.checkpoints) / f"{self.plan.generation:06d}" / f"{self.step:010d}.safetensors"
        other = Path(rank.plan.adapter_path) / "adapters.safetensors"
        for file, data in ((path, state(self.step)), (other, adapter(self.step))):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        for old in sorted(path.parent.iterdir())[:-2]:
            old.unlink()
        rank.told.append(Saved(step=self.step, iteration=self.step, checkpoint=str(path), adapter=str(other)))


class Rank:
    """A process that is none (swarm/parallel/duty.py, Process)."""

    def __init__(self, world: World, plan: Plan, told: RankPlan) -> None:
        self.pid, self.world, self.plan = next(PIDS), world, told
        self.born_s, self.seat = asyncio.get_running_loop().time(), plan.seats[told.rank]
        self.last: RankEnded | None = None
        self.code: int | None = None
        self.halting = False
        self.told: list[RankEvent] = []
        self.first = 0
        if told.rank == 0:
            if plan.start is not None:
                assert told.start is not None
                assert Path(told.start).read_bytes() == state(plan.start.step), "a start is whole"
                self.first = plan.start.step
            world.started_at.append((plan.generation, self.first))
        self.group = world.groups.setdefault(plan.generation, Group(world, plan))
        self.group.ranks[told.rank] = self

    def _tick(self) -> None:
        waited = asyncio.get_running_loop().time() - self.born_s >= LISTENS_S
        if waited and self.code is None and self.seat.learner in self.world.dies_early:
            self.kill()
        if waited and self.code is None:
            self.world.lan.listening[self.pid] = (self.seat.address, self.seat.port)
        self.group.tick()

    @property
    def over(self) -> bool:
        self._tick()
        return self.code is not None

    def events(self) -> list[RankEvent]:
        self._tick()
        told, self.told = self.told, []
        return told

    def died(self) -> str:
        return "" if not self.over else self.last.reason if self.last else "its process was killed"

    def joined(self) -> bool:
        self._tick()
        return self.group.begun_s is not None

    def halt(self) -> None:
        self.halting = True

    def end(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.world.lan.listening.pop(self.pid, None)
        if self.code is None:
            self.code = -signal.SIGKILL


@dataclass
class Files:
    """What a machine has of base model and data."""

    found: dict[str, str]
    model: Path = Path("model")
    data: Path = Path("data")
    fetched: Path | None = None

    def hashes(self) -> dict[str, str]:
        return self.found


class Machine:
    """One machine of the job, until it is killed: `life` is its agent's task."""

    def __init__(
        self,
        world: World,
        name: str,
        *,
        at: int = -1,
        when: Any = "before",
        wrap: Callable[[Mailbox], Mailbox] = lambda mailbox: mailbox,
        hashes: dict[str, str] | None = None,
        versions: dict[str, str] | None = None,
        memory_bytes: int = 1 << 34,
        may_rename: bool = False,
        place: str = "",
    ) -> None:
        """`at`, `when`: of the mailbox call at which it is killed."""
        self.world, self.name = world, name
        self.events: list[WorkerEvent] = []
        self.faults = FaultyMailbox(world.mailbox)
        self.box = Mortal(wrap(self.faults), at=at, when=when)
        self.pid = world.machines.start()
        self.files = Files(dict(HASHES if hashes is None else hashes))
        home = world.folder / f"{name}-{self.pid}"
        home.mkdir()
        self.adapters = world.folder / f"adapters-{name}"
        self.ranks: list[Rank] = []
        machine, running = place or f"machine-{name}", world.machines.running
        self.site = Site(
            manifest(world.spec),
            self.files,  # type: ignore[arg-type]
            home=home,
            adapter_path=self.adapters,
            start_adapter=None,
            places=Places(),
            emit=self.events.append,
        )
        self.agent = Agent(
            self.box,
            self.site,
            LearnerRecord(
                learner=name,
                incarnation=1,
                machine=machine,
                machine_name=machine,
                boot="boot",
                pid=self.pid,
                process=str(self.pid),
                version="0",
            ),
            gone=lambda other: other.machine == machine and other.pid not in running,
            alive=lambda other: other.machine == machine and other.pid in running,
            may_rename=may_rename,
            network=FakeNetwork(world.lan, name, (address(f"10.0.0.{self.pid}"),)),
            memory_bytes=lambda: memory_bytes,
            versions=versions or {"mlx": "0.32.0", "mlx-lm": "0.32.0"},
            backends=("ring",),
            emit=self.events.append,
            duty=functools.partial(Duty, start=self._start),
        )
        self.life = asyncio.create_task(self._live())
        self.box.victim = self.life

    def _start(self, plan: Plan, told: RankPlan) -> Rank:
        self.ranks.append(Rank(self.world, plan, told))
        return self.ranks[-1]

    async def _live(self) -> str:
        try:
            ended = await self.agent.take_part()
            self.events.append(ended)
            return ended.reason
        finally:
            self.world.machines.running.discard(self.pid)
            for rank in self.ranks:  # none outlives its agent
                rank.kill()

    async def kill(self) -> None:
        self.box.dead = True
        self.life.cancel()
        await self.dead()

    async def dead(self) -> None:
        """Until it is, which needs another cancellation where it says farewell to a mailbox that it does not reach any more."""
        while not (await asyncio.wait({self.life}, timeout=0.1))[0]:
            if self.box.dead:
                self.life.cancel()

    def of(self, kind: Any) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def until(self, reached: Callable[[], bool], *, within_s: float = 300.0) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while not reached():
            assert not self.life.done(), self.events[-5:]
            assert loop.time() < until_s, self.events[-5:]
            await asyncio.sleep(0.1)
