"""The feed that is loaded behind the first paint."""

from __future__ import annotations

import queue
import threading
from typing import Any

from tui.later import Later
from tui.messages import Facts, RunAt

AT = RunAt("/mnt/share", "aaaa1111")


class Heard:
    """A feed that tells of every call."""

    facts = Facts(home_polls=7)

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[object, ...]] = queue.Queue()

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.put((name, *given, *named.items()))


def test_what_is_asked_before_it_is_there_is_asked_in_order() -> None:
    feed, may = Heard(), threading.Event()

    def make() -> Any:
        assert may.wait(30)
        return feed

    later = Later(make)
    later.start(print)
    later.show(AT)
    later.check(AT, name="tiny")
    assert (later.facts, feed.calls.empty()) == (Facts(), True)
    may.set()
    expected = [("start", print), ("show", AT), ("check", AT, ("name", "tiny"))]
    assert [feed.calls.get(timeout=30) for _ in expected] == expected
    while later.facts is not feed.facts:  # the very next thing that its thread does
        pass
    later.rescan()
    later.close()
    assert [feed.calls.get(timeout=30) for _ in range(2)] == [("rescan",), ("close",)]


def test_a_feed_that_cannot_be_loaded_is_said() -> None:
    told: queue.Queue[Any] = queue.Queue()

    def make() -> Any:
        raise ImportError("no module of this name")

    Later(make).start(told.put)
    ended = told.get(timeout=30)
    assert (ended.command, ended.problem) == ("start", "ImportError: no module of this name")


def test_an_app_that_ends_first_starts_no_feed() -> None:
    feed, may, made = Heard(), threading.Event(), threading.Event()

    def make() -> Any:
        assert may.wait(30)
        made.set()
        return feed

    later = Later(make)
    later.start(print)
    (loading,) = (thread for thread in threading.enumerate() if thread.name == "feed-load")
    later.close()
    may.set()
    loading.join(30)
    assert made.is_set()
    assert feed.calls.empty()
