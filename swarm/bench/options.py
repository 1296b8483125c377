"""What to measure with."""

from __future__ import annotations

import msgspec

from swarm.tasks.blank import Shapes, shapes


class Options(msgspec.Struct, frozen=True, kw_only=True):
    params: int = 50_000_000
    tensors: int = 100
    fragments: int = 1
    framework: str = "numpy"
    delta_dtype: str | None = None
    merge: str = "mean"
    folder: str = ""  # where the mailboxes are made, an existing folder
    mailbox: str = ""  # of a part that takes part in a run that is there
    learner: str = ""
    closes: bool = False
    rounds: int = 5

    @property
    def shapes(self) -> Shapes:
        return shapes(self.params, self.tensors)
