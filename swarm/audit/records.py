"""Records read one by one: what each says, or what is wrong with it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from swarm.audit.faults import Fault, remedy_of
from swarm.audit.hashing import patiently
from swarm.core.catalog import Place
from swarm.core.errors import FormatMismatch, MailboxCorrupt, MailboxUnavailable, RecordError, RecordForged
from swarm.core.lines import body_sha256, decode
from swarm.core.trust import kind_of
from swarm.mailbox.contract import Mailbox

AGAIN_S = 0.2  # before what is damaged is fetched once more: the way here may have done it


class Read(NamedTuple):
    """A record; None: it is gone, or `fault` says what is wrong with it."""

    record: Any = None
    sha256: str = ""  # of its body
    size_bytes: int = 0
    fault: Fault | None = None


async def read_record(mailbox: Mailbox, plain: Mailbox, place: Place) -> Read:
    """`plain`: the same mailbox, whoever signed what is in it."""
    found = await _try(mailbox, plain, place)
    if found.fault is not None:
        await asyncio.sleep(AGAIN_S)
        found = await _try(mailbox, plain, place)
    return found


async def _try(mailbox: Mailbox, plain: Mailbox, place: Place) -> Read:
    key, type = place.key, place.record
    assert type is not None
    name = kind_of(key)
    try:
        data = await patiently(lambda: mailbox.read(key))
        if data is None:
            return Read()
        record = decode(data, type, where=key)
    except RecordForged as error:
        return await _forged(plain, place, error)
    except (RecordError, MailboxCorrupt, FormatMismatch) as error:
        return Read(fault=_fault(place, "damaged", f"{name}: {_without(str(error), key)}"))
    except MailboxUnavailable as error:
        return Read(fault=_fault(place, "unreadable", f"{name}: {error}"))
    said = {field: getattr(record, field) for field in place.said}
    if said != place.said:
        wrong = ", ".join(f"{field} {said[field]}" for field in said if said[field] != place.said[field])
        return Read(fault=_fault(place, "misplaced", f"{name}: it says that it is of {wrong}"))
    return Read(record, body_sha256(data), len(data))


async def _forged(plain: Mailbox, place: Place, error: RecordForged) -> Read:
    """A record that has no signature of this swarm: it may be damaged, and so have lost it."""
    name = kind_of(place.key)
    try:
        data = await plain.read(place.key)
        assert place.record is not None
        if data is not None:
            decode(data, place.record, where=place.key)
    except (RecordError, MailboxCorrupt, FormatMismatch) as damage:
        return Read(fault=_fault(place, "damaged", f"{name}: {_without(str(damage), place.key)}"))
    what = "it is not signed" if error.unsigned else "it is signed with another passphrase, or was changed or moved"
    remedy = "it counts for nothing: delete its folder"
    return Read(fault=Fault(fault="forged", run=_run(place.key), key=place.key, what=f"{name}: {what}", remedy=remedy))


def _fault(place: Place, fault: Any, what: str) -> Fault:
    return Fault(fault=fault, run=_run(place.key), key=place.key, what=what, remedy=remedy_of(place, needed=True))


def _run(key: str) -> str:
    return key.split("/")[1]


def _without(text: str, key: str) -> str:
    """An error's words without the place, which is told beside them."""
    return text.removeprefix(f"{key}: ").replace(f"{key}: ", "")
