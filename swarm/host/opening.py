"""The mailbox at a place, as this machine opens it: with the swarm's passphrase, if it has one."""

from __future__ import annotations

from pathlib import Path

from swarm.host.keyfile import load_key
from swarm.mailbox import open_mailbox
from swarm.mailbox.contract import Mailbox


def mailbox_at(location: str | Path) -> Mailbox:
    """Still to be opened. Raises UsageError for what is no folder's path, PassphraseError."""
    return open_mailbox(location, key=load_key())
