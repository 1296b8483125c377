"""The runs of a mailbox as whoever looks after it sees them: those too that this machine's passphrase did not sign, that cannot
be read, or that nobody has finished making."""

from __future__ import annotations

from typing import NamedTuple

from swarm.core.errors import FormatMismatch, MailboxCorrupt
from swarm.core.keys import RunKeys
from swarm.core.lines import taken_apart
from swarm.core.manifest import Manifest
from swarm.core.sentences import plain
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.signed import SignedMailbox
from swarm.manifests import manifest_in, run_ids


class Found(NamedTuple):
    """A run; `flaw`: why nothing but its bytes can be told, in words."""

    run: str
    manifest: Manifest | None = None
    flaw: str = ""
    signed: bool = False
    ours: bool = True
    """Whether this machine takes part, or could: nobody signed it, or its own passphrase did."""

    @property
    def name(self) -> str:
        return self.run if self.manifest is None else plain(self.manifest.name, 100)

    @property
    def foreign(self) -> str:
        """Why its records cannot be trusted here, in words; '' if they can."""
        if self.ours:
            return ""
        if not self.signed:
            return "it is not signed, and this machine has a passphrase"
        return "it is signed with a passphrase that this machine lacks"


def unsigned(mailbox: Mailbox) -> Mailbox:
    """The same mailbox, whoever signed what is in it."""
    return mailbox.inner if isinstance(mailbox, SignedMailbox) else mailbox


async def find(mailbox: Mailbox, run: str | None = None) -> list[Found]:
    """All runs, or the one with the id `run`."""
    return [await _found(mailbox, each) for each in await run_ids(mailbox) if run in (None, each)]


async def _found(mailbox: Mailbox, run: str) -> Found:
    key = RunKeys(run).manifest
    try:
        data = await unsigned(mailbox).read(key)
        if data is None:
            return Found(run, flaw="no manifest: it is being made or deleted, or whoever was about it died")
        manifest, (line, envelope) = manifest_in(data, run), taken_apart(data, where=key)
    except (MailboxCorrupt, FormatMismatch) as error:
        return Found(run, flaw=str(error))
    signed, ours = envelope.signature is not None, True
    if isinstance(mailbox, SignedMailbox):
        ours = mailbox.key.verifies(envelope.signature, run=run, key=key, body=line)
    elif signed:
        ours = False
    return Found(run, manifest, signed=signed, ours=ours)
