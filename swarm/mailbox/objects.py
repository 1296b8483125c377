"""A mailbox in an object store: S3 and what speaks its language (Cloudflare R2, MinIO). FORMAT.md, "In a bucket".

Every promise hangs on one: of several writers that create a key with `If-None-Match: *`, the store lets exactly one through.
Not every store keeps it. One that pays no heed to the header is found out before anything hangs on it: `open` creates the
marker once more, with the bytes that it has, and that must be refused. One that lets writers through that come at the same time
is found out by reading back, as far as that can tell: whoever has won reads the record, and must find its own. It cannot prove
the reverse: a second writer may come after the look. What it then leaves is found by the chain of the rounds' hashes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from uuid import uuid4

from swarm.core.buckets import place_of
from swarm.core.errors import (
    FormatMismatch,
    MailboxAway,
    MailboxCorrupt,
    MailboxError,
    MailboxFull,
    MailboxMoved,
    MailboxReadOnly,
    MailboxUnavailable,
    UsageError,
)
from swarm.core.keys import MARKER, check_prefix, is_key
from swarm.core.lines import decode_needed, encode
from swarm.core.manifest import FORMAT, Marker
from swarm.mailbox.contract import (
    MAX_READ_BYTES,
    KeyOf,
    Source,
    check_delete_key,
    check_object_key,
    check_put_key,
    check_record_key,
    one_by_one,
)
from swarm.mailbox.disk import writable
from swarm.mailbox.objects_put import TMP, Call, Uploads
from swarm.mailbox.objects_race import LIAR, check_exclusive
from swarm.mailbox.objects_store import Stores, connect, foreign, out_of_range
from swarm.mailbox.objects_sweep import ObjectSweeper
from swarm.mailbox.threads import DaemonThreads

RUNS = "runs"
GUARD_S = 10.0  # for so long a mailbox that was there counts as still there
PAUSES_S = (0.05, 0.2, 0.5)  # between tries to create what is refused, and is not there either
READ_BYTES = 1 << 20  # of a part at a time


class ObjectMailbox:
    """The mailbox at `url`, s3://bucket/prefix?endpoint=…&region=…; raises UsageError for what is none.

    `now`: a monotonic clock in seconds. `guard_s`: how often, at most, it is seen whether the mailbox is still there.
    """

    def __init__(
        self,
        url: str,
        *,
        threads: DaemonThreads | None = None,
        now: Callable[[], float] = time.monotonic,
        guard_s: float = GUARD_S,
    ) -> None:
        self._place = place_of(url)
        self.location = self._place.url
        self._now, self._guard_s = now, guard_s
        self._threads = threads or DaemonThreads(now=now)
        self._calls: set[Call] = set()
        self._start()

    def _start(self) -> None:
        self._connected: Stores | None = None
        self._id: str | None = None
        self._seen_s: float | None = None  # when the marker was last read
        self._exclusive = False  # whether the store has refused to create a second time
        self._uploads = Uploads(self.location, self._threads)
        self._sweeper = ObjectSweeper()

    @classmethod
    async def init(cls, url: str, *, threads: DaemonThreads | None = None) -> str:
        """Make the place at `url` a mailbox, if it is none yet; the mailbox's id. The bucket must be there.

        Raises UsageError if there is something else in it, or if the store cannot hold a mailbox.
        """
        mailbox = cls(url, threads=threads)
        with suppress(MailboxAway):
            return await mailbox.open()
        stores = await mailbox._stores()
        try:
            with foreign(mailbox.location):
                found = await stores.obstore.list_with_delimiter_async(stores.small)
        except MailboxAway as error:
            raise UsageError(f"{error}: make it first, with the store's own tools") from error
        others = sorted({*found["common_prefixes"], *(each["path"] for each in found["objects"])} - {TMP})
        if others and "mailbox" not in others:  # else made by another machine meanwhile
            words = f"{', '.join(others[:3])}{', …' * (len(others) > 3)}"
            raise UsageError(
                f"{mailbox.location} is no mailbox and not empty: {words}; add a prefix of its own: s3://bucket/prefix"
            )
        await check_exclusive(stores, mailbox.location)
        marker = encode(Marker(id=uuid4().hex), nonce=uuid4().hex)
        with suppress(FileExistsError), foreign(mailbox.location, writing=True):
            await stores.obstore.put_async(stores.small, MARKER, marker, mode="create")
        return await mailbox.open()

    def outstanding_s(self) -> float:
        since_s = [call.since_s for call in tuple(self._calls) if call.since_s is not None]
        return self._now() - min(since_s) if since_s else 0.0

    async def open(self) -> str:
        with self._call():
            id, data = await self._read_marker(await self._stores())
            if not self._exclusive:
                with suppress(MailboxFull, MailboxReadOnly):  # then nobody creates anything through this handle
                    await self._try_exclusive(data)
            return id

    async def create(self, key: str, record: bytes) -> bool:
        check_record_key(key)
        with self._call():
            stores = await self._guarded()
            if not self._exclusive:
                await self._try_exclusive((await self._read_marker(stores))[1])
            for pause_s in (*PAUSES_S, None):
                won = await self._create(stores, key, bytes(record))
                if won is not None:
                    return won
                if pause_s is not None:
                    await asyncio.sleep(pause_s)
            raise MailboxUnavailable(f"{self.location}: {key}: the store says that it is there, but does not give it")

    async def _create(self, stores: Stores, key: str, record: bytes) -> bool | None:
        """None: it is neither here nor there: another's creation is under way, or it was deleted just now."""
        created = False
        try:
            with foreign(self.location, writing=True):
                await stores.obstore.put_async(stores.small, key, record, mode="create")
            created = True
        except FileExistsError:
            pass
        except MailboxUnavailable:  # a lost reply says nothing: look
            with suppress(MailboxError):
                found = await self._whole(stores, key)
                if found is not None:
                    return found == record
            raise
        found = await self._whole(stores, key)
        if found is None:
            return created or None
        if created and found != record:
            raise MailboxCorrupt(f"{self.location}: {key}: {LIAR}")
        return found == record

    async def put(self, key: KeyOf, source: Source) -> str:
        if isinstance(key, str):
            check_put_key(key)
        with self._call() as call:
            return await self._uploads.put(await self._guarded(), key, source, call)

    async def read(self, key: str) -> bytes | None:
        check_object_key(key)
        with self._call():
            return await self._whole(await self._guarded(), key)

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        check_object_key(key)
        view = writable(buffer, offset)
        with self._call() as call:
            stores = await self._guarded()
            done = 0
            try:
                with foreign(self.location):
                    try:
                        if not len(view):
                            await stores.obstore.head_async(stores.small, key)
                            return 0
                        wanted = {"range": (offset, offset + len(view))}
                        found = await stores.obstore.get_async(stores.parts, key, options=wanted)
                        async for part in found.stream(min_chunk_size=READ_BYTES):
                            view[done : done + len(part)] = part
                            done += len(part)
                            call.progressed()
                    except stores.obstore.exceptions.BaseError as error:
                        if not out_of_range(error):
                            raise
                        await stores.obstore.head_async(stores.small, key)  # gone meanwhile, or at its end
                        return 0
                    if done < min(len(view), found.meta["size"] - offset):
                        raise MailboxUnavailable(f"{self.location}: {key}: {done} bytes came of {len(view)}")
            except FileNotFoundError:
                return None
            return done

    async def list(self, prefix: str, after: str = "") -> list[str]:
        check_prefix(prefix)
        if prefix and not prefix.startswith((f"{RUNS}/", "mailbox/")):
            return []
        with self._call() as call:
            stores = await self._guarded()
            # A store may list from there on only, by itself; what it cannot be asked for is left out here.
            offset = after.rstrip("/") if is_key(after.rstrip("/")) else None
            keys: set[str] = set()
            with foreign(self.location):
                async for page in stores.obstore.list(stores.small, prefix or None, offset=offset, chunk_size=1000):
                    keys.update(each["path"] for each in page)
                    call.progressed()
        return sorted(
            key
            for key in keys
            if key > after and key.startswith(prefix) and (key.startswith(f"{RUNS}/") or key == MARKER) and is_key(key)
        )

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        for prefix, _ in requests:
            check_prefix(prefix)
        return await one_by_one(self.list, requests)

    async def names(self, prefix: str) -> Sequence[str]:
        check_prefix(prefix)
        if prefix and not prefix.startswith((f"{RUNS}/", "mailbox/")):
            return []
        with self._call():
            stores = await self._guarded()
            with foreign(self.location):
                found = await stores.obstore.list_with_delimiter_async(stores.small, prefix or None)
        paths = (*found["common_prefixes"], *(each["path"] for each in found["objects"]))
        names = {path[len(prefix) :] for path in paths if path.startswith(prefix)}
        return sorted(name for name in names if is_key(name) and (prefix or name in (RUNS, "mailbox")))

    async def delete(self, keys: Sequence[str]) -> None:
        keys = [check_delete_key(key) for key in keys]
        with self._call():
            stores = await self._guarded()
            if keys:
                with suppress(FileNotFoundError), foreign(self.location, writing=True):
                    await stores.obstore.delete_async(stores.small, keys)

    async def sweep(self, older_than_s: float) -> int:
        with self._call():
            stores = await self._guarded()
            with foreign(self.location, writing=True):
                return await self._sweeper.sweep(
                    stores, self._place, older_than_s, now_s=self._now(), staging=self._uploads.staging, threads=self._threads
                )

    async def close(self) -> None:
        self._start()

    @contextmanager
    def _call(self) -> Iterator[Call]:
        call = Call(self._now)
        self._calls.add(call)
        try:
            yield call
        finally:
            self._calls.discard(call)

    async def _stores(self) -> Stores:
        if self._connected is None:
            self._connected = await self._threads.run(connect, self._place)
        return self._connected

    async def _guarded(self) -> Stores:
        """Raise MailboxMoved unless the mailbox is still the one that was opened, as far as was seen not long ago."""
        stores = await self._stores()
        if self._seen_s is None or self._now() - self._seen_s >= self._guard_s:
            await self._read_marker(stores)
        return stores

    async def _read_marker(self, stores: Stores) -> tuple[str, bytes]:
        """The mailbox's id, and the marker as it is."""
        data = await self._whole(stores, MARKER)
        if data is None:
            raise MailboxAway(f"{self.location}: no mailbox there")
        marker = decode_needed(data, Marker, where=f"{self.location}: {MARKER}")
        if marker.format != FORMAT:
            raise FormatMismatch(theirs=marker.format, ours=FORMAT, where=self.location)
        if self._id not in (None, marker.id):
            raise MailboxMoved(f"{self.location}: another mailbox than before ({marker.id[:8]}, not {str(self._id)[:8]})")
        self._id, self._seen_s = marker.id, self._now()
        return marker.id, data

    async def _try_exclusive(self, marker: bytes) -> None:
        """Create the marker, which is there: harmless, for it has these bytes. Raises MailboxCorrupt if that can be done."""
        stores = await self._stores()
        for _ in range(2):  # once it may have been deleted just now
            try:
                with foreign(self.location, writing=True):
                    await stores.obstore.put_async(stores.small, MARKER, marker, mode="create")
            except FileExistsError:
                self._exclusive = True
                return
        raise MailboxCorrupt(f"{self.location}: {LIAR}")

    async def _whole(self, stores: Stores, key: str) -> bytes | None:
        try:
            with foreign(self.location):
                found = await stores.obstore.get_async(stores.small, key)
                size = found.meta["size"]
                if size > MAX_READ_BYTES:
                    raise MailboxCorrupt(f"{self.location}: {key}: {size} bytes, more than {MAX_READ_BYTES}")
                data = bytes(await found.bytes_async())
        except FileNotFoundError:
            return None
        if len(data) != size:
            raise MailboxUnavailable(f"{self.location}: {key}: {len(data)} bytes came of {size}")
        return data
