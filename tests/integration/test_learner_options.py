"""What a run's options make of several learners together, in virtual time."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import numpy as np
import pytest

from swarm.core.events import Restored, Trouble
from swarm.core.records import RoundRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.simulation import FakeStore, Learner, Machines, new_run, together, virtually
from tests.sampling import sampled


def spec(**options: Any) -> DiLoCo:
    return DiLoCo(**{"sync_every": 6, "beat_s": 0.5, "lease_s": 2.0, **options})


async def tape(store: MemoryStore, manifest: Any) -> list[RoundRecord]:
    exchange = Exchange(MemoryMailbox(store), manifest)
    records = [await exchange.round(r) for r in range(await exchange.newest_round() + 1)]
    return [record for record in records if record is not None]


def counted(records: list[RoundRecord], learner: str, fragment: int = 0) -> tuple[int, int]:
    """Steps and tokens of `learner` in the accepted snapshots of one fragment."""
    mine = [p for r in records if r.fragment == fragment for p in r.participants if p.learner == learner]
    return sum(p.steps for p in mine), sum(p.tokens for p in mine)


@pytest.mark.parametrize("alignment", ["overwrite", "blend", "carry", "adaptive"])
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_two_learners_take_part_in_every_round_whatever_is_in_flight(in_flight: int, alignment: str) -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        options = spec(fragments=3, in_flight=in_flight, overlap_steps=1, alignment=alignment, quorum_size=2)
        manifest = await new_run(store, options, rounds=12)
        a, b = Learner(store, manifest, "a", machines), Learner(store, manifest, "b", machines, step_s=0.15)
        assert await together(a.live(), b.live()) == ["done", "done"]
        records = await tape(store, manifest)
        assert [r.round for r in records] == list(range(12))
        assert all([p.learner for p in r.participants] == ["a", "b"] and not r.rejected for r in records)
        assert a.params == b.params != ""
        for learner in (a, b):
            for fragment in range(3):
                steps, tokens = counted(records, learner.name, fragment)
                assert steps <= learner.steps
                assert tokens == 10 * steps

    virtually(main())


@functools.cache
def ended(delta_dtype: str) -> dict[str, np.ndarray]:
    """Θ of two learners that pull towards fixed targets, about 1 from where it began."""

    async def main() -> Learner:
        store, machines = MemoryStore(), Machines()
        options = spec(fragments=3, in_flight=2, delta_dtype=delta_dtype, quorum_size=2, outer_momentum=0.0, outer_lr=1.0)
        manifest = await new_run(store, options, rounds=60)
        a, b = Learner(store, manifest, "a", machines), Learner(store, manifest, "b", machines)
        assert await together(a.live(), b.live()) == ["done", "done"]
        records = await tape(store, manifest)
        assert all(len(r.participants) == 2 for r in records)
        assert a.inner is not None
        assert all(set(part.residual) == set(part.anchor) for part in a.inner.parts) == (delta_dtype != "F32")
        assert a.params == b.params
        return a

    return virtually(main()).adapter.snapshot()


@pytest.mark.parametrize(("delta_dtype", "off"), [("F8_E4M3", 0.02), ("F4", 0.1), ("BF16", 0.002)])
def test_deltas_of_a_few_bits_go_through_the_mailbox_and_end_where_exact_ones_do(delta_dtype: str, off: float) -> None:
    """At the end what one delta's rounding has kept back is missing, not what all of them have."""
    for name, array in ended(delta_dtype).items():
        assert np.abs(array - ended("F32")[name]).max() < off


def test_more_in_flight_hides_a_slow_share() -> None:
    async def took_s(in_flight: int) -> float:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, spec(fragments=3, in_flight=in_flight, quorum_size=2), rounds=12)

        def slow(mailbox: Any) -> Any:
            box = FaultyMailbox(mailbox)
            box.plan += [
                Fault("delay", op=op, key=key, count=None, wait=lambda: asyncio.sleep(0.3))
                for op, key in (("create", "/rounds/"), ("put", "/snapshots/"))
            ]
            return box

        learners = [Learner(store, manifest, name, machines, wrap=slow) for name in "ab"]
        began_s = asyncio.get_running_loop().time()
        assert await together(*(x.live() for x in learners)) == ["done", "done"]
        assert all(len(r.participants) == 2 for r in await tape(store, manifest))
        return asyncio.get_running_loop().time() - began_s

    one_s, three_s = virtually(took_s(1)), virtually(took_s(3))
    assert three_s < 0.8 * one_s


