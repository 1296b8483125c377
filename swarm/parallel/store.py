"""Checkpoints of a data-parallel job in the mailbox. The machine of rank 0 writes them, whoever has rank 0 next fetches one.

Files before the record that names them. The newest two of a generation stay; older ones, and those of earlier generations, go
once there are two, and with them files that never got a record. A generation that has ended deletes nothing more: what was the
newest when it ended is never among what it had found to be old before.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from swarm.core.errors import CheckpointUnsaved, PayloadCorrupt, PayloadMissing
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.rankjob import Saved
from swarm.core.ranks import CheckpointAt, JobCheckpoint, StoredFile
from swarm.garbage import job_steps, old_job_checkpoints
from swarm.mailbox.contract import Mailbox
from swarm.parallel.register import read
from swarm.tape import derived_nonce

PART_BYTES = 4 << 20


class Store:
    def __init__(self, mailbox: Mailbox, place: RunKeys) -> None:
        self.mailbox, self.keys = mailbox, place
        self.moved_bytes = 0
        """Grows while anything moves."""

    async def put(self, at: CheckpointAt, *, saved: Saved, by: str) -> JobCheckpoint:
        """Write a checkpoint's files, and then its record. Raises OSError for what cannot be read here."""
        record = JobCheckpoint(
            generation=at.generation,
            step=at.step,
            iteration=saved.iteration,
            by=by,
            state=await self._put_file(at, Path(saved.checkpoint)),
            adapter=await self._put_file(at, Path(saved.adapter)),
        )
        key = self.keys.job_checkpoint(at.generation, at.step)
        await self.mailbox.create(key, encode(record, nonce=derived_nonce(record)))
        return record

    async def _put_file(self, at: CheckpointAt, path: Path) -> StoredFile:
        source = _Reading(path, self)
        await self.mailbox.put(lambda: self.keys.job_file(at.generation, at.step, source.sha256), source)
        return StoredFile(sha256=source.sha256, size_bytes=source.size_bytes)

    async def steps(self, generation: int) -> list[int]:
        """After which a generation wrote whole checkpoints, ascending."""
        return await job_steps(self.mailbox, self.keys, generation)

    async def record(self, at: CheckpointAt) -> JobCheckpoint | None:
        """None: it is not there, or cannot be used."""
        found = await read(self.mailbox, self.keys.job_checkpoint(at.generation, at.step), JobCheckpoint)
        return found if isinstance(found, JobCheckpoint) and found.at == at else None

    async def fetch(self, at: CheckpointAt, file: StoredFile, path: Path) -> Path:
        """Bring one file of a checkpoint to `path`, verified; nothing to do if it is there already. It appears whole or not at
        all. Raises PayloadMissing, PayloadCorrupt, CheckpointUnsaved."""
        if path.exists() and _sha256(path) == file.sha256:
            return path
        key, hashed = self.keys.job_file(at.generation, at.step, file.sha256), hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{os.getpid()}-{path.name}")
        try:
            with staged.open("wb") as out:
                async for part in self._parts(key, file.size_bytes):
                    hashed.update(part)
                    out.write(part)
            if hashed.hexdigest() != file.sha256:
                raise PayloadCorrupt(key, file.sha256, hashed.hexdigest())
            staged.replace(path)
        except OSError as error:
            raise CheckpointUnsaved(f"{path}: not written: {error.strerror or error}") from error
        finally:
            staged.unlink(missing_ok=True)
        return path

    async def _parts(self, key: str, size: int) -> AsyncIterator[memoryview]:
        done = 0
        while done < size:
            # A new one each time: a read that was cancelled may still write into its own.
            buffer = memoryview(bytearray(min(PART_BYTES, size - done)))
            found = await self.mailbox.read_part(key, done, buffer)
            if not found:
                raise PayloadMissing(key)
            yield buffer[:found]
            done += found
            self.moved_bytes += found

    async def tidy(self, generation: int, ended: Callable[[], Awaitable[bool]]) -> None:
        """Delete what is old (above). `ended`: whether the generation has, as the mailbox says now."""
        own = await self.steps(generation)
        old = await old_job_checkpoints(self.mailbox, self.keys, generation=generation, own=own)
        if not old or await ended():
            return
        for at in old:
            await self.forget(CheckpointAt(generation=at[0], step=at[1]))

    async def forget(self, at: CheckpointAt) -> None:
        """Delete a checkpoint."""
        await self.mailbox.delete([self.keys.job_checkpoint(at.generation, at.step)])
        await self.mailbox.delete(await self.mailbox.list(self.keys.job_files_of(at.generation, at.step)))


class _Reading:
    """A file as the source of an object, hashed while it is read."""

    def __init__(self, path: Path, store: Store) -> None:
        self._path, self._store = path, store
        self.sha256, self.size_bytes = "", 0

    def __iter__(self) -> Iterator[bytes]:
        hashed, size = hashlib.sha256(), 0
        with self._path.open("rb", buffering=0) as file:
            while part := file.read(PART_BYTES):
                hashed.update(part)
                size += len(part)
                self._store.moved_bytes += len(part)
                yield part
        self.sha256, self.size_bytes = hashed.hexdigest(), size


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
