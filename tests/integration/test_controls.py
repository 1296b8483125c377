"""Pause, resume, extend, drop: in virtual time, with learners there, gone and coming back."""

from __future__ import annotations

import asyncio

import pytest

from swarm.core.errors import Dropped, RunEnded
from swarm.core.events import Paused, Resumed
from swarm.core.manifest import Manifest
from swarm.core.records import Control
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.watch import RunWatch
from tests.integration.roles import Syncer, tape, until
from tests.integration.simulation import Learner, Machines, new_run, together, virtually

SPEC = DiLoCo(sync_every=4, quorum_size=2, beat_s=0.5, lease_s=2.0)
LONG_S = 8.0  # several leases


class Run:
    def __init__(self, store: MemoryStore, manifest: Manifest) -> None:
        self.store, self.manifest, self.machines = store, manifest, Machines()
        self.exchange = Exchange(MemoryMailbox(store), manifest)

    @classmethod
    async def of(cls, spec: DiLoCo = SPEC, rounds: int | None = None) -> Run:
        store = MemoryStore()
        return cls(store, await new_run(store, spec, rounds=rounds))

    def learner(self, name: str, **options: object) -> Learner:
        return Learner(self.store, self.manifest, name, self.machines, **options)  # type: ignore[arg-type]

    async def command(self, action: str, **fields: object) -> int:
        return await self.exchange.control(Control(action=action, by="studio", **fields))  # type: ignore[arg-type]

    async def phase(self) -> str:
        return (await RunWatch("memory", self.manifest.run, store=MemoryMailbox(self.store)).poll()).phase


def started(*learners: Learner) -> list[asyncio.Task[str]]:
    return [asyncio.create_task(learner.live()) for learner in learners]


async def paused_everywhere(*learners: Learner) -> None:
    await until(lambda: all(any(isinstance(e, Paused) for e in learner.events) for learner in learners))


@pytest.mark.parametrize("sync_every", [4, 1000])
def test_a_pause_takes_in_what_there_is_and_a_resume_goes_on_from_there(sync_every: int) -> None:
    async def main() -> None:
        run = await Run.of(DiLoCo(sync_every=sync_every, quorum_size=2, beat_s=0.5, lease_s=2.0))
        a, b = run.learner("a"), run.learner("b", step_s=0.15)
        lives = started(a, b)
        await asyncio.sleep(5)
        n = await run.command("pause")
        await paused_everywhere(a, b)
        await asyncio.sleep(1)
        records = await tape(run.store, run.manifest)
        assert records[-1].control == n
        assert all(record.control == 0 for record in records[:-1])
        assert [p.learner for p in records[-1].participants] == ["a", "b"], "both report what they have"
        steps = a.steps, b.steps
        await asyncio.sleep(LONG_S)
        assert (a.steps, b.steps) == steps
        assert await tape(run.store, run.manifest) == records
        assert await run.phase() == "paused"
        now = await RunWatch("memory", run.manifest.run, store=MemoryMailbox(run.store)).poll()
        assert [v.state for v in now.live] == ["paused", "paused"]
        resumed_s = asyncio.get_running_loop().time()
        await run.command("resume")
        await until(lambda: a.steps > steps[0] and b.steps > steps[1])
        assert asyncio.get_running_loop().time() - resumed_s < 1, "at once"
        if sync_every == 4:
            await until(lambda: a.participant.newest >= len(records) + 3)
        await run.command("stop")
        assert await together(*lives) == ["stopped"] * 2
        for record in (await tape(run.store, run.manifest))[len(records) : -1]:
            assert [p.learner for p in record.participants] == ["a", "b"], "nobody is given up because of a pause"
            assert not record.rejected
        for learner in (a, b):
            assert [type(e) for e in learner.events if isinstance(e, Paused | Resumed)] == [Paused, Resumed]
            assert next(e for e in learner.events if isinstance(e, Paused)).by == "studio"
        assert a.params == b.params

    virtually(main())


def test_a_paused_run_survives_everybody_leaving_and_joining() -> None:
    async def main() -> None:
        run = await Run.of()
        a, b = run.learner("a"), run.learner("b")
        lives = started(a, b)
        await asyncio.sleep(3)
        await run.command("pause")
        await paused_everywhere(a, b)
        a.leaving = b.leaving = True
        assert await together(*lives) == ["left", "left"]
        before = await tape(run.store, run.manifest)
        assert await run.phase() == "paused"
        await asyncio.sleep(LONG_S)
        again = [run.learner(name) for name in "abc"]
        lives = started(*again)
        await asyncio.sleep(LONG_S)
        assert await run.phase() == "paused"
        assert [learner.steps for learner in again] == [0, 0, 0]
        assert await tape(run.store, run.manifest) == before
        await run.command("resume")
        await until(lambda: again[0].participant.newest >= len(before) + 2)
        await run.command("stop")
        assert await together(*lives) == ["stopped"] * 3
        assert all(len(r.participants) == 3 for r in (await tape(run.store, run.manifest))[len(before) : -1])

    virtually(main())


