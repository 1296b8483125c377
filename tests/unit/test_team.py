"""Several workers in the foreground: what is told of them, and what becomes of the others when one fails."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm import launcher
from swarm.cli import narrate
from swarm.core.events import Created, Ended, Evaluated, Failed, Joined, RoundClosed, Trouble, WorkerEvent
from swarm.core.jobs import CreateRun, Learn
from swarm.core.specs import DiLoCo

CLOSED = RoundClosed(round=0, rounds=2, participants=("a", "a-2"), rejected=(), train_loss=0.5, closer="a")
DONE = Ended(reason="done", rounds=2)


class Process:
    """Ends with `code` once its events were read `looks` times; at once, with 130, when it is asked to leave."""

    def __init__(self, code: int, looks: int) -> None:
        self._code, self._looks = code, looks
        self.returncode: int | None = None
        self.signals: list[int] = []
        self.stdin: io.BytesIO | None = None

    def wait(self, timeout: float) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        if self.signals:
            self.returncode = 130
        elif self._looks <= 0:
            self.returncode = self._code
        self._looks -= 1
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


class Events:
    def __init__(self, *batches: tuple[WorkerEvent, ...], then: Callable[[], object] = lambda: None) -> None:
        self._batches, self._then = list(batches), then

    def read(self) -> tuple[WorkerEvent, ...]:
        if not self._batches:
            self._then()
            return ()
        return self._batches.pop(0)


class Worker(launcher.Worker):
    def __init__(self, job: Path, events: Events, *, code: int = 0, looks: int = 6) -> None:
        self.asked = False
        self.job, self.events, self.process = job, events, Process(code, looks)  # type: ignore[assignment]


def joined(name: str) -> Joined:
    return Joined(run="aaaa1111", name="one", learner=name, incarnation=1, round=0, device="torch cpu")


def order(learner: str, *, create: bool = False) -> Learn:
    made = CreateRun(run="aaaa1111", name="one", task="mlp", options={}, algorithm=DiLoCo(), rounds=2, seed=0)
    return Learn(mailbox="m", run="aaaa1111", learner=learner, may_rename=True, create=made if create else None)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., tuple[int, list[str]]]]:
    """(the exit code, who was started) of following these workers in turn."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    monkeypatch.setattr(narrate, "LOOK_S", 0.0)

    def run(*workers: Callable[[Path], Worker], as_json: bool = False, create: bool = True) -> tuple[int, list[str]]:
        waiting, started = list(workers), []

        def start(told: Learn, *, foreground: bool) -> Worker:
            assert foreground
            started.append(told.learner)
            return waiting.pop(0)(tmp_path)

        monkeypatch.setattr(launcher, "start", start)
        names = ["a", *(f"a-{n}" for n in range(2, len(workers) + 1))]
        orders = [order(name, create=create and name == "a") for name in names]
        return narrate.follow(orders, as_json=as_json), started

    yield run
    signal.signal(signal.SIGINT, before)


def made(*batches: tuple[WorkerEvent, ...], **how: Any) -> Callable[[Path], Worker]:
    return lambda job: Worker(job, Events(*batches), **how)


def test_what_all_would_say_is_said_once_and_the_rest_by_name(play: Callable[..., Any], capsys: Any) -> None:
    first = made((Created(run="aaaa1111", name="one"), joined("a")), (CLOSED, Evaluated(round=0, loss=0.5)), (DONE,))
    second = made((joined("host-7"),), (CLOSED, Trouble(message="odd")), (DONE,))
    code, started = play(first, second)
    assert (code, started) == (0, ["a", "a-2"])
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "a: joined one as a on torch cpu, at round 0",
        "a: made run one (aaaa1111)",
        "a: the run is done after 2 rounds",
        "host-7: joined one as host-7 on torch cpu, at round 0",
        "host-7: odd",
        "host-7: the run is done after 2 rounds",
        "round 0 closed (1 of 2) with a, a-2  train loss 0.5000",
        "round 0: validation loss 0.5000",
    ]


def test_one_worker_alone_needs_no_name(play: Callable[..., Any], capsys: Any) -> None:
    assert play(made((Created(run="aaaa1111", name="one"),), (CLOSED,), (DONE,)))[0] == 0
    assert capsys.readouterr().err.splitlines()[0] == "made run one (aaaa1111)"


def test_json_names_the_learner(play: Callable[..., Any], capsys: Any) -> None:
    play(made((Created(run="aaaa1111", name="one"),), (CLOSED,)), made((CLOSED,)), as_json=True)
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted((t["learner"], t["event"]) for t in told) == [
        ("a", "Created"),
        ("a", "RoundClosed"),
        ("a-2", "RoundClosed"),
    ]


