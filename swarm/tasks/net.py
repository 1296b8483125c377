"""What the built-in tasks need of a framework: a model that is trained and asked with NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
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

    @property
    def optimizer(self) -> str:
        """The name of its class."""
        ...

    def train(self, x: Array, y: Array) -> float:
        """One optimizer step; the batch's mean loss before it."""
        ...

    def loss(self, x: Array, y: Array) -> float:
        """The batch's mean loss; nothing changes."""
        ...

    def predict(self, x: Array) -> Array:
        """The model's outputs on the host; nothing changes."""
        ...

    def state(self) -> Mapping[str, Array]:
        """The optimizer's state on the host: views where it can be, valid until the next step."""
        ...

    def load(self, state: Mapping[str, Array]) -> None:
        """Take over an optimizer's state, by copy. Raises StateMismatch before anything is changed."""
        ...
