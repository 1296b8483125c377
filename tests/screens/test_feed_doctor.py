"""The feed has this machine examined, and tells what is found as it comes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from swarm.api import Sightings
from tests.screens import surroundings
from tests.screens.test_feed import FakeApi, Running, running
from tui.messages import CommandEnded, HomePolled, NetworkPolled


class FakeDoctor:
    """Tells half, waits until it is let go, then tells the whole."""

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.go = threading.Event()
        self.problem: Exception | None = None

    async def examine(
        self, locations: object = None, *, sight: Callable[[], object], told: Callable[[object], object]
    ) -> object:
        self.asked.append(locations)
        assert await sight() == Sightings()  # type: ignore[misc]
        if self.problem is not None:
            raise self.problem
        told(surroundings.looking())
        while not self.go.is_set():  # noqa: ASYNC110 — what is waited for happens in another thread
            await asyncio.sleep(0.001)
        return surroundings.examination(surroundings.ALONE)

    def report(self, found: object) -> str:
        return "a page"


@pytest.fixture
def doctor() -> FakeDoctor:
    return FakeDoctor()


@pytest.fixture
def run(fixed: SimpleNamespace, doctor: FakeDoctor) -> Iterator[Running]:
    with running(FakeApi([fixed.home()], [None])) as run:
        run.feed._doctor = doctor
        run.next(HomePolled)
        yield run


def test_an_examination_is_told_as_it_goes_and_then_with_its_report(
    fixed: SimpleNamespace, doctor: FakeDoctor, run: Running
) -> None:
    run.feed.examine()
    first = run.next(NetworkPolled).shown
    assert (first.found.done, first.report) == (False, "")
    run.feed.examine()  # one at a time
    doctor.go.set()
    whole = run.until(NetworkPolled, lambda m: bool(m.shown.report)).shown
    assert whole.found.done
    assert whole.report == "a page"
    assert doctor.asked == [[fixed.SHARE]]
    again = run.next(NetworkPolled).shown  # with each look at the mailboxes: who is seen, and when
    assert again.found.done
    assert again.report == "a page"
    assert again.now_s >= whole.now_s
    run.feed.examine()
    run.until(NetworkPolled, lambda m: not m.shown.found.done)


def test_an_examination_that_breaks_says_why(doctor: FakeDoctor, run: Running) -> None:
    doctor.problem = RuntimeError("no doctor")
    run.feed.examine()
    ended = run.next(CommandEnded)
    assert (ended.command, ended.problem) == ("check", "no doctor")


def test_one_that_hangs_holds_no_exit_up(doctor: FakeDoctor, run: Running) -> None:
    run.feed.examine()
    run.next(NetworkPolled)  # the fixture sees that the feed's thread ends
