"""What nobody needs any more in a run: FORMAT.md, "Garbage collection".

Whoever closes rounds deletes by these rules, and so does `swarm mailbox gc`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from swarm.core import keys
from swarm.core.errors import MailboxCorrupt
from swarm.core.keys import RunKeys
from swarm.core.records import RoundRecord
from swarm.core.specs import FedAvg
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.signed import is_genuine
from swarm.tape import BEATS_KEPT, Tape

What: TypeAlias = Literal["parameters", "deltas", "snapshots", "claims", "init", "checkpoints", "beats", "files"]
Garbage: TypeAlias = dict[What, list[str]]
"""Keys by what they are. `parameters` are thetas, outer states and updates."""

_BY_ROUND: tuple[tuple[What, str], ...] = (
    ("parameters", "blobs/rounds/"),
    ("deltas", "blobs/snapshots/"),
    ("snapshots", "snapshots/"),
    ("claims", "claims/"),
    ("claims", "clients/"),
)
CHECKPOINTS_KEPT = 2  # of a generation of a data-parallel job


def referred(record: RoundRecord) -> frozenset[str]:
    """SHA-256 of the payloads that it refers to."""
    return frozenset(ref.sha256 for ref in (record.theta, record.outer, record.update) if ref is not None)


async def superseded(
    tape: Tape,
    newest: int,
    *,
    fetching: frozenset[str],
    known: Mapping[int, frozenset[str]] = {},  # only read
    init: bool = True,
    quiet: bool = False,
    strict: bool = False,
) -> Garbage:
    """What no fragment's two newest records need, the newest round being `newest`: payloads, snapshots and claims of rounds at
    least two turns back, and what creators wrote that came second. Payloads whose SHA-256 is in `fetching` stay.

    `known`: what rounds refer to whose records need not be read again. `init`: whether creators' leavings are looked for, too.
    `quiet`: nobody is live, so that rounds need not be two turns back: what belongs to closed ones goes, but for the snapshots
    of the newest, which the next record may call late. The open round's stay in any case. `strict`: a record that must be
    known and is not there, which may be late, is a MailboxCorrupt; else no
    parameters go then, which it may refer to.
    """
    turns = 2 * len(tape.plan)
    last = newest if quiet else newest - turns
    kept, unsure = set(fetching), False
    for round in range(max(0, newest - turns + 1), newest + 1):
        if round in known:
            kept |= known[round]
        elif (record := await tape.round(round)) is not None:
            kept |= referred(record)
        elif strict:
            raise MailboxCorrupt(f"{tape.keys.round(round)}: missing below round {newest}")
        else:  # a listing that is behind, perhaps: the next turn sweeps all the same
            unsure = True
    found: Garbage = {}
    for what, folder in _BY_ROUND:
        if (folder == "clients/" and not isinstance(tape.manifest.algorithm, FedAvg)) or (what == "parameters" and unsure):
            continue
        prefix = f"{tape.keys.root}/{folder}"
        upto = last - 1 if quiet and what == "snapshots" else last
        for name in await tape.mailbox.names(prefix):
            if name.isdecimal() and int(name) <= upto:
                found.setdefault(what, []).extend(await tape.mailbox.list(f"{prefix}{name}/"))
    if init and (last >= 0 or quiet):  # whoever creates this run still has lost, and will not look for what it wrote
        kept |= {ref.sha256 for ref in tape.manifest.init}
        found["init"] = await tape.mailbox.list(f"{tape.keys.root}/blobs/init/")
    return _without(found, kept)


async def old_checkpoints(tape: Tape, upto: int | None = None) -> tuple[list[str], list[str]]:
    """(records, payloads) of all but the newest `checkpoints_kept` that are kept up to round `upto`, by default the newest of
    them, with what somebody did not finish. The records go first: whoever sees one can fetch what it names."""
    found = await tape.checkpoints()
    last = max(found, default=-1) if upto is None else upto
    many = tape.manifest.checkpoints_kept
    kept = set(found[-many:] if many else ())
    prefix = f"{tape.keys.root}/blobs/checkpoints/"
    payloads: list[str] = []
    for name in await tape.mailbox.names(prefix):
        if name.isdecimal() and int(name) <= last and int(name) not in kept:
            payloads += await tape.mailbox.list(f"{prefix}{name}/")
    return [tape.keys.checkpoint(old) for old in found if old not in kept], payloads


async def job_steps(mailbox: Mailbox, place: RunKeys, generation: int) -> list[int]:
    """After which a generation wrote whole checkpoints, ascending; forged records make none, else one of a step to come would
    have the real ones deleted as old."""
    found: list[int] = []
    for key in await mailbox.list(place.job_checkpoints(generation)):
        named = keys.parse_job_checkpoint(key)
        if named is not None and named[0] == generation and await is_genuine(mailbox, key):
            found.append(named[1])
    return sorted(found)


async def old_job_checkpoints(mailbox: Mailbox, place: RunKeys, *, generation: int, own: list[int]) -> list[tuple[int, int]]:
    """(generation, step) of what lies before the newest two checkpoints of `generation`, ascending, files without a record
    included; `own`: the steps after which it wrote its whole ones. Nothing, while it has not two."""
    if len(own) < CHECKPOINTS_KEPT:
        return []
    oldest = (generation, own[-CHECKPOINTS_KEPT])  # of those that stay: a generation writes them one after the other
    named = {keys.parse_job_checkpoint(key) for key in await mailbox.list(place.checkpoints)}
    named |= {keys.parse_job_file(key) for key in await mailbox.list(place.files_of_checkpoints)}
    return sorted(at for at in named if at is not None and at < oldest)


def old_beats(listed: Iterable[str]) -> list[str]:
    """Of each learner's beats all but the last few, which its writer would have kept."""
    by_learner: dict[str, list[tuple[int, int, str]]] = {}
    for key in listed:
        named = keys.parse_beat(key)
        if named is not None:
            by_learner.setdefault(named[0], []).append((*named[1:], key))
    return [key for beats in by_learner.values() for _, _, key in sorted(beats)[:-BEATS_KEPT]]


def _without(found: Garbage, kept: set[str]) -> Garbage:
    left: Garbage = {}
    for what, listed in found.items():
        doomed = [key for key in listed if key.rsplit("/", 1)[1].split(".")[0] not in kept]
        if doomed:
            left[what] = doomed
    return left
