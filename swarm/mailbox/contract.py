"""What every mailbox promises. tests/contract/ holds the suite that each implementation passes.

Errors that any call may raise: MailboxUnavailable, MailboxFull, MailboxReadOnly, MailboxAway, MailboxMoved,
MailboxCorrupt (core/errors.py), and InvalidKey before anything is touched. No foreign error gets out. A call that raised, or
whose await was cancelled, may have had its effect or may not; repeating it is harmless.

Objects stand below `runs/`; the marker `mailbox/record.json`, which makes a store a mailbox, stands there before anything
else and can be read like any object, but neither written nor deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from swarm.core.errors import InvalidKey, MailboxError
from swarm.core.keys import MARKER, RECORD, check_key
from swarm.core.lines import MAX_RECORD_BYTES

Buffer: TypeAlias = bytes | bytearray | memoryview
Source: TypeAlias = Iterable[Buffer] | AsyncIterable[Buffer]
"""Chunks of an object, in order, each unchanged until the third one after it is asked for. One that comes about while it is
written is asynchronous, and may wait for other calls of the mailbox. Iterated once by every call of `put`: whoever repeats
the call brings a source that can begin again, so a one-shot generator will not do."""
KeyOf: TypeAlias = str | Callable[[], str]
"""A key, or what gives it once the source is exhausted: a payload's key holds the hash of what was streamed."""

MAX_READ_BYTES = MAX_RECORD_BYTES  # what `read` takes into memory; a larger object needs `read_part`
STAGED, TRASHED = "tmp/", "trash/"  # what `sizes` calls objects that are being written, and those that are being removed
PART_BYTES = 8 << 20  # of a large object at a time: a second or so on a slow share, after which progress shows


class Mailbox(Protocol):
    """A shared store. Constructors do no I/O; `open` comes first."""

    location: str

    async def open(self) -> str:
        """The mailbox's id (uuid, 32 hex digits).

        Raises MailboxAway if there is no mailbox, MailboxMoved if another one than at the last `open`, FormatMismatch if its
        version is not ours.
        """
        ...

    async def create(self, key: str, record: bytes) -> bool:
        """Publish `record` under `key` once: of any number of racing callers exactly one gets True.

        `key` ends in `/record.json`, alone in its folder. The record appears whole or not at all; an existing record is
        untouched. `record` is one with a nonce (core/lines.py): a caller whose reply was lost is told apart from one that
        lost the race by comparing the bytes, so a repeated call of the winner returns True again. Durable on return.
        """
        ...

    async def put(self, key: KeyOf, source: Source) -> str:
        """Write an object that only one writer can ever write, whole or not at all; durable on return; repeatable.

        Returns the key, which does not end in `/record.json`. Writing an object again, which must have the same bytes, is
        fine. A computed key is asked for once the source is exhausted. What the source or the key raises gets out as it is.
        """
        ...

    async def read(self, key: str) -> bytes | None:
        """The whole object, or None if there is none. Never a torn one.

        Raises MailboxCorrupt for one over MAX_READ_BYTES, which is not read.
        """
        ...

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        """Put the object's bytes from `offset` on into `buffer`; how many these were: fewer than fit only where the object
        ends, so 0 at its end and beyond. None if there is no object, or no longer.

        Parts of one object fit together, since none ever changes. Raises ValueError for a negative offset.
        """
        ...

    async def list(self, prefix: str, after: str = "") -> list[str]:
        """Keys that start with `prefix` ('' or 'a/b/'), in byte order, strictly after `after`; complete objects only.

        A share may be late: what another machine wrote a moment ago can be missing, and what it deleted can still be named.
        """
        ...

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        """As many `list`s of (prefix, after), each made when the one before it has ended, in one trip to the store.

        Raises what the first of them raises. If a later one fails, the listings before it are returned, and no more: asked
        for alone, it says what is wrong.
        """
        ...

    async def names(self, prefix: str) -> Sequence[str]:
        """The next components of the keys that start with `prefix`, in byte order: one cheap call however much lies below.

        A hint: what a name stands for may be incomplete, or deleted by now. Foreign names are left out.
        """
        ...

    async def sizes(self, prefix: str) -> Mapping[str, int]:
        """The keys that `list` gives of `prefix`, in no order, each with the bytes that the store holds under it: for people
        and for progress, since a share may tell late that one has grown.

        STAGED and TRASHED, which are no prefixes of objects, give what is not an object yet, or no longer, under names of the
        store's own: what `sweep` removes when its writer is dead, and nothing else takes away. A store that keeps none of this
        gives none.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects: out of sight on return; idempotent. Deleting an exclusive key lets it be won again."""
        ...

    async def sweep(self, older_than_s: float) -> int:
        """Remove temporary and trashed objects of dead writers that this process has seen unchanged for `older_than_s`.

        Returns how many.
        """
        ...

    def outstanding_s(self) -> float:
        """For how long the oldest call under way has made no progress, in seconds; 0 if none is under way."""
        ...

    async def close(self) -> None:
        """Forget the mailbox. Calls under way are not waited for."""
        ...


async def one_by_one(
    lister: Callable[[str, str], Awaitable[list[str]]], requests: Sequence[tuple[str, str]]
) -> Sequence[Sequence[str]]:
    """What `lists` gives, by calls of a mailbox's own `list`: where a trip costs nothing, or something stands around each."""
    found: list[list[str]] = []
    for prefix, after in requests:
        try:
            found.append(await lister(prefix, after))
        except MailboxError:
            if not found:
                raise
            break
    return found


def check_object_key(key: str) -> str:
    """`key`, which `read` takes. Raises InvalidKey."""
    if check_key(key) != MARKER and not key.startswith("runs/"):
        raise InvalidKey(f"{key!r} is not below runs/")
    return key


def check_record_key(key: str) -> str:
    """`key`, which `create` takes. Raises InvalidKey."""
    parts = check_key(key).split("/")
    if parts[0] != "runs" or parts[-1] != RECORD or len(parts) < 3:
        raise InvalidKey(f"{key!r} is no record's key: it is not below runs/ or does not end in /{RECORD}")
    return key


def check_put_key(key: str) -> str:
    """`key`, which `put` takes. Raises InvalidKey."""
    parts = check_key(key).split("/")
    if parts[0] != "runs" or parts[-1] == RECORD or len(parts) < 2:
        raise InvalidKey(f"{key!r} cannot be put: it is not below runs/ or ends in {RECORD}")
    return key


def check_delete_key(key: str) -> str:
    """`key`, which `delete` takes. Raises InvalidKey."""
    return check_record_key(key) if key.endswith(f"/{RECORD}") else check_put_key(key)
