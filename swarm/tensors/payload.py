"""Safetensors payloads: writing them without a copy, and reading them without trusting them.

A payload is 8 bytes of header length (little-endian), the header, then the tensors' bytes, little-endian and
C-contiguous, without gaps. What we write is canonical, so that equal tensors give equal bytes and so an equal
SHA-256: names sorted, compact JSON, each entry `"<name>":{"dtype":…,"shape":…,"data_offsets":[begin,end]}`, spaces up
to a multiple of 8. What we read need not be canonical, but every rule that it breaks has an error of its own
(core/header.py), raised before anything of the tensors' size is allocated.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import SchemaMismatch
from swarm.core.header import MAX_HEADER_BYTES as MAX_HEADER_BYTES
from swarm.core.header import Entry as Entry
from swarm.core.header import header_size as header_size
from swarm.core.header import parse_header as parse_header
from swarm.core.header import size_of
from swarm.core.tensorspec import RESERVED, TensorSpec
from swarm.tensors.codec import is_scale, payload_specs, scale_name
from swarm.tensors.precision import F4_PAIRS, WIRE_CODES, WIRE_DTYPES, wire_shape

Buffer: TypeAlias = bytes | bytearray | memoryview

CHUNK_BYTES = 1 << 20
"""What is hashed and handed on at once: SHA-256 is fastest by blocks of 1 to 4 MiB."""


class Packed:
    """The payload of `tensors`, as chunks: header, then each tensor's memory as it is, without a copy.

    May be iterated again, which starts the hash anew: a put that is retried reads the tensors again, so they must not
    change until it has returned. Raises ValueError for an array that is not C-contiguous or whose dtype is not in
    precision.WIRE_DTYPES, for a name that no header can hold, and for more tensors than a header may list.
    """

    def __init__(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        self._arrays = [tensors[name] for name in sorted(tensors)]
        self._header = _header(tensors)
        self._sha256: str | None = None
        self.size_bytes = len(self._header) + sum(array.nbytes for array in self._arrays)
        """Of the whole payload."""

    @property
    def sha256(self) -> str:
        """Of the last iteration, in hex. Raises RuntimeError until one has come to its end."""
        if self._sha256 is None:
            raise RuntimeError("the payload has no hash before all of it was read")
        return self._sha256

    def __iter__(self) -> Iterator[Buffer]:
        self._sha256 = None
        sha = hashlib.sha256(self._header)
        yield self._header
        for array in self._arrays:
            raw = array.reshape(-1).view(np.uint8).data.toreadonly()
            for start in range(0, len(raw), CHUNK_BYTES):
                chunk = raw[start : start + CHUNK_BYTES]
                sha.update(chunk)
                yield chunk
        self._sha256 = sha.hexdigest()


def _header(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    for name, array in tensors.items():
        if array.dtype not in WIRE_CODES:
            raise ValueError(f"{name}: a payload cannot hold dtype {array.dtype}")
        if not array.flags.c_contiguous:
            raise ValueError(f"{name}: the array must be C-contiguous")
        if array.dtype == F4_PAIRS and not array.ndim:
            raise ValueError(f"{name}: F4 needs an axis, for a byte holds two")
    return header((name, WIRE_CODES[array.dtype], wire_shape(array)) for name, array in tensors.items())


def header(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> bytes:
    """The length, and the canonical header padded to a multiple of 8, of a payload of `tensors`: name, code and shape (as
    `codec.payload_specs` lists them) of each, in any order. Raises ValueError for a name that no header can hold, and for more
    tensors than a header may list."""
    entries: dict[str, dict[str, object]] = {}
    end = 0
    for name, code, shape in sorted(tensors):
        if name == RESERVED:
            raise ValueError(f"{name!r} cannot name a tensor")
        begin, end = end, end + size_of(code, shape)
        entries[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"{len(entries)} tensors need a header of {len(text)} bytes, more than {MAX_HEADER_BYTES}")
    return len(text).to_bytes(8, "little") + text


def unpack(payload: Buffer) -> dict[str, NDArray[Any]]:
    """The payload's tensors by name: read-only views into `payload`, BF16, F8_E4M3 and F8_E8M0 as ml_dtypes has
    them, F4 as uint8 (two in each, so its last axis is half of what the header says). Raises HeaderError.

    A view need not be aligned to its dtype if the payload mixes dtypes. Into a payload that can be written to, it may be made
    writable by whoever owns that.
    """
    raw = memoryview(payload).cast("B")
    found = {entry.name: array_of(entry, raw[entry.begin : entry.end]) for entry in parse_header(raw, len(raw))}
    for array in found.values():
        array.flags.writeable = False
    return found


def array_of(entry: Entry, raw: memoryview) -> NDArray[Any]:
    """A tensor as a view of `raw`, its bytes."""
    shape = (*entry.shape[:-1], entry.shape[-1] // 2) if entry.dtype == "F4" else entry.shape
    return np.ndarray(shape, WIRE_DTYPES[entry.dtype], buffer=raw)


def check(tensors: Mapping[str, NDArray[Any]], specs: Iterable[TensorSpec], dtype: str | None = None) -> None:
    """Raises SchemaMismatch naming every tensor that is missing, not asked for, or of another shape or dtype than its
    spec.

    `dtype`: of a delta, what `codec.payload_specs` says: its scales are asked for too, and an F32 scale must be a power of
    two. None: each spec's own.
    """
    specs = list(specs)
    check_entries(tensors, payload_specs(specs, dtype))
    if dtype == "F8_E4M3":
        scales = [scale_name(spec.name) for spec in specs if not spec.buffer]
        _refuse(name for name in scales if not is_scale(float(tensors[name])))


def check_entries(tensors: Mapping[str, NDArray[Any]], entries: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
    """Raises SchemaMismatch naming every tensor that is missing, not asked for, or of another dtype or shape than one of
    `entries` (name, Safetensors code, shape) says."""
    wanted = {name: (code, shape) for name, code, shape in entries}
    found = {name: (WIRE_CODES.get(array.dtype), wire_shape(array)) for name, array in tensors.items()}
    _refuse(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def _refuse(differing: Iterable[str]) -> None:
    names = sorted(differing)
    if names:
        raise SchemaMismatch(names, advice=f"tensors do not match the schema: {', '.join(names)}")
