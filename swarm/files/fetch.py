"""Fetching: the chunks of an attached file come into the cache, each verified before it is written.

What is held in memory is one chunk. The event loop is held up for as long as hashing and writing one takes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from swarm.core.errors import FileRefused, PayloadCorrupt, PayloadMissing
from swarm.core.keys import RunKeys
from swarm.core.manifest import FileRef
from swarm.files.attach import Progress
from swarm.files.cache import Cache, Partial
from swarm.files.plain import HEAD_BYTES, check_content, check_name
from swarm.mailbox.contract import Mailbox

LOOK_S = 0.5
STALLED_S = 30.0  # after so long without progress of another process, this one fetches for itself


def cached(cache: Cache, ref: FileRef) -> Path | None:
    """The file, if it is on this machine; it stays there until `cache` ends. Raises FileRefused, CacheUnusable."""
    check_name(ref.name)
    path = cache.find(ref)
    if path is not None:  # as it may have been fetched under another name
        with path.open("rb") as file:
            _check_content(ref, lambda begin, size: os.pread(file.fileno(), size, begin))
    return path


async def fetch_file(mailbox: Mailbox, run: str, ref: FileRef, cache: Cache, *, progress: Progress = lambda done: None) -> Path:
    """The file, from the cache or else fetched into it; it stays there until `cache` ends.

    A fetch that ended early is gone on with at the next call. One that another process is about is waited for.

    Raises FileRefused for what is no plain data, whoever attached it; PayloadMissing for a chunk that is not there, or not
    yet: a share may be late; PayloadCorrupt; CacheUnusable; what the mailbox raises.
    """
    slot, waited_s, others = 0, 0.0, -1
    while True:
        if (found := cached(cache, ref)) is not None:
            return found
        if (partial := cache.begin(ref, slot)) is not None:
            break
        now_there = cache.partial_bytes(ref, slot)
        waited_s = waited_s + LOOK_S if now_there == others else 0.0
        others = now_there
        progress(others)
        if waited_s >= STALLED_S:
            slot, waited_s = slot + 1, 0.0
        await asyncio.sleep(LOOK_S)
    with partial:
        if (found := cached(cache, ref)) is not None:  # the other one has ended just now
            partial.discard()
            return found
        return await _fetched(mailbox, RunKeys(run), ref, cache, partial, progress)


async def fetch_folder(
    mailbox: Mailbox, run: str, refs: tuple[FileRef, ...], cache: Cache, *, progress: Callable[[FileRef, int], None]
) -> Path:
    """A folder with all of `refs`, a base model's files, under their names. Raises what `fetch_file` does."""
    for ref in refs:
        await fetch_file(mailbox, run, ref, cache, progress=lambda done, ref=ref: progress(ref, done))  # type: ignore[misc]
    return cache.folder(refs)


async def _fetched(mailbox: Mailbox, place: RunKeys, ref: FileRef, cache: Cache, partial: Partial, progress: Progress) -> Path:
    hashes_key = place.file_hashes(ref.sha256)
    hashes = bytes(await _read(mailbox, hashes_key, 32 * ref.chunks, ref.hashes_sha256))
    whole, done = hashlib.sha256(), 0
    for n in range(ref.chunks):  # what an earlier fetch has left
        kept = partial.read(done, min(ref.chunk_bytes, ref.size_bytes - done))
        if hashlib.sha256(kept).digest() != hashes[32 * n : 32 * n + 32]:
            break
        whole.update(kept)
        done += len(kept)
        progress(done)
        await asyncio.sleep(0)
    partial.cut(done)
    cache.make_room(ref, partial.path, done)
    while done < ref.size_bytes:
        n, size = done // ref.chunk_bytes, min(ref.chunk_bytes, ref.size_bytes - done)
        chunk = await _read(mailbox, place.file_chunk(ref.sha256, n), size, hashes[32 * n : 32 * n + 32].hex())
        partial.write(done, chunk)
        whole.update(chunk)
        done += size
        progress(done)
    if whole.hexdigest() != ref.sha256:  # the hashes are those of another file
        partial.discard()
        raise PayloadCorrupt(hashes_key.rpartition("/")[0], ref.sha256, whole.hexdigest())
    try:
        _check_content(ref, partial.read)
    except FileRefused:
        partial.discard()
        raise
    return partial.finish()


def _check_content(ref: FileRef, read: Callable[[int, int], bytes]) -> None:
    tail = read(max(0, ref.size_bytes - 8), 8)
    check_content(ref.name, read(0, HEAD_BYTES), tail, size_bytes=ref.size_bytes)


async def _read(mailbox: Mailbox, key: str, size: int, sha256: str) -> memoryview:
    """The object `key`, which must have `size` bytes and that hash."""
    # A new one each time: a read that was cancelled may still write into its own. One byte more: whether the object is longer.
    buffer = memoryview(bytearray(size + 1))
    found = await mailbox.read_part(key, 0, buffer)
    if found is None:
        raise PayloadMissing(key)
    got = hashlib.sha256(buffer[:size]).hexdigest() if found == size else "0" * 64
    if got != sha256:
        raise PayloadCorrupt(key, sha256, got)
    return buffer[:size]
