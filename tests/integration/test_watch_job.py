"""Following a data-parallel job by its records alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swarm import api
from swarm.core.errors import RunEnded
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.ranks import JobLog, Plan
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.parallel import history
from swarm.tape import Tape
from swarm.watch import HomeWatch, RunWatch
from tests.integration import handmade_job as made
from tests.integration.handmade import make_mailbox
from tests.integration.simulation import virtually

RUN = "k4m7q2xw"


@pytest.fixture(autouse=True)
def _own_files(state_dir: Path) -> None:
    """No test looks at this machine's settings and jobs."""


class Counting(MemoryMailbox):
    """Counts what is asked for."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.calls: list[str] = []

    async def read(self, key: str) -> bytes | None:
        self.calls.append(f"read {key}")
        return await super().read(key)

    async def list(self, prefix: str, after: str = "") -> list[str]:
        found = await super().list(prefix, after)
        self.calls.append(f"list {prefix}")
        self.calls += [f"name {key}" for key in found]
        return found

    async def names(self, prefix: str) -> Any:
        found = await super().names(prefix)
        self.calls.append(f"names {prefix}")
        self.calls += [f"name {prefix}{name}" for name in found]
        return found


async def put(store: MemoryStore, *records: Any) -> None:
    mailbox, place = MemoryMailbox(store), RunKeys(RUN)
    for record in records:
        key = made.key_of(place, record)
        if key.endswith("/record.json"):
            await mailbox.create(key, made.as_bytes(record))
        else:
            await mailbox.put(key, [made.as_bytes(record)])


async def read_to_the_end(watch: RunWatch) -> api.RunState:
    while True:
        state = await watch.poll()
        assert not state.lost
        if not watch.behind:
            return state


def test_a_screen_opened_later_shows_the_same() -> None:
    records = made.job(upto=1000, finished=True)

    async def follow() -> None:
        store = MemoryStore()
        await put(store, made.manifest())
        early, late = (RunWatch("memory", RUN, store=MemoryMailbox(store)) for _ in range(2))
        for record in records:  # one poll after each of them
            await put(store, record)
            await early.poll()
        now = await read_to_the_end(early)
        then = await read_to_the_end(late)
        assert now.ranks.points == then.ranks.points
        assert [p.iteration for p in then.ranks.points] == list(range(10, 1001, 10))
        assert (now.ranks.evals, now.ranks.checkpoints) == (then.ranks.evals, then.ranks.checkpoints)
        assert (now.phase, then.phase) == ("done", "done")
        assert api.job_rows(now) == api.job_rows(then)
        assert api.checked(then) == api.checked(now)

    virtually(follow())


def test_the_cost_of_a_poll_does_not_grow_with_the_jobs_age() -> None:
    async def cost_after(upto: int, *, history: bool) -> list[str]:
        store = MemoryStore()
        await put(store, made.manifest(), *made.job(upto=upto))
        mailbox = Counting(store)
        watch = RunWatch("memory", RUN, history=history, store=mailbox)
        await read_to_the_end(watch)
        await watch.poll()
        mailbox.calls.clear()
        await watch.poll()
        return mailbox.calls

    async def compare() -> None:
        for whole in (True, False):
            young, old = await cost_after(900, history=whole), await cost_after(30_900, history=whole)
            assert len(old) <= len(young)
            assert not [call for call in old if call.startswith("read") and "/log/" in call]

    virtually(compare())


def test_many_generations_cost_no_more_to_follow_than_few() -> None:
    async def cost_after(count: int) -> int:
        store = MemoryStore()
        await put(store, made.manifest())
        for g in range(count):
            lost = made.GenerationEnd(generation=g, ending="rendezvous", by="mbp", reason="late")
            await put(store, made.member("mbp", g), lost)
        await put(store, made.member("mbp", count))
        mailbox = Counting(store)
        watch = RunWatch("memory", RUN, store=mailbox)
        state = await read_to_the_end(watch)
        assert len([g for g in state.ranks.generations if g.end is not None]) == count
        mailbox.calls.clear()
        await watch.poll()
        return len(mailbox.calls)

    async def compare() -> None:
        assert await cost_after(130) == await cost_after(4)

    virtually(compare())


def test_a_long_history_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "READS_A_POLL", 30)

    async def follow() -> None:
        store = MemoryStore()
        await put(store, made.manifest(), *made.job(upto=1000, finished=True))
        watch = RunWatch("memory", RUN, store=MemoryMailbox(store))
        first = await watch.poll()
        assert watch.behind
        assert first.phase == "done"
        assert len((await read_to_the_end(watch)).ranks.points) == 100

    virtually(follow())


def test_a_list_of_runs_reads_the_newest_only() -> None:
    async def follow() -> None:
        store = MemoryStore()
        await put(store, made.manifest(), *made.job(upto=900))
        mailbox = Counting(store)
        state = await read_to_the_end(RunWatch("memory", RUN, history=False, store=mailbox))
        read = [call for call in mailbox.calls if call.startswith("read") and "/ranks/" in call]
        assert len(read) < 20
        progress = api.progress(state)
        assert progress is not None
        assert (progress.iteration, state.phase) == (900, "idle")

    virtually(follow())


def test_what_is_forged_or_damaged_hides_nothing_else() -> None:
    async def follow() -> None:
        store, place = MemoryStore(), RunKeys(RUN)
        records = made.job(upto=400)
        await put(store, made.manifest(), *(r for r in records if not (isinstance(r, JobLog) and r.generation == 2)))
        mailbox = MemoryMailbox(store)
        parts = [r for r in records if isinstance(r, JobLog) and r.generation == 2]
        for part in parts:
            data = made.as_bytes(part)
            if part.n == 3:
                data = b"{}"
            if part.n == 4:  # says that it is another one
                data = encode(made.log(2, 0, 10)[0], nonce="0" * 32)
            await mailbox.put(place.job_log(2, part.n), [data])
        await mailbox.create(place.member(2, learner="evil", incarnation=1), made.as_bytes(made.member("mbp", 2)))
        await mailbox.create(place.rank_plan(3), b"\xff")
        await mailbox.create(place.job_checkpoint(2, 7), b"no record")
        state = await read_to_the_end(RunWatch("memory", RUN, store=mailbox))
        assert [p.iteration for p in state.ranks.points] == [*range(10, 231, 10), *range(260, 401, 10)]
        planned = state.ranks.planned
        assert planned is not None
        assert planned.generation == 2
        assert [m.learner for m in planned.members] == ["air", "linux-3090", "mbp", "studio"]
        assert [c.step for c in state.ranks.checkpoints] == [300, 400]

    virtually(follow())


def test_a_plan_that_is_listed_after_its_end_is_seen_all_the_same() -> None:
    async def follow() -> None:
        store = MemoryStore()
        records = made.job(upto=300)
        plan = next(r for r in records if isinstance(r, Plan) and r.generation == 0)
        first = [r for r in records if r is not plan and getattr(r, "generation", 9) < 1]
        await put(store, made.manifest(), *first)
        watch = RunWatch("memory", RUN, store=MemoryMailbox(store))
        assert not (await watch.poll()).ranks.points
        await put(store, plan)
        assert len((await watch.poll()).ranks.points) == 25

    virtually(follow())


def test_home_shows_a_job_among_other_runs(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "mailbox")
    made.write(location, made.manifest(), made.job(upto=1000, finished=True))

    async def look() -> None:
        (view,) = (await HomeWatch((location,)).poll()).mailboxes
        assert [(state.name, state.phase) for state in view.runs] == [("smollm2-quiet-heron", "done")]
        assert not await api.joinable(location)
        with pytest.raises(RunEnded, match="has made all its 1000 iterations"):
            await api.check_joinable(location, await api.find_run(location, RUN))

    asyncio.run(look())


def test_learners_and_their_beats_are_followed_too() -> None:
    async def follow() -> None:
        store = MemoryStore()
        await put(store, made.manifest(), *made.job(upto=600), made.learner("mbp"))
        mailbox = MemoryMailbox(store)
        watch = RunWatch("memory", RUN, store=mailbox)
        for n in range(3):
            tape = Tape(mailbox, made.manifest())
            await tape.beat("mbp", 1, n, made.rank_beat(n, "mbp", 1, step=601 + n))
            state = await watch.poll()
            await asyncio.sleep(0.2)
        assert (state.phase, state.phase_is_certain) == ("running", True)
        (view,) = [v for v in api.rank_views(state) if v.learner == "mbp"]
        assert (view.rank, view.microbatch_rows) == (1, 1)

    virtually(follow())
