"""The training side of a FedAvg learner: one client at a time, from the committed parameters to a delta.

No thread, no clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from swarm.core.errors import NotFinite
from swarm.core.specs import FedAvg
from swarm.learners.contract import Adapter
from swarm.runtime.handoff import Aligned, Assignment, Publication
from swarm.tensors import codec


class ClientLoop:
    def __init__(self, adapter: Adapter, spec: FedAvg, *, start: Aligned) -> None:
        """The adapter's parameters become those of `start`."""
        self.adapter, self.spec = adapter, spec
        self.tensors = adapter.schema()
        self.newest = start.newest  # the last round that was taken over
        self.base_sha256, self.anchor = start.fragments[0]
        self.client: Assignment | None = None  # being trained
        self.steps = 0  # made on it
        self._first: float | None = None  # loss of its first step
        self._last: float | None = None
        self._loss_sum, self._loss_samples = 0.0, 0
        adapter.apply(self.anchor)

    def align(self, aligned: Aligned) -> None:
        """Take over committed parameters. A client that was begun before is given up: its round is closed."""
        self.newest = max(self.newest, aligned.newest)
        if 0 in aligned.fragments:
            self.base_sha256, self.anchor = aligned.fragments[0]
        self.client = None
        self.take_committed()

    def begin(self, client: Assignment) -> bool:
        """Train it from here on, from the committed parameters; False if it is of a round that is closed."""
        if client.round != self.newest + 1:
            return False
        self.client, self.steps = client, 0
        self._first = self._last = None
        self._loss_sum, self._loss_samples = 0.0, 0
        self.take_committed()
        return True

    def count(self, *, samples: int, loss: float | None) -> None:
        """One step was made."""
        self.steps += 1
        self._first, self._last = (loss if self.steps == 1 else self._first), loss
        if loss is not None:
            self._loss_sum += loss * samples
            self._loss_samples += samples

    @property
    def train_loss(self) -> float | None:
        """The mean of its steps' losses, by samples."""
        return self._loss_sum / self._loss_samples if self._loss_samples else None

    def done(
        self, *, samples: int, seconds_s: float, flaw: str = "", metrics: Mapping[str, float] | None = None
    ) -> Publication:
        """What came of the client, which has `samples`. `flaw`: the parameter whose gradient was not finite. `metrics`: what
        else is to be known of it. Of a private client nothing is but its samples, its steps and how long they took."""
        client = self.client
        assert client is not None
        delta: dict[str, NDArray[Any]] = {}
        if not flaw:
            try:
                delta = self._encoded()
            except NotFinite as error:
                delta, flaw = {}, error.name
        self.client = None
        losses = {name: loss for name, loss in (("first_loss", self._first), ("last_loss", self._last)) if loss is not None}
        told = not self.spec.private
        return Publication(
            round=client.round,
            fragment=0,
            delta=delta,
            base_sha256=self.base_sha256,
            tokens=samples,
            steps=self.steps,
            train_loss=self.train_loss if told else None,
            seconds_s=seconds_s,
            flaw=flaw,
            unit=client.unit,
            claim=client.claim,
            metrics={**losses, **(metrics or {})} if told else {},
        )

    def take_committed(self) -> None:
        """Every parameter as it was last committed."""
        self.adapter.apply(self.anchor)

    def _encoded(self) -> dict[str, NDArray[Any]]:
        """The payload's arrays. Raises NotFinite."""
        dtype, here = self.spec.delta_dtype, self.adapter.snapshot()
        delta = codec.room(self.tensors, dtype)
        for tensor in self.tensors:
            codec.encode(self.anchor[tensor.name], here[tensor.name], spec=tensor, dtype=dtype, out=delta)
        return delta
