"""A model that a new run begins with: the parameters of a Safetensors file on this machine, in the place of fresh ones."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import HeaderError, UsageError
from swarm.core.manifest import DataRef
from swarm.learners.contract import Adapter
from swarm.mailbox import disk
from swarm.tensors.finite import all_finite
from swarm.tensors.payload import CHUNK_BYTES, Entry, header_size, parse_header
from swarm.tensors.precision import BUFFER_DTYPES
from swarm.tensors.schema import Schema

HELD_BYTES = 64 << 20  # read before the model gets them, unless one tensor is larger


def take_over(path: Path, adapter: Adapter) -> DataRef:
    """Set the parameters of the model to those of the file; returns its name, hash and size.

    It must hold exactly the parameters of `adapter.schema()`, all numbers finite. Names, dtypes and shapes are checked before
    anything of their size is read; when the rest turns out to be unusable, the model may have parts of it already. Raises
    UsageError.
    """
    with _opened(path) as (fd, size_bytes):
        try:
            head = _taken(fd, min(8, size_bytes))
            head += _taken(fd, header_size(head, size_bytes) - 8)
            entries = parse_header(head, size_bytes)
        except HeaderError as error:
            raise _refusal(path, f"{error}; pass a Safetensors file, as `swarm export` writes one") from error
        _check(path, entries, adapter.schema())
        sha = hashlib.sha256(head)
        held: dict[str, NDArray[Any]] = {}
        for entry in entries:
            array: NDArray[Any] = np.empty(entry.shape, BUFFER_DTYPES[entry.dtype])
            raw = array.reshape(-1).view(np.uint8)
            for begin in range(0, raw.size, CHUNK_BYTES):
                chunk = raw[begin : begin + CHUNK_BYTES].data
                disk.read_into(fd, chunk, lambda: None)
                sha.update(chunk)
            if not all_finite(array):
                what = f"parameter {entry.name[:200]!r} holds NaN or infinite numbers"
                raise _refusal(path, f"{what}; pass a model that has not diverged, such as an earlier checkpoint")
            held[entry.name] = array
            if sum(tensor.nbytes for tensor in held.values()) >= HELD_BYTES:
                adapter.apply(held)
                held = {}
        adapter.apply(held)
    try:
        return DataRef(name=path.name, sha256=sha.hexdigest(), size_bytes=size_bytes)
    except ValueError as error:
        raise _refusal(path, f"{error}; rename it") from error


def _check(path: Path, entries: Iterable[Entry], schema: Schema) -> None:
    """Raises UsageError for the first parameter that differs, and the number of the others."""
    found = {entry.name: entry for entry in entries}
    faults = []
    for name in sorted(found.keys() | set(schema.names)):
        given = found.get(name)
        if given is None:
            faults.append((f"{name[:200]!r} is missing", "pass a file with all of the task's, as `swarm export` writes them"))
        elif name not in schema:
            advice = "pass a file without it, or choose the task's options (-o) as it needs"
            faults.append((f"{name[:200]!r} is none of the task's", advice))
        elif given.shape != schema[name].shape:
            what = f"{name[:200]!r} is {_shape(given.shape)}, and the task's is {_shape(schema[name].shape)}"
            faults.append((what, "choose the task's options (-o) as the file needs, or pass another"))
        elif given.dtype != schema[name].dtype:
            faults.append((f"{name[:200]!r} is {given.dtype}, and the task's is {schema[name].dtype}", "convert it"))
    if faults:
        what, advice = faults[0]
        others = f", and {len(faults) - 1} more do not fit" if len(faults) > 1 else ""
        raise _refusal(path, f"parameter {what}{others}; {advice}")


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a single number"


def _refusal(path: Path, why: str) -> UsageError:
    return UsageError(f"{path} cannot be the base model: {why}")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[int, int]]:
    """The file, and its size. Links are followed: who named the file chose where it leads. A pipe is not waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise _refusal(path, "it is no file; pass a Safetensors file")
            yield fd, found.st_size
        finally:
            os.close(fd)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def _taken(fd: int, size_bytes: int) -> bytes:
    memory = bytearray(size_bytes)
    disk.read_into(fd, memoryview(memory), lambda: None)
    return bytes(memory)