@pytest.mark.parametrize("fragments", [1, 3])
def test_carried_steps_of_missed_rounds_reach_the_model(fragments: int) -> None:
    """One is too slow for most rounds: what it carries counts in those that it reaches."""

    async def run(alignment: str) -> tuple[int, int]:
        store, machines = MemoryStore(), Machines()
        options = spec(fragments=fragments, alignment=alignment, follow=False, quorum_size=1, grace_s=0.0)
        manifest = await new_run(store, options, rounds=24)
        fast = Learner(store, manifest, "fast", machines)
        slow = Learner(store, manifest, "slow", machines, step_s=0.33)
        assert await together(fast.live(), slow.live()) == ["done", "done"]
        assert fast.params == slow.params
        steps, _ = counted(await tape(store, manifest), "slow")
        return steps, slow.steps

    carried, made = virtually(run("carry"))
    given_up, _ = virtually(run("overwrite"))
    assert 0 < given_up < carried <= made
    assert carried >= made - 12, "all but what the end found unreported"


@pytest.mark.parametrize(("alignment", "in_flight"), sampled([("overwrite", 1), ("overwrite", 3), ("carry", 1), ("carry", 3)]))
def test_a_learner_killed_at_any_moment_goes_on_and_nothing_is_counted_twice(alignment: str, in_flight: int) -> None:
    async def main(at_s: float) -> None:
        store, machines, local = MemoryStore(), Machines(), FakeStore()
        options = spec(fragments=3, in_flight=in_flight, overlap_steps=1, alignment=alignment, quorum_size=1, grace_s=0.3)
        manifest = await new_run(store, options, rounds=12)
        other = asyncio.create_task(Learner(store, manifest, "a", machines).live())
        first = Learner(store, manifest, "b", machines, local=local, step_s=0.11, momentum=0.5, noise=0.01)
        killed = asyncio.create_task(first.live())
        await asyncio.sleep(at_s)
        killed.cancel()
        await asyncio.sleep(0.37)
        saved = local.saved
        second = Learner(store, manifest, "b", machines, local=local, step_s=0.11, momentum=0.5, noise=0.01)
        assert await together(second.live(), other) == ["done", "done"]
        told = [e for e in second.events if isinstance(e, Restored)]
        if saved is not None:
            assert len(told) == 1
            assert "the inner optimizer" in told[0].what
            assert second.position == saved.values["task"]["position"] + second.steps, "no batch is drawn anew, or left out"
        assert not [e for e in second.events if isinstance(e, Trouble)]
        records = await tape(store, manifest)
        assert len(records) == 12
        for fragment in range(3):
            steps, tokens = counted(records, "b", fragment)
            assert 0 < steps <= first.steps + second.steps
            assert tokens == 10 * steps
        assert any(p.learner == "b" for r in records[-4:] for p in r.participants)

    for tick in range(7):
        virtually(main(0.05 + 0.23 * tick + 0.04 * in_flight))


@pytest.mark.parametrize("alignment", ["overwrite", "carry"])
def test_a_learner_that_left_and_came_back_is_as_if_it_had_stayed(alignment: str) -> None:
    """Alone in its run, and nothing is lost between: the parameters are the same, bit by bit."""

    async def run(leaves_after: int | None) -> str:
        store, machines, local = MemoryStore(), Machines(), FakeStore()
        manifest = await new_run(store, spec(fragments=3, alignment=alignment, sync_every=6), rounds=9)

        def learner() -> Learner:
            return Learner(store, manifest, "a", machines, local=local, momentum=0.9, noise=0.1)

        first = learner()
        if leaves_after is not None:
            first.leaves_after = leaves_after
            assert await first.live() == "left"
            first = learner()
        assert await first.live() == "done"
        return first.params

    stayed = virtually(run(None))
    for steps in range(1, 17, 2):
        assert virtually(run(steps)) == stayed
