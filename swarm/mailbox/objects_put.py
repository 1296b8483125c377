"""Writing objects, blocking: in one request, or large ones in parts, several at once.

A large object comes about under a name of its own in tmp/ and is then copied to its key by the store: the key may follow from
the bytes, and an upload that its writer gives up can be ended and deleted, where one of the key itself would be a torn object.
Memory: PART_BYTES for each part under way, and for two that come about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from uuid import uuid4

from swarm.core.errors import MailboxCorrupt, MailboxError, MailboxUnavailable
from swarm.mailbox.contract import PART_BYTES, Buffer, KeyOf, check_put_key
from swarm.mailbox.disk import as_bytes
from swarm.mailbox.objects_store import Stores, foreign

TMP = "tmp"
CONCURRENCY = 3  # parts of one object under way at once
COPY_BYTES = 5 << 30  # what a store copies by itself, in one piece


class Uploads:
    """What this process writes into a mailbox. Safe to use from several threads."""

    def __init__(self, progressed: Callable[[], None]) -> None:
        self._progressed = progressed
        self.staging: set[str] = set()  # keys in tmp/ that are being written

    def put(self, stores: Stores, key: KeyOf, source: Iterable[Buffer]) -> str:
        """As the mailbox's `put`. What the source or the key raises gets out as it is."""

        def name() -> str:
            return key if isinstance(key, str) else check_put_key(key())

        pieces = _pieces(source)
        first = _gather(pieces)
        if len(first) >= PART_BYTES and (second := _gather(pieces)):
            return self._put_large(stores, name, (first, second), pieces)
        final = name()
        with foreign(stores.where, writing=True):
            stores.obstore.put(stores.parts, final, bytes(first), use_multipart=False)
        return final

    def _put_large(
        self, stores: Stores, name: Callable[[], str], begun: tuple[bytearray, ...], pieces: Iterator[memoryview]
    ) -> str:
        staged = f"{TMP}/{uuid4().hex}"
        self.staging.add(staged)
        writer = stores.obstore.open_writer(stores.parts, staged, buffer_size=PART_BYTES, max_concurrency=CONCURRENCY)
        size, open_ = 0, True
        try:
            for part in _parts(begun, pieces):
                with foreign(stores.where, writing=True):
                    writer.write(part)
                size += len(part)
                self._progressed()
            final = name()
            open_ = False
            with foreign(stores.where, writing=True):
                writer.close()
            self._progressed()
            self._copy(stores, staged, final, size)
        except MailboxError:
            self._discard(stores, staged)  # what is left of an upload is swept: the store is not asked for more than it can
            raise
        except BaseException:  # the source's own. Ended and then deleted, the upload leaves nothing
            self._discard(stores, staged, writer if open_ else None)
            raise
        self._discard(stores, staged)
        return final

    def _copy(self, stores: Stores, staged: str, final: str, size: int) -> None:
        try:
            with foreign(stores.where, writing=True, answers=(FileNotFoundError,)):
                if size <= COPY_BYTES:
                    stores.obstore.copy(stores.parts, staged, final)
                else:
                    self._copy_through_here(stores, staged, final)
                found = stores.obstore.head(stores.small, final)
        except FileNotFoundError:  # swept, by a machine that saw it unchanged for long
            raise MailboxUnavailable(f"{stores.where}: {final}: what was written is gone: it is to be written again") from None
        if found["size"] != size:
            raise MailboxCorrupt(f"{stores.where}: {final}: {found['size']} bytes are there, {size} were written")

    def _copy_through_here(self, stores: Stores, staged: str, final: str) -> None:
        found = stores.obstore.get(stores.parts, staged)
        writer = stores.obstore.open_writer(stores.parts, final, buffer_size=PART_BYTES, max_concurrency=CONCURRENCY)
        for part in found.stream(min_chunk_size=PART_BYTES):
            writer.write(part)
            self._progressed()
        writer.close()  # not reached, there is no object

    def _discard(self, stores: Stores, staged: str, writer: Any = None) -> None:
        with suppress(MailboxError), foreign(stores.where, writing=True):
            if writer is not None:
                writer.close()
            stores.obstore.delete(stores.small, staged)
        self.staging.discard(staged)


def _pieces(source: Iterable[Buffer]) -> Iterator[memoryview]:
    for chunk in source:
        view = as_bytes(chunk)
        for at in range(0, len(view), PART_BYTES):
            yield view[at : at + PART_BYTES]


def _gather(pieces: Iterator[memoryview]) -> bytearray:
    """The next PART_BYTES, or up to twice that, or what is left. A copy: chunks may change once others have been asked for."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= PART_BYTES:
            break
    return buffer


def _parts(begun: Iterable[bytearray], pieces: Iterator[memoryview]) -> Iterator[bytearray]:
    yield from begun
    while part := _gather(pieces):
        yield part
