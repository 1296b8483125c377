"""Objects read from end to end and hashed, a part at a time: reading goes on while the part before is hashed."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from swarm.core.errors import HeaderError, MailboxUnavailable
from swarm.core.header import header_size
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.threads import DaemonThreads

T = TypeVar("T")
PART_BYTES = 4 << 20  # read and hashed at once: more of it gains nothing, and there are two of each

AT_ONCE = 4  # objects that are read at a time
PAUSES_S = (0.2, 1.0, 3.0)  # between tries of what the share refuses


class Whole(NamedTuple):
    """What an object is."""

    size_bytes: int
    sha256: str
    head: bytes
    """As much as the header of a Safetensors file needs, if it was asked for."""


class Reader:
    """Reads whole objects of a mailbox, AT_ONCE at a time, in bounded memory: two parts for each."""

    def __init__(self, mailbox: Mailbox, *, moved: Callable[[int], None]) -> None:
        self.mailbox = mailbox
        self._moved = moved
        self._threads = DaemonThreads(AT_ONCE)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._large: list[list[memoryview]] = []  # pairs that nobody uses now

    async def whole(self, key: str, *, size_bytes: int = PART_BYTES, head: bool = False) -> Whole | None:
        """None: it is not there, or no longer. `size_bytes`: of it, as a listing says. `head`: keep a Safetensors header.
        Raises MailboxUnavailable if the share gives errors several times, what else the mailbox raises."""
        async with self._turns:
            large = size_bytes >= PART_BYTES
            pair = self._large.pop() if large and self._large else [_fresh(min(size_bytes + 1, PART_BYTES)) for _ in range(2)]
            found = await patiently(lambda: self._read(key, pair, head))
            if large:  # not after an error: a read that was cancelled may still write into its buffer
                self._large.append(pair)
            return found

    async def _read(self, key: str, pair: list[memoryview], head: bool) -> Whole | None:
        sha, offset, begin, wanted = hashlib.sha256(), 0, b"", 8 if head else 0
        size = await self.mailbox.read_part(key, 0, pair[0])
        while size is not None:
            part, last = pair[0][:size], size < len(pair[0])
            pair.reverse()
            coming = None if last else asyncio.ensure_future(self.mailbox.read_part(key, offset + size, pair[0]))
            try:
                await self._threads.run(sha.update, part)
            except BaseException:
                if coming is not None:
                    coming.cancel()
                raise
            if offset == 0 and head and size >= 8:
                wanted = _header_bytes(bytes(part[:8]))
            if len(begin) < wanted:
                begin += bytes(part[: wanted - len(begin)])
            offset += size
            self._moved(size)
            if coming is None:
                return Whole(offset, sha.hexdigest(), begin)
            size = await coming
        return None


def _fresh(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _header_bytes(begin: bytes) -> int:
    """What to keep of a file that begins so: of one whose header nobody reads, what says so."""
    try:
        return header_size(begin, 1 << 62)
    except HeaderError:
        return 8


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """What it gives, called again a few times while the share says that it cannot."""
    for pause_s in PAUSES_S:
        try:
            return await call()
        except MailboxUnavailable:
            await asyncio.sleep(pause_s)
    return await call()
