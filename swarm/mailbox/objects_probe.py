"""Checks whether an object store will do as a mailbox: what `swarm doctor` says of it."""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from urllib.parse import urlsplit
from uuid import uuid4

from swarm.core.buckets import BUCKET_FIRST, CREDENTIALS, ObjectPlace, place_of, where_gone
from swarm.core.errors import MailboxAway, MailboxError, MailboxFull, MailboxReadOnly, NotInstalled, SwarmError, UsageError
from swarm.core.mounts import TOPIC
from swarm.core.sentences import plain
from swarm.core.ticks import Tick, failed, ok, warning
from swarm.mailbox.objects_files import ObjectFiles
from swarm.mailbox.objects_put import TMP
from swarm.mailbox.objects_race import check_exclusive
from swarm.mailbox.objects_store import Stores, connect, foreign
from swarm.mailbox.probe import Check, CheckFailed, looked_at
from swarm.mailbox.threads import DaemonThreads

SLOW_S, TOO_SLOW_S = 1.0, 4.0  # for one of each call
TRIPS, TRIPS_S = 5, 3.0
_ANOTHER = "use another store: MinIO, Cloudflare R2 and Amazon S3 know If-None-Match"
_REACH = f"see that the store is on and reachable, the endpoint right, and {CREDENTIALS} set"
_RULE = "a rule of the bucket that ends unfinished uploads after a day does that, too"


async def probe_objects(
    url: str,
    *,
    timeout_s: float,
    total_s: float = math.inf,
    now: Callable[[], float] = time.monotonic,
    threads: DaemonThreads | None = None,
) -> list[Tick]:
    """What each check found, in order. What depends on a check that failed is not tried. Leaves nothing in the bucket.

    `timeout_s`: of one check. `total_s`: after which no other one begins.
    """
    threads = threads or DaemonThreads()
    try:
        place = place_of(url)
        probe = _Probe(place, await threads.run(connect, place), now)
    except NotInstalled as error:
        return [failed("store", error.what, error.remedy, topic=TOPIC)]
    except UsageError as error:
        return [failed("store", str(error), f"set {CREDENTIALS}, or see the URL", topic=TOPIC)]
    checks = [
        Check("store", probe.store, needed=True),
        Check("mailbox", probe.mailbox),
        Check("writable", probe.writable, needed=True),
        Check("exclusive creation", probe.exclusive, needed=True),
        Check("seen at once", probe.seen_at_once),
        Check("unfinished uploads", probe.uploads),
        Check("timings", probe.timings),
    ]
    return await looked_at(
        checks,
        where=place.url,
        timeout_s=timeout_s,
        total_s=total_s,
        threads=threads,
        unreachable=_REACH,
        remedy=_remedy,
    )


def _remedy(error: SwarmError) -> str:
    if isinstance(error, MailboxFull | MailboxReadOnly):
        return "give these credentials the right to write and delete there"
    return _REACH


async def look_at_objects(url: str, *, timeout_s: float, threads: DaemonThreads | None = None) -> tuple[list[Tick], bool]:
    """Whether a place in a bucket would do as a mailbox, as far as it shows without writing anything: what was found, and
    whether it is one already."""
    try:
        return await asyncio.wait_for((threads or DaemonThreads()).run(_look, place_of(url)), timeout_s)
    except TimeoutError:
        return [failed("folder", f"{url}: no answer for {timeout_s:.2g} s", _REACH, topic=TOPIC)], False
    except CheckFailed as wrong:
        return [failed("folder", wrong.detail, wrong.remedy, topic=TOPIC)], False
    except SwarmError as error:
        return [failed("folder", plain(str(error), 400), _REACH, topic=TOPIC)], False


def _look(place: ObjectPlace) -> tuple[list[Tick], bool]:
    probe = _Probe(place, connect(place), time.monotonic)
    store = ok("store", probe.store(), topic=TOPIC)
    with suppress(MailboxAway):
        probe.files.marker()
        return [ok("folder", "a mailbox already", topic=TOPIC), store], True
    others = probe.files.others()
    if others:
        words = f"{place.url} is not empty: {', '.join(others[:3])}{', …' * (len(others) > 3)}"
        return [failed("folder", plain(words, 300), "give a prefix of its own: s3://bucket/prefix", topic=TOPIC)], False
    return [ok("folder", "an empty place", topic=TOPIC), store], False


