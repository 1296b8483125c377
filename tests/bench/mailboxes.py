"""How fast a mailbox is, beside a plain client of the same store that moves the same bytes in the same run.

    python -m tests.bench.mailboxes [--bytes N] [--times N] [LOCATION …]

LOCATION: a folder, which may lie on a share; s3://bucket/prefix?endpoint=…; or `moto`, an object store within this process. By
default the folder of temporary files. A mailbox is made in a place of its own there, and removed at the end.

The plain client of a folder writes a file, syncs it and renames it, or reads it; payloads are hashed on the way, as the
mailbox's are. That of an object store is obstore. Both take turns, each figure is the best of some, and the last line is the
same as JSON. The exit status tells whether payloads go into a folder, and come out of it, at no less than 0.8 of the plain
client's rate. `cp` stands beside them for a folder: it neither hashes nor syncs. A record costs more than a file: its folder is
synced too, and a read looks whether the mailbox is still the one that was opened.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from swarm.core.buckets import is_objects, place_of
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.records import Beat, Control
from swarm.mailbox import init_mailbox, open_mailbox
from swarm.mailbox.contract import PART_BYTES, Mailbox
from swarm.mailbox.objects_store import connect
from swarm.tape import nonce

KEYS = RunKeys("bench001")
CHUNK_BYTES = 1 << 20  # that a payload is written and hashed by
SMALL, NAMES = 30, 1000  # records of a turn; names in a listing
BOUND = 0.8  # of the plain client's rate, for payloads in a folder


class Plain(Protocol):
    """What a program without a mailbox would do. Names are keys."""

    def write(self, name: str, data: bytes) -> None: ...
    def write_hashed(self, name: str, data: memoryview) -> None: ...
    def read(self, name: str) -> bytes: ...
    def read_hashed(self, name: str, buffer: memoryview) -> None: ...
    def fill(self, prefix: str, names: Sequence[str]) -> None:
        """Make these objects below `prefix`, in whatever way is quick."""

    def list(self, prefix: str) -> int: ...
    def remove(self) -> None:
        """The whole place."""


class Folder:
    def __init__(self, root: str) -> None:
        self.root, self._n = root, 0

    def write(self, name: str, data: bytes) -> None:
        self.write_hashed(name, memoryview(data), hashing=False)

    def write_hashed(self, name: str, data: memoryview, *, hashing: bool = True) -> None:
        self._n += 1
        staged, to, sha = f"{self.root}/tmp/plain{self._n}", f"{self.root}/{name}", hashlib.sha256()
        fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            for begin in range(0, len(data), CHUNK_BYTES):
                chunk = data[begin : begin + CHUNK_BYTES]
                if hashing:
                    sha.update(chunk)
                while chunk:
                    chunk = chunk[os.write(fd, chunk) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.makedirs(os.path.dirname(to), exist_ok=True)
        os.rename(staged, to)

    def read(self, name: str) -> bytes:
        with open(f"{self.root}/{name}", "rb") as file:
            return file.read()

    def read_hashed(self, name: str, buffer: memoryview) -> None:
        sha = hashlib.sha256()
        with open(f"{self.root}/{name}", "rb", buffering=0) as file:
            for begin in range(0, len(buffer), PART_BYTES):
                part = buffer[begin : begin + PART_BYTES]
                got = 0
                while got < len(part):
                    got += file.readinto(part[got:]) or 0
                sha.update(part)

    def fill(self, prefix: str, names: Sequence[str]) -> None:
        for name in names:
            path = f"{self.root}/{prefix}{name}"
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(b"{}")

    def list(self, prefix: str) -> int:
        return sum(len(files) for _, _, files in os.walk(f"{self.root}/{prefix}"))

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class Objects:
    def __init__(self, url: str) -> None:
        self._stores = connect(place_of(url))
        self._obstore = self._stores.obstore

    def write(self, name: str, data: bytes) -> None:
        self._obstore.put(self._stores.small, name, data, use_multipart=False)

    def write_hashed(self, name: str, data: memoryview) -> None:
        hashlib.sha256(data)
        self._obstore.put(self._stores.parts, name, data)

    def read(self, name: str) -> bytes:
        return bytes(self._obstore.get(self._stores.small, name).bytes())

    def read_hashed(self, name: str, buffer: memoryview) -> None:
        hashlib.sha256(self._obstore.get(self._stores.parts, name).bytes())

    def fill(self, prefix: str, names: Sequence[str]) -> None:
        for name in names:
            self.write(f"{prefix}{name}", b"{}")

    def list(self, prefix: str) -> int:
        return len(self._obstore.list(self._stores.small, prefix).collect())

    def remove(self) -> None:
        every = [each["path"] for each in self._obstore.list(self._stores.small).collect()]
        if every:
            self._obstore.delete(self._stores.small, every)


@dataclass
class Files:
    """SMALL files of one turn by the plain client, each as large as a record."""

    plain: Plain
    turn: int
    record: bytes = encode(Control(action="stop"), nonce="0" * 32)

    def write(self, name: str) -> None:
        for n in range(SMALL):
            self.plain.write(f"{KEYS.root}/plain/{name}/{self.turn * SMALL + n}.json", self.record)

    def read(self, name: str) -> None:
        for n in range(SMALL):
            self.plain.read(f"{KEYS.root}/plain/{name}/{self.turn * SMALL + n}.json")


class Hashed:
    """A payload, hashed while it is written."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.sha256 = data, ""

    def __iter__(self) -> Iterator[memoryview]:
        sha = hashlib.sha256()
        for begin in range(0, len(self.data), CHUNK_BYTES):
            chunk = self.data[begin : begin + CHUNK_BYTES]
            sha.update(chunk)
            yield chunk
        self.sha256 = sha.hexdigest()


