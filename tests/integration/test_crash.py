"""A participant killed before or after any of its mailbox calls stops nobody, breaks nothing, and may come back."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import Literal

import pytest

from swarm.core.manifest import Manifest
from swarm.core.records import Control, Role
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.roles import Syncer
from tests.integration.simulation import Learner, Machines, new_run, virtually
from tests.integration.wrappers import Mortal, Witness

When = Literal["before", "after"]
STEP_S, POLL_S = 0.1, 0.1
KILLED_BEFORE_ROUND = 4
CHECKPOINTS_KEPT = 2
PAUSED_AT_S, RESUMED_AT_S = 0.5, 2.0


@dataclass(frozen=True)
class Case:
    """Learners 'a' and 'b', and a syncer 'nas' if there is one; who is killed."""

    fragments: int = 1
    overlap: int = 0
    in_flight: int = 1
    role: Role = "both"  # the learners'
    syncer: bool = False
    victim: str = "b"
    checkpoint_every: int = 0
    paused: bool = False

    @property
    def spec(self) -> DiLoCo:
        # The survivor need not wait for a starter that died: one opens the run.
        return DiLoCo(
            sync_every=2,
            fragments=self.fragments,
            in_flight=self.in_flight,
            overlap_steps=self.overlap,
            quorum_size=2,
            start_learners=1,
            beat_s=1.0,
            lease_s=3.0,
        )

    @property
    def rounds(self) -> int:
        return 8 + 4 * self.fragments  # all again for more than two cycles at the end

    @property
    def names(self) -> tuple[str, ...]:
        return ("a", "b", "nas") if self.syncer else ("a", "b")

    @property
    def goes_on_alone(self) -> bool:
        """Whether the others can close rounds without the victim."""
        return self.role != "learner" or self.victim != "nas"

    async def run(self, store: MemoryStore) -> Manifest:
        fields = {"checkpoint_every": self.checkpoint_every, "checkpoints_kept": CHECKPOINTS_KEPT}
        return await new_run(store, self.spec, rounds=self.rounds, **fields)

    def start(self, store: MemoryStore, manifest: Manifest, name: str, machines: Machines, box: Mailbox) -> Learner | Syncer:
        if name == "nas":
            return Syncer(store, manifest, name, machines, wrap=lambda _: box)
        return Learner(store, manifest, name, machines, step_s=STEP_S, role=self.role, wrap=lambda _: box)


async def check(case: Case, store: MemoryStore, manifest: Manifest, wrongs: list[str]) -> None:
    exchange = Exchange(MemoryMailbox(store), manifest)
    last, cycle = case.rounds - 1, len(exchange.plan)
    records = [await exchange.round(r) for r in range(last + 1)]  # the chain of parents is checked on the way
    assert all(record is not None for record in records)
    assert await exchange.newest_round() == last
    for record in records[-2 * cycle :]:
        assert record is not None
        await exchange.fetch(record.fragment, record.theta)
        assert record.outer is not None
        await exchange.fetch(record.fragment, record.outer, dtype="F32")
    kept = await exchange.checkpoints()
    for round in kept:
        await exchange.fetch_checkpoint(round)
    assert len(kept) == (CHECKPOINTS_KEPT if case.checkpoint_every else 0)
    for key in store.objects:
        parts = key.removeprefix(f"{exchange.keys.root}/").split("/")
        number = next((int(part) for part in parts if part.isdigit()), 0)
        if parts[0] in ("snapshots", "claims") or parts[:2] in (["blobs", "snapshots"], ["blobs", "rounds"]):
            assert number > last - 2 * cycle, key
        if parts[:2] == ["blobs", "checkpoints"]:
            assert number in kept, key
    assert len([key for key in store.objects if "/beats/" in key]) <= 4 * len(case.names)
    assert wrongs == []


async def pause_and_resume(store: MemoryStore, manifest: Manifest) -> None:
    exchange = Exchange(MemoryMailbox(store), manifest)
    await asyncio.sleep(PAUSED_AT_S)
    await exchange.control(Control(action="pause"))
    await asyncio.sleep(RESUMED_AT_S - PAUSED_AT_S)
    await exchange.control(Control(action="resume"))


async def killed(case: Case, at: int, when: When) -> None:
    store, machines, wrongs = MemoryStore(), Machines(), list[str]()
    manifest = await case.run(store)
    commanding = [asyncio.create_task(pause_and_resume(store, manifest))] if case.paused else []
    box = Mortal(Witness(store, wrongs), at=at, when=when)
    others = {
        name: case.start(store, manifest, name, machines, Witness(store, wrongs)) for name in case.names if name != case.victim
    }
    victim = case.start(store, manifest, case.victim, machines, box)
    box.victim = asyncio.create_task(victim.live())
    lives = [asyncio.create_task(other.live()) for other in others.values()]
    await asyncio.wait({box.victim})
    assert box.dead, "the call came"
    assert box.victim.cancelled()
    await asyncio.gather(*commanding)

    loop = asyncio.get_running_loop()
    survivor = others["a"]
    died_s, newest = loop.time(), survivor.participant.newest
    while case.goes_on_alone and survivor.participant.newest < newest + 2:
        await asyncio.sleep(POLL_S)
        training_s = 2 * (case.spec.sync_every * STEP_S + 5 * POLL_S)
        assert loop.time() - died_s < 3 * case.spec.lease_s + training_s, f"{box.last}: the survivor goes on"

    again = case.start(store, manifest, case.victim, machines, Witness(store, wrongs))
    assert await asyncio.gather(again.live(), *lives) == ["done"] * len(case.names)
    learners = [other for other in (again, *others.values()) if isinstance(other, Learner)]
    assert all(learner.steps > 0 for learner in learners)
    assert {learner.params for learner in learners} == {learners[0].params}
    for round in (case.rounds - 2, case.rounds - 1):
        record = await Exchange(MemoryMailbox(store), manifest).round(round)
        assert record is not None
        assert [p.learner for p in record.participants] == ["a", "b"], f"{box.last}: both in round {round}"
    await check(case, store, manifest, wrongs)


@functools.cache
def calls(case: Case) -> int:
    """How many mailbox calls the one to be killed makes until it has followed the first few rounds."""

    async def main() -> int:
        store, machines = MemoryStore(), Machines()
        manifest = await case.run(store)
        commanding = [asyncio.create_task(pause_and_resume(store, manifest))] if case.paused else []
        boxes = {name: Mortal(MemoryMailbox(store), at=-1, when="before") for name in case.names}
        started = {name: case.start(store, manifest, name, machines, boxes[name]) for name in case.names}
        lives = [asyncio.create_task(each.live()) for each in started.values()]
        await asyncio.gather(*commanding)
        while started[case.victim].participant.newest + 1 < KILLED_BEFORE_ROUND:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        assert not any(life.done() for life in lives)
        return boxes[case.victim].calls

    return virtually(main())


CASES = {
    "one fragment": Case(),
    "two fragments": Case(fragments=2),
    "overlapping": Case(fragments=2, overlap=1),
    "in flight": Case(fragments=2, in_flight=2),
    "checkpoints": Case(fragments=2, checkpoint_every=1),
    "paused": Case(paused=True),
    "either": Case(role="either"),
    "learner of a syncer": Case(role="learner", syncer=True),
    "either of a syncer": Case(role="either", syncer=True),
    "syncer of learners": Case(role="learner", syncer=True, victim="nas", fragments=2, checkpoint_every=1),
    "syncer of either": Case(role="either", syncer=True, victim="nas"),
    "syncer beside both": Case(role="both", syncer=True, victim="nas", paused=True),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])


@cases
@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_one_killed_at_some_calls(case: Case, when: When) -> None:
    stride = 67  # no multiple of what one poll calls; and each case begins elsewhere: every kind of call is met
    first = 1 + (7 * list(CASES.values()).index(case) + (0 if when == "before" else stride // 2)) % stride
    for at in range(first, calls(case), stride):
        virtually(killed(case, at, when))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@cases
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_killed_at_every_call(case: Case, when: When) -> None:
    for at in range(1, calls(case)):
        virtually(killed(case, at, when))
