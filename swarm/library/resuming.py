"""What a program's learner goes on from after a restart, beside its parameters."""

from __future__ import annotations

from typing import Any

from swarm.core.errors import StateMismatch, UsageError
from swarm.learners.contract import OptimizerState
from swarm.learners.select import optimizer_for
from swarm.runtime.resuming import Part
from swarm.tasks.contract import Resumable, TaskState
from swarm.tasks.state import check_same


class Steps:
    """A Resumable that counts inner steps."""

    def __init__(self) -> None:
        self.before = 0  # made by former incarnations, as far as is known
        self.made = 0

    def state(self) -> TaskState:
        return TaskState(values={"steps": self.before + self.made})

    def load(self, state: TaskState) -> None:
        steps = state.values.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise StateMismatch(f"{str(steps)[:40]!r} is no number of steps")
        self.before = steps


class _Optimizer:
    """A Resumable over an inner optimizer."""

    def __init__(self, kept: OptimizerState) -> None:
        self._kept = kept
        self._here = {"framework": kept.framework, "optimizer": kept.name}

    def state(self) -> TaskState:
        return TaskState(arrays=self._kept.state(), values=self._here)

    def load(self, state: TaskState) -> None:
        check_same(state, self._here)
        self._kept.load(state.arrays)


def parts(model: Any, *, steps: Steps, optimizer: Any, state: Any) -> list[Part]:
    """Each is resumed by itself: a program may have been changed meanwhile. Raises UsageError for an optimizer that cannot be
    kept, and a `state` that is no Resumable."""
    found = [Part("steps", steps, needed=False)]
    if optimizer is not None:
        kept = optimizer_for(optimizer, model)
        kept.check()
        found.append(Part("optimizer", _Optimizer(kept), ("the inner optimizer",), optimizer=True, needed=False))
    if state is not None:
        if not isinstance(state, Resumable) or not isinstance(state.state(), TaskState):
            name = type(state).__name__
            raise UsageError(f"state= takes what has state(), which gives a swarm.TaskState, and load(); a {name} has not")
        found.append(Part("state", state, ("the program's own state",), needed=False))
    return found
