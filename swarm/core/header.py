"""The header of a Safetensors file, read without trusting it and without arrays. Every rule that it breaks has an error:

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

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from swarm.core.errors import HeaderError
from swarm.core.tensorspec import BUFFER_DTYPE_BYTES, RESERVED, check_shape

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_HEADER_BYTES = 8 << 20
"""Some 80,000 tensors. Parsing costs up to twenty times as much memory, which Safetensors' own 100 MB would not bound
well."""

WIRE_BYTES = {**BUFFER_DTYPE_BYTES, "F8_E4M3": 1, "F8_E8M0": 1, "F4": 1}
"""Bytes per element of what a payload may hold, by Safetensors code; two of F4 share one."""
ALL_BYTES = {
    **WIRE_BYTES,
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "U32": 4,
    "U64": 8,
    "F64": 8,
    "F8_E5M2": 1,
    "C64": 8,
}
"""The same of what a framework's own file may hold: the checkpoint of a data-parallel job."""


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


def size_of(code: str, shape: Sequence[int], known: Mapping[str, int] = WIRE_BYTES) -> int:
    """Bytes of a tensor with the Safetensors code `code`."""
    size_bytes = math.prod(shape) * known[code]
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


def parse_header(prefix: Buffer, size_bytes: int, known: Mapping[str, int] = WIRE_BYTES) -> tuple[Entry, ...]:
    """The tensors of a payload of `size_bytes` that begins with `prefix`, in the order of their bytes.

    `prefix` holds at least `header_size` bytes. `known`: which dtypes it may hold. Raises a HeaderError for every rule broken.
    `__metadata__` is ignored.
    """
    data_begin = header_size(prefix, size_bytes)
    if len(prefix) < data_begin:
        raise HeaderTruncated(f"the header has {data_begin} bytes, got {len(prefix)}")
    entries = [
        _entry(name, fields, data_begin=data_begin, data_bytes=size_bytes - data_begin, known=known)
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


def _entry(name: str, fields: Any, *, data_begin: int, data_bytes: int, known: Mapping[str, int]) -> Entry:
    label = repr(name[:200])
    try:
        name.encode()
    except UnicodeEncodeError:
        raise HeaderNotUtf8(f"{label} is no Unicode text") from None
    if not isinstance(fields, dict):
        raise HeaderNotObject(f"{label} is described by something else than an object")
    code, shape, offsets = fields.get("dtype"), fields.get("shape"), fields.get("data_offsets")
    if not isinstance(code, str) or code not in known:
        raise HeaderUnknownDtype(f"{label} has dtype {str(code)[:40]!r}, not one of {', '.join(known)}")
    item_bytes = known[code]
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
    if end - begin != (want := size_of(code, shape, known)):
        raise HeaderWrongSize(f"{label} spans {end - begin} bytes, dtype and shape say {want}")
    return Entry(name, code, tuple(shape), data_begin + begin, data_begin + end)
