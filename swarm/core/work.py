"""Records of work that learners share out besides the rounds: queues, slices of data, barriers (FORMAT.md, "Shared work")."""

from __future__ import annotations

import msgspec

from swarm.core.checks import MAX_COUNT
from swarm.core.ids import is_learner_id
from swarm.core.keys import is_sha256


class WorkSet(msgspec.Struct, frozen=True, kw_only=True):
    """How many units a queue has, or how many slices some data; and which, if that can be said."""

    size: int
    items_sha256: str = ""  # of the JSON array of the units; "" if they are not what JSON can hold

    def __post_init__(self) -> None:
        if type(self.size) is not int or not 0 <= self.size <= MAX_COUNT:
            raise ValueError(f"size must be a whole number >= 0, got {self.size!r:.100}")
        if self.items_sha256 and not is_sha256(self.items_sha256):
            raise ValueError("items_sha256 must be 64 lower-case hex digits")


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who claims a unit or a slice, has done a unit, has arrived at a barrier, or opened it."""

    learner: str  # "": nobody any more, whom the next claim may overtake at once
    incarnation: int
    stint: str = ""  # which of its turns at a queue: random hex, so that two at a time in one process are told apart

    def __post_init__(self) -> None:
        if self.learner and not is_learner_id(self.learner):
            raise ValueError(f"learner must be 1 to 64 of a-z, 0-9 and '-', got {self.learner!r:.100}")
        if type(self.incarnation) is not int or not 0 <= self.incarnation <= MAX_COUNT:
            raise ValueError(f"incarnation must be a whole number >= 0, got {self.incarnation!r:.100}")
        if not 0 <= len(self.stint) <= 64:
            raise ValueError(f"stint must be at most 64 characters, got {self.stint!r:.100}")


NOBODY = Holder(learner="", incarnation=0)
