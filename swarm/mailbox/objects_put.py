"""Writing objects: in one request, or for large ones in parts, several at once.

A large object comes about under a name of its own in tmp/ and is then copied to its key by the store: the key may follow from
the bytes, and an upload that its writer gives up can be ended and deleted, where one of the key itself would be a torn object.
Memory: PART_BYTES for each part under way, and for the two that come about.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any
from uuid import uuid4

from swarm.core.errors import MailboxCorrupt, MailboxError, MailboxUnavailable
from swarm.mailbox.contract import PART_BYTES, Buffer, KeyOf, Source, check_put_key
from swarm.mailbox.disk import as_bytes
from swarm.mailbox.objects_store import Stores, foreign
from swarm.mailbox.threads import DaemonThreads

TMP = "tmp"
CONCURRENCY = 3  # parts of one object under way at once
COPY_BYTES = 5 << 30  # what a store copies by itself, in one piece


class Call:
    """One call of a mailbox, from its begin to its end. `now`: a monotonic clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.since_s: float | None = now()  # since when the store makes it wait; None: it does not

    def progressed(self) -> None:
        self.since_s = self._now()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """For something that is not the store's to give."""
        self.since_s = None
        try:
            yield
        finally:
            self.since_s = self._now()


class Uploads:
    """What this process writes into one mailbox."""

    def __init__(self, location: str, threads: DaemonThreads) -> None:
        self.location, self._threads = location, threads
        self.staging: set[str] = set()  # keys in tmp/ that are being written
        self._background: set[asyncio.Task[None]] = set()

    async def put(self, stores: Stores, key: KeyOf, source: Source, call: Call) -> str:
        """As the mailbox's `put`. What the source or the key raises gets out as it is."""

        def name() -> str:
            return key if isinstance(key, str) else check_put_key(key())

        async with aclosing(self._parts(source, call)) as parts:
            first = await anext(parts, bytearray())
            second = await anext(parts, None) if len(first) >= PART_BYTES else None
            if second is not None:
                return await self._put_large(stores, name, (first, second), parts, call)
        final = name()
        with foreign(self.location, writing=True):
            await stores.obstore.put_async(stores.parts, final, bytes(first), use_multipart=False)
        return final

    async def _put_large(
        self,
        stores: Stores,
        name: Callable[[], str],
        begun: tuple[bytearray, bytearray],
        parts: AsyncIterable[bytearray],
        call: Call,
    ) -> str:
        staged = f"{TMP}/{uuid4().hex}"
        writer = stores.obstore.open_writer_async(stores.parts, staged, buffer_size=PART_BYTES, max_concurrency=CONCURRENCY)
        self.staging.add(staged)
        size, closed = 0, False

        async def write(part: bytearray) -> None:
            nonlocal size
            with foreign(self.location, writing=True):
                await writer.write(part)
            size += len(part)
            call.progressed()

        try:
            for part in begun:
                await write(part)
            async for part in parts:
                await write(part)
            final = name()
            with foreign(self.location, writing=True):
                closed = True
                await writer.close()
            call.progressed()
            await self._copy(stores, staged, final, size=size, call=call)
        except BaseException:
            # Ended and then deleted, an upload leaves nothing; only given up, it would stay until it is swept.
            self._in_background(self._discard(stores, staged, None if closed else writer))
            raise
        await self._discard(stores, staged)
        return final

    async def _copy(self, stores: Stores, staged: str, final: str, *, size: int, call: Call) -> None:
        try:
            with foreign(self.location, writing=True):
                if size <= COPY_BYTES:
                    await stores.obstore.copy_async(stores.parts, staged, final)
                else:
                    await self._copy_through_here(stores, staged, final, call)
                found = await stores.obstore.head_async(stores.small, final)
        except FileNotFoundError:  # swept, by a machine that saw it unchanged for long
            raise MailboxUnavailable(f"{self.location}: {final}: what was written is gone: it is to be written again") from None
        if found["size"] != size:
            raise MailboxCorrupt(f"{self.location}: {final}: {found['size']} bytes are there, {size} were written")

    async def _copy_through_here(self, stores: Stores, staged: str, final: str, call: Call) -> None:
        found = await stores.obstore.get_async(stores.parts, staged)
        writer = stores.obstore.open_writer_async(stores.parts, final, buffer_size=PART_BYTES, max_concurrency=CONCURRENCY)
        async for part in found.stream(min_chunk_size=PART_BYTES):
            await writer.write(part)
            call.progressed()
        await writer.close()  # not reached, there is no object

    async def _discard(self, stores: Stores, staged: str, writer: Any = None) -> None:
        with suppress(FileNotFoundError, FileExistsError, MailboxError), foreign(self.location, writing=True):
            if writer is not None:
                await writer.close()
            await stores.obstore.delete_async(stores.small, staged)
        self.staging.discard(staged)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _parts(self, source: Source, call: Call) -> AsyncGenerator[bytearray, None]:
        """The source's bytes in pieces of PART_BYTES to twice that, but for the last. A chunk may change once others have been
        asked for: so it is copied. Waiting for it is not the store's fault."""
        if isinstance(source, AsyncIterable):
            chunks = aiter(source)
            buffer = bytearray()
            try:
                while True:
                    with call.waiting():
                        chunk = await anext(chunks, None)
                    if chunk is None:
                        break
                    for piece in _pieces((chunk,)):
                        buffer += piece
                        if len(buffer) >= PART_BYTES:
                            yield buffer
                            buffer = bytearray()
            finally:
                close = getattr(chunks, "aclose", None)
                if close is not None:
                    await close()
            if buffer:
                yield buffer
        else:
            pieces = _pieces(source)
            while True:
                with call.waiting():
                    buffer = await self._threads.run(_gather, pieces)
                if buffer:
                    yield buffer
                if len(buffer) < PART_BYTES:
                    return


def _pieces(source: Iterable[Buffer]) -> Iterator[memoryview]:
    for chunk in source:
        view = as_bytes(chunk)
        for at in range(0, len(view), PART_BYTES):
            yield view[at : at + PART_BYTES]


def _gather(pieces: Iterator[memoryview]) -> bytearray:
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= PART_BYTES:
            break
    return buffer
