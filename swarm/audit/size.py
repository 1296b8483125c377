"""Where a mailbox's bytes are: by run and by what they are, from listings and from the newest round records alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, TypeAlias, get_args

import msgspec

from swarm.audit.gc import of_run
from swarm.audit.listening import Heard
from swarm.audit.runs import Found, find, unsigned
from swarm.core.catalog import Kind, place_of
from swarm.core.errors import MailboxCorrupt, MailboxMoved, RecordError
from swarm.core.finetune import FineTune
from swarm.core.keys import MARKER, RunKeys
from swarm.mailbox.contract import STAGED, TRASHED, Mailbox
from swarm.tape import Tape

Sort: TypeAlias = Literal[
    "theta", "outer", "updates", "superseded", "deltas", "checkpoints", "init", "files", "records", "logs", "unknown"
]
"""`superseded`: a theta, outer state or update of a round that is older than its fragment's two newest."""
SORTS: tuple[Sort, ...] = get_args(Sort)
_SORTS: dict[Kind, Sort] = {
    "round-blob": "superseded",
    "delta": "deltas",
    "checkpoint-blob": "checkpoints",
    "job-file": "checkpoints",
    "init": "init",
    "hashes": "files",
    "chunk": "files",
    "log": "logs",
}


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run; or, with neither id nor name, of what is outside of all runs."""

    run: str = ""
    name: str = ""
    objects: int = 0
    bytes: int = 0
    sorts: dict[Sort, int] = {}  # bytes
    gc_bytes: int = 0  # that `swarm mailbox gc` would free, at least
    flaw: str = ""  # why nothing more can be told


async def size(mailbox: Mailbox, *, run: str | None = None) -> AsyncIterator[Size]:
    """Of all runs, or of the one with the id `run`, as each is known; and last of what is outside of them."""
    for found in await find(mailbox, run):
        yield await _of_run(mailbox, found)
    if run is None:
        marker = await mailbox.sizes(MARKER.rpartition("/")[0] + "/")
        staged = {**await mailbox.sizes(STAGED), **await mailbox.sizes(TRASHED)}
        lying = sum(staged.values())
        whole = sum(marker.values()) + lying
        yield Size(objects=len(marker) + len(staged), bytes=whole, sorts={"records": whole - lying}, gc_bytes=lying)


async def _of_run(mailbox: Mailbox, found: Found) -> Size:
    sizes = await mailbox.sizes(f"{RunKeys(found.run).root}/")
    named, flaw = await _newest(mailbox, found)
    sorts: dict[Sort, int] = {}
    for key, bytes in sizes.items():
        sort = named.get(key)
        if sort is None:
            place = place_of(key)
            sort = "unknown" if place is None else _SORTS.get(place.kind, "records")
        sorts[sort] = sorts.get(sort, 0) + bytes
    heard = None
    if found.manifest is not None:  # whoever has not left counts as live here: nobody waits to be told how large it is
        heard = Heard(found.manifest)
        await heard.look(unsigned(mailbox))
    garbage = await of_run(mailbox, found, heard, sizes)
    return Size(
        run=found.run,
        name=found.name,
        objects=len(sizes),
        bytes=sum(sizes.values()),
        sorts={sort: sorts[sort] for sort in SORTS if sort in sorts},
        gc_bytes=sum(sum(keys.values()) for keys in garbage.sizes.values()),
        flaw=flaw,
    )


async def _newest(mailbox: Mailbox, found: Found) -> tuple[dict[str, Sort], str]:
    """(what the two newest records of each fragment refer to, by key; why that cannot be told, in words)."""
    if found.manifest is None:
        return {}, found.flaw
    if isinstance(found.manifest.algorithm, FineTune):
        return {}, ""
    tape, named = Tape(unsigned(mailbox), found.manifest), dict[str, Sort]()
    try:
        newest = await tape.newest_round()
        for round in range(max(0, newest - 2 * len(tape.plan) + 1), newest + 1):
            record = await tape.round(round)
            for sort, ref in ((_THETA, record.theta), (_OUTER, record.outer), (_UPDATE, record.update)) if record else ():
                if ref is not None and ref.round >= 0:
                    named[tape.keys.round_blob(ref.round, ref.sha256)] = sort
    except (MailboxCorrupt, MailboxMoved, RecordError) as error:
        return named, str(error)
    return named, ""


_THETA: Sort = "theta"
_OUTER: Sort = "outer"
_UPDATE: Sort = "updates"
