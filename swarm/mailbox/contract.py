"""What every mailbox promises. tests/contract/ holds the suite that each implementation passes.

Errors that any call may raise: MailboxUnavailable, MailboxFull, MailboxReadOnly, MailboxMoved, MailboxCorrupt
(core/errors.py), and InvalidKey before anything is touched. No foreign error gets out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
Source: TypeAlias = Iterable[Buffer]
"""Chunks of an object, in order. Iterated again from the start when a put is retried, so a one-shot generator will not do."""
KeyOf: TypeAlias = str | Callable[[], str]
"""A key, or what gives it once the source is exhausted: a payload's key holds the hash of what was streamed."""

Names: TypeAlias = list[str]


class Mailbox(Protocol):
    """A shared store. Constructors do no I/O; `open` comes first."""

    location: str

    async def open(self) -> str:
        """The mailbox's id (uuid). Raises MailboxMoved if there is no mailbox, FormatMismatch if its version is not ours."""
        ...

    async def create(self, key: str, record: bytes) -> bool:
        """Publish `record` under `key` once: of any number of racing callers exactly one gets True.

        `key` ends in `/record.json`, alone in its folder. The record appears whole or not at all; an existing record is
        untouched. `record` must hold a nonce: a caller whose reply was lost is told apart from one that lost the race by
        comparing the bytes.
        """
        ...

    async def put(self, key: KeyOf, source: Source) -> str:
        """Write an object that only one writer can ever write, whole or not at all; durable on return; repeatable.

        Returns the key.
        """
        ...

    async def read(self, key: str) -> bytes | None:
        """The whole object, or None if there is none. Never a torn one."""
        ...

    async def read_into(self, key: str, buffer: bytearray | memoryview) -> int | None:
        """The object's size in bytes, with the object in `buffer[:size]`; None if there is none.

        An object larger than `buffer` is not read: its size is returned all the same.
        """
        ...

    async def list(self, prefix: str, after: str = "") -> Names:
        """Keys that start with `prefix` ('' or 'a/b/'), in byte order, strictly after `after`; complete objects only."""
        ...

    async def names(self, prefix: str) -> Names:
        """The next components of the keys that start with `prefix`, in byte order: one cheap call however much lies below.

        A hint: what a name stands for may be incomplete, or deleted by now. Foreign names are left out.
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

    async def close(self) -> None:
        """Forget the mailbox. Calls under way are not waited for."""
        ...
