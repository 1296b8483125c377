"""Telling a program what happens: events go to its callbacks on a thread of their own."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterable
from typing import TypeAlias

from swarm.core.events import WorkerEvent
from swarm.core.sentences import sentence

Callback: TypeAlias = Callable[[WorkerEvent], object]


def narrate(event: WorkerEvent) -> None:
    """A callback that prints what happens to stderr, in words, a line each."""
    words = sentence(event)
    if words is not None:
        print(f"{words}\n", end="", file=sys.stderr, flush=True)  # in one piece: the program prints on another thread


class Callbacks:
    """Calls every callback for every event, in order, one at a time. A slow one delays neither training nor beats.

    The first exception of one ends the deliveries: `failed` is called, and `check` raises it.
    """

    def __init__(self, callbacks: Iterable[Callback], *, failed: Callable[[], None]) -> None:
        self._callbacks, self._failed = tuple(callbacks), failed
        self._events: queue.SimpleQueue[WorkerEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        if self._callbacks and self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="swarm-callbacks", daemon=True)
            self._thread.start()

    def emit(self, event: WorkerEvent) -> None:
        """May be called from any thread."""
        if self._callbacks:
            self._events.put(event)

    def stop(self) -> None:
        """Deliver what there is, then end. Called from a callback, it only ends."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._events.put(None)
            if thread is not threading.current_thread():
                thread.join()

    def check(self) -> None:
        """Raises what a callback raised, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _serve(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                for callback in self._callbacks:
                    callback(event)
            except BaseException as error:
                self._error = error
                self._failed()
                return
