"""A mailbox in an object store, the blocking side. FORMAT.md, "In a bucket".

Every promise hangs on one: of several writers that create a key with `If-None-Match: *`, the store lets exactly one through.
Not every store keeps it. One that pays no heed to the header is found out before anything hangs on it: `open` creates the
marker once more, with the bytes that it has, and that must be refused. One that lets writers through that come at the same time
is found out by reading back, as far as that can tell: whoever has won reads the record, and must find its own. It cannot prove
the reverse: a second writer may come after the look. What it then leaves is found by the chain of the rounds' hashes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

from swarm.core.buckets import BUCKET_FIRST, ObjectPlace
from swarm.core.errors import (
    MailboxAway,
    MailboxCorrupt,
    MailboxError,
    MailboxFull,
    MailboxMoved,
    MailboxReadOnly,
    MailboxUnavailable,
    UsageError,
)
from swarm.core.keys import MARKER, is_key
from swarm.core.lines import encode, marker_in
from swarm.core.manifest import Marker
from swarm.mailbox.contract import MAX_READ_BYTES, STAGED, TRASHED, Buffer, KeyOf
from swarm.mailbox.disk import writable
from swarm.mailbox.objects_put import TMP, Uploads
from swarm.mailbox.objects_race import LIAR, check_exclusive
from swarm.mailbox.objects_store import Stores, connect, foreign, out_of_range, renewed
from swarm.mailbox.objects_sweep import ObjectSweeper, lying

RUNS = "runs"
GUARD_S = 10.0  # for so long a mailbox that was there counts as still there
PAUSES_S = (0.05, 0.2, 0.5)  # between tries to create what is refused, and is not there either
READ_BYTES = 1 << 20  # of a part at a time


class ObjectFiles:
    """The mailbox at `place`. Safe to use from several threads.

    `now`: a monotonic clock in seconds. `progressed` is called after each part of a long transfer. `guard_s`: how often,
    at most, it is seen whether the mailbox is still there."""

    def __init__(
        self,
        place: ObjectPlace,
        *,
        now: Callable[[], float],
        progressed: Callable[[], None] = lambda: None,
        guard_s: float = GUARD_S,
    ) -> None:
        self.place, self.where = place, place.url
        self._now, self._progressed, self._guard_s = now, progressed, guard_s
        self._stop = threading.Event()
        self._connecting = threading.Lock()
        self._connected: Stores | None = None
        self._id: str | None = None
        self._seen_s: float | None = None  # when the marker was last read
        self._exclusive = False  # whether the store has refused to create a second time
        self._uploads = Uploads(progressed)
        self._sweeper = ObjectSweeper()

    def stop(self) -> None:
        """No more second tries: calls under way end with the error that they meet next."""
        self._stop.set()

    def init(self) -> str:
        with suppress(MailboxAway):
            return self.open()
        try:
            others = self.others()
        except MailboxAway as error:
            raise UsageError(f"{error}: {BUCKET_FIRST}") from error
        if others and "mailbox" not in others:  # else made by another machine meanwhile
            words = f"{', '.join(others[:3])}{', …' * (len(others) > 3)}"
            raise UsageError(f"{self.where} is no mailbox and not empty: {words}; add a prefix of its own: s3://bucket/prefix")
        stores = self.stores
        check_exclusive(stores)
        marker = encode(Marker(id=uuid4().hex), nonce=uuid4().hex)
        with suppress(FileExistsError), foreign(stores.where, writing=True, answers=(FileExistsError,)):
            stores.obstore.put(stores.small, MARKER, marker, mode="create")
        return self.open()

    def others(self) -> list[str]:
        """Names at the top of the place, but for tmp/."""
        stores = self.stores
        with foreign(stores.where):
            found = stores.obstore.list_with_delimiter(stores.small)
        return sorted({*found["common_prefixes"], *(each["path"] for each in found["objects"])} - {TMP})

    def open(self) -> str:
        id, data = self._read_marker()
        if not self._exclusive:
            with suppress(MailboxFull, MailboxReadOnly):  # then nobody creates anything through this handle
                self._try_exclusive(data)
        return id

    def marker(self) -> str:
        """The mailbox's id. Asks for its marker alone, and writes nothing."""
        return self._read_marker()[0]

    def create(self, key: str, record: bytes) -> bool:
        stores = self._guarded()
        if not self._exclusive:
            self._try_exclusive(self._read_marker()[1])
        for pause_s in (*PAUSES_S, None):
            won = self._create(stores, key, bytes(record))
            if won is not None:
                return won
            if pause_s is None or self._stop.wait(pause_s):
                break
        raise MailboxUnavailable(f"{self.where}: {key}: the store says that it is there, but does not give it")

    def _create(self, stores: Stores, key: str, record: bytes) -> bool | None:
        """None: it is neither here nor there: another's creation is under way, or it was deleted just now."""
        created = False
        try:
            with foreign(stores.where, writing=True, answers=(FileExistsError,)):
                stores.obstore.put(stores.small, key, record, mode="create")
            created = True
        except FileExistsError:
            pass
        except MailboxUnavailable:  # a lost reply says nothing: look
            with suppress(MailboxError):
                found = self._whole(key)
                if found is not None:
                    return found == record
            raise
        found = self._whole(key)
        if found is None:
            return created or None
        if created and found != record:
            raise MailboxCorrupt(f"{self.where}: {key}: {LIAR}")
        return found == record

    def put(self, key: KeyOf, source: Iterable[Buffer]) -> str:
        return self._uploads.put(self._guarded(), key, source)

    def read(self, key: str) -> bytes | None:
        self._guarded()
        return self._whole(key)

    def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        view = writable(buffer, offset)
        stores = self._guarded()
        try:
            with foreign(stores.where, answers=(FileNotFoundError,)):
                try:
                    if len(view):
                        return self._read_into(stores, key, offset, view)
                except stores.obstore.exceptions.BaseError as error:
                    if not out_of_range(error):
                        raise
                stores.obstore.head(stores.small, key)  # there, at its end or beyond; or gone
                return 0
        except FileNotFoundError:
            return None

    def _read_into(self, stores: Stores, key: str, offset: int, view: memoryview) -> int:
        found = stores.obstore.get(stores.parts, key, options={"range": (offset, offset + len(view))})
        wanted = min(len(view), found.meta["size"] - offset)
        done = 0
        for part in found.stream(min_chunk_size=READ_BYTES):
            view[done : done + len(part)] = part
            done += len(part)
            self._progressed()
        if done != wanted:
            raise MailboxUnavailable(f"{self.where}: {key}: {done} bytes came of {wanted}")
        return done

    def list(self, prefix: str, after: str) -> list[str]:
        return sorted(self._listed(prefix, after))

    def _listed(self, prefix: str, after: str = "") -> dict[str, int]:
        """Keys, each with its bytes, in no order."""
        if prefix and not prefix.startswith((f"{RUNS}/", "mailbox/")):
            return {}
        stores = self._guarded()
        # A store may list from there on only, by itself; what it cannot be asked for is left out here.
        offset = after.rstrip("/") if is_key(after.rstrip("/")) else None
        keys: dict[str, int] = {}
        with foreign(stores.where):
            for page in stores.obstore.list(stores.small, prefix or None, offset=offset, chunk_size=1000):
                keys.update((each["path"], each["size"]) for each in page)
                self._progressed()
        ours = (key for key in keys if key.startswith(prefix) and (key.startswith(f"{RUNS}/") or key == MARKER))
        return {key: keys[key] for key in ours if key > after and is_key(key)}

    def sizes(self, prefix: str) -> Mapping[str, int]:
        if prefix not in (STAGED, TRASHED):
            return self._listed(prefix)
        stores = self._guarded()
        if prefix == TRASHED:
            return {}
        with foreign(stores.where):
            return {key: found[0] for (key, _), found in lying(stores, self.place).items()}

    def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        found: Sequence[Sequence[str]] = ()
        for prefix, after in requests:
            try:
                found = (*found, self.list(prefix, after))
            except MailboxError:
                if not found:
                    raise
                break
            self._progressed()
        return found

    def names(self, prefix: str) -> Sequence[str]:
        if prefix and not prefix.startswith((f"{RUNS}/", "mailbox/")):
            return []
        stores = self._guarded()
        with foreign(stores.where):
            found = stores.obstore.list_with_delimiter(stores.small, prefix or None)
        paths = (*found["common_prefixes"], *(each["path"] for each in found["objects"]))
        names = {path[len(prefix) :] for path in paths if path.startswith(prefix)}
        return sorted(name for name in names if is_key(name) and (prefix or name in (RUNS, "mailbox")))

    def delete(self, keys: Sequence[str]) -> None:
        stores = self._guarded()
        if keys:
            with suppress(FileNotFoundError), foreign(stores.where, writing=True, answers=(FileNotFoundError,)):
                stores.obstore.delete(stores.small, list(keys))

    def sweep(self, older_than_s: float) -> int:
        stores = self._guarded()
        with foreign(stores.where, writing=True):
            return self._sweeper.sweep(stores, self.place, older_than_s, now_s=self._now(), staging=self._uploads.staging)

    @property
    def stores(self) -> Stores:
        with self._connecting:
            if self._connected is None:
                self._connected = connect(self.place)
            return self._connected

    def _guarded(self) -> Stores:
        """Raise MailboxMoved unless the mailbox is still the one that was opened, as far as was seen not long ago."""
        if self._seen_s is None or self._now() - self._seen_s >= self._guard_s:
            self._read_marker()
        return self.stores

    def _read_marker(self) -> tuple[str, bytes]:
        """The mailbox's id, and the marker as it is."""
        with self._connecting:
            if self._connected is not None:
                self._connected = renewed(self._connected, self.place)
        data = self._whole(MARKER)
        if data is None:
            raise MailboxAway(f"{self.where}: no mailbox there")
        marker = marker_in(data, where=f"{self.where}: {MARKER}")
        if self._id not in (None, marker.id):
            raise MailboxMoved(f"{self.where}: another mailbox than before ({marker.id[:8]}, not {str(self._id)[:8]})")
        self._id, self._seen_s = marker.id, self._now()
        return marker.id, data

    def _try_exclusive(self, marker: bytes) -> None:
        """Create the marker, which is there: harmless, for it has these bytes. Raises MailboxCorrupt if that can be done."""
        stores = self.stores
        for _ in range(2):  # once it may have been deleted just now
            try:
                with foreign(stores.where, writing=True, answers=(FileExistsError,)):
                    stores.obstore.put(stores.small, MARKER, marker, mode="create")
            except FileExistsError:
                self._exclusive = True
                return
        raise MailboxCorrupt(f"{self.where}: {LIAR}")

    def _whole(self, key: str) -> bytes | None:
        stores: Any = self.stores
        try:
            with foreign(stores.where, answers=(FileNotFoundError,)):
                found = stores.obstore.get(stores.small, key)
                size = found.meta["size"]
                if size > MAX_READ_BYTES:
                    raise MailboxCorrupt(f"{self.where}: {key}: {size} bytes, more than {MAX_READ_BYTES}")
                data = bytes(found.bytes())
        except FileNotFoundError:
            return None
        if len(data) != size:
            raise MailboxUnavailable(f"{self.where}: {key}: {len(data)} bytes came of {size}")
        return data
