"""The shared store of records and payloads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.core.errors import UsageError

if TYPE_CHECKING:
    from swarm.core.trust import SwarmKey
    from swarm.mailbox.contract import Mailbox

__all__ = ["init_mailbox", "open_mailbox"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_mailbox(location: str | Path, *, key: SwarmKey | None = None) -> Mailbox:
    """The mailbox at `location`, a folder, still to be opened; with `key`, records are signed and checked.
    Raises UsageError for what is no folder's path."""
    from swarm.mailbox.folder import FolderMailbox

    mailbox = FolderMailbox(_folder(location))
    if key is None:
        return mailbox
    from swarm.mailbox.signed import SignedMailbox

    return SignedMailbox(mailbox, key)


async def init_mailbox(location: str | Path) -> str:
    """Make the folder `location` a mailbox, if it is none yet; the mailbox's id. Raises UsageError."""
    from swarm.mailbox.folder import FolderMailbox

    return await FolderMailbox.init(_folder(location))


def _folder(location: str | Path) -> str | Path:
    if not str(location):
        raise UsageError("no mailbox given: pass the path of the shared folder")
    if scheme := _SCHEME.match(str(location)):
        raise UsageError(f"{scheme[1]}:// is not supported in this version: mount the share and pass its folder")
    return location
