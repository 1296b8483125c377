"""Which runs a mailbox holds, and what their manifests say. swarm/tape.py has all other records of a run in rounds."""

from __future__ import annotations

import hashlib

from swarm.core import keys
from swarm.core.errors import FormatMismatch, MailboxCorrupt, RunNotFound
from swarm.core.lines import decode_needed
from swarm.core.manifest import FORMAT, Manifest
from swarm.mailbox.contract import Mailbox


async def run_ids(mailbox: Mailbox) -> list[str]:
    """Ids of all runs in the mailbox that may have a manifest."""
    return [name for name in await mailbox.names("runs/") if keys.parse_manifest(keys.RunKeys(name).manifest)]


async def read_manifest(mailbox: Mailbox, run: str) -> Manifest:
    """Raises RunNotFound, FormatMismatch if the run was made in another format, MailboxCorrupt if a run in rounds has no Θ⁰."""
    key = keys.RunKeys(run).manifest
    data = await mailbox.read(key)
    if data is None:
        raise RunNotFound(f"no run {run!r} in {mailbox.location}")
    manifest = decode_needed(data, Manifest, where=key)
    if manifest.format != FORMAT:
        raise FormatMismatch(theirs=manifest.format, ours=FORMAT, where=f"run {manifest.name}")
    if manifest.run != run:  # else whatever is done to this run, its deletion included, would be done to that one
        raise MailboxCorrupt(f"{key}: is the manifest of run {manifest.run}")
    if manifest.plan and not manifest.init:
        raise MailboxCorrupt(f"{key}: no initial payloads")
    return manifest


async def manifest_sha256(mailbox: Mailbox, run: str) -> str:
    """Of the manifest's record, its nonce included: tells the run from all others of its id, one that is made anew after it
    was removed, and one in another mailbox. Raises RunNotFound."""
    data = await mailbox.read(keys.RunKeys(run).manifest)
    if data is None:
        raise RunNotFound(f"no run {run!r} in {mailbox.location}")
    return hashlib.sha256(data).hexdigest()
