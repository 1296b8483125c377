"""The files of a local checkpoint: sections of arrays, and values (runtime/local.py)."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from swarm.core.tensorspec import check_shape
from swarm.mailbox import disk
from swarm.tensors.payload import CHUNK_BYTES, Buffer, Entry, Packed, header_size, parse_header
from swarm.tensors.precision import CODES, DTYPES, F16

FORMAT = 1
ARRAYS, VALUES = "arrays.safetensors", "values.json"

_SECTION = re.compile(r"[a-z0-9._-]+")


class Refused(Exception):
    """Why a checkpoint cannot be used."""


class Plain(msgspec.Struct, frozen=True):
    """An array that a payload cannot hold as it is: its bytes stand there as F16, which nobody computes with."""

    dtype: str  # NumPy's, with the byte order: '<u8'
    shape: tuple[int, ...]


class Head(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    run: str
    learner: str
    incarnation: int
    schema_sha256: str
    size_bytes: int  # of the file with the arrays
    sha256: str
    sections: list[str]
    plain: dict[str, Plain]
    values: dict[str, Any]


def flat(sections: Mapping[str, Mapping[str, NDArray[Any]]]) -> tuple[dict[str, NDArray[Any]], dict[str, Plain]]:
    """All arrays as a payload can hold them, and which of them are something else. Copies only what is strided, or of an odd
    number of bytes. Raises ValueError."""
    arrays: dict[str, NDArray[Any]] = {}
    plain: dict[str, Plain] = {}
    for section, named in sections.items():
        if not _SECTION.fullmatch(section):
            raise ValueError(f"{section!r} cannot name a section")
        for name, given in named.items():
            key = f"{section}/{name}"
            array = np.asarray(given)
            array = np.ascontiguousarray(array).reshape(array.shape)  # which makes a scalar one-dimensional
            if array.dtype not in CODES:
                if array.dtype.kind not in "biufc" or np.dtype(array.dtype.str) != array.dtype:
                    raise ValueError(f"{key}: arrays of {array.dtype} cannot be saved")
                plain[key] = Plain(array.dtype.str, array.shape)
                raw = array.reshape(-1).view(np.uint8)
                arrays[key] = (np.append(raw, np.uint8(0)) if raw.size % 2 else raw).view(F16)
            else:
                arrays[key] = array
    return arrays, plain


def check_json(value: object) -> None:
    """Raises TypeError for what JSON would not give back as it was."""
    match value:
        case None | bool() | int() | float() | str():
            return
        case list():
            for item in value:
                check_json(item)
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    raise TypeError(f"{key!r} is no text, as a value's name must be")
                check_json(item)
        case _:
            raise TypeError(f"a value of type {type(value).__name__} cannot be saved")


def write(folder: str, packed: Packed, head: Head) -> None:
    """Both files, synced, into a folder that is there and has neither. `head` has no hash yet. Raises OSError, and ValueError
    for values that JSON cannot hold."""
    _write_file(f"{folder}/{ARRAYS}", packed)
    fields = msgspec.to_builtins(msgspec.structs.replace(head, sha256=packed.sha256, values={}))
    # Not by msgspec: a random stream's position may hold integers of more than 64 bits, and a loss may be NaN.
    line = json.dumps(fields | {"values": head.values}, separators=(",", ":")).encode()
    _write_file(f"{folder}/{VALUES}", (line, b"\n", hashlib.sha256(line).hexdigest().encode(), b"\n"))
    disk.sync_folder(folder)


def _write_file(path: str, chunks: Iterable[Buffer]) -> None:
    fd = os.open(path, disk.CREATE, 0o600)
    try:
        for chunk in chunks:
            disk.write_all(fd, chunk)
        disk.sync(fd)
    finally:
        os.close(fd)  # can be the first to say that the disk is full


def read_head(path: str) -> Head:
    fd = os.open(path, disk.READ)
    try:
        text = disk.read_all(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)
    line, _, digest = text.partition(b"\n")
    if digest != hashlib.sha256(line).hexdigest().encode() + b"\n":
        raise Refused("its values are damaged")
    try:
        fields = json.loads(line)
        if fields["format"] != FORMAT:
            raise Refused(f"it has format {fields['format']}, and this swarm reads format {FORMAT}")
        return msgspec.convert(fields, Head)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise Refused(f"its values are not what they should be: {error}") from error


def read_arrays(path: str, head: Head) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Section, name and array of all. Raises Refused at its end if the bytes are not the promised ones: nothing of it may be
    used before."""
    fd = os.open(path, disk.READ)
    try:
        size = os.fstat(fd).st_size
        if size != head.size_bytes:
            raise Refused(f"its arrays have {size} bytes, and should have {head.size_bytes}")
        prefix = _taken(fd, 8)
        prefix += _taken(fd, header_size(prefix, size) - 8)
        sha = hashlib.sha256(prefix)
        # Sorted by name, hence by section.
        for section, group in itertools.groupby(parse_header(prefix, size), lambda entry: entry.name.partition("/")[0]):
            entries = list(group)
            if section not in head.sections:
                raise Refused(f"it has no section {section[:40]!r}")
            memory = np.empty(entries[-1].end - entries[0].begin, np.uint8)
            for start in range(0, memory.size, CHUNK_BYTES):
                chunk = memory[start : start + CHUNK_BYTES].data
                disk.read_into(fd, chunk, lambda: None)
                sha.update(chunk)
            memory.flags.writeable = False
            for entry in entries:
                name = entry.name.partition("/")[2]
                yield section, name, _view(memory, entry, entries[0].begin, head.plain.get(entry.name))
        if sha.hexdigest() != head.sha256:
            raise Refused("its arrays are damaged")
    finally:
        os.close(fd)


def _view(memory: NDArray[np.uint8], entry: Entry, begin: int, plain: Plain | None) -> NDArray[Any]:
    raw = memory[entry.begin - begin : entry.end - begin]
    try:
        if plain is None:
            return raw.view(DTYPES[entry.dtype]).reshape(entry.shape)
        dtype = np.dtype(plain.dtype)
        if dtype.kind not in "biufc":
            raise TypeError(f"no array of {dtype} is saved")
        check_shape(plain.shape, dtype.itemsize, name="it")
        return raw[: math.prod(plain.shape) * dtype.itemsize].view(dtype).reshape(plain.shape)
    except (TypeError, ValueError) as error:
        raise Refused(f"{entry.name[:100]!r} is not what it should be: {error}") from error


def _taken(fd: int, size: int) -> bytes:
    memory = bytearray(size)
    disk.read_into(fd, memoryview(memory), lambda: None)
    return bytes(memory)
