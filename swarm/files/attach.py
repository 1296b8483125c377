"""Attaching: a file goes to the mailbox in chunks, streamed. It is read twice, since its keys hold its hash: once to know it,
once to write it."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from swarm.core.errors import FileChanged, FileRefused
from swarm.core.keys import RunKeys
from swarm.core.manifest import MAX_FILE_BYTES, FileRef
from swarm.files.plain import HEAD_BYTES, check_content, check_name
from swarm.mailbox.contract import Mailbox

CHUNK_BYTES = 8 << 20
PART_BYTES = 1 << 20  # what is read, hashed and handed on at once

Progress: TypeAlias = Callable[[int], None]
"""Told how many bytes of the file are there."""
Through: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, str]]], Awaitable[str]]
"""Repeats a call for as long as the share is away."""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file of this machine that can be attached."""

    path: Path
    ref: FileRef
    hashes: bytes  # SHA-256 of its chunks, 32 bytes each


def describe(path: Path, *, kind: Literal["data", "model"] = "data", chunk_bytes: int = CHUNK_BYTES) -> Attachment:
    """Read the file at `path` once. Raises FileRefused for what cannot be read or is no plain data, FileChanged."""
    check_name(path.name)
    whole, hashes, size, head, tail = hashlib.sha256(), bytearray(), 0, b"", b""
    with _opened(path) as (fd, before):
        if before.st_size > MAX_FILE_BYTES:
            raise FileRefused(f"{path} has {before.st_size} bytes, more than {MAX_FILE_BYTES}")
        for begin in range(0, before.st_size, chunk_bytes):
            wanted, chunk = min(chunk_bytes, before.st_size - begin), hashlib.sha256()
            for part in _parts(fd, begin, wanted):
                chunk.update(part)
                whole.update(part)
                size += len(part)
                head, tail = head + part[: HEAD_BYTES - len(head)], (tail + part[-8:])[-8:]
            hashes += chunk.digest()
            if size != begin + wanted:
                raise FileChanged(f"{path} became shorter while it was read")
        if _state(os.fstat(fd)) != _state(before):
            raise FileChanged(f"{path} changed while it was read")
    if not size:
        raise FileRefused(f"{path} is empty")
    check_content(path.name, head, tail, size_bytes=size)
    try:
        ref = FileRef(
            name=path.name,
            kind=kind,
            sha256=whole.hexdigest(),
            size_bytes=size,
            chunk_bytes=chunk_bytes,
            hashes_sha256=hashlib.sha256(hashes).hexdigest(),
        )
    except ValueError as error:
        raise FileRefused(f"{path} cannot be attached: {error}") from error
    return Attachment(path=path, ref=ref, hashes=bytes(hashes))


def describe_folder(folder: Path, *, chunk_bytes: int = CHUNK_BYTES) -> tuple[list[Attachment], list[str]]:
    """(the files of a base model, what of the folder is left out and why): plain data beside each other, no links and no
    folders in it. Raises FileRefused for a folder that is no model's, FileChanged."""
    found, left_out = [], []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise FileRefused(f"cannot read {folder}: {error.strerror or error}") from error
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if not entry.is_file(follow_symlinks=False):
            left_out.append(f"{entry.name!r} is {'a link' if entry.is_symlink() else 'no file'}")
            continue
        try:
            found.append(describe(Path(entry.path), kind="model", chunk_bytes=chunk_bytes))
        except FileRefused as error:
            left_out.append(str(error))
    names = [file.ref.name for file in found]
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        why = f" ({'; '.join(left_out)})" if left_out else ""
        raise FileRefused(f"{folder} is no model's folder: it lacks config.json or *.safetensors{why}")
    return found, left_out


async def _directly(call: Callable[[], Coroutine[Any, Any, str]]) -> str:
    return await call()


async def attach(
    mailbox: Mailbox,
    run: str,
    file: Attachment,
    *,
    progress: Progress = lambda done: None,
    through: Through = _directly,
) -> FileRef:
    """Write the file's chunks, and their hashes; the manifest that refers to them comes after. Harmless to repeat.

    Raises FileChanged, and then nothing of the changed file is in the mailbox; FileRefused if it cannot be read any more.
    """
    place, ref = RunKeys(run), file.ref
    await through(functools.partial(mailbox.put, place.file_hashes(ref.sha256), [file.hashes]))
    for n in range(ref.chunks):
        await through(functools.partial(mailbox.put, place.file_chunk(ref.sha256, n), _Chunk(file, n)))
        progress(min(ref.size_bytes, (n + 1) * ref.chunk_bytes))
    return ref


class _Chunk:
    """Source of chunk `n`. Ends with FileChanged, before anything of it is visible, if it is not what was described."""

    def __init__(self, file: Attachment, n: int) -> None:
        self._file, self._n = file, n

    def __iter__(self) -> Iterator[bytes]:
        ref, hashed = self._file.ref, hashlib.sha256()
        begin = self._n * ref.chunk_bytes
        with _opened(self._file.path) as (fd, _):
            for part in _parts(fd, begin, min(ref.chunk_bytes, ref.size_bytes - begin)):
                hashed.update(part)
                yield part
        if hashed.digest() != self._file.hashes[32 * self._n : 32 * self._n + 32]:
            raise FileChanged(f"{self._file.path} changed while it was attached")


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """Links are followed: who named the file chose where it leads. A pipe or a device is refused, not waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise FileRefused(f"{path} is no file")
            yield fd, found
        finally:
            os.close(fd)
    except OSError as error:
        raise FileRefused(f"cannot read {path}: {error.strerror or error}") from error


def _parts(fd: int, begin: int, size: int) -> Iterator[bytes]:
    """`size` bytes from `begin`, fewer if the file is shorter."""
    while size > 0 and (part := os.pread(fd, min(PART_BYTES, size), begin)):
        yield part
        begin, size = begin + len(part), size - len(part)


def _state(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns
