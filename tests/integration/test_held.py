"""A machine whose owner comes first holds still: the others go on without it, and it comes back to where they are."""

from __future__ import annotations

import asyncio

import pytest

from swarm.core.events import GenerationOver, RankPlaced
from swarm.core.specs import DiLoCo, FedAvg
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.watch import RunWatch
from tests.integration.federation import ClientLearner
from tests.integration.jobs import Machine, World
from tests.integration.roles import tape, until
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.test_controls import Run, started
from tests.integration.test_finetune_agent import adapter_of, overs, played

SPEC = DiLoCo(sync_every=40, quorum_size=2, beat_s=0.5, lease_s=10.0)
WHY = "somebody is at the keyboard"


def of(record: object) -> list[str]:
    return [p.learner for p in record.participants]  # type: ignore[attr-defined]


async def rests(learner: Learner) -> int:
    """Wait until it makes no step more; how many it has made."""
    await asyncio.sleep(2 * learner.step_s)
    return learner.steps


def test_the_others_do_not_wait_for_it_and_what_it_had_done_counts() -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a, b = run.learner("a"), run.learner("b")
        lives = started(a, b)
        await until(lambda: a.participant.newest >= 1)
        await until(lambda: a.inner is not None and 5 <= a.inner.step <= 20)
        a.handoff.hold(WHY)
        round = a.participant.newest + 1
        steps = await rests(a)
        await until(lambda: b.participant.newest >= round)
        records = await tape(run.store, run.manifest)
        assert of(records[round]) == ["a", "b"], "it reported what it had"
        assert 0 < records[round].participants[0].steps < SPEC.sync_every
        began_s = asyncio.get_running_loop().time()
        await until(lambda: b.participant.newest >= round + 4)
        took_s = asyncio.get_running_loop().time() - began_s
        assert took_s < 4 * (SPEC.sync_every * b.step_s + 2), "no grace, no lease is waited for"
        assert a.steps == steps, "not a step"
        assert [of(r) for r in (await tape(run.store, run.manifest))[round + 1 : round + 4]] == [["b"]] * 3
        now = await RunWatch("memory", run.manifest.run, store=MemoryMailbox(run.store)).poll()
        assert {v.learner: (v.state, v.held) for v in now.live}["a"] == ("paused", WHY)
        assert (now.phase, [v.learner for v in now.trainers]) == ("running", ["b"])
        a.handoff.hold("")
        await until(lambda: a.steps > steps)
        newest = a.participant.newest
        await until(lambda: a.participant.newest >= newest + 3)
        assert of((await tape(run.store, run.manifest))[-1]) == ["a", "b"]
        await run.command("stop")
        assert await asyncio.gather(*lives) == ["stopped"] * 2
        assert a.params == b.params
        assert a.participant.me.incarnation == 1

    virtually(main())


def test_alone_it_keeps_its_place() -> None:
    async def main() -> None:
        run = await Run.of(DiLoCo(sync_every=40, quorum_size=1, beat_s=0.5, lease_s=2.0))
        a = run.learner("a")
        lives = started(a)
        await until(lambda: a.participant.newest >= 1)
        await until(lambda: a.inner is not None and 5 <= a.inner.step <= 20)
        a.handoff.hold(WHY)
        steps = await rests(a)
        assert a.inner is not None
        round, step = a.inner.round, a.inner.step
        await asyncio.sleep(100)
        assert (a.steps, a.inner.round, a.inner.step) == (steps, round, step)
        assert len(await tape(run.store, run.manifest)) == round, "no round is closed with less than it takes"
        now = await RunWatch("memory", run.manifest.run, store=MemoryMailbox(run.store)).poll()
        assert (now.phase, now.waits_for) == ("waiting", "a learner")
        a.handoff.hold("")
        await until(lambda: a.participant.newest >= round)
        [part] = (await tape(run.store, run.manifest))[round].participants
        assert part.steps == SPEC.sync_every
        await run.command("stop")
        assert await asyncio.gather(*lives) == ["stopped"]

    virtually(main())


def test_round_0_does_not_count_who_holds_still() -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a, b = run.learner("a"), run.learner("b")
        a.handoff.hold(WHY)
        lives = started(a, b)
        await asyncio.sleep(30)
        assert a.steps == 0
        assert await tape(run.store, run.manifest) == []
        now = await RunWatch("memory", run.manifest.run, store=MemoryMailbox(run.store)).poll()
        assert (now.phase, now.waits_for) == ("waiting", "1 more learner")
        a.handoff.hold("")
        await until(lambda: b.participant.newest >= 1)
        assert of((await tape(run.store, run.manifest))[0]) == ["a", "b"]
        await run.command("stop")
        await asyncio.gather(*lives)

    virtually(main())


@pytest.mark.parametrize("action", ["stop", "pause"])
def test_a_run_whose_machines_all_hold_still_hears_what_people_command(action: str) -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a, b = run.learner("a"), run.learner("b")
        lives = started(a, b)
        await until(lambda: a.participant.newest >= 1)
        for each in (a, b):
            each.handoff.hold(WHY)
        steps = await rests(a), await rests(b)
        await run.command(action)
        if action == "stop":
            assert await asyncio.gather(*lives) == ["stopped"] * 2
        else:
            await until(lambda: a.handoff.paused and b.handoff.paused)
            for each in (a, b):
                each.handoff.hold("")
            await asyncio.sleep(20)
            await run.command("resume")
            assert (a.steps, b.steps) == steps
            await until(lambda: a.steps > steps[0] and b.steps > steps[1])
            await run.command("stop")
            assert await asyncio.gather(*lives) == ["stopped"] * 2

    virtually(main())


