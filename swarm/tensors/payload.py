"""Safetensors payloads: writing them without a copy, and reading them without trusting them.

A payload is 8 bytes of header length (little-endian), the header, then the tensors' bytes, little-endian and
C-contiguous, without gaps. What we write is canonical, so that equal tensors give equal bytes and so an equal
SHA-256: names sorted, compact JSON, each entry `"<name>":{"dtype":…,"shape":…,"data_offsets":[begin,end]}`, spaces up
to a multiple of 8. What we read need not be canonical, but every rule that it breaks has an error of its own, raised
before anything of the tensors' size is allocated:

HeaderError (core/errors.py)
├── HeaderTruncated        the payload ends inside its header
├── HeaderTooLong          longer than MAX_HEADER_BYTES
├── HeaderNotUtf8          bytes or a name that are not UTF-8 text
├── HeaderNotJson          no JSON, or nested too deeply
├── HeaderNotObject        something else than an object of objects
├── HeaderDuplicateName    two entries of one name, or two fields in one entry
├── HeaderUnknownDtype     a dtype code that is not in precision.WIRE_DTYPES
├── HeaderBadShape         no list of at most 64 integers >= 0, or 2^63 bytes and more, or F4 with half
                           a byte left over in its last axis
├── HeaderBadOffsets       no pair of integers 0 <= begin <= end
├── HeaderOutside          offsets beyond the payload's end
├── HeaderWrongSize        offsets that span another size than dtype and shape say
├── HeaderOverlap          two tensors share bytes
└── HeaderGap              bytes that belong to no tensor
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import HeaderError, SchemaMismatch
from swarm.core.tensorspec import RESERVED, TensorSpec, check_shape
from swarm.tensors.codec import is_scale, payload_specs, scale_name
from swarm.tensors.precision import F4_PAIRS, WIRE_CODES, WIRE_DTYPES, wire_shape

Buffer: TypeAlias = bytes | bytearray | memoryview

CHUNK_BYTES = 1 << 20
"""What is hashed and handed on at once: SHA-256 is fastest by blocks of 1 to 4 MiB."""
MAX_HEADER_BYTES = 8 << 20
"""Some 80,000 tensors. Parsing costs up to twenty times as much memory, which Safetensors' own 100 MB would not bound
well."""


class HeaderTruncated(HeaderError):
    pass


class HeaderTooLong(HeaderError):
    pass


class HeaderNotUtf8(HeaderError):
    pass


class HeaderNotJson(HeaderError):
    pass


class HeaderNotObject(HeaderError):
    pass


class HeaderDuplicateName(HeaderError):
    pass


class HeaderUnknownDtype(HeaderError):
    pass


class HeaderBadShape(HeaderError):
    pass


class HeaderBadOffsets(HeaderError):
    pass


class HeaderOutside(HeaderError):
    pass


class HeaderWrongSize(HeaderError):
    pass


class HeaderOverlap(HeaderError):
    pass


class HeaderGap(HeaderError):
    pass


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a payload. Its bytes are payload[begin:end]: offsets count from the payload's first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


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
        begin, end = end, end + _size_bytes(code, shape)
        entries[name] = {"dtype": code, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"{len(entries)} tensors need a header of {len(text)} bytes, more than {MAX_HEADER_BYTES}")
    return len(text).to_bytes(8, "little") + text


def _size_bytes(code: str, shape: Sequence[int]) -> int:
    size_bytes = math.prod(shape) * WIRE_DTYPES[code].itemsize
    return size_bytes // 2 if code == "F4" else size_bytes


def header_size(prefix: Buffer, size_bytes: int) -> int:
    """How many bytes of a payload of `size_bytes` `parse_header` needs, told from its first 8."""
    if len(prefix) < 8 or size_bytes < 8:
        raise HeaderTruncated(f"a payload has at least 8 bytes, got {min(len(prefix), size_bytes)}")
    length = int.from_bytes(prefix[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise HeaderTooLong(f"the header claims {length} bytes, more than {MAX_HEADER_BYTES}")
    if length > size_bytes - 8:
        raise HeaderTruncated(f"the header claims {length} bytes of a payload of {size_bytes}")
    return 8 + length


def parse_header(prefix: Buffer, size_bytes: int) -> tuple[Entry, ...]:
    """The tensors of a payload of `size_bytes` that begins with `prefix`, in the order of their bytes.

    `prefix` holds at least `header_size` bytes. Raises a HeaderError for every rule broken. `__metadata__` is ignored.
    """
    data_begin = header_size(prefix, size_bytes)
    if len(prefix) < data_begin:
        raise HeaderTruncated(f"the header has {data_begin} bytes, got {len(prefix)}")
    entries = [
        _entry(name, fields, data_begin=data_begin, data_bytes=size_bytes - data_begin)
        for name, fields in _decode(bytes(prefix[8:data_begin])).items()
        if name != RESERVED
    ]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    at = data_begin
    for entry in entries:
        if entry.begin < at:
            raise HeaderOverlap(f"{entry.name!r} begins inside the tensor before it")
        if entry.begin > at:
            raise HeaderGap(f"{entry.begin - at} bytes before {entry.name!r} belong to no tensor")
        at = entry.end
    if at < size_bytes:
        raise HeaderGap(f"the last {size_bytes - at} bytes belong to no tensor")
    return tuple(entries)


def _decode(raw: bytes) -> dict[str, Any]:
    """The header's JSON, an object. Bounded by the header's own length, and refused at its first duplicate."""
    if raw[:1] != b"{":
        raise HeaderNotObject("the header is no JSON object")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise HeaderNotUtf8(f"the header is not UTF-8: {error.reason}") from None
    except RecursionError:
        raise HeaderNotJson("the header is nested too deeply") from None
    except HeaderError:
        raise
    except ValueError as error:  # JSONDecodeError, or an integer of more digits than Python converts
        raise HeaderNotJson(f"the header is no JSON: {error}") from None
    assert isinstance(header, dict)  # it starts with '{'
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise HeaderDuplicateName(f"{twice[:200]!r} stands twice in one object")
    return found


def _entry(name: str, fields: Any, *, data_begin: int, data_bytes: int) -> Entry:
    label = repr(name[:200])
    try:
        name.encode()
    except UnicodeEncodeError:
        raise HeaderNotUtf8(f"{label} is no Unicode text") from None
    if not isinstance(fields, dict):
        raise HeaderNotObject(f"{label} is described by something else than an object")
    code, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(code, str) or code not in WIRE_DTYPES:
        raise HeaderUnknownDtype(f"{label} has dtype {str(code)[:40]!r}, not one of {', '.join(WIRE_DTYPES)}")
    item_bytes = WIRE_DTYPES[code].itemsize
    if not isinstance(shape, list):
        raise HeaderBadShape(f"{label}: the shape is no list")
    try:
        check_shape(tuple(shape), item_bytes, name=label)
    except ValueError as error:
        raise HeaderBadShape(str(error)) from None
    if code == "F4" and (not shape or shape[-1] % 2):
        raise HeaderBadShape(f"{label}: the last axis of F4 must be even, for a byte holds two")
    if not isinstance(offsets, list) or len(offsets) != 2 or any(type(n) is not int for n in offsets):
        raise HeaderBadOffsets(f"{label}: the offsets are no pair of integers")
    begin, end = offsets
    if not 0 <= begin <= end:
        raise HeaderBadOffsets(f"{label}: the offsets do not satisfy 0 <= begin <= end")
    if end > data_bytes:
        raise HeaderOutside(f"{label} ends beyond the payload")
    if end - begin != (want := _size_bytes(code, shape)):
        raise HeaderWrongSize(f"{label} spans {end - begin} bytes, dtype and shape say {want}")
    return Entry(name, code, tuple(shape), data_begin + begin, data_begin + end)


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
