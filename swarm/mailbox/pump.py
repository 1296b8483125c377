"""From a coroutine to a blocking thread: the chunks of an asynchronous source, a few at a time."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from swarm.mailbox.contract import Buffer

T = TypeVar("T")
DEPTH = 2  # chunks that wait or are being written while the next one comes about; what a Source may change goes by it
LOOK_S = 1.0


class _End:
    """The source is exhausted; with an error, it is not and never will be."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class GivenUp(Exception):
    """Nobody feeds the pump any more."""


class Pump:
    """Iterated on the thread that writes. `waiting` is called while it waits for the source, which is no share's fault."""

    def __init__(self, *, waiting: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(DEPTH)
        self._chunks: queue.SimpleQueue[Buffer | _End] = queue.SimpleQueue()
        self._waiting = waiting

    async def through(self, source: AsyncIterable[Buffer], work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, which iterates this pump elsewhere, with `source` going through. What either raises gets out,
        and ends the other."""
        working = asyncio.ensure_future(work)
        feeding = asyncio.create_task(self._feed(source))
        try:
            await asyncio.wait((working, feeding), return_when=asyncio.FIRST_COMPLETED)
            if not feeding.done():  # nobody takes what it feeds any more
                feeding.cancel()
            elif not feeding.cancelled() and feeding.exception() is not None:
                self._chunks.put(_End(feeding.exception()))
            return await working
        finally:
            self._chunks.put(_End(GivenUp()))
            feeding.cancel()
            working.cancel()
            await asyncio.gather(feeding, working, return_exceptions=True)

    async def _feed(self, source: AsyncIterable[Buffer]) -> None:
        chunks = aiter(source)
        try:
            async for chunk in chunks:
                await self._room.acquire()
                self._chunks.put(chunk)
        finally:
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()
        self._chunks.put(_End())

    def __iter__(self) -> Iterator[Buffer]:
        while True:
            try:
                chunk = self._chunks.get(timeout=LOOK_S)
            except queue.Empty:
                self._waiting()
                continue
            if isinstance(chunk, _End):
                if chunk.error is not None:
                    raise chunk.error
                return
            yield chunk
            with contextlib.suppress(RuntimeError):  # the loop is closed: the next chunk is the end
                self._loop.call_soon_threadsafe(self._room.release)
