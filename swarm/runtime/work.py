"""What a learner knows of one fragment: its committed parameters, the steps made on them, and what was reported of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from swarm.core.records import Participant
from swarm.runtime.handoff import Publication, Tensors, Verdict


@dataclass(frozen=True)
class Work:
    """Inner steps, and what they were made on."""

    tokens: int = 0  # in the run's weight_unit
    steps: int = 0
    loss_sum: float = 0.0  # weighted by tokens
    loss_tokens: int = 0
    seconds_s: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            tokens=self.tokens + other.tokens,
            steps=self.steps + other.steps,
            loss_sum=self.loss_sum + other.loss_sum,
            loss_tokens=self.loss_tokens + other.loss_tokens,
            seconds_s=self.seconds_s + other.seconds_s,
        )

    @property
    def train_loss(self) -> float | None:
        return self.loss_sum / self.loss_tokens if self.loss_tokens else None


@dataclass
class Pending:
    """A snapshot whose round is not committed yet."""

    round: int
    seconds_s: float  # these three tell it from a snapshot of another incarnation
    tokens: int
    steps: int
    work: Work  # what of it is still in the parameters
    kept: dict[str, Any] = field(default_factory=dict)  # the residual, once the snapshot is accepted
    theta: Tensors | None = None  # the fragment's parameters as they were reported; None: no step follows before the commit

    def is_(self, counted: Participant) -> bool:
        """Whether a record counted this snapshot. A former incarnation's has the same figures only if it is the same."""
        figures = counted.seconds_s, counted.tokens, counted.steps
        return figures == (self.seconds_s, self.tokens, self.steps)


@dataclass
class Fragment:
    base_sha256: str
    anchor: Tensors  # committed
    work: Work = Work()  # since the parameters were taken over or reported
    residual: dict[str, Any] = field(default_factory=dict)  # what rounding has kept back; absent: nothing
    pending: Pending | None = None

    @property
    def local(self) -> Work:
        """All steps by which the parameters differ from the anchor."""
        return self.work if self.pending is None else self.pending.work + self.work

    def report(self, round: int, *, kept: dict[str, Any], theta: Tensors | None) -> Pending:
        """The work so far goes into a snapshot."""
        work = self.work
        self.pending = Pending(
            round=round,
            seconds_s=work.seconds_s,
            tokens=work.tokens,
            steps=work.steps,
            work=work,
            kept=kept,
            theta=theta,
        )
        self.work = Work()
        return self.pending

    def give_up(self) -> None:
        """The parameters are the anchor's again."""
        self.work = Work()
        if self.pending is not None:
            self.pending.work = Work()
            if self.pending.theta is not None:
                self.pending.theta = self.anchor

    def settle(self, newest: int, verdicts: Mapping[int, Verdict]) -> Tensors | None:
        """The fragment was committed, last in a round up to `newest`: account for what that made of the pending snapshot and
        of the residual. `verdicts` of this fragment's rounds alone. Returns the parameters on which the steps that are still
        this learner's own were made; None if there are no such steps."""
        pending, accepted = self.pending, False
        if pending is not None and pending.round <= newest:
            self.pending = None
            counted = verdicts.get(pending.round, Verdict()).counted
            accepted = counted is not None and pending.is_(counted)
        else:
            pending = None
        spoiled = False
        for round, found in verdicts.items():
            mine = pending is not None and round == pending.round
            if found.counted is not None and not (mine and accepted):
                # A former incarnation's, which held steps that these repeat, and the residual: nothing is counted twice.
                spoiled, self.residual = True, {}
            elif found.refused and not (mine and pending is not None and not pending.work.steps):  # else given up already
                spoiled = True
        if accepted:
            assert pending is not None
            if pending.kept:
                self.residual = pending.kept
            start = pending.theta
        else:
            start = self.anchor
            if pending is not None:
                self.work = pending.work + self.work
        if spoiled or start is None or not self.work.steps:
            self.work = Work()
            return None
        return start


def publication(fragment: int, part: Fragment, pending: Pending, delta: Tensors, *, flaw: str) -> Publication:
    return Publication(
        round=pending.round,
        fragment=fragment,
        delta=delta,
        base_sha256=part.base_sha256,
        tokens=pending.tokens,
        steps=pending.steps,
        train_loss=pending.work.train_loss,
        seconds_s=pending.seconds_s,
        flaw=flaw,
    )
