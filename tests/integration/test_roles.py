"""Who trains, who closes rounds, and who is waited for, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from swarm.core.errors import RunEnded
from swarm.core.events import Waiting
from swarm.core.manifest import Manifest
from swarm.core.records import Control, Role
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.watch import RunWatch
from tests.integration.roles import Syncer, tape, until
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.wrappers import Counting

SPEC = DiLoCo(sync_every=4, fragments=2, quorum_size=2, beat_s=0.5, lease_s=2.0)
WAITS = "waiting for a syncer"


async def run(role: Role, rounds: int | None = 8, spec: DiLoCo = SPEC) -> tuple[MemoryStore, Manifest, Machines, list[Learner]]:
    store, machines = MemoryStore(), Machines()
    manifest = await new_run(store, spec, rounds=rounds)
    return store, manifest, machines, [Learner(store, manifest, name, machines, role=role) for name in "ab"]


@pytest.mark.parametrize("role", ["learner", "either"])
def test_a_syncer_closes_every_round_for_learners_and_takes_no_part_in_it(role: Role) -> None:
    async def main() -> None:
        store, manifest, machines, learners = await run(role)
        boxes: list[Counting] = []

        def wrap(inner: object) -> Counting:
            boxes.append(Counting(MemoryMailbox(store)))
            return boxes[-1]

        syncer = Syncer(store, manifest, "nas", machines, wrap=wrap)
        lives = [asyncio.create_task(syncer.live())]
        await asyncio.sleep(1)  # `either` knows of it from the first round on
        lives += [asyncio.create_task(learner.live()) for learner in learners]
        assert await together(*lives) == ["done"] * 3
        for record in await tape(store, manifest):
            assert record.closer == "nas"
            assert [p.learner for p in record.participants] == ["a", "b"]
            assert not record.rejected
        assert learners[0].params == learners[1].params != ""
        assert not any(isinstance(e, Waiting) and e.reason == WAITS for x in learners for e in x.events[2:])
        assert not any("/eval/" in key for op, key in boxes[0].calls if op == "create"), "it evaluates nothing"
        assert not any("/snapshots/" in key for op, key in boxes[0].calls if op == "put"), "it reports nothing"
        assert syncer.participant._committed.theta == {}, "it holds no model"
        assert await syncer.exchange.evals_after(-1) == list(range(1, 8, 2))

    virtually(main())


def test_a_syncer_counts_neither_as_starter_nor_as_reporter() -> None:
    async def main() -> None:
        store, manifest, machines, (a, b) = await run("both")
        syncer = Syncer(store, manifest, "nas", machines)
        lives = [asyncio.create_task(syncer.live()), asyncio.create_task(a.live())]
        await asyncio.sleep(30)
        assert await tape(store, manifest) == []
        assert Waiting(round=0, reason="waiting for 1 more learner") in syncer.events
        started_s = asyncio.get_running_loop().time()
        assert await together(*lives, b.live()) == ["done"] * 3
        # Nobody waits for a grace, or for a lease: every round closes as soon as both have reported.
        assert asyncio.get_running_loop().time() - started_s < 8 * (2 * 0.1 + 2 * 0.2) + 1

    virtually(main())


def test_learners_without_a_syncer_say_that_they_wait_for_one() -> None:
    async def main() -> None:
        store, manifest, machines, learners = await run("learner")
        lives = [asyncio.create_task(learner.live()) for learner in learners]
        await asyncio.sleep(20)
        assert await tape(store, manifest) == []
        for learner in learners:
            assert [e for e in learner.events if isinstance(e, Waiting)] == [Waiting(round=0, reason=WAITS)]
        now = await RunWatch("memory", manifest.run, store=MemoryMailbox(store)).poll()
        assert (now.phase, now.waits_for) == ("waiting", "a syncer")
        lives.append(asyncio.create_task(Syncer(store, manifest, "nas", machines).live()))
        assert await together(*lives) == ["done"] * 3

    virtually(main())


def test_a_syncer_alone_waits_for_a_learner_and_is_shown_as_what_it_is() -> None:
    async def main() -> None:
        store, manifest, machines, (a, b) = await run("learner", rounds=None)
        syncer = Syncer(store, manifest, "nas", machines)
        lives = [asyncio.create_task(x.live()) for x in (syncer, a, b)]
        await until(lambda: syncer.participant.newest >= 2)
        for learner in (a, b):
            learner.leaving = True
        await together(*lives[1:])
        await asyncio.sleep(10)
        newest = syncer.participant.newest
        assert syncer.events[-1] == Waiting(round=newest + 1, reason="waiting for a learner")
        now = await RunWatch("memory", manifest.run, store=MemoryMailbox(store)).poll()
        assert (now.phase, now.waits_for) == ("waiting", "a learner")
        assert [(v.learner, v.role, v.state) for v in now.live] == [("nas", "syncer", "wait")]
        syncer.leaving = True
        assert await together(*lives[:1]) == ["left"]
        assert syncer.participant.newest == newest, "nothing is closed while nobody trains"

    virtually(main())


def test_either_closes_while_no_syncer_is_live_and_leaves_it_to_one_that_is() -> None:
    async def main() -> None:
        store, manifest, machines, learners = await run("either", rounds=None)
        lives = [asyncio.create_task(learner.live()) for learner in learners]
        await until(lambda: learners[0].participant.newest >= 2)
        syncer = Syncer(store, manifest, "nas", machines)
        closing = asyncio.create_task(syncer.live())
        await asyncio.sleep(SPEC.beat_s + 1)
        first = learners[0].participant.newest + 1
        await until(lambda: learners[0].participant.newest >= first + 4)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        last = learners[0].participant.newest
        await until(lambda: learners[0].participant.newest >= last + 4)
        await learners[0].exchange.control(Control(action="stop"))
        assert await together(*lives) == ["stopped"] * 2
        closers = [record.closer for record in await tape(store, manifest)]
        assert set(closers[:3]) <= {"a", "b"}
        assert set(closers[first : last + 1]) == {"nas"}
        assert set(closers[last + 2 :]) <= {"a", "b"}

    virtually(main())


def test_a_syncer_that_beats_and_does_nothing_holds_up_no_either() -> None:
    async def main() -> None:
        store, manifest, machines, learners = await run("either", rounds=6)
        idle = Syncer(store, manifest, "nas", machines)
        await idle.participant.join()  # it beats, and never polls
        assert await together(*(learner.live() for learner in learners)) == ["done"] * 2
        assert {record.closer for record in await tape(store, manifest)} <= {"a", "b"}
        await idle.participant.leave()

    virtually(main())


def test_a_stop_ends_a_run_in_which_nobody_closes_rounds() -> None:
    async def main() -> None:
        store, manifest, _, learners = await run("learner", rounds=None)
        lives = [asyncio.create_task(learner.live()) for learner in learners]
        await asyncio.sleep(5)
        await learners[0].exchange.control(Control(action="stop"))
        assert await together(*lives) == ["stopped"] * 2
        assert await Exchange(MemoryMailbox(store), manifest).newest_round() == -1
        with pytest.raises(RunEnded):
            await Syncer(store, manifest, "nas", Machines()).live()

    virtually(main())


@pytest.mark.parametrize("role", ["learner", "either", "both"])
def test_a_killed_syncer_comes_back(role: Role) -> None:
    async def main() -> None:
        store, manifest, machines, learners = await run(role, rounds=10)
        first = asyncio.create_task(Syncer(store, manifest, "nas", machines).live())
        lives = [asyncio.create_task(learner.live()) for learner in learners]
        await until(lambda: learners[0].participant.newest >= 3)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await asyncio.sleep(1)
        again = Syncer(store, manifest, "nas", machines)
        assert await together(*lives, again.live()) == ["done"] * 3
        assert again.participant.me.incarnation == 2
        assert all(len(r.participants) == 2 for r in await tape(store, manifest))

    virtually(main())