def test_a_run_can_be_paused_while_nobody_is_there() -> None:
    async def main() -> None:
        run = await Run.of()
        await run.command("pause")
        assert await run.phase() == "paused"
        a = run.learner("a")
        lives = started(a)
        await asyncio.sleep(LONG_S)
        b = run.learner("b")
        lives += started(b)
        await asyncio.sleep(LONG_S)
        assert (a.steps, b.steps) == (0, 0)
        assert await run.phase() == "paused", "no record names it, and its learners say so"
        assert await tape(run.store, run.manifest) == []
        await run.command("resume")
        await until(lambda: a.participant.newest >= 2)
        await run.command("stop")
        assert await together(*lives) == ["stopped"] * 2

    virtually(main())


def test_a_learner_that_joins_between_a_pause_and_its_round_holds_up_nobody() -> None:
    async def main() -> None:
        run = await Run.of(DiLoCo(sync_every=4, quorum_size=1, grace_s=1000.0, start_learners=1, beat_s=0.5, lease_s=2.0))
        a = run.learner("a", step_s=5.0)
        lives = started(a)
        await until(lambda: a.steps == 1)
        await run.command("pause")
        b = run.learner("b")
        lives += started(b)
        await until(lambda: any(isinstance(e, Paused) for e in a.events), at_most_s=30)
        assert a.participant.newest == 0
        await run.command("stop")
        assert await together(*lives) == ["stopped"] * 2

    virtually(main())


def test_a_grace_does_not_run_while_the_run_is_paused() -> None:
    async def main() -> None:
        spec = DiLoCo(sync_every=4, quorum_size=1, grace_s=3.0, start_learners=2, overlap_steps=1, beat_s=0.5, lease_s=2.0)
        run = await Run.of(spec)
        a, b = run.learner("a"), run.learner("b", step_s=0.5)
        lives = started(a, b)
        await until(lambda: a.participant.newest >= 2)
        await run.command("pause")
        await paused_everywhere(a, b)
        first = a.participant.newest + 1
        await asyncio.sleep(LONG_S)
        await run.command("resume")
        await until(lambda: a.participant.newest >= first + 2)
        await run.command("stop")
        await together(*lives)
        records = await tape(run.store, run.manifest)
        assert all([p.learner for p in record.participants] == ["a", "b"] for record in records[first : first + 3])

    virtually(main())


def test_a_pause_that_is_taken_back_before_its_round_closed_changes_nothing() -> None:
    async def main() -> None:
        run = await Run.of(DiLoCo(sync_every=8, quorum_size=2, beat_s=0.5, lease_s=2.0), rounds=6)
        a, b = run.learner("a"), run.learner("b")
        lives = started(a, b)
        await until(lambda: a.participant.newest >= 1)
        await run.command("pause")
        await run.command("resume")
        assert await together(*lives) == ["done", "done"]
        assert not any(isinstance(e, Paused) for e in a.events)
        # At most the round under way was cut short; after it, nobody reports early.
        steps = [p.steps for record in await tape(run.store, run.manifest) for p in record.participants]
        assert sum(n < 8 for n in steps) <= 2

    virtually(main())


@pytest.mark.parametrize("rounds", [9, None])
def test_a_run_is_extended_while_its_learners_are_there(rounds: int | None) -> None:
    async def main() -> None:
        run = await Run.of(rounds=5)
        a, b = run.learner("a"), run.learner("b")
        lives = started(a, b)
        await until(lambda: a.participant.newest >= 1)
        await run.command("extend", rounds=rounds)
        if rounds is None:
            await until(lambda: a.participant.newest > 20)
            await run.command("stop")
        assert await together(*lives) == ["done" if rounds else "stopped"] * 2
        if rounds:
            assert len(await tape(run.store, run.manifest)) == rounds
            assert await run.exchange.evals_after(-1) == list(range(rounds))

    virtually(main())


