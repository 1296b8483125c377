"""The shared store of records and payloads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from swarm.core.buckets import canonical, is_objects

if TYPE_CHECKING:
    from swarm.core.trust import SwarmKey
    from swarm.mailbox.contract import Mailbox

__all__ = ["init_mailbox", "open_mailbox"]


def open_mailbox(location: str | Path, *, key: SwarmKey | None = None) -> Mailbox:
    """The mailbox at `location`, a folder or the URL of an object store, still to be opened; with `key`, records are signed and
    checked. Raises UsageError for what is neither."""
    mailbox: Mailbox
    place = canonical(str(location))
    if is_objects(place):
        from swarm.mailbox.objects import ObjectMailbox

        mailbox = ObjectMailbox(place)
    else:
        from swarm.mailbox.folder import FolderMailbox

        mailbox = FolderMailbox(location)
    if key is None:
        return mailbox
    from swarm.mailbox.signed import SignedMailbox

    return SignedMailbox(mailbox, key)


async def init_mailbox(location: str | Path) -> str:
    """Make the folder, or the place in a bucket, a mailbox, if it is none yet; the mailbox's id. Raises UsageError."""
    place = canonical(str(location))
    if is_objects(place):
        from swarm.mailbox.objects import ObjectMailbox

        return await ObjectMailbox.init(place)
    from swarm.mailbox.folder import FolderMailbox

    return await FolderMailbox.init(location)