@dataclass
class Figure:
    """One thing done by the mailbox and by the plain client."""

    what: str
    amount: float  # of MB, or of calls
    unit: str
    mailbox_s: list[float] = field(default_factory=list)
    plain_s: list[float] = field(default_factory=list)
    bound: float | None = None

    @property
    def rates(self) -> tuple[float, float]:
        return self.amount / min(self.mailbox_s), self.amount / min(self.plain_s)

    @property
    def ratio(self) -> float:
        mailbox, plain = self.rates
        return mailbox / plain


async def measured(location: str, *, size: int, times: int) -> list[Figure]:
    """`location`: of a new mailbox, which is removed in the end. `size`: of a payload, in bytes."""
    plain: Plain = Objects(location) if is_objects(location) else Folder(location)
    await init_mailbox(location)
    try:
        mailbox = open_mailbox(location)
        await mailbox.open()
        return await _figures(mailbox, plain, size=size, times=times, bound=None if is_objects(location) else BOUND)
    finally:
        plain.remove()


async def _figures(mailbox: Mailbox, plain: Plain, *, size: int, times: int, bound: float | None) -> list[Figure]:
    data, buffer = memoryview(bytearray(os.urandom(size))), memoryview(bytearray(size))
    megabytes = size / 1e6
    put = Figure("put a payload", megabytes, "MB/s", bound=bound)
    read = Figure("read a payload", megabytes, "MB/s", bound=bound)
    create, small = Figure("create a record", SMALL, "/s"), Figure("put a beat", SMALL, "/s")
    look, listing = Figure("read a record", SMALL, "/s"), Figure(f"list {NAMES} names", 1, "/s")
    plain.fill(KEYS.snapshots(1), [f"u{n // 10:04}/l{n}.1.0.json" for n in range(NAMES)])

    async def read_whole(key: str) -> None:
        sha = hashlib.sha256()
        for begin in range(0, size, PART_BYTES):
            part = buffer[begin : begin + PART_BYTES]
            assert await mailbox.read_part(key, begin, part) == len(part)
            await asyncio.to_thread(sha.update, part)

    async def create_some(turn: int) -> None:
        for n in range(SMALL):
            assert await mailbox.create(
                KEYS.control_record(turn * SMALL + n + 1), encode(Control(action="stop"), nonce=nonce())
            )

    async def beat_some(turn: int) -> None:
        for n in range(SMALL):
            await mailbox.put(KEYS.beat("a", 1, turn * SMALL + n), [encode(Beat(phase="train"), nonce=nonce())])

    async def read_some(turn: int) -> None:
        for n in range(SMALL):
            assert await mailbox.read(KEYS.beat("a", 1, turn * SMALL + n)) is not None

    async def list_all() -> None:
        assert len(await mailbox.list(KEYS.snapshots(1))) == NAMES

    async def put_whole(turn: int, hashed: Hashed) -> None:
        await mailbox.put(lambda: KEYS.round_blob(turn, hashed.sha256), hashed)

    for turn in range(times):
        data[:8] = turn.to_bytes(8, "little")
        hashed, at, files = Hashed(data), f"{KEYS.root}/plain/{turn}.safetensors", Files(plain, turn)
        key = KEYS.round_blob(turn, hashlib.sha256(data).hexdigest())
        await _taken(put, put_whole(turn, hashed), functools.partial(plain.write_hashed, at, data))
        await _taken(read, read_whole(key), functools.partial(plain.read_hashed, at, buffer))
        await _taken(create, create_some(turn), functools.partial(files.write, "created"))
        await _taken(small, beat_some(turn), functools.partial(files.write, "beats"))
        await _taken(look, read_some(turn), functools.partial(files.read, "beats"))
        await _taken(listing, list_all(), functools.partial(plain.list, KEYS.snapshots(1)))
        await mailbox.delete([key, at])  # so that no more than two payloads lie there at once
    return [put, read, create, small, look, listing]