def test_it_leaves_closing_to_those_who_train_and_closes_if_nobody_else_can() -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a, b, c = run.learner("a"), run.learner("b"), run.learner("c", role="learner")
        lives = started(a, b, c)
        await until(lambda: a.participant.newest >= 1)
        a.handoff.hold(WHY)
        await rests(a)
        first = a.participant.newest + 2  # the one under way may be being closed
        await until(lambda: c.participant.newest >= first + 6)
        assert {r.closer for r in (await tape(run.store, run.manifest))[first:]} == {"b"}
        b.leaving = True
        await lives[1]
        newest = c.participant.newest
        await until(lambda: c.participant.newest >= newest + 2)
        last = (await tape(run.store, run.manifest))[-1]
        assert (last.closer, of(last)) == ("a", ["c"])
        await run.command("stop")
        await asyncio.gather(*lives)

    virtually(main())


def test_no_step_is_hurried_after_it_goes_on() -> None:
    async def main() -> None:
        run = await Run.of(SPEC)
        a, b = run.learner("a"), run.learner("b")
        lives = started(a, b)
        await until(lambda: a.participant.newest >= 1)
        newest = a.participant.newest
        await until(lambda: a.participant.newest > newest and a.inner is not None and a.inner.step == 0)
        a.handoff.hold(WHY)  # nothing is done yet, and nothing is reported
        await asyncio.sleep(1.0)
        a.handoff.hold("")
        round = a.participant.newest + 1
        await until(lambda: a.participant.newest >= round)
        parts = {p.learner: p.steps for p in (await tape(run.store, run.manifest))[round].participants}
        assert parts["a"] > SPEC.sync_every / 2
        await run.command("stop")
        await asyncio.gather(*lives)

    virtually(main())


# FedAvg

FEDERATED = FedAvg(clients=6, per_round=3, training_seed=1, selection_seed=2, beat_s=0.5, lease_s=20.0)


def test_a_client_that_was_begun_is_taken_over() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, FEDERATED, rounds=6)
        a, b = (ClientLearner(store, manifest, name, machines, step_s=0.2) for name in "ab")
        lives = [asyncio.create_task(each.live()) for each in (a, b)]
        await until(lambda: a.participant.newest >= 1)
        began = len(a.trained)
        await until(lambda: len(a.trained) > began)
        a.handoff.hold(WHY)  # in the midst of it
        taken, held_at_s = a.trained[-1], asyncio.get_running_loop().time()
        await until(lambda: b.participant.newest >= 5)
        assert asyncio.get_running_loop().time() - held_at_s < FEDERATED.lease_s, "no lease is waited for"
        assert (taken.round, taken.unit) in {(c.round, c.unit) for c in b.trained}
        assert a.trained[-1] == taken, "it begins with no other"
        a.handoff.hold("")
        assert await together(*lives) == ["done"] * 2
        assert a.params == b.params
        for record in await tape(store, manifest):
            assert len(record.participants) == 3

    virtually(main())


def test_a_private_client_is_not_waited_for() -> None:
    async def main() -> None:
        store, machines = MemoryStore(), Machines()
        spec = FedAvg(private=True, per_round=2, beat_s=0.5, lease_s=20.0)
        manifest = await new_run(store, spec, rounds=5)
        a, b = (ClientLearner(store, manifest, name, machines, step_s=0.2) for name in "ab")
        lives = [asyncio.create_task(each.live()) for each in (a, b)]
        await until(lambda: a.participant.newest >= 0)
        a.handoff.hold(WHY)
        began_s = asyncio.get_running_loop().time()
        assert (await asyncio.wait(lives, return_when="FIRST_COMPLETED"))[0]
        assert asyncio.get_running_loop().time() - began_s < spec.lease_s
        assert await together(*lives) == ["done"] * 2
        last = (await tape(store, manifest))[-1]
        assert of(last) == ["b"]
        assert last.participants[0].unit == "b"

    virtually(main())


# Data parallel


@pytest.mark.parametrize("name", ["a", "b"])
def test_the_ranks_regroup_without_it_and_with_it_again(name: str) -> None:
    async def play(world: World) -> None:
        a, b = Machine(world, "a"), Machine(world, "b")
        one, other = (a, b) if name == "a" else (b, a)
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 30)
        one.agent.hold(WHY)
        await other.until(lambda: len(world.groups) == 2 and world.groups[1].step >= world.groups[0].step + 10)
        step = world.groups[0].step
        assert world.started_at[1] == (1, step), "not a step is lost"
        assert overs(other)[0] in (
            ("regroup", f"{name} holds still: {WHY}"),
            ("regroup", "a machine leaves"),
        )
        one.agent.hold("")
        await other.until(lambda: len(world.groups) == 3)
        assert world.started_at[2][1] >= step + 10
        assert await asyncio.gather(a.life, b.life) == ["done", "done"]
        assert [event.size for event in other.of(RankPlaced)] == [2, 1, 2]
        assert adapter_of(a) == adapter_of(b)
        assert one.agent.me.incarnation == 1

    played(play, iters=300)


def test_a_job_of_one_machine_waits_for_it_and_heeds_a_stop_meanwhile() -> None:
    async def play(world: World) -> None:
        a = Machine(world, "a")
        await a.until(lambda: bool(world.groups) and world.groups[0].step >= 30)
        a.agent.hold(WHY)
        await asyncio.sleep(60)
        assert len(world.groups) == 1
        assert [event.ending for event in a.of(GenerationOver)] == ["regroup"]
        step = world.groups[0].step
        a.agent.hold("")
        await a.until(lambda: len(world.groups) == 2 and world.groups[1].step > step)
        assert world.started_at[1] == (1, step)
        a.agent.hold(WHY)
        await asyncio.sleep(20)
        await world.command("stop")
        assert await a.life == "stopped"

    played(play, iters=300)
