"""A FedAvg learner killed before or after any of its mailbox calls changes no byte of what the run comes to."""

from __future__ import annotations

import asyncio
import functools
from typing import Literal

import pytest

from swarm.core.clients import sampled
from swarm.core.specs import FedAvg
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.federation import ClientLearner
from tests.integration.simulation import Machines, new_run, virtually
from tests.integration.wrappers import Mortal, Witness

When = Literal["before", "after"]
ROUNDS, KILLED_BEFORE_ROUND, STEP_S = 6, 3, 0.1
SPEC = FedAvg(
    clients=5, per_round=3, outer="fedavgm", training_seed=1, selection_seed=2, beat_s=1.0, lease_s=3.0, deadline_s=60.0
)


@functools.cache
def undisturbed() -> tuple[str, int]:
    """(the parameters that the run comes to, the mailbox calls that learner b makes until it has followed some rounds)"""

    async def main() -> tuple[str, int]:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, SPEC, rounds=ROUNDS)
        box = Mortal(MemoryMailbox(store), at=-1, when="before")
        a = ClientLearner(store, manifest, "a", machines, step_s=STEP_S)
        b = ClientLearner(store, manifest, "b", machines, step_s=STEP_S, wrap=lambda _: box)
        lives = [asyncio.create_task(learner.live()) for learner in (a, b)]
        while b.participant.newest + 1 < KILLED_BEFORE_ROUND:  # noqa: ASYNC110 — virtual time
            await asyncio.sleep(STEP_S)
        calls = box.calls
        assert await asyncio.gather(*lives) == ["done", "done"]
        assert b.trained
        assert a.params == b.params
        return a.params, calls

    return virtually(main())


async def killed(at: int, when: When) -> None:
    store, machines, wrongs = MemoryStore(), Machines(), list[str]()
    manifest = await new_run(store, SPEC, rounds=ROUNDS)
    box = Mortal(Witness(store, wrongs), at=at, when=when)
    a = ClientLearner(store, manifest, "a", machines, step_s=STEP_S, wrap=lambda _: Witness(store, wrongs))
    b = ClientLearner(store, manifest, "b", machines, step_s=STEP_S, wrap=lambda _: box)
    box.victim = asyncio.create_task(b.live())
    survivor = asyncio.create_task(a.live())
    await asyncio.wait({box.victim})
    assert box.dead, "the call came"
    again = ClientLearner(store, manifest, "b", machines, step_s=STEP_S, wrap=lambda _: Witness(store, wrongs))
    ended = await asyncio.gather(again.live(), survivor, return_exceptions=True)
    assert ended[1] == "done", box.last
    params, _ = undisturbed()
    assert a.params == params, box.last
    exchange = Exchange(MemoryMailbox(store), manifest)
    for round in range(ROUNDS):
        record = await exchange.round(round)
        assert record is not None
        assert tuple(p.unit for p in record.participants) == sampled(SPEC, 0, round), box.last
        assert not any(rejected.differs for rejected in record.rejected)
    for key in store.objects:
        parts = key.removeprefix(f"{exchange.keys.root}/").split("/")
        number = next((int(part) for part in parts if part.isdigit()), 0)
        if parts[0] in ("snapshots", "claims", "clients") or parts[:2] in (["blobs", "snapshots"], ["blobs", "rounds"]):
            assert number > ROUNDS - 1 - 2, key
    assert wrongs == []


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_one_killed_at_some_calls(when: When) -> None:
    _, calls = undisturbed()
    for at in range(5 if when == "before" else 12, calls, 17):
        virtually(killed(at, when))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("when", ["before", "after"])
def test_one_killed_at_every_call(when: When) -> None:
    _, calls = undisturbed()
    for at in range(1, calls):
        virtually(killed(at, when))
