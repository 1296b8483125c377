"""The training side of a learner: counts inner steps, makes deltas when a round is due, takes over what was committed.

No thread, no clock, no I/O.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from swarm.core.fragments import Schedule
from swarm.core.specs import DiLoCo
from swarm.learners.contract import Adapter
from swarm.runtime.handoff import Aligned, Publication, Tensors
from swarm.tensors.delta import delta
from swarm.tensors.precision import DTYPES


@dataclass
class _Progress:
    """What a fragment's next delta stands for: work since its parameters were last taken over."""

    base_sha256: str
    anchor: Tensors
    tokens: int = 0
    steps: int = 0
    loss_sum: float = 0.0  # weighted by tokens
    loss_tokens: int = 0
    seconds_s: float = 0.0


class InnerLoop:
    def __init__(
        self, adapter: Adapter, spec: DiLoCo, *, plan: tuple[tuple[str, ...], ...], schedule: Schedule, start: Aligned
    ) -> None:
        """`start` holds every fragment; the adapter's parameters become these."""
        self.adapter, self.spec, self.plan, self.schedule = adapter, spec, plan, schedule
        self._fragments: dict[int, _Progress] = {}
        self.pending: int | None = None  # the round that was reported to and is not committed yet
        self.round = -1  # being worked on
        self.step = 0  # inner steps done in it
        self.align(start)

    @property
    def steps_before(self) -> int:
        """Inner steps that the round takes."""
        return self.schedule.steps_before(self.round)

    @property
    def waits(self) -> bool:
        """Whether the next inner step must wait for the pending round."""
        return self.pending is not None and self.step >= min(self.spec.overlap_steps, self.steps_before)

    def count(self, *, tokens: int, loss: float | None, seconds_s: float) -> None:
        """One inner step was made."""
        self.step += 1
        for progress in self._fragments.values():
            progress.tokens += tokens
            progress.steps += 1
            progress.seconds_s += seconds_s
            if loss is not None:
                progress.loss_sum += loss * tokens
                progress.loss_tokens += tokens

    def due(self, *, flush: bool, hurried: bool = False) -> Publication | None:
        """What to publish now, if anything. After that the next round is worked on, and this one is pending."""
        fragment = self.schedule.fragment(self.round)
        progress = self._fragments[fragment]
        early = flush or (hurried and progress.steps > 0)
        if self.pending is not None or not (early or self.step >= self.steps_before):
            return None
        theta = self.adapter.snapshot()
        deltas = {}
        for name in self.plan[fragment]:
            anchor = progress.anchor[name]
            dtype = anchor.dtype if self.spec.delta_dtype is None else DTYPES[self.spec.delta_dtype]
            deltas[name] = np.empty(anchor.shape, dtype)
            delta(anchor, theta[name], deltas[name])
        publication = Publication(
            round=self.round,
            fragment=fragment,
            delta=deltas,
            base_sha256=progress.base_sha256,
            tokens=progress.tokens,
            steps=progress.steps,
            train_loss=progress.loss_sum / progress.loss_tokens if progress.loss_tokens else None,
            seconds_s=progress.seconds_s,
        )
        self.pending, self.round, self.step = self.round, self.round + 1, 0
        return publication

    def align(self, aligned: Aligned) -> None:
        """Take over committed parameters (alignment `overwrite`): local steps since the delta was made are given up."""
        self.adapter.apply({name: array for _, theta in aligned.fragments.values() for name, array in theta.items()})
        for fragment, (sha256, theta) in aligned.fragments.items():
            self._fragments[fragment] = _Progress(base_sha256=sha256, anchor=theta)
        if self.pending is not None and aligned.newest >= self.pending:
            self.pending = None
        if aligned.newest + 1 > self.round:  # the others went on without this learner
            self.round, self.step = aligned.newest + 1, 0

    def committed(self) -> Tensors:
        """The newest committed parameters of the whole model."""
        return {name: array for progress in self._fragments.values() for name, array in progress.anchor.items()}

    def take_committed(self) -> None:
        """Give up all local steps: every parameter as it was last committed."""
        self.adapter.apply(self.committed())

    def local(self) -> Tensors:
        """A copy of the parameters as they are now."""
        return {name: np.array(array) for name, array in self.adapter.snapshot().items()}


def params_sha256(adapter: Adapter) -> str:
    """SHA-256 over all parameters' bytes, sorted by name: equal for two learners that hold the same parameters."""
    sha256 = hashlib.sha256()
    snapshot = adapter.snapshot()
    for name in sorted(snapshot):
        sha256.update(np.ascontiguousarray(snapshot[name]).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()