async def _taken(figure: Figure, ours: Awaitable[None], theirs: Callable[[], object]) -> None:
    """One turn of each; who is first changes, since what is written first may be flushed while the other works."""
    swap = len(figure.plain_s) % 2
    for who in (1, 0) if swap else (0, 1):
        began_s = time.perf_counter()
        if who == 0:
            await ours
            figure.mailbox_s.append(time.perf_counter() - began_s)
        else:
            theirs()
            figure.plain_s.append(time.perf_counter() - began_s)


def copied(folder: str, *, size: int) -> float:
    """MB/s of cp, from one file to another in `folder`."""
    with tempfile.TemporaryDirectory(dir=folder, prefix="swarm-bench-") as place:
        with open(f"{place}/a", "wb") as file:
            file.write(os.urandom(size))
        best_s = float("inf")
        for n in range(3):
            began_s = time.perf_counter()
            subprocess.run(["cp", f"{place}/a", f"{place}/b{n}"], check=True)
            best_s = min(best_s, time.perf_counter() - began_s)
    return size / 1e6 / best_s


@contextlib.contextmanager
def places(locations: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """(as it was given, where its mailbox is made)"""
    with contextlib.ExitStack() as stack:
        found = []
        for location in locations:
            name = f"swarm-bench-{uuid4().hex[:8]}"
            if location == "moto":
                from tests.integration.bucket import CREDENTIALS, serve

                os.environ.update(CREDENTIALS)
                found.append((location, stack.enter_context(serve()).url(name)))
            elif is_objects(location):
                head, question, options = location.partition("?")
                found.append((location, f"{head.rstrip('/')}/{name}{question}{options}"))
            else:
                found.append((location, os.path.join(os.path.abspath(os.path.expanduser(location)), name)))
        yield found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.mailboxes")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="of a payload")
    parser.add_argument("--times", type=int, default=8, help="that each thing is done")
    parser.add_argument("location", nargs="*", default=[tempfile.gettempdir()])
    options = parser.parse_args(argv)
    told: dict[str, Any] = {}
    holds = True
    with places(options.location) as found:
        for given, location in found:
            figures = asyncio.run(measured(location, size=options.bytes, times=options.times))
            print(f"{given}\n{'':20}{'mailbox':>14}{'plain':>14}{'ratio':>8}")
            for figure in figures:
                ours, theirs = (f"{rate:,.1f} {figure.unit}" for rate in figure.rates)
                bound = "" if figure.bound is None else f"   at least {figure.bound}"
                print(f"{figure.what:20}{ours:>14}{theirs:>14}{figure.ratio:>8.2f}{bound}", flush=True)
                holds = holds and (figure.bound is None or figure.ratio >= figure.bound)
            told[given] = {
                f.what: {"mailbox": f.rates[0], "plain": f.rates[1], "unit": f.unit, "ratio": f.ratio} for f in figures
            }
            if not is_objects(location):
                told[given]["cp"] = rate = copied(os.path.dirname(location), size=options.bytes)
                print(f"{'cp':20}{'':14}{rate:>9,.1f} MB/s")
    print(json.dumps(told))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
