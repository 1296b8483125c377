"""Mailbox calls from a program's own thread."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. It runs on a thread of its own: the caller's may have an event loop already, as in a notebook.
    Ctrl-C ends it."""
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
    ended: Future[T] = Future()

    async def run() -> T:
        task = asyncio.ensure_future(work)
        begun.set_result((asyncio.get_running_loop(), task))
        return await task

    def serve() -> None:
        try:
            ended.set_result(asyncio.run(run()))
        except BaseException as error:
            ended.set_exception(error)

    Thread(target=serve, name="swarm-library", daemon=True).start()
    try:
        return ended.result()
    except BaseException:
        if not ended.done():
            loop, task = begun.result()
            loop.call_soon_threadsafe(task.cancel)
        raise
