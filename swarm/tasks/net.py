"""What the built-in tasks need of a framework: a model that is trained and asked with NumPy arrays."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from swarm.learners.contract import Adapter

Array = NDArray[Any]


class Net(Protocol):
    """A model with its optimizer on one device. The first axis of every array is the batch."""

    @property
    def adapter(self) -> Adapter: ...

    @property
    def device(self) -> str: ...

    def train(self, x: Array, y: Array) -> float:
        """One optimizer step; the batch's mean loss before it."""
        ...

    def loss(self, x: Array, y: Array) -> float:
        """The batch's mean loss; nothing changes."""
        ...

    def predict(self, x: Array) -> Array:
        """The model's outputs on the host; nothing changes."""
        ...
