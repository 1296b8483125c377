"""Several learners over one memory mailbox, in virtual time: when nothing is ready, the clock jumps to the next timer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import numpy as np

from swarm.core.events import Trouble, WorkerEvent
from swarm.core.manifest import Manifest, TaskRef
from swarm.core.records import EvalRecord, LearnerRecord, Role
from swarm.core.specs import Algorithm
from swarm.exchange import Exchange, create_run
from swarm.learners.contract import Adapter
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.handoff import Handoff, Publication, Tensors
from swarm.runtime.inner import InnerLoop, params_sha256
from swarm.runtime.local import Loaded
from swarm.runtime.participant import Participant
from swarm.runtime.resuming import Keeper, of_task
from swarm.tasks.contract import TaskState

T = TypeVar("T")
SHAPES = {"a.weight": (6, 4), "b.bias": (6,), "c.weight": (3, 6)}


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now_s = max(self.now_s, self._scheduled[0]._when)
        super()._run_once()


def virtually(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def model(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def draft_of(adapter: Adapter, spec: Algorithm, **fields: Any) -> tuple[Manifest, list[Tensors]]:
    """The manifest, not written yet, of a run whose Θ⁰ is what `adapter` holds; Θ⁰ by fragment."""
    schema, theta = adapter.schema(), adapter.snapshot()
    described = {"run": "testrun1", "name": "test-run", "task": TaskRef(name="none")} | fields
    draft = Manifest(algorithm=spec, tensors=tuple(schema), schema_sha256=schema.digest, init=(), **described)
    return draft, [{name: theta[name] for name in names} for names in draft.plan]


async def new_run(store: MemoryStore, spec: Algorithm, *, adapter: Adapter | None = None, **fields: Any) -> Manifest:
    """A run of `model(7)`, or of what `adapter` holds."""
    manifest, _ = await create_run(MemoryMailbox(store), *draft_of(adapter or NumpyAdapter(model(7)), spec, **fields))
    return manifest


class Machines:
    """Which simulated processes run: what `gone` and `alive` are told."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self._next_pid = 1

    def start(self) -> int:
        pid, self._next_pid = self._next_pid, self._next_pid + 1
        self.running.add(pid)
        return pid


class FakeStore:
    """A local checkpoint in memory, which a learner's next incarnation finds: what is saved is copied, as a disk does."""

    def __init__(self) -> None:
        self.saved: Loaded | None = None
        self.saves = 0
        self.fails: Exception | None = None

    def save(self, sections: Any, values: Any) -> None:
        if self.fails is not None:
            raise self.fails
        copied = {section: {name: np.array(a) for name, a in arrays.items()} for section, arrays in sections.items()}
        self.saved = Loaded(copied, json.loads(json.dumps(values)), 1)
        self.saves += 1

    def load(self) -> Loaded | None:
        return self.saved

    def remove(self) -> None:
        self.saved = None


