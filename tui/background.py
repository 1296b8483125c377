"""A daemon thread with an event loop of its own, on which whatever hangs may hang: what the feed stands on."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from textual.message import Message

from tui import text
from tui.messages import CommandEnded, Facts

if TYPE_CHECKING:
    from tui.messages import Command

T = TypeVar("T")


class Background:
    """`wall`: the local time of day, for people."""

    def __init__(self, *, wall: Callable[[], str] = lambda: time.strftime("%H:%M:%S")) -> None:
        self._wall = wall
        self._post: Callable[[Message], object] = lambda message: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._facts = Facts()
        self._problem = ""  # of the last call that went wrong

    # Called by the app, on its thread.

    def start(self, post: Callable[[Message], object]) -> None:
        """Begin; `post` must be safe to call from another thread."""
        self._post = post
        self._loop = loop = asyncio.new_event_loop()
        loop.call_soon(self._begin)
        threading.Thread(target=loop.run_forever, name="feed", daemon=True).start()

    def close(self) -> None:
        """End without waiting: a call that hangs on a share keeps nobody."""
        self._post = lambda message: None
        self._call(lambda: asyncio.ensure_future(self._end()))

    @property
    def facts(self) -> Facts:
        return self._facts

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        """Have it called on the thread of the loop."""
        with contextlib.suppress(RuntimeError):  # closed already
            if self._loop is not None:
                self._loop.call_soon_threadsafe(callback, *args)

    def _command(self, command: Command, what: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Have it done, and tell the app how it went."""

        async def run() -> None:
            problem = ""
            try:
                await work()
            except Exception as error:  # whatever it is, the person who pressed the key must read it
                problem = text.plain(str(error) or type(error).__name__, 500)
            self._post(CommandEnded(command, what, problem))
            self._commanded()

        self._call(lambda: self._spawn(run()))

    # On the thread of the loop from here on.

    def _begin(self) -> None:
        raise NotImplementedError

    def _commanded(self) -> None:
        """A command has ended."""

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        """What stands still from now on is said: a screen that shows old figures as if nothing were wrong is worse."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note(error)
            self._post(CommandEnded("go on", "", self._problem))

    def _note(self, error: BaseException) -> None:
        self._problem = text.plain(str(error) or type(error).__name__, 500)
        line = text.plain(f"{self._wall()} {type(error).__name__}: {error}", 500)
        self._facts = replace(self._facts, errors=(*self._facts.errors, line)[-5:])

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        asyncio.get_running_loop().stop()

    async def _tried(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result, or None and a line among the facts: nothing that goes wrong here may end the feed."""
        try:
            return await work
        except Exception as error:
            self._note(error)
            return None


async def in_thread(call: Callable[..., T], *args: object) -> T:
    """Run a blocking call on a daemon thread: the default executor's threads are joined at exit, and one that hangs would
    hold the exit up."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        try:
            outcome: tuple[T | None, BaseException | None] = (call(*args), None)
        except Exception as error:
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="feed-call", daemon=True).start()
    return await future