class _Probe:
    def __init__(self, place: ObjectPlace, stores: Stores, now: Callable[[], float]) -> None:
        self._place, self._stores, self._now = place, stores, now
        self.files = ObjectFiles(place, now=now)

    def store(self) -> str:
        """Whether it answers, and knows the bucket and these credentials."""
        try:
            self.files.others()
        except MailboxAway as error:
            raise CheckFailed(str(error), BUCKET_FIRST) from error
        server = urlsplit(self._stores.endpoint).netloc or "Amazon S3"
        secure = "" if not self._stores.endpoint.startswith("http://") else ", not encrypted on the way"
        return f"bucket {self._place.bucket} at {server}{secure}"

    def mailbox(self) -> str:
        try:
            id = self.files.marker()
        except MailboxError as error:
            raise CheckFailed(
                str(error), f"{where_gone(self._place.url)}, on one machine, unless another place is meant"
            ) from error
        return f"id {id[:8]}…"

    def writable(self) -> str:
        key, data = f"{TMP}/{uuid4().hex}", uuid4().bytes
        try:
            self._put(key, data)
            read = self._get(key)
        finally:
            self._delete(key)
        if read != data:
            raise CheckFailed(f"{self._place.url}: what was written reads back differently", "do not use this store")
        return "yes"

    def exclusive(self) -> str:
        try:
            check_exclusive(self._stores)
        except UsageError as error:
            raise CheckFailed(str(error), _ANOTHER) from error
        return "of nine that create one object, eight of them at once, one wins"

    def seen_at_once(self) -> str:
        """Through a connection of its own, as another machine has it."""
        other = connect(self._place)
        key = f"{TMP}/{uuid4().hex}"
        for what in ("written", "deleted"):
            if what == "written":
                self._put(key, b"probe")
            else:
                self._delete(key)
            with foreign(self._stores.where):
                pages = other.obstore.list(other.small, f"{TMP}/").collect()
            if (key in {each["path"] for each in pages}) != (what == "written"):
                self._delete(key)
                raise CheckFailed(f"{self._place.url}: a listing does not show what was {what} just now", _ANOTHER)
        return "what one machine writes or deletes, the next listing shows"

    def uploads(self) -> Iterable[Tick]:
        name = "unfinished uploads"
        if self._stores.credentials is None:
            words = "swarm cannot end what a machine that went off in the middle has left: the credentials are not known to it"
            return (warning(name, words, _RULE, topic=TOPIC),)
        return (ok(name, "ended by whoever sweeps", topic=TOPIC),)

    def timings(self) -> Iterable[Tick]:
        """Of each call the median."""
        took_s: dict[str, list[float]] = {name: [] for name in ("create", "write", "list", "read", "delete")}
        began_s = self._now()
        for n in range(TRIPS):
            if n and self._now() - began_s > TRIPS_S:
                break
            for name, seconds_s in zip(took_s, self._trip(), strict=True):
                took_s[name].append(seconds_s)
        medians_s = {name: statistics.median(each) for name, each in took_s.items()}
        detail = ", ".join(f"{name} {1000 * seconds_s:.0f} ms" for name, seconds_s in medians_s.items())
        remedy = "use a store that is nearer: one in this network, or in a region close by"
        whole_s = sum(medians_s.values())
        if whole_s > TOO_SLOW_S:
            return (failed("timings", f"{detail}: too slow to train over", remedy, topic=TOPIC),)
        if whole_s > SLOW_S:
            return (warning("timings", f"{detail}: slow", remedy, topic=TOPIC),)
        return (ok("timings", detail, topic=TOPIC),)

    def _trip(self) -> list[float]:
        """How long each call took, once; in seconds."""
        record, key, data = f"{TMP}/{uuid4().hex}", f"{TMP}/{uuid4().hex}", b"x" * 1000
        obstore, small = self._stores.obstore, self._stores.small

        def listed() -> None:
            with foreign(self._stores.where):
                obstore.list(small, f"{TMP}/").collect()

        calls: list[Callable[[], object]] = [
            lambda: self._put(record, data, mode="create"),
            lambda: self._put(key, data),
            listed,
            lambda: self._get(key),
            lambda: self._delete(key),
        ]
        times_s = [self._now()]
        try:
            for call in calls:
                call()
                times_s.append(self._now())
        finally:
            self._delete(record)
            self._delete(key)
        return [later - earlier for earlier, later in itertools.pairwise(times_s)]

    def _put(self, key: str, data: bytes, *, mode: str = "overwrite") -> None:
        with foreign(self._stores.where, writing=True):
            self._stores.obstore.put(self._stores.small, key, data, mode=mode)

    def _get(self, key: str) -> bytes:
        with foreign(self._stores.where):
            return bytes(self._stores.obstore.get(self._stores.small, key).bytes())

    def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError), foreign(self._stores.where, writing=True, answers=(FileNotFoundError,)):
            self._stores.obstore.delete(self._stores.small, key)


def speed(url: str, *, limit_s: float, now: Callable[[], float] = time.monotonic) -> tuple[float, float]:
    """(bytes a second written, and read), with objects that grow while there is time. Raises MailboxError, UsageError."""
    place = place_of(url)
    stores = connect(place)
    key, data = f"{TMP}/{uuid4().hex}", b"\0" * (256 << 10)
    began_s = now()
    try:
        with foreign(stores.where, writing=True):
            while True:
                before_s = now()
                stores.obstore.put(stores.parts, key, data, use_multipart=False)
                write_s = now() - before_s
                if now() - began_s + 2 * write_s > limit_s / 2 or len(data) >= 64 << 20:
                    break
                data += data
            before_s = now()
            read = bytes(stores.obstore.get(stores.parts, key).bytes())
            read_s = now() - before_s
    finally:
        with suppress(MailboxError), foreign(stores.where):
            stores.obstore.delete(stores.small, key)
    return len(data) / max(write_s, 1e-9), len(read) / max(read_s, 1e-9)