class Learner:
    """One simulated process of a learner: its inner steps pull the parameters towards a target of its own."""

    def __init__(
        self,
        store: MemoryStore,
        manifest: Manifest,
        name: str,
        machines: Machines,
        *,
        step_s: float = 0.1,
        machine: str = "",
        wrap: Callable[[Mailbox], Mailbox] = lambda mailbox: mailbox,
        tokens: int = 10,
        poison: bool = False,
        may_rename: bool = False,
        role: Role = "both",
        local: FakeStore | None = None,
        momentum: float = 0.0,
        noise: float = 0.0,
        adapter: Adapter | None = None,
    ) -> None:
        self.name, self.step_s, self.tokens, self.poison = name, step_s, tokens, poison
        self.adapter = adapter or NumpyAdapter(model(1))
        self.target = model(sum(map(ord, name)))
        self.handoff = Handoff()
        self.events: list[WorkerEvent] = []
        self.machines, self.pid = machines, machines.start()
        self.machine = machine or f"machine-{name}"
        self.exchange = Exchange(wrap(MemoryMailbox(store)), manifest)
        self.participant = Participant(
            self.exchange,
            LearnerRecord(
                learner=name,
                incarnation=1,
                machine=self.machine,
                machine_name=self.machine,
                boot="boot",
                pid=self.pid,
                process=str(self.pid),
                version="0",
                role=role,
            ),
            self.handoff,
            schema=self.adapter.schema(),
            gone=lambda other: other.machine == self.machine and other.pid not in machines.running,
            alive=lambda other: other.machine == self.machine and other.pid in machines.running,
            may_rename=may_rename,
            emit=self.events.append,
        )
        self.inner: InnerLoop | None = None
        self.local, self.momentum, self.noise = local, np.float32(momentum), np.float32(noise)
        self.steps = 0
        self.position = 0  # in the data: the noise of a step depends on it
        self.velocity = {name: np.zeros_like(array) for name, array in model(1).items()}  # the inner optimizer's state
        self.params = ""
        self.leaving = False
        self.leaves_after: int | None = None  # inner steps

    async def live(self) -> str:
        """Train until the run ends; returns why. Cancelling this task is kill -9."""
        try:
            return await self._live()
        finally:
            self.machines.running.discard(self.pid)

    async def _live(self) -> str:
        start = await self.participant.join()
        exchange = self.exchange
        inner = self.inner = InnerLoop(
            self.adapter,
            exchange.manifest.algorithm,
            plan=exchange.plan,
            schedule=exchange.schedule,
            start=start,
            owns=self.participant.gives_away,
        )
        self.keeper = Keeper(self.local, [of_task(self)], emit=self.events.append, clock=asyncio.get_running_loop().time)
        rounds = self.keeper.open(inner)
        self.keeper.resume(inner, self.handoff, await self.participant.verdicts(rounds))
        following = asyncio.create_task(self.participant.run())
        try:
            reason = await self._train(inner, following)
        except asyncio.CancelledError:
            following.cancel()
            if self.participant._beating is not None:
                self.participant._beating.cancel()
            raise
        except BaseException:  # the communication side has failed, and says its last words
            await self.participant.leave()
            raise
        lacking = await self.participant.parameters(inner.lacking)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await self.participant.leave()
        inner.take_committed(lacking)
        self.params = params_sha256(self.adapter)
        return reason

    async def _train(self, inner: InnerLoop, following: asyncio.Task[None]) -> str:
        boundary = False
        while True:
            if following.done():
                following.result()
            while (aligned := self.handoff.take_aligned()) is not None:
                inner.align(aligned)
                boundary = True
                if aligned.evaluate is not None:
                    with inner.as_committed():
                        self.handoff.evaluated(EvalRecord(round=aligned.evaluate, learner=self.name, loss=self.distance()))
            if self.leaving or self.steps == self.leaves_after:
                self.keeper.save(inner, self.handoff, boundary=True, leaving=True)
                return "left"
            if self.handoff.ended is not None:
                self.keeper.remove()
                return self.handoff.ended
            telemetry = self.handoff.telemetry
            if self.handoff.paused:
                telemetry.phase = "paused"
                await asyncio.sleep(0.05)
                continue
            publication = inner.due(flush=self.handoff.flush, hurried=self.handoff.hurried(inner.round))
            if publication is not None:
                boundary = True
                self.publish(publication)
                if publication.flaw:
                    inner.take_committed(await self.participant.parameters(inner.lacking))
            self.keeper.save(inner, self.handoff, boundary=boundary)
            boundary = False
            telemetry.held = self.handoff.held
            if inner.waits or self.handoff.held:
                telemetry.phase = "paused" if self.handoff.held else "wait"
                await asyncio.sleep(0.05)
                continue
            telemetry.phase = "train"
            await asyncio.sleep(self.step_s)
            self.step()
            telemetry.trained_s += self.step_s
            inner.count(tokens=self.tokens, loss=self.distance(), seconds_s=self.step_s)

    def publish(self, publication: Publication) -> None:
        self.handoff.publish(publication)
        if publication.flaw:
            self.events.append(Trouble(message=f"{publication.flaw} is not finite: {self.keeper.mend()}"))

    def step(self) -> None:
        theta = self.adapter.snapshot()
        rng = np.random.default_rng([sum(map(ord, self.name)), self.position])
        for n, a in theta.items():
            pull = np.float32(0.05) * (self.target[n] - a)
            if self.noise:
                pull += self.noise * rng.standard_normal(a.shape, dtype=np.float32)
            self.velocity[n] = self.momentum * self.velocity[n] + pull
        moved = {n: a + self.velocity[n] for n, a in theta.items()}
        if self.poison:
            moved["b.bias"] = moved["b.bias"] * np.float32("nan")
        self.adapter.apply(moved)
        self.steps += 1
        self.position += 1

    def state(self) -> TaskState:
        return TaskState(arrays=self.velocity, values={"position": self.position})

    def load(self, state: TaskState) -> None:
        self.velocity = {name: np.array(array) for name, array in state.arrays.items()}
        self.position = state.values["position"]

    def distance(self) -> float:
        return float(sum(np.square(self.target[n] - a).sum() for n, a in self.adapter.snapshot().items()))


async def together(*lives: Awaitable[str]) -> list[Any]:
    return await asyncio.gather(*lives, return_exceptions=True)
