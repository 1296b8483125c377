"""Which runs a mailbox holds, and what their manifests say. swarm/tape.py has all other records of a run in rounds."""

from __future__ import annotations

import hashlib

from swarm.core import keys
from swarm.core.errors import FormatMismatch, MailboxCorrupt, RunNotFound, RunSigned
from swarm.core.lines import decode_needed, taken_apart
from swarm.core.manifest import FORMAT, Manifest
from swarm.core.trust import Trust
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.signed import SignedMailbox


async def run_ids(mailbox: Mailbox) -> list[str]:
    """Ids of all runs in the mailbox that may have a manifest."""
    return [name for name in await mailbox.names("runs/") if keys.parse_manifest(keys.RunKeys(name).manifest)]


async def read_manifest(mailbox: Mailbox, run: str) -> Manifest:
    """Raises RunNotFound, FormatMismatch if the run was made in another format, MailboxCorrupt if a run in rounds has no Θ⁰,
    RecordForged for a run that this machine's passphrase, if it has one, did not sign."""
    return (await read_with_trust(mailbox, run))[0]


async def read_with_trust(mailbox: Mailbox, run: str) -> tuple[Manifest, Trust]:
    """(the manifest, whether it is signed). Raises as `read_manifest`."""
    data = await mailbox.read(keys.RunKeys(run).manifest)
    if data is None:
        raise RunNotFound(f"no run {run!r} in {mailbox.location}")
    manifest = manifest_in(data, run)
    if isinstance(mailbox, SignedMailbox):
        return manifest, Trust(signed=True, fingerprint=mailbox.key.fingerprint)
    return manifest, Trust(signed=taken_apart(data)[1].signature is not None)


def manifest_in(data: bytes, run: str) -> Manifest:
    """What the record of `run`'s manifest says, whoever signed it. Raises FormatMismatch, MailboxCorrupt."""
    key = keys.RunKeys(run).manifest
    manifest = decode_needed(data, Manifest, where=key)
    if manifest.format != FORMAT:
        raise FormatMismatch(theirs=manifest.format, ours=FORMAT, where=f"run {manifest.name}", name=manifest.name)
    if manifest.run != run:  # else whatever is done to this run, its deletion included, would be done to that one
        raise MailboxCorrupt(f"{key}: is the manifest of run {manifest.run}")
    if manifest.plan and not manifest.init:
        raise MailboxCorrupt(f"{key}: no initial payloads")
    return manifest


def check_may_write(manifest: Manifest, trust: Trust) -> None:
    """Raises RunSigned where nobody would count what this machine writes."""
    if trust.signed and not trust.fingerprint:
        raise RunSigned(
            f"run {manifest.name} is signed, and this machine has no passphrase: `swarm key import` here, and `swarm key show` "
            "on a machine that has it"
        )


async def read_to_write(mailbox: Mailbox, run: str) -> Manifest:
    """As `read_manifest`, for a run in which this machine is to write. Raises RunSigned."""
    manifest, trust = await read_with_trust(mailbox, run)
    check_may_write(manifest, trust)
    return manifest


async def manifest_sha256(mailbox: Mailbox, run: str) -> str:
    """Of the manifest's record, its nonce included: tells the run from all others of its id, one that is made anew after it
    was removed, and one in another mailbox. Raises RunNotFound."""
    data = await mailbox.read(keys.RunKeys(run).manifest)
    if data is None:
        raise RunNotFound(f"no run {run!r} in {mailbox.location}")
    return hashlib.sha256(data).hexdigest()
