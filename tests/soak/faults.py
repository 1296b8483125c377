"""What can go wrong with a learner and with its share, for how long, and in which order: by a seed. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "kill", "stop", "dead", "hang", "unmount", "full", "quota", "read-only", "eio", "stale", "busy", "slow", "late", "twice",
    "strangers", "flip", "lost-reply",
]  # fmt: skip

WRITES = ("create", "write", "mkdir")
RULES: dict[Kind, tuple[dict[str, Any], ...]] = {
    "full": ({"ops": WRITES, "errno": "ENOSPC"},),
    "quota": ({"ops": WRITES, "errno": "EDQUOT"},),
    "read-only": ({"ops": (*WRITES, "rename", "unlink", "rmdir", "truncate", "chmod"), "errno": "EROFS"},),
    "eio": ({"errno": "EIO"},),
    "stale": ({"ops": ("getattr", "open", "read", "readdir"), "errno": "ESTALE"},),
    "busy": ({"ops": ("rename",), "errno": "EBUSY", "count": 5},),
    "slow": ({"delay_s": 2.0},),
    "late": ({"ops": ("readdir",), "late": r"^(\d{4}-\d{10}|[a-z]+\.\d+\.\d+)\.json$"},),  # beats and snapshots
    "twice": ({"ops": ("readdir",), "twice": True},),
    "strangers": ({"ops": ("readdir",), "junk": True},),
    "flip": ({"ops": ("read",), "path": r"^/mailbox/runs/", "flip": True, "count": 3},),
    "lost-reply": ({"ops": ("rename", "mkdir", "unlink"), "errno": "EIO", "after": True, "count": 6},),
}
"""What the folder is told to do (tests/process/faults/faulty_folder.py)."""
LONGEST_S: dict[Kind, float] = {
    "kill": 10.0, "stop": 60.0, "dead": 60.0, "hang": 60.0, "unmount": 60.0, "full": 40.0, "quota": 40.0, "read-only": 40.0,
    "eio": 40.0, "stale": 30.0, "busy": 10.0, "slow": 40.0, "late": 20.0, "twice": 20.0, "strangers": 20.0, "flip": 10.0,
    "lost-reply": 10.0,
}  # fmt: skip
TOLD: frozenset[Kind] = frozenset({"dead", "hang", "unmount", "full", "quota", "read-only", "eio", "stale"})
"""What whoever is hit must tell of."""
OFTEN: frozenset[Kind] = frozenset({"kill", "stop", "dead", "unmount", "full"})


@dataclass
class Injection:
    kind: Kind
    who: tuple[str, ...]
    at_s: float  # since the start
    lasts_s: float
    told_s: dict[str, float] = field(default_factory=dict)  # by learner: how long after it began
    over_s: dict[str, float] = field(default_factory=dict)  # how long after it ended

    @property
    def until_s(self) -> float:
        return self.at_s + self.lasts_s


def plan(seed: int, *, learners: tuple[str, ...], seconds_s: float) -> list[Injection]:
    """Of one learner or of all at once, one after the other with some peace in between; at most two at a time, of two learners.
    All kinds come before one comes again, but for the frequent ones."""
    dice = random.Random(seed)
    made: list[Injection] = []
    bag: list[Kind] = []
    at_s = 5.0
    while True:
        if not bag:
            bag = [*RULES, "kill", "stop", "dead", "hang", "unmount", *sorted(OFTEN)]
            dice.shuffle(bag)
        kind = bag.pop()
        everybody = kind not in ("kill", "stop") and dice.random() < 0.25
        lasts_s = LONGEST_S[kind] * dice.uniform(0.15, 1.0)
        busy = {name for each in made if each.until_s + 5 > at_s for name in each.who}
        free = [name for name in learners if name not in busy]
        if busy and (everybody or len(busy) > 1 or not free):
            at_s = max(each.until_s for each in made) + 5.0
            free = list(learners)
        if at_s + lasts_s > seconds_s:
            return made
        who = learners if everybody else (dice.choice(free),)
        made.append(Injection(kind, who, round(at_s, 1), round(lasts_s, 1)))
        at_s += dice.uniform(2.0, 8.0) if dice.random() < 0.5 else lasts_s + dice.uniform(4.0, 10.0)