def test_others_start_once_there_is_a_run_to_join(play: Callable[..., Any], capsys: Any) -> None:
    failing = made((Failed(error="UsageError", message="no such data"),), code=2, looks=1)
    assert play(failing, made()) == (2, ["a"])
    assert "a: swarm: no such data" in capsys.readouterr().err


def test_without_a_run_to_make_all_start(play: Callable[..., Any]) -> None:
    assert play(made((joined("a"),)), made((joined("a-2"),)), made(), create=False) == (0, ["a", "a-2", "a-3"])


def test_one_that_fails_ends_no_other(play: Callable[..., Any], capsys: Any) -> None:
    first = made((Created(run="aaaa1111", name="one"),), (CLOSED,), (), (), (), (DONE,), looks=12)
    second = made((Failed(error="DataMissing", message="the data is gone"),), code=1, looks=1)
    assert play(first, second) == (1, ["a", "a-2"])
    lines = capsys.readouterr().err.splitlines()
    assert lines.index("a-2: swarm: the data is gone") < lines.index("a: the run is done after 2 rounds")


def test_one_that_comes_when_all_is_done_has_not_failed(play: Callable[..., Any], capsys: Any) -> None:
    late = made((Failed(error="RunEnded", message="run one has all its rounds"),), code=1, looks=1)
    first = made((Created(run="aaaa1111", name="one"),), (CLOSED,), (DONE,))
    assert play(first, late)[0] == 0
    assert "a-2: swarm: run one has all its rounds" in capsys.readouterr().err


def test_ctrl_c_asks_all_of_them_and_starts_no_more(play: Callable[..., Any], capsys: Any) -> None:
    workers: list[Worker] = []

    def kept(*batches: tuple[WorkerEvent, ...], then: Callable[[], object] = lambda: None) -> Callable[[Path], Worker]:
        def make(job: Path) -> Worker:
            workers.append(Worker(job, Events(*batches, then=then), looks=1000))
            return workers[-1]

        return make

    def interrupt() -> None:
        if len(workers) == 2 and not workers[0].process.signals:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGINT)

    code, started = play(kept((Created(run="aaaa1111", name="one"),), (joined("a"),)), kept(then=interrupt))
    assert (code, started) == (130, ["a", "a-2"])
    assert [w.process.signals for w in workers] == [[launcher.LEAVE], [launcher.LEAVE]]  # type: ignore[attr-defined]
    assert capsys.readouterr().err.count("leaving:") == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_before_the_run_is_made_starts_no_other(play: Callable[..., Any]) -> None:
    first = lambda job: Worker(job, Events(then=lambda: signal.raise_signal(signal.SIGINT)), looks=1000)  # noqa: E731
    assert play(first, made()) == (130, ["a"])


def test_ctrl_c_while_a_worker_is_started_reaches_that_one(play: Callable[..., Any]) -> None:
    workers: list[Worker] = []

    def first(job: Path) -> Worker:
        signal.raise_signal(signal.SIGINT)
        workers.append(Worker(job, Events(), looks=1000))
        return workers[-1]

    assert play(first) == (130, ["a"])
    assert workers[0].process.signals == [launcher.LEAVE]  # type: ignore[attr-defined]


def test_one_that_comes_when_the_others_have_ended_the_run_is_no_failure(play: Callable[..., Any], capsys: Any) -> None:
    late = Failed(error="RunEnded", message="run one has all its rounds")

    def first(code: int, *events: WorkerEvent) -> Callable[[Path], Worker]:
        return lambda job: Worker(job, Events((Created(run="aaaa1111", name="one"), joined("a")), events), code=code)

    def second(job: Path) -> Worker:
        return Worker(job, Events((late,)), code=1, looks=2)

    assert play(first(0, DONE), second) == (0, ["a", "a-2"])
    assert "a-2: swarm: run one has all its rounds" in capsys.readouterr().err
    broken = Failed(error="MailboxFull", message="no space left")
    assert play(first(0, Ended(reason="left", rounds=1)), second)[0] == 1
    assert play(first(3, broken), second)[0] == 1


def test_a_second_request_to_leave_is_seen_though_the_first_was_not_dealt_with(tmp_path: Path) -> None:
    worker = Worker(tmp_path, Events())
    process: Any = worker.process
    process.stdin = io.BytesIO()
    worker.interrupt()
    assert not process.stdin.closed
    worker.interrupt()
    assert (process.signals, process.stdin.closed) == ([launcher.LEAVE], True)
