"""Machines that would take part in a run and cannot: what each tells the others of it, so that it stands in their tables.

For people alone: whatever goes wrong here is passed over, and joining neither fails nor waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from swarm import __version__
from swarm.core import keys
from swarm.core.errors import (
    Dropped,
    LearnerIdTaken,
    MailboxCorrupt,
    MailboxError,
    PassphraseError,
    PayloadError,
    RecordError,
    RunEnded,
    RunNotFound,
    RunSigned,
    Superseded,
    SwarmError,
    WorkerFailed,
)
from swarm.core.ids import is_learner_id
from swarm.core.keys import RunKeys
from swarm.core.lines import body_sha256, decode, encode, taken_apart
from swarm.core.records import MAX_REASON, JoinRefusal, Role
from swarm.core.sentences import plain
from swarm.host.identity import identity
from swarm.host.opening import mailbox_at
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.signed import SignedMailbox
from swarm.tape import derived_nonce

TELL_S = 2.0  # that telling the others may take
SHOWN = 32  # machines that are read of
KEPT_S = 6 * 3600.0  # for which one stays, as seen by whoever closes rounds
LOOK_S = 600.0  # between two looks for old ones

# About the share, the run or the passphrase, not about what this machine lacks.
_OTHERWISE = (
    MailboxError,
    PayloadError,
    PassphraseError,
    RunSigned,
    RunNotFound,
    RunEnded,
    LearnerIdTaken,
    Superseded,
    Dropped,
    WorkerFailed,
)


def reason_of(error: Exception) -> str:
    """Why the machine cannot take part that `error` kept from joining, for the others; '' if it says nothing of the machine."""
    if isinstance(error, _OTHERWISE):
        return ""
    return str(error) if isinstance(error, SwarmError) else f"{type(error).__name__}: {error}"


def device_words(framework: str, device: str) -> str:
    """What a person chose to train with; '' if nothing."""
    return " ".join(each for each in (framework, device) if each != "auto")


async def tell(location: str, run: str, *, reason: str, role: Role = "both", device: str = "") -> None:
    """Have the others see that this machine cannot take part, and why. Returns within TELL_S, whatever the share does.

    Only where they would believe it: a machine without the passphrase of a signed run, or with another one, stays unseen.
    """
    with contextlib.suppress(SwarmError, OSError, ValueError, TimeoutError):
        me = identity()
        # What stands in a folder of this user's is said without saying whose it is.
        words = plain(reason.replace(str(Path.home()), "~"), MAX_REASON)
        record = JoinRefusal(
            machine=me.machine,
            machine_name=me.machine_name,
            version=__version__,
            reason=words,
            device=plain(device, 60),
            role=role,
        )
        async with asyncio.timeout(TELL_S):
            mailbox = mailbox_at(location)
            await mailbox.open()
            if await _counts(mailbox, run):
                await write(mailbox, run, record)


async def _counts(mailbox: Mailbox, run: str) -> bool:
    """Whether the run is there, and its swarm takes what this machine writes for true. Raises RecordForged if it does not.

    Of the manifest nothing else is read: the run may be of another format, which then is the reason.
    """
    data = await mailbox.read(RunKeys(run).manifest)
    if data is None:
        return False
    return isinstance(mailbox, SignedMailbox) or taken_apart(data)[1].signature is None


async def write(mailbox: Mailbox, run: str, record: JoinRefusal) -> None:
    """Write it, and remove what this machine told before. What stands there already is not written again."""
    place = RunKeys(run)
    data = encode(record, nonce=derived_nonce(record))
    sha256 = body_sha256(data)
    earlier = await _of(mailbox, place, record.machine)
    newest = max(earlier.values(), default=(0, ""))
    key = place.refusal(record.machine, newest[0] + 1, sha256)
    if newest[1] == sha256:
        key = place.refusal(record.machine, *newest)
    else:
        await mailbox.put(key, [data])
    old = [other for other in earlier if other != key]
    if old:
        await mailbox.delete(old)


async def withdraw(mailbox: Mailbox, run: str, machine: str) -> None:
    """`machine` takes part after all."""
    if not is_learner_id(machine):  # it can have told nothing
        return
    with contextlib.suppress(MailboxError):
        told = await _of(mailbox, RunKeys(run), machine)
        if told:
            await mailbox.delete(list(told))


async def _of(mailbox: Mailbox, place: RunKeys, machine: str) -> dict[str, tuple[int, str]]:
    """What `machine` has told, by key: number and SHA-256."""
    listed = {key: keys.parse_refusal(key) for key in await mailbox.list(place.refused_of(machine))}
    return {key: named[1:] for key, named in listed.items() if named is not None}


async def read(mailbox: Mailbox, run: str, known: Mapping[str, JoinRefusal | None]) -> dict[str, JoinRefusal | None]:
    """The newest that each machine told, by key, of SHOWN machines at most; those in `known` not read again, and None for one
    that cannot be used."""
    newest: dict[str, tuple[int, str, str]] = {}
    for key in await mailbox.list(RunKeys(run).refused):
        if (named := keys.parse_refusal(key)) is not None:
            machine, n, sha256 = named
            newest[machine] = max(newest.get(machine, (0, "", "")), (n, sha256, key))
    found: dict[str, JoinRefusal | None] = {}
    for machine, (_, sha256, key) in sorted(newest.items())[:SHOWN]:
        if key in known:
            found[key] = known[key]
            continue
        try:
            data = await mailbox.read(key)
            if data is None:
                continue
            record = decode(data, JoinRefusal, where=key)
        except (RecordError, MailboxCorrupt):
            found[key] = None
            continue
        honest = record.machine == machine and body_sha256(data) == sha256
        found[key] = record if honest else None
    return found


class Expiry:
    """Removes what was told long ago: its machine may be anywhere by now. Judges by this process's clock alone, from when it
    first saw each."""

    def __init__(self, mailbox: Mailbox, run: str) -> None:
        self._mailbox, self._prefix = mailbox, RunKeys(run).refused
        self._seen: dict[str, float] = {}
        self._looked_s: float | None = None

    async def look(self, now_s: float) -> int:
        """How many went. Lists every LOOK_S at most, so that it may be called as often as one likes."""
        if self._looked_s is not None and now_s - self._looked_s < LOOK_S:
            return 0
        listed: Sequence[str] = await self._mailbox.list(self._prefix)
        self._looked_s = now_s
        self._seen = {key: self._seen.get(key, now_s) for key in listed}
        old = [key for key, since_s in self._seen.items() if now_s - since_s >= KEPT_S]
        if old:
            await self._mailbox.delete(old)
        return len(old)
