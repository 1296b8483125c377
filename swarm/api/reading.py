"""One closed round, read from the mailbox: for whoever opens one that a screen does not hold."""

from __future__ import annotations

import contextlib

import msgspec

from swarm.api.finding import opened
from swarm.core.errors import MailboxCorrupt, UsageError
from swarm.core.finetune import FineTune
from swarm.core.records import EvalRecord, Rejected, RoundRecord
from swarm.core.state import RunState
from swarm.mailbox.waiting import in_time
from swarm.manifests import read_manifest
from swarm.tape import Tape


class ClosedRound(msgspec.Struct, frozen=True, kw_only=True):
    """A round and what belongs to it."""

    record: RoundRecord
    before: RoundRecord | None = None  # the round before it
    evaluated: EvalRecord | None = None
    late: tuple[Rejected, ...] = ()  # snapshots for it that the next record rejects

    @property
    def refused(self) -> tuple[Rejected, ...]:
        """Snapshots for this round that do not count."""
        return (*(r for r in self.record.rejected if r.round == self.record.round), *self.late)


def held_round(state: RunState, round: int) -> ClosedRound | None:
    """From what `state` holds; None if it does not hold the record and the one before it, or not yet."""
    first = state.rounds[0].round if state.rounds else 0
    n = round - first
    if not 0 <= n < len(state.rounds) or (n == 0 and round > 0):
        return None
    after = state.rounds[n + 1] if n + 1 < len(state.rounds) else None
    return ClosedRound(
        record=state.rounds[n],
        before=state.rounds[n - 1] if n else None,
        evaluated=next((e for e in reversed(state.evals) if e.round == round), None),
        late=_late(after, round),
    )


async def read_round(mailbox: str, run: str, round: int) -> ClosedRound:
    """Round `round` of the run with this id, from its records. Raises UsageError if it has not closed, or if the run has no
    rounds; MailboxError."""
    store = await opened(mailbox)
    manifest = await in_time(store, read_manifest(store, run))
    if isinstance(manifest.algorithm, FineTune):
        raise UsageError(f"run {manifest.name} is an MLX-LM fine-tuning: it has generations, and no rounds")
    tape = Tape(store, manifest)
    before = await in_time(store, tape.round(round - 1)) if round > 0 else None
    record = await in_time(store, tape.round(round)) if round >= 0 else None
    if record is None:
        raise UsageError(f"round {round} of {manifest.name} has not closed")
    after = await in_time(store, tape.round(round + 1))
    evaluated = None
    with contextlib.suppress(MailboxCorrupt):  # it is only shown: the round is there all the same
        evaluated = await in_time(store, tape.eval(round))
    return ClosedRound(record=record, before=before, evaluated=evaluated, late=_late(after, round))


def _late(after: RoundRecord | None, round: int) -> tuple[Rejected, ...]:
    return tuple(r for r in after.rejected if r.round == round) if after is not None else ()
