"""Daemon threads for blocking file work: a share that hangs never delays a key press or an exit.

The interpreter joins the threads of `concurrent.futures` when it ends, and asyncio joins its default executor's: one call
that blocks for minutes delays the exit by minutes. Nothing joins these.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

IDLE_S = 10.0  # a thread without work for so long ends, so that nobody has to close a pool


class _Call(Generic[T]):
    """One call, from its submission to its end; it ends even if nobody awaits it any more."""

    def __init__(self, work: Callable[[], T], loop: asyncio.AbstractEventLoop, since_s: float) -> None:
        self.work = work
        self.loop = loop
        self.future: asyncio.Future[T] = loop.create_future()
        self.since_s = since_s


class DaemonThreads:
    """At most `n` daemon threads, started as they are needed. `now` is a monotonic clock in seconds."""

    def __init__(self, n: int = 8, *, now: Callable[[], float] = time.monotonic) -> None:
        if n < 1:
            raise ValueError(f"n must be >= 1, got {n}")
        self._n = n
        self._now = now
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[_Call[Any]] = queue.SimpleQueue()
        self._calls: set[_Call[Any]] = set()
        self._threads = 0
        self._mine = threading.local()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(*args, **kwargs)` on one of the threads; its result or its exception.

        Cancelling the await does not stop a call that has begun, which then ends unseen; one still waiting never begins.
        """
        call = _Call(lambda: work(*args, **kwargs), asyncio.get_running_loop(), self._now())
        with self._lock:
            self._calls.add(call)
            self._queue.put(call)
            if len(self._calls) > self._threads and self._threads < self._n:
                self._threads += 1
                threading.Thread(target=self._serve, name="swarm-mailbox", daemon=True).start()
        return await call.future

    def outstanding_s(self, now: float) -> float:
        """For how long the oldest call that has not ended has made no progress, in seconds; 0 if there is none."""
        with self._lock:
            return max((now - call.since_s for call in self._calls), default=0.0)

    def progressed(self) -> None:
        """Said by a call of itself: it moves, so a long transfer is not taken for a share that does not answer."""
        call = getattr(self._mine, "call", None)
        if call is not None:
            call.since_s = self._now()

    def _serve(self) -> None:
        while True:
            try:
                call = self._queue.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:  # `run` puts under this lock: what is empty now has nobody counting on this thread
                    if self._queue.empty():
                        self._threads -= 1
                        return
                continue
            self._serve_one(call)
            del call  # else an idle thread would keep a payload's buffer alive

    def _serve_one(self, call: _Call[Any]) -> None:
        result: Any = None
        error: BaseException | None = None
        self._mine.call = call
        try:
            if not call.future.cancelled():
                result = call.work()
        except BaseException as caught:
            error = caught
        finally:
            self._mine.call = None
            with self._lock:
                self._calls.discard(call)
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            call.loop.call_soon_threadsafe(_settle, call.future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
