"""Following runs and mailboxes: what a screen polls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from swarm import api, watch
from swarm.core.errors import FormatMismatch, MailboxUnavailable, RunNotFound
from swarm.core.keys import RunKeys
from swarm.core.specs import DiLoCo
from swarm.host.paths import settings_file
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.waiting import in_time, on_silence
from swarm.manifests import read_manifest
from swarm.watch import HANG_S, LOOK_S, HomeWatch, RunWatch
from tests.integration.handmade import evaluate, make_mailbox, make_run, manifest_of_another_format, write_rounds
from tests.integration.simulation import Learner, Machines, new_run, together, virtually

T = TypeVar("T")
SPEC = DiLoCo(sync_every=5, quorum_size=2, beat_s=1.0, lease_s=6.0)


@pytest.fixture(autouse=True)
def _own_files(state_dir: Path) -> None:
    """No test looks at this machine's settings and jobs."""


class Share(MemoryMailbox):
    """Calls can be made to take long, or for ever, on the loop's clock."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.takes_s = 0.0
        self.hangs: asyncio.Event | None = None
        self.under_way: dict[int, float] = {}
        self.calls: list[str] = []
        self.most = 0

    async def _through(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        n = len(self.calls)
        self.calls.append(name)
        self.under_way[n] = asyncio.get_running_loop().time()
        self.most = max(self.most, len(self.under_way))
        try:
            if self.takes_s:
                await asyncio.sleep(self.takes_s)
            if self.hangs is not None:
                await self.hangs.wait()
            return await call()
        finally:
            del self.under_way[n]

    async def read(self, key: str) -> bytes | None:
        return await self._through(f"read {key}", lambda: MemoryMailbox.read(self, key))

    async def list(self, prefix: str, after: str = "") -> list[str]:
        return await self._through(f"list {prefix}", lambda: MemoryMailbox.list(self, prefix, after))

    def outstanding_s(self) -> float:
        return asyncio.get_running_loop().time() - min(self.under_way.values(), default=asyncio.get_running_loop().time())


async def simulated(rounds: int | None, *, name: str = "ab") -> tuple[MemoryStore, str, list[Learner]]:
    store = MemoryStore()
    manifest = await new_run(store, SPEC, rounds=rounds)
    machines = Machines()
    return store, manifest.run, [Learner(store, manifest, learner, machines) for learner in name]


async def watched(follower: RunWatch, until: Callable[[api.RunState], bool]) -> None:
    while True:
        if until(await follower.poll()):
            return
        await asyncio.sleep(0.5)


# A run


def test_a_run_is_followed_to_its_end() -> None:
    async def main() -> None:
        store, run, learners = await simulated(4)
        follower = RunWatch("memory", run, store=MemoryMailbox(store))
        assert (await follower.poll()).phase == "idle"
        living = asyncio.create_task(together(*(learner.live() for learner in learners)))
        seen = []
        while not living.done():
            now = await follower.poll()
            seen.append((now.phase, now.open_round, tuple(v.learner for v in now.live)))
            await asyncio.sleep(0.5)
        assert ("waiting", 0, ()) not in seen
        assert any(phase == "running" and live == ("a", "b") for phase, _, live in seen)
        assert [r for _, r, _ in seen] == sorted(r for _, r, _ in seen)
        now = await follower.poll()
        assert (now.phase, now.open_round, now.live, now.lost) == ("done", 4, (), None)
        assert [r.round for r in now.rounds] == [0, 1, 2, 3]
        assert [e.round for e in now.evals] == [0, 1, 2, 3]
        assert {v.learner: v.state for v in now.learners} == {"a": "left", "b": "left"}
        assert all(v.record is not None for v in now.learners)
        late = await RunWatch("memory", run, store=MemoryMailbox(store)).poll()
        assert (late.rounds, late.evals) == (now.rounds, now.evals)  # a screen opened later shows the same curves

    virtually(main())


def test_a_learner_that_falls_silent_is_live_for_a_lease() -> None:
    async def main() -> None:
        store, run, learners = await simulated(None)
        lives = [asyncio.create_task(learner.live()) for learner in learners]
        follower = RunWatch("memory", run, store=MemoryMailbox(store))
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(3)
        await watched(follower, lambda now: len(now.live) == 2)
        lives[1].cancel()
        killed_s = clock()
        await watched(follower, lambda now: len(now.live) < 2)
        assert SPEC.lease_s - SPEC.beat_s <= clock() - killed_s <= SPEC.lease_s + SPEC.beat_s + 1
        assert [(v.learner, v.state == "silent") for v in follower.state.learners] == [("a", False), ("b", True)]
        lives[0].cancel()
        await asyncio.gather(*lives, return_exceptions=True)

    virtually(main())


def test_a_share_that_hangs_is_lost_after_its_limit_and_gets_one_call_at_a_time() -> None:
    async def main() -> None:
        store, run, _ = await simulated(None)
        share = Share(store)
        follower = RunWatch("memory", run, store=share)
        assert (await follower.poll()).lost is None
        share.hangs, share.most = asyncio.Event(), 0
        clock = asyncio.get_running_loop().time
        started_s, calls = clock(), len(share.calls)
        now = await follower.poll()
        assert now.lost == "the share does not answer"
        assert HANG_S <= clock() - started_s <= HANG_S + 2 * LOOK_S
        since_s = now.lost_at_s
        for _ in range(5):
            started_s = clock()
            now = await follower.poll()
            assert (now.lost is not None, now.lost_at_s) == (True, since_s)
            assert clock() - started_s <= 2 * LOOK_S
        assert len(share.calls) - calls == share.most == 1
        share.hangs.set()
        assert (await follower.poll()).lost is None

    virtually(main())


def test_a_share_that_hangs_from_the_start_is_lost() -> None:
    async def main() -> None:
        store, run, _ = await simulated(None)
        share = Share(store)
        share.hangs = asyncio.Event()
        follower = RunWatch("memory", run, store=share)
        now = await follower.poll()
        assert (now.lost, now.manifest, now.phase) == ("the share does not answer", None, "unknown")
        share.hangs.set()
        now = await follower.poll()
        assert now.lost is None
        assert now.manifest is not None

    virtually(main())


def test_a_share_that_is_slow_is_not_lost_and_shows_what_was_read() -> None:
    async def main() -> None:
        store, run, learners = await simulated(20)
        await together(*(learner.live() for learner in learners))
        share = Share(store)
        share.takes_s = 1.0
        follower = RunWatch("memory", run, store=share)
        clock = asyncio.get_running_loop().time
        counts = []
        while not counts or counts[-1] < 20:
            started_s = clock()
            now = await follower.poll()
            assert now.lost is None
            assert clock() - started_s <= HANG_S + 3 * LOOK_S
            counts.append(len(now.rounds))
        assert len(counts) > 3
        assert counts[0] < 20

    virtually(main())


def test_a_command_gives_up_on_a_share_that_hangs_and_not_on_a_slow_one() -> None:
    async def main() -> None:
        store, run, _ = await simulated(None)
        share = Share(store)
        share.hangs = asyncio.Event()
        clock = asyncio.get_running_loop().time
        told: list[float] = []
        on_silence.set(lambda location: told.append(clock() - started_s))
        started_s = clock()
        with pytest.raises(MailboxUnavailable, match="has not answered for 20 s"):
            await in_time(share, read_manifest(share, run))
        assert 20 <= clock() - started_s <= 21
        share.hangs, share.takes_s = None, 19.0
        started_s = clock()
        assert (await in_time(share, read_manifest(share, run))).run == run
        assert len(told) == 2
        assert all(5 <= after_s <= 6 for after_s in told)
        share.takes_s = 4.0
        assert (await in_time(share, read_manifest(share, run))).run == run
        assert len(told) == 2

    virtually(main())


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")
    with pytest.raises(RunNotFound):
        asyncio.run(RunWatch(location, "nosuchrun").poll())
    manifest_of_another_format(location, make_run(location, "mlp-new", "aaaa1111"))
    with pytest.raises(FormatMismatch, match="upgrade swarm here"):
        asyncio.run(RunWatch(location, "aaaa1111").poll())


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_run_that_is_deleted_meanwhile_is_not_told_as_a_lost_share(tmp_path: Path, rounds: int) -> None:
    location = make_mailbox(tmp_path / "m")
    manifest = make_run(location, "mlp-one", "aaaa1111", rounds=3)
    write_rounds(location, manifest, rounds)

    async def main() -> None:
        follower = RunWatch(location, "aaaa1111")
        assert (await follower.poll()).open_round == rounds
        await api.remove_run(location, "aaaa1111")
        for _ in range(2):
            with pytest.raises(RunNotFound, match="run mlp-one was deleted"):
                await follower.poll()
        assert (follower.state.open_round, follower.state.lost) == (rounds, None), "what was read is there still"

    asyncio.run(main())


def test_a_share_that_is_renamed_away_and_back(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")
    manifest = make_run(location, "mlp-one", "aaaa1111")
    write_rounds(location, manifest, 3)

    async def main() -> None:
        follower = RunWatch(location, "aaaa1111")
        before = await follower.poll()
        assert len(before.rounds) == 3
        Path(location).rename(tmp_path / "away")
        for _ in range(2):
            now = await follower.poll()
            assert "mounted?" in str(now.lost)
            assert now.rounds == before.rounds
        Path(location).mkdir()  # the mount point of a share that is unmounted
        assert "mounted?" in str((await follower.poll()).lost)
        Path(location).rmdir()
        (tmp_path / "away").rename(location)
        now = await follower.poll()
        assert now.lost is None
        assert now.rounds == before.rounds

    asyncio.run(main())


class Counting(FolderMailbox):
    reads = 0

    async def read(self, key: str) -> bytes | None:
        self.reads += 1
        return await super().read(key)


def test_a_long_history_is_read_in_bounded_polls_and_only_once(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")
    write_rounds(location, make_run(location, "mlp-one", "aaaa1111"), 3000)

    async def main() -> None:
        mailbox = Counting(location)
        await mailbox.open()
        follower = RunWatch(location, "aaaa1111", store=mailbox)
        polls = []
        while not polls or polls[-1] < 3000:
            polls.append((await follower.poll()).open_round)
        assert polls == [watch.ROUNDS_A_POLL + 1, 3000]
        assert mailbox.reads <= 3000 + 2
        mailbox.reads = 0
        await follower.poll()
        assert mailbox.reads == 0
        newest = RunWatch(location, "aaaa1111", history=False, store=mailbox)
        now = await newest.poll()
        assert ([r.round for r in now.rounds], now.open_round) == ([2999], 3000)
        assert mailbox.reads <= 2

    asyncio.run(main())


def test_a_screen_keeps_the_newest_records_and_the_curves_of_all(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")
    manifest = make_run(location, "mlp-one", "aaaa1111")
    write_rounds(location, manifest, 300)
    for round in range(0, 300, 3):
        evaluate(location, "aaaa1111", round)

    async def main() -> None:
        kept, whole = RunWatch(location, "aaaa1111", keep=64), RunWatch(location, "aaaa1111")
        now, then = await kept.poll(), await whole.poll()
        assert [r.round for r in now.rounds] == list(range(236, 300))
        assert (len(then.rounds), now.open_round) == (300, 300)
        assert now.series == then.series
        assert len(now.series.train.rounds) == 300
        assert [(e.round, e.loss, e.metrics) for e in now.evals] == [(e.round, e.loss, e.metrics) for e in then.evals]
        assert [bool(e.confusion) for e in now.evals] == [False] * 36 + [True] * 64
        evaluate(location, "aaaa1111", 298)
        assert [e.round for e in (await kept.poll()).evals] == [*range(0, 298, 3), 298]

    asyncio.run(main())
    with pytest.raises(ValueError, match="keep must be"):
        RunWatch(location, "aaaa1111", keep=10)


def test_a_history_of_many_participants_is_read_by_fewer_rounds_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = make_mailbox(tmp_path / "m")
    write_rounds(location, make_run(location, "mlp-one", "aaaa1111"), 25)  # with one participant each
    monkeypatch.setattr(watch, "PARTICIPANTS_A_POLL", 10)

    async def main() -> None:
        follower = RunWatch(location, "aaaa1111", keep=64)
        polls = []
        while not polls or follower.behind:
            polls.append((await follower.poll()).open_round)
        assert polls == [10, 20, 25]

    asyncio.run(main())


def test_evaluations_are_read_in_bounded_polls_and_bad_ones_hold_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = make_mailbox(tmp_path / "m")
    manifest = make_run(location, "mlp-one", "aaaa1111")
    write_rounds(location, manifest, 12)
    for round in range(12):
        evaluate(location, "aaaa1111", round)
        if round < 6:
            Path(location, RunKeys(manifest.run).eval(round)).write_bytes(b"nothing")
    monkeypatch.setattr(watch, "EVALS_A_POLL", 6)
    monkeypatch.setattr(watch, "EVALS_BACK", 2)

    async def main() -> None:
        follower = RunWatch(location, "aaaa1111")
        polls = []
        while not polls or follower.behind:
            polls.append([e.round for e in (await follower.poll()).evals])
        assert polls == [[], [6, 7, 8, 9], [6, 7, 8, 9, 10, 11]]

    asyncio.run(main())


def test_what_has_settled_has_the_whole_of_a_long_history(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")
    write_rounds(location, make_run(location, "mlp-one", "aaaa1111"), watch.ROUNDS_A_POLL + 50)
    follower = RunWatch(location, "aaaa1111")
    now = asyncio.run(api.settled(follower))
    assert now.open_round == len(now.rounds) == watch.ROUNDS_A_POLL + 50
    assert not follower.behind


def test_who_is_live_is_listened_for_after_a_long_history_was_read() -> None:
    class Slow:
        """Reads its history for 100 s, and is certain of who is live a second later."""

        behind, polls = True, 0
        manifest, lost = SimpleNamespace(algorithm=SPEC), None

        async def poll(self) -> Slow:
            self.polls += 1
            await asyncio.sleep(50 if self.behind else 0)
            self.behind = self.polls < 2
            return self

        @property
        def phase_is_certain(self) -> bool:
            return self.polls > 5

    assert virtually(api.settled(Slow())).polls == 6  # type: ignore[arg-type, attr-defined]


# Home


def test_home_shows_what_is_wrong_with_a_mailbox_and_what_to_do(tmp_path: Path) -> None:
    good, missing = make_mailbox(tmp_path / "m"), str(tmp_path / "missing")
    make_run(good, "mlp-one", "aaaa1111")
    places = (good, missing, "smb://nas/x", "~nosuchuser/x")
    home = asyncio.run(HomeWatch(places).poll())
    assert [view.location for view in home.mailboxes] == list(places)
    assert [run.name for run in home.mailboxes[0].runs] == ["mlp-one"]
    assert not home.mailboxes[0].problem
    assert missing in home.mailboxes[1].problem
    assert "swarm init" in home.mailboxes[1].remedy
    assert "mount the share" in home.mailboxes[2].problem
    assert home.mailboxes[3].problem


def test_home_follows_the_settings_as_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_mailbox(tmp_path / "a"), make_mailbox(tmp_path / "b")
    settings_file().parent.mkdir(parents=True)

    async def main() -> None:
        home = HomeWatch()
        assert (await home.poll()).mailboxes == ()
        settings_file().write_text(f'mailboxes = ["~nosuchuser/x", "", "{first}"]')
        assert [v.location for v in (await home.poll()).mailboxes] == ["~nosuchuser/x", first]
        monkeypatch.setenv("SWARM_MAILBOX", second)
        assert api.known_mailboxes() == (second, "~nosuchuser/x", first)
        settings_file().write_text("mailboxes = 3")
        assert [v.location for v in (await home.poll()).mailboxes] == [second]

    asyncio.run(main())


def test_home_keeps_its_runs_while_the_share_is_away_and_takes_a_new_mailbox_for_what_it_is(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")
    make_run(location, "mlp-one", "aaaa1111")

    async def main() -> None:
        home = HomeWatch((location,))
        await home.poll()
        Path(location).rename(tmp_path / "away")
        for _ in range(2):
            [view] = (await home.poll()).mailboxes
            assert "mounted?" in view.problem
            assert [run.name for run in view.runs] == ["mlp-one"]
        (tmp_path / "away").rename(location)
        [view] = (await home.poll()).mailboxes
        assert (view.problem, [run.name for run in view.runs]) == ("", ["mlp-one"])
        Path(location).rename(tmp_path / "old")
        await home.poll()
        await FolderMailbox.init(location)
        [view] = (await home.poll()).mailboxes
        assert (view.problem, view.runs) == ("", ())

    asyncio.run(main())


def test_home_shows_runs_as_they_come_and_go(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")

    async def main() -> None:
        home = HomeWatch((location,))
        assert (await home.poll()).mailboxes[0].runs == ()
        done = await asyncio.to_thread(make_run, location, "a-done", "aaaa1111", rounds=2)
        write_rounds(location, done, 2)
        await asyncio.to_thread(make_run, location, "mlp-one", "bbbb1111")
        assert [(r.name, r.phase) for r in (await home.poll()).mailboxes[0].runs] == [("mlp-one", "idle"), ("a-done", "done")]
        await api.remove_run(location, "bbbb1111")
        assert [r.name for r in (await home.poll()).mailboxes[0].runs] == ["a-done"]

    asyncio.run(main())


def test_home_reads_all_runs_of_a_mailbox_through_a_few_threads(tmp_path: Path) -> None:
    location = make_mailbox(tmp_path / "m")
    for n in range(20):
        make_run(location, f"mlp-{n}", f"aaaa{n:04d}")

    async def main() -> None:
        before = set(threading.enumerate())
        home = HomeWatch((location,))
        assert len((await home.poll()).mailboxes[0].runs) == 20
        await home.poll()
        made = set(threading.enumerate()) - before
        assert 1 <= len(made) <= 8

    asyncio.run(main())
