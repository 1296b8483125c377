"""A learner killed before or after any of its mailbox calls stops nobody, breaks nothing, and may come back."""

from __future__ import annotations

import asyncio
import functools
from typing import Literal

import pytest

from swarm.core.records import Manifest
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.simulation import Learner, Machines, new_run, virtually
from tests.integration.wrappers import Mortal, Witness

When = Literal["before", "after"]
STEP_S, POLL_S = 0.1, 0.1
KILLED_BEFORE_ROUND = 4


def spec_of(fragments: int, overlap: int = 0) -> DiLoCo:
    # The survivor need not wait for a starter that died: one opens the run.
    return DiLoCo(
        sync_every=2,
        fragments=fragments,
        overlap_steps=overlap,
        quorum_size=2,
        start_learners=1,
        beat_s=1.0,
        lease_s=3.0,
    )


def rounds_of(fragments: int) -> int:
    return 8 + 4 * fragments  # both again for more than two cycles at the end


async def check(store: MemoryStore, manifest: Manifest, wrongs: list[str]) -> None:
    exchange = Exchange(MemoryMailbox(store), manifest)
    assert manifest.rounds is not None
    last, cycle = manifest.rounds - 1, len(exchange.plan)
    records = [await exchange.round(r) for r in range(last + 1)]  # the chain of parents is checked on the way
    assert all(record is not None for record in records)
    assert await exchange.newest_round() == last
    for record in records[-2 * cycle :]:
        assert record is not None
        await exchange.fetch(record.fragment, record.theta)
        assert record.outer is not None
        await exchange.fetch(record.fragment, record.outer, dtype="F32")
    for key in store.objects:
        parts = key.removeprefix(f"{exchange.keys.root}/").split("/")
        if parts[0] in ("snapshots", "claims") or parts[:2] in (["blobs", "snapshots"], ["blobs", "rounds"]):
            assert int(next(part for part in parts if part.isdigit())) > last - 2 * cycle, key
    assert len([key for key in store.objects if "/beats/" in key]) <= 2 * 4
    assert wrongs == []


async def killed(fragments: int, overlap: int, at: int, when: When) -> None:
    store, machines, wrongs = MemoryStore(), Machines(), list[str]()
    spec = spec_of(fragments, overlap)
    manifest = await new_run(store, spec, rounds=rounds_of(fragments))
    mortals: list[Mortal] = []

    def mortal(_: object) -> Mortal:
        mortals.append(Mortal(Witness(store, wrongs), at=at, when=when))
        return mortals[-1]

    survivor = Learner(store, manifest, "a", machines, step_s=STEP_S, wrap=lambda _: Witness(store, wrongs))
    victim = Learner(store, manifest, "b", machines, step_s=STEP_S, wrap=mortal)
    (box,) = mortals
    box.victim = asyncio.create_task(victim.live())
    other = asyncio.create_task(survivor.live())
    await asyncio.wait({box.victim})
    assert box.dead, "the call came"
    assert box.victim.cancelled()

    loop = asyncio.get_running_loop()
    died_s, newest = loop.time(), survivor.participant.newest
    while survivor.participant.newest < newest + 2:
        await asyncio.sleep(POLL_S)
        training_s = 2 * (spec.sync_every * STEP_S + 5 * POLL_S)
        assert loop.time() - died_s < 3 * spec.lease_s + training_s, f"{box.last}: the survivor goes on"

    again = Learner(store, manifest, "b", machines, step_s=STEP_S, wrap=lambda _: Witness(store, wrongs))
    assert await asyncio.gather(again.live(), other) == ["done", "done"]
    assert again.steps > 0
    assert again.params == survivor.params != ""
    for round in (rounds_of(fragments) - 2, rounds_of(fragments) - 1):
        record = await Exchange(MemoryMailbox(store), manifest).round(round)
        assert record is not None
        assert [p.learner for p in record.participants] == ["a", "b"], f"{box.last}: both again in round {round}"
    await check(store, manifest, wrongs)


@functools.cache
def calls(fragments: int, overlap: int) -> int:
    """How many mailbox calls a learner makes until it has followed the first few rounds."""

    async def main() -> int:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, spec_of(fragments, overlap), rounds=rounds_of(fragments))
        boxes = [Mortal(MemoryMailbox(store), at=-1, when="before") for _ in range(2)]
        learners = [
            Learner(store, manifest, name, machines, step_s=STEP_S, wrap=lambda _, box=box: box)  # type: ignore[misc]
            for name, box in zip("ab", boxes, strict=True)
        ]
        lives = [asyncio.create_task(x.live()) for x in learners]
        while learners[1].participant.newest + 1 < KILLED_BEFORE_ROUND:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        assert not any(life.done() for life in lives)
        return boxes[1].calls

    return virtually(main())


CONFIGURATIONS = [(1, 0), (2, 0), (2, 1)]  # fragments, overlapping steps


@pytest.mark.parametrize(("fragments", "overlap"), CONFIGURATIONS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_learner_killed_at_some_calls(fragments: int, overlap: int, when: When) -> None:
    stride = 11  # no multiple of what one poll calls: every kind of call is met
    for at in range(1 if when == "before" else 6, calls(fragments, overlap), stride):
        virtually(killed(fragments, overlap, at, when))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("fragments", "overlap"), CONFIGURATIONS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_learner_killed_at_every_call(fragments: int, overlap: int, when: When) -> None:
    for at in range(1, calls(fragments, overlap)):
        virtually(killed(fragments, overlap, at, when))
