"""What may be wrong with a mailbox: what, where, and what to do about it."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from swarm.core.catalog import Place

Wrong: TypeAlias = Literal["damaged", "missing", "misplaced", "forged", "gap", "chain", "unreadable"]
"""`damaged`: not what was written. `missing`: a record refers to it. `misplaced`: a record of another place. `forged`: not
signed by this swarm. `gap`: a number of a sequence lacks. `chain`: does not follow on what is before it. `unreadable`: the
share gives an error each time."""


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    fault: Wrong
    run: str  # id; "" outside of runs
    key: str  # where; for what is missing, where it should be
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.key}: {self.remedy}"


class Report(msgspec.Struct, kw_only=True):
    """What was checked, and what not."""

    runs: int = 0
    objects: int = 0
    bytes: int = 0
    faults: int = 0
    unneeded: int = 0  # objects that nobody needs: `swarm mailbox gc`
    unknown: dict[str, str] = {}  # by run: the first key that no swarm writes
    unknown_count: int = 0
    notes: list[str] = []  # what could not be checked, in words


BACKUP = "copy it back from a backup of the mailbox"


def remedy_of(place: Place | None, *, needed: bool) -> str:
    """What to do about an object that is damaged or missing. `needed`: whether the newest records refer to it."""
    if place is None:
        return BACKUP
    match place.kind:
        case "manifest":
            return f"{BACKUP}, or delete the run: `swarm rm ID --force`"
        case "round" | "sample":
            return f"{BACKUP}: whoever comes to it stops there"
        case "round-blob" if needed:
            return f"{BACKUP}; else `swarm export --round N` a checkpoint, and `swarm start --base-model` from that"
        case "init":
            return f"{BACKUP}: it is what the run starts from"
        case "delta" if needed:
            return "nothing to do: the round closes without it"
        case "delta" | "round-blob":
            return "nobody needs it any more: `swarm mailbox gc --now` removes it in time"
        case "snapshot" | "claim" | "beat" | "refusal":
            return "nothing to do: it counts for nobody, and is swept in time"
        case "checkpoint" | "checkpoint-blob":
            return f"{BACKUP}, or delete that checkpoint: training does not need it"
        case "job-checkpoint" | "job-file":
            return f"{BACKUP}; else the job goes on from the checkpoint before it"
        case "hashes" | "chunk":
            return f"{BACKUP}, or give those who join the file itself: --data or --model"
        case "control" | "evaluation" | "learner" | "work" | "generation" | "log":
            return f"{BACKUP}: until then it counts as if it were not there"
        case _:
            return BACKUP