def test_a_run_that_is_done_goes_on_when_it_is_extended() -> None:
    async def main() -> None:
        run = await Run.of(rounds=3)
        assert await together(*started(run.learner("a"), run.learner("b"))) == ["done", "done"]
        assert await run.phase() == "done"
        with pytest.raises(RunEnded, match="has all its rounds"):
            await run.learner("a").live()
        await run.command("extend", rounds=6)
        assert await run.phase() == "idle"
        a, b = run.learner("a"), run.learner("b")
        assert await together(*started(a, b)) == ["done", "done"]
        records = await tape(run.store, run.manifest)
        assert (len(records), records[3].control) == (6, 1)
        assert a.params == b.params

    virtually(main())


def test_fewer_rounds_than_there_are_end_the_run_with_the_next_one() -> None:
    async def main() -> None:
        run = await Run.of(rounds=None)
        a, b = run.learner("a"), run.learner("b")
        lives = started(a, b)
        await until(lambda: a.participant.newest >= 5)
        newest = a.participant.newest
        await run.command("extend", rounds=2)
        assert await together(*lives) == ["done", "done"]
        assert len(await tape(run.store, run.manifest)) <= newest + 3
        assert await run.phase() == "done"

    virtually(main())


def test_a_learner_that_is_dropped_leaves_by_name_and_is_waited_for_no_more() -> None:
    async def main() -> None:
        run = await Run.of(DiLoCo(sync_every=4, quorum_size=1, start_learners=2, grace_s=1000.0, beat_s=0.5, lease_s=2.0))
        a, b = run.learner("a"), run.learner("b", step_s=2 * LONG_S)
        lives = started(a, b)
        await asyncio.sleep(LONG_S)
        assert a.participant.newest == -1, "it waits for b, which is slow"
        await run.command("drop", learner="b", incarnation=1)
        await until(lambda: a.participant.newest >= 3, at_most_s=10)
        with pytest.raises(Dropped, match="learner 'b' was dropped from the run, asked for on studio"):
            await lives[1]
        again = run.learner("b")
        lives[1:] = started(again)
        await until(lambda: again.steps > 8)
        assert again.participant.me.incarnation == 2
        await run.command("stop")
        assert await together(*lives) == ["stopped"] * 2

    virtually(main())


def test_one_that_hangs_and_beats_is_dropped_without_its_help() -> None:
    async def main() -> None:
        run = await Run.of(DiLoCo(sync_every=4, quorum_size=1, start_learners=2, grace_s=1000.0, beat_s=0.5, lease_s=2.0))
        a, deaf = run.learner("a"), run.learner("b")
        lives = started(a)
        await deaf.participant.join()  # it beats, and does nothing else
        await asyncio.sleep(LONG_S)
        assert a.participant.newest == -1
        await run.command("drop", learner="b", incarnation=1)
        await until(lambda: a.participant.newest >= 5, at_most_s=10)
        await run.command("stop")
        assert await together(*lives) == ["stopped"]
        await deaf.participant.leave()

    virtually(main())


@pytest.mark.parametrize("role", ["learner", "either"])
def test_a_run_with_a_syncer_is_paused_and_resumed(role: str) -> None:
    async def main() -> None:
        run = await Run.of()
        syncer = Syncer(run.store, run.manifest, "nas", run.machines)
        a, b = run.learner("a", role=role), run.learner("b", role=role)
        lives = [asyncio.create_task(syncer.live()), *started(a, b)]
        await until(lambda: a.participant.newest >= 2)
        await run.command("pause")
        await paused_everywhere(a, b)
        await asyncio.sleep(LONG_S)
        before = await tape(run.store, run.manifest)
        now = await RunWatch("memory", run.manifest.run, store=MemoryMailbox(run.store)).poll()
        assert {v.learner: v.state for v in now.live} == {"a": "paused", "b": "paused", "nas": "paused"}
        await run.command("resume")
        await until(lambda: a.participant.newest >= len(before) + 2)
        await run.command("stop")
        assert await together(*lives) == ["stopped"] * 3
        assert all(len(r.participants) == 2 for r in await tape(run.store, run.manifest))

    virtually(main())


def test_a_pause_in_a_run_in_which_nobody_closes_rounds_is_at_once() -> None:
    async def main() -> None:
        run = await Run.of()
        a, b = run.learner("a", role="learner"), run.learner("b", role="learner")
        lives = started(a, b)
        await asyncio.sleep(5)
        await run.command("pause")
        await paused_everywhere(a, b)
        syncer = Syncer(run.store, run.manifest, "nas", run.machines)
        lives.append(asyncio.create_task(syncer.live()))
        await asyncio.sleep(LONG_S)
        assert await tape(run.store, run.manifest) == []
        assert await run.phase() == "paused"
        await run.command("resume")
        await until(lambda: a.participant.newest >= 2)
        await run.command("stop")
        assert await together(*lives) == ["stopped"] * 3

    virtually(main())
