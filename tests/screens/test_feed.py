"""The feed over an API of fakes: what it posts, and that nothing that hangs or breaks ends it."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TypeVar

import msgspec
import pytest
from textual.message import Message

from swarm.api import Settings
from swarm.core.mounting import Way
from swarm.core.sightings import Sightings
from tui.app import SwarmApp
from tui.feed import ROUNDS_KEPT, Feed, fresh_lines
from tui.messages import Alarmed, Answered, CommandEnded, HomePolled, JoinPolled, RunPolled, SettingsRead
from tui.screens.dialogs import Page
from tui.screens.log import LogOf
from tui.screens.round import RoundOf

M = TypeVar("M", bound=Message)


class FakeApi:
    """Each list is played in turn, its last entry for ever; an exception is raised."""

    def __init__(self, homes: list[object], runs: list[object], jobs: tuple[object, ...] = ()) -> None:
        self.homes, self.runs, self._jobs = homes, runs, jobs
        self.asked: list[tuple[object, ...]] = []
        self.problem: Exception | None = None
        self.joins: list[object] = []
        self.settings = Settings()
        self.sightings = Sightings()
        self.told: object = None  # of the network, to who looks what stands between
        self.long = False  # whether the history takes all polls of `runs` to read

    def HomeWatch(self, mailboxes: object) -> object:
        return SimpleNamespace(poll=self._player(self.homes))

    def RunWatch(self, mailbox: str, run: str, *, keep: int) -> object:
        self.asked.append(("watch", mailbox, run))
        assert keep == ROUNDS_KEPT
        api, values = self, self.runs

        class Run:
            poll = staticmethod(self._player(values))

            @property
            def behind(self) -> bool:
                return api.long and len(values) > 1

        return Run()

    def JoinWatch(self, run: str, **how: object) -> object:
        self.asked.append(("join watch", run, how))

        async def poll(sightings: object) -> object:
            self.told = sightings
            value = self.joins.pop(0) if len(self.joins) > 1 else self.joins[0]
            if isinstance(value, Exception):
                raise value
            return value

        return SimpleNamespace(poll=poll)

    def Neighbourhood(self, *, advertises: str, peers: object = (), interfaces: object = ()) -> object:
        assert advertises == "watching"
        self.asked.append(("listen", peers, interfaces))

        def add(peer: str) -> None:
            self._do("add", peer)

        return SimpleNamespace(
            start=lambda: self._do("start"),
            close=lambda: self.asked.append(("close",)),
            add=add,
            poll=lambda home: self.sightings,
        )

    def mount(self, way: object, *, quiet: bool = True) -> str:
        self._do("mount", way, quiet)
        return ""

    def remember_peer(self, address: str) -> None:
        self.asked.append(("remember peer", address))

    def remember(self, mailbox: str) -> None:
        self.asked.append(("remember", mailbox))

    def _player(self, values: list[object]) -> Callable[[], object]:
        async def poll() -> object:
            value = values.pop(0) if len(values) > 1 else values[0]
            if value == "hang":
                await asyncio.Event().wait()  # for ever: the feed's end cancels it
            if isinstance(value, Exception):
                raise value
            return value

        return poll

    def jobs(self) -> tuple[object, ...]:
        return self._jobs

    def load_settings(self) -> tuple[Settings, tuple[str, ...]]:
        return self.settings, ("settings: theme is wrong",)

    def save_setting(self, setting: str, value: object) -> None:
        self._do("save", setting, value)
        self.settings = msgspec.structs.replace(self.settings, **{setting: value})

    def notify(self, command: object, news: str) -> str:
        self.asked.append(("notify", command, news))
        return "no such command" if command == ("broken",) else ""

    def log_tail(self, job: str, lines: int = 200) -> tuple[str, ...]:
        return ("joined \x1b[31mred\x1b[0m", "r0 closed")

    def start_join(self, mailbox: str, run: str) -> None:
        self._do("join", mailbox, run)

    def leave(self, job: str) -> bool:
        self._do("leave", job)
        return True

    async def extend_run(self, mailbox: str, run: str, rounds: int | None) -> None:
        self._do("extend", mailbox, run, rounds)

    def export_run(self, mailbox: str, run: str, file: str) -> str:
        self._do("export", mailbox, run, file)
        return "wrote it"

    async def read_round(self, mailbox: str, run: str, round: int) -> object:
        self._do("read", mailbox, run, round)
        return f"round {round}"

    async def stop_run(self, mailbox: str, run: str) -> None:
        self._do("stop", mailbox, run)

    def _do(self, *what: object) -> None:
        self.asked.append(what)
        if self.problem:
            raise self.problem


class Running:
    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.posted: queue.Queue[Message] = queue.Queue()

    def next(self, kind: type[M]) -> M:
        """The next message of this kind; others are dropped."""
        while True:
            message = self.posted.get(timeout=30)
            if isinstance(message, kind):
                return message

    def until(self, kind: type[M], fits: Callable[[M], bool]) -> M:
        while not fits(message := self.next(kind)):
            pass
        return message


@contextmanager
def running(api: FakeApi, *, run_s: float = 0.001, notify: tuple[str, ...] = ()) -> Iterator[Running]:
    feed = Feed(api, notify=notify, home_s=0.001, run_s=run_s, wall=lambda: "12:00:00")  # type: ignore[arg-type]
    run = Running(feed)
    before = set(threading.enumerate())
    feed.start(run.posted.put)
    (thread,) = (t for t in set(threading.enumerate()) - before if t.name == "feed")
    try:
        yield run
    finally:
        feed.close()
        thread.join(30)
        assert not thread.is_alive()


def test_home_is_posted_with_notes_of_what_changed(fixed: SimpleNamespace) -> None:
    before, after = fixed.home(jobs=(fixed.job(state="starting"),)), fixed.home(jobs=(fixed.job(),))
    with running(FakeApi([before, after], [None])) as run:
        first = run.next(HomePolled).shown
        assert (first.home, first.notes, first.faults) == (before, (), ("settings: theme is wrong",))
        (note,) = run.until(HomePolled, lambda m: bool(m.shown.notes)).shown.notes
        assert (note.n, note.at, note.text) == (1, "12:00:00", "this machine trains charlm-brave-otter as studio")


def test_a_broken_poll_is_a_fact_and_not_the_end(fixed: SimpleNamespace) -> None:
    with running(FakeApi([RuntimeError("boom"), fixed.home()], [None])) as run:
        assert run.next(HomePolled).shown.home == fixed.home()
        assert run.feed.facts.errors == ("12:00:00 RuntimeError: boom",)


def test_what_stands_still_for_good_is_said(fixed: SimpleNamespace) -> None:
    api = FakeApi([fixed.home()], [None])
    api.HomeWatch = lambda mailboxes: {}["no such thing"]  # type: ignore[assignment, method-assign]
    with running(api) as run:
        ended = run.next(CommandEnded)
        assert (ended.command, ended.problem) == ("go on", "'no such thing'")
        assert run.feed.facts.errors == ("12:00:00 KeyError: 'no such thing'",)


def test_a_network_that_cannot_be_listened_to_is_a_fact_and_not_the_end(fixed: SimpleNamespace) -> None:
    api = FakeApi([fixed.home()], [None])
    api.problem = RuntimeError("no thread can be started")
    with running(api) as run:
        for _ in range(3):
            assert run.next(HomePolled).shown.home == fixed.home()
        assert run.feed.facts.errors == ("12:00:00 RuntimeError: no thread can be started",)


def test_the_run_on_screen_is_followed_with_its_job_and_log(fixed: SimpleNamespace) -> None:
    before, after = fixed.run_state(closed=3), fixed.run_state(closed=4)
    api = FakeApi([fixed.home()], [before, before, after], (fixed.job(),))
    with running(api) as run:
        run.feed.show(fixed.AT)
        first = run.next(RunPolled).shown
        assert (first.at, first.state, first.job) == (fixed.AT, before, fixed.job())
        assert [line.text for line in first.log] == ["joined red", "r0 closed"]
        assert first.round_since_s is None
        later = run.until(RunPolled, lambda m: m.shown.state is after).shown
        assert later.round_since_s is not None
        assert [note.text[:14] for note in later.notes] == ["round 3 closed"]
        assert [line.text for line in later.log] == ["joined red", "r0 closed"]  # the worker tells its rounds itself


def test_what_a_look_took_who_is_heard_and_since_when_a_quorum_has_reported(fixed: SimpleNamespace) -> None:
    early = msgspec.structs.replace(fixed.run_state(), reported=())
    late = fixed.run_state()  # two of four, and two may close it
    api = FakeApi([fixed.home()], [early, early, late, late, late])
    api.sightings = fixed.sightings()
    with running(api) as run:
        run.until(HomePolled, lambda m: bool(m.shown.sightings.peers))
        run.feed.show(fixed.AT)
        first = run.next(RunPolled).shown
        assert first.poll_s is not None
        assert 0 <= first.poll_s < 60
        assert first.heard
        assert first.quorum_since_s is None
        reached = run.until(RunPolled, lambda m: m.shown.state is late).shown
        assert reached.quorum_since_s is not None
        later = run.next(RunPolled).shown
        assert later.quorum_since_s == reached.quorum_since_s


def test_a_round_is_read_for_whoever_asks(fixed: SimpleNamespace) -> None:
    api = FakeApi([fixed.home()], [None])
    with running(api) as run:
        run.feed.ask(RoundOf(fixed.AT, 7))
        assert run.next(Answered).value == "round 7"
        api.problem = RuntimeError("it has not closed")
        run.feed.ask(RoundOf(fixed.AT, 8))
        refused = run.next(Answered)
        assert (refused.question, refused.value, refused.problem) == (RoundOf(fixed.AT, 8), None, "it has not closed")
        run.feed.ask(LogOf("a-job", 10))
        assert run.next(Answered).value == ("joined \x1b[31mred\x1b[0m", "r0 closed")


def test_a_long_history_is_read_on_until_a_snapshot_is_due(fixed: SimpleNamespace) -> None:
    """A screen that waited a second after every part of it would read for minutes."""
    states = [fixed.run_state(closed=n) for n in (3, 6, 9)]
    api = FakeApi([fixed.home()], [*states, states[2]])
    api.long = True
    with running(api, run_s=60) as run:
        run.feed.show(fixed.AT)
        assert run.next(RunPolled).shown.state is states[2]
    api = FakeApi([fixed.home()], [*states, states[2]])
    api.long = True
    with running(api, run_s=0.0) as run:
        run.feed.show(fixed.AT)
        assert run.until(RunPolled, lambda m: m.shown.state.manifest is not None).shown.state is states[0]


def test_without_a_job_here_the_log_tells_of_rounds(fixed: SimpleNamespace) -> None:
    before, after = fixed.run_state(closed=3), fixed.run_state(closed=4)
    with running(FakeApi([fixed.home()], [before, before, after])) as run:
        run.feed.show(fixed.AT)
        (line,) = run.until(RunPolled, lambda m: bool(m.shown.log)).shown.log
        assert line.text.startswith("12:00:00 round 3 closed: 3/3, train ")


def test_a_hanging_share_ages_what_is_shown_and_delays_no_command(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    api = FakeApi([fixed.home()], [state, "hang", state])
    with running(api) as run:
        run.feed.show(fixed.AT)
        first = run.until(RunPolled, lambda m: m.shown.state is state).shown
        for _ in range(3):
            again = run.next(RunPolled).shown
            assert again.state is state
            assert again.now_s > first.now_s
        run.feed.leave("a-job")
        assert run.next(CommandEnded).problem == ""


def test_a_run_that_is_gone_says_so(fixed: SimpleNamespace) -> None:
    with running(FakeApi([fixed.home()], [fixed.api.RunNotFound("no run k4m7q2xw")])) as run:
        run.feed.show(fixed.AT)
        assert run.until(RunPolled, lambda m: bool(m.shown.problem)).shown.problem == "no run k4m7q2xw"


def test_another_run_takes_the_place_of_the_first(fixed: SimpleNamespace) -> None:
    other = fixed.RunAt(fixed.SHARE, "bbbb3333")
    with running(FakeApi([fixed.home()], [fixed.run_state()])) as run:
        run.feed.show(fixed.AT)
        run.next(RunPolled)
        run.feed.show(other)
        run.until(RunPolled, lambda m: m.shown.at == other)
        assert all(run.next(RunPolled).shown.at == other for _ in range(3))


@pytest.mark.parametrize("problem", ["", "the data of this task is not here"])
def test_commands_end_with_a_message(fixed: SimpleNamespace, problem: str) -> None:
    api = FakeApi([fixed.home()], [None])
    api.problem = RuntimeError(problem) if problem else None
    with running(api) as run:
        for ask, expected in (
            (lambda: run.feed.join(fixed.AT), ("join", *fixed.AT)),
            (lambda: run.feed.leave("a-job"), ("leave", "a-job")),
            (lambda: run.feed.stop(fixed.AT), ("stop", *fixed.AT)),
            (lambda: run.feed.extend(fixed.AT, 80), ("extend", *fixed.AT, 80)),
            (lambda: run.feed.export(fixed.AT, "x.csv"), ("export", *fixed.AT, "x.csv")),
        ):
            ask()
            ended = run.next(CommandEnded)
            assert (ended.command, ended.problem) == (expected[0], problem)
            assert expected in api.asked


@pytest.mark.parametrize("problem", ["", "no address"])
def test_a_machine_is_added_by_its_address(fixed: SimpleNamespace, problem: str) -> None:
    api = FakeApi([fixed.home()], [None])
    with running(api) as run:
        run.next(HomePolled)
        api.problem = RuntimeError(problem) if problem else None
        run.feed.add_peer("studio.local")
        ended = run.next(CommandEnded)
        assert (ended.command, ended.what, ended.problem) == ("add the peer", "studio.local", problem)
        assert ("add", "studio.local") in api.asked
        assert (("remember peer", "studio.local") in api.asked) == (not problem)


def test_what_the_network_tells_comes_with_every_look_and_ends_with_the_feed(fixed: SimpleNamespace) -> None:
    api = FakeApi([fixed.home()], [None])
    api.sightings = fixed.sightings(fixed.seen_run())
    with running(api) as run:
        assert run.next(HomePolled).shown.sightings is api.sightings
    for _ in range(1000):
        if ("close",) in api.asked:
            break
        time.sleep(0.01)
    assert [each for each in api.asked if each[0] in ("start", "close")] == [("start",), ("close",)]


def test_what_stands_between_is_looked_at_again_and_again_until_nobody_asks(fixed: SimpleNamespace) -> None:
    api = FakeApi([fixed.home()], [None], jobs=(fixed.job(state="failed", id="old", run=fixed.FAR.run),))
    api.sightings = fixed.sightings(fixed.seen_run())
    here, away = fixed.join_shown().joining, fixed.not_mounted().joining
    api.joins = [away, ValueError("a bug"), here]
    with running(api) as run:
        run.next(HomePolled)
        run.feed.check(fixed.FAR, name="digits-far-heron")
        assert run.next(JoinPolled).shown.joining is away
        shown = run.until(JoinPolled, lambda m: m.shown.joining is here).shown
        assert shown.job is None  # it ended before anybody came here
        assert api.told is api.sightings
        assert ("join watch", fixed.FAR.run, {"name": "digits-far-heron", "location": None}) in api.asked
        api._jobs = (fixed.job(state="starting", id="new", run=fixed.FAR.run), *api._jobs)
        assert run.until(JoinPolled, lambda m: m.shown.job is not None).shown.job.id == "new"
        run.feed.check(None)


def test_a_share_is_mounted_as_a_person_has_seen_it(fixed: SimpleNamespace) -> None:
    api = FakeApi([fixed.home()], [None])
    api.joins = [msgspec.structs.replace(fixed.not_mounted().joining, way=Way(words=(), argv=("open", "smb://10.0.0.66/x")))]
    seen = fixed.not_mounted().joining.way
    with running(api) as run:
        run.feed.check(fixed.FAR)
        run.next(JoinPolled)
        run.feed.mount(fixed.FAR, seen)
        assert run.next(CommandEnded).problem == ""
        assert ("mount", seen, True) in api.asked
        api.problem = RuntimeError("Password required")
        run.feed.mount(fixed.FAR, seen)
        assert run.next(CommandEnded).problem == "Password required"


def test_commands_before_the_start_and_after_the_end_are_nothing(fixed: SimpleNamespace) -> None:
    feed = Feed(FakeApi([fixed.home()], [None]))  # type: ignore[arg-type]
    feed.rescan()
    feed.close()


def test_only_new_log_lines_are_taken() -> None:
    assert fresh_lines((), ("a", "b")) == ("a", "b")
    assert fresh_lines(("a", "b"), ("b", "c")) == ("c",)
    assert fresh_lines(("a", "b"), ("a", "b")) == ()
    assert fresh_lines(("a", "a"), ("a", "a", "a")) == ("a",)
    assert fresh_lines(("a",), ("x", "y")) == ("x", "y")


async def test_a_feed_that_hangs_delays_neither_keys_nor_exit(fixed: SimpleNamespace) -> None:
    released, entered = threading.Event(), threading.Event()

    class Hanging(FakeApi):
        def HomeWatch(self, mailboxes: object) -> object:
            entered.set()
            released.wait()  # blocks the feed's whole thread
            return super().HomeWatch(mailboxes)

    app = SwarmApp(Feed(Hanging([fixed.home()], [None])))  # type: ignore[arg-type]
    try:
        async with app.run_test(size=(80, 24)) as pilot:
            assert await asyncio.to_thread(entered.wait, 30)
            await pilot.press("question_mark")
            assert isinstance(app.screen, Page)
            await pilot.press("escape", "r", "q")
            assert app._exit
        assert not released.is_set()
    finally:
        released.set()


def test_settings_are_told_at_once_and_when_they_change(fixed: SimpleNamespace) -> None:
    api = FakeApi([fixed.home()], [None])
    with running(api) as run:
        first = run.next(SettingsRead)
        assert (first.settings, first.faults) == (Settings(), ("settings: theme is wrong",))
        api.settings = Settings(theme="nord", peers=("studio.local",))  # an editor's doing
        assert run.next(SettingsRead).settings.theme == "nord"
        run.next(HomePolled)
        assert ("add", "studio.local") in api.asked
        api.settings = Settings(theme="nord", interfaces=("en0",))
        run.next(SettingsRead)
        run.next(HomePolled)
        assert [each[0] for each in api.asked if each[0] in ("listen", "close")] == ["listen", "close", "listen"]


@pytest.mark.parametrize("problem", ["", "the file cannot be written"])
def test_a_setting_is_saved_on_the_feeds_thread(fixed: SimpleNamespace, problem: str) -> None:
    api = FakeApi([fixed.home()], [None])
    with running(api) as run:
        run.next(HomePolled)
        api.problem = RuntimeError(problem) if problem else None
        run.feed.save("theme", "nord")
        ended = run.next(CommandEnded)
        assert (ended.command, ended.problem) == ("save", problem)
        assert api.asked.count(("save", "theme", "nord")) == 1


def test_whoever_saves_gets_the_settings_even_if_nothing_could_be_written(fixed: SimpleNamespace) -> None:
    api = FakeApi(["hang"], [None])  # a share that does not answer holds up no settings
    with running(api) as run:
        run.next(SettingsRead)
        api.problem = RuntimeError("the file cannot be written")
        run.feed.save("theme", "nord")
        assert run.next(SettingsRead).settings == Settings()


def ends(fixed: SimpleNamespace) -> list[object]:
    gone = ("studio", "mbp", "linux-3090", "air")
    return [fixed.home(fixed.run_state(closed=39)), fixed.home(fixed.run_state(closed=40, left=gone))]


@pytest.mark.parametrize("given", [(), ("say",)])
def test_an_alarm_runs_the_command_of_this_machine(fixed: SimpleNamespace, given: tuple[str, ...]) -> None:
    api = FakeApi(ends(fixed), [None])
    api.settings = Settings(notify=("notify-send", "swarm"))
    with running(api, notify=given) as run:
        news = run.next(Alarmed).news
        assert news.startswith("run charlm-brave-otter is done")
        for _ in range(3):
            run.next(HomePolled)
        assert [each for each in api.asked if each[0] == "notify"] == [("notify", given or ("notify-send", "swarm"), news)]


def test_a_command_that_fails_is_said_once(fixed: SimpleNamespace) -> None:
    stopped = fixed.job(state="failed", message="no data")
    jobs = [fixed.home(jobs=(each,)) for _ in range(2) for each in (fixed.job(), stopped)]
    api = FakeApi(jobs, [None])
    with running(api, notify=("broken",)) as run:
        ended = run.next(CommandEnded)
        assert (ended.command, ended.problem) == ("notify", "no such command")
        run.until(HomePolled, lambda m: len([each for each in api.asked if each[0] == "notify"]) == 2)
        run.feed.leave("a-job")  # whatever comes next
        assert run.next(CommandEnded).command == "leave"


def test_what_is_shown_is_painted_as_rarely_as_the_settings_say(fixed: SimpleNamespace) -> None:
    api = FakeApi([fixed.home()], [fixed.run_state()])
    api.settings = Settings(interval_s=10.0)
    feed = Feed(api, home_s=0.001)  # type: ignore[arg-type]
    assert feed._run_s == 1.0
    for interval_s, look_s in ((0.5, 0.5), (3.0, 1.5), (10.0, 2.0)):
        feed._settings = Settings(interval_s=interval_s)
        assert feed._run_s == look_s
    # With longer gaps between looks nobody could be told to be silent.
    feed._clock = lambda: 100.0
    assert [feed._due(at_s) for at_s in (None, 89.0, 95.0, 99.0)] == [True, True, False, False]
