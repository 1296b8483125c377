"""The shared store of records and payloads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from swarm.core.buckets import is_objects, scheme_of
from swarm.core.errors import UsageError

if TYPE_CHECKING:
    from swarm.core.trust import SwarmKey
    from swarm.mailbox.contract import Mailbox

__all__ = ["init_mailbox", "open_mailbox"]


def open_mailbox(location: str | Path, *, key: SwarmKey | None = None) -> Mailbox:
    """The mailbox at `location`, a folder or the URL of an object store, still to be opened; with `key`, records are signed and
    checked. Raises UsageError for what is neither."""
    mailbox: Mailbox
    if is_objects(_known(location)):
        from swarm.mailbox.objects import ObjectMailbox

        mailbox = ObjectMailbox(str(location))
    else:
        from swarm.mailbox.folder import FolderMailbox

        mailbox = FolderMailbox(location)
    if key is None:
        return mailbox
    from swarm.mailbox.signed import SignedMailbox

    return SignedMailbox(mailbox, key)


async def init_mailbox(location: str | Path) -> str:
    """Make the folder, or the place in a bucket, a mailbox, if it is none yet; the mailbox's id. Raises UsageError."""
    if is_objects(_known(location)):
        from swarm.mailbox.objects import ObjectMailbox

        return await ObjectMailbox.init(str(location))
    from swarm.mailbox.folder import FolderMailbox

    return await FolderMailbox.init(location)


def _known(location: str | Path) -> str:
    if not str(location):
        raise UsageError("no mailbox given: pass the path of the shared folder, or the URL of an object store")
    scheme = scheme_of(str(location))
    if scheme and not is_objects(str(location)):
        raise UsageError(f"{scheme}:// is no mailbox: mount the share and pass its folder, or pass s3://bucket/prefix")
    return str(location)
