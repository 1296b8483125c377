"""The two lines of every record (FORMAT.md, "Records"): the body, then the envelope with a nonce, the SHA-256 of the body, and
the place of a signature."""

from __future__ import annotations

import hashlib
from typing import Any, TypeVar

import msgspec

from swarm.core.errors import FormatMismatch, MailboxCorrupt, RecordError
from swarm.core.manifest import FORMAT, Marker

MAX_RECORD_BYTES = 64 << 20  # a schema of a hundred thousand tensors fits; nothing larger is read

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What msgspec raises of bytes that are no such value: no JSON, of other types, no UTF-8, or nested too deeply."""

T = TypeVar("T", bound=msgspec.Struct)


class Envelope(msgspec.Struct, frozen=True):
    nonce: str
    sha256: str  # of line 1
    signature: str | None = None  # in a signed swarm: HMAC over run id, key and body (core/trust.py)


def encode(body: msgspec.Struct, *, nonce: str) -> bytes:
    """The two lines. A loss that is not finite becomes null, since JSON has no word for it."""
    line = msgspec.json.encode(body)
    return put_together(line, Envelope(nonce=nonce, sha256=hashlib.sha256(line).hexdigest()))


def decode(data: bytes, type: type[T], *, where: str = "record") -> T:
    """The body. Raises RecordError if the lines, the hash or a field is wrong; FormatMismatch if the body says that it is of
    another format, and cannot be read in this one."""
    limit = getattr(type, "MAX_BYTES", MAX_RECORD_BYTES)
    if len(data) > limit:  # before it takes many times as much memory
        raise RecordError(f"{where}: {len(data)} bytes, more than {limit}")
    line, _ = taken_apart(data, where=where)
    try:
        return _json(line, type, where)
    except RecordError:
        theirs = _format_of(line) if "format" in type.__struct_fields__ else FORMAT
        if theirs != FORMAT:
            raise FormatMismatch(theirs=theirs, ours=FORMAT, where=where) from None
        raise


def taken_apart(data: bytes, *, where: str = "record") -> tuple[bytes, Envelope]:
    """(the body's line, the envelope). Raises RecordError if they are not two lines, or the hash is wrong."""
    if len(data) > MAX_RECORD_BYTES:
        raise RecordError(f"{where}: {len(data)} bytes, more than {MAX_RECORD_BYTES}")
    lines = data.split(b"\n", 3)
    if len(lines) != 3 or lines[2]:
        raise RecordError(f"{where}: damaged: it is not two lines")
    envelope = _json(lines[1], Envelope, where)
    if hashlib.sha256(lines[0]).hexdigest() != envelope.sha256:
        raise RecordError(f"{where}: the body's SHA-256 is not the envelope's")
    return lines[0], envelope


def put_together(line: bytes, envelope: Envelope) -> bytes:
    """The two lines: `taken_apart`, undone."""
    return b"%b\n%b\n" % (line, msgspec.json.encode(envelope))


def decode_needed(data: bytes, type: type[T], *, where: str) -> T:
    """As `decode`, for a record that nothing goes on without: one that cannot be read is a MailboxCorrupt."""
    try:
        return decode(data, type, where=where)
    except RecordError as error:
        raise MailboxCorrupt(str(error)) from error


MARKER_LOST = "copy it back from a backup; without one, `swarm init` an empty folder or place and move all of runs/ there"
"""No record of a run names its mailbox, so a run goes with its objects; and what a lost id was, none of them tells."""


def marker_in(data: bytes, *, where: str) -> Marker:
    """A mailbox's. Raises MailboxCorrupt, with what to do; FormatMismatch."""
    try:
        marker = decode_needed(data, Marker, where=where)
    except MailboxCorrupt as error:
        raise MailboxCorrupt(f"{error}: {MARKER_LOST}") from error
    if marker.format != FORMAT:
        raise FormatMismatch(theirs=marker.format, ours=FORMAT, where=where)
    return marker


def _json(line: bytes, type: type[T], where: str) -> T:
    try:
        return msgspec.json.decode(line, type=type)
    except UNREADABLE as error:
        raise RecordError(f"{where}: {error}") from error


class _Format(msgspec.Struct):
    """All that is read of a body in a format that this version does not know."""

    format: int = FORMAT


def _format_of(line: bytes) -> int:
    try:
        return _json(line, _Format, "").format
    except RecordError:
        return FORMAT


def body_sha256(data: bytes) -> str:
    """SHA-256 of a record's first line: what the next round's `parent` names."""
    return hashlib.sha256(data.split(b"\n", 1)[0]).hexdigest()


def as_json(record: msgspec.Struct) -> dict[str, Any]:
    """A record as plain dicts and lists, as a JSON reader sees it."""
    built: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return built
