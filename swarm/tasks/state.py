"""Saving and restoring the inner loop of the built-in tasks, the same for all of them: the optimizer, and the position in
the learner's stream, which is also that in the data, since the stream draws them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from swarm.core.errors import StateMismatch
from swarm.tasks.contract import TaskState
from swarm.tasks.net import Net
from swarm.tasks.streams import at, position


def state_of(net: Net, random: np.random.Generator, *, task: str) -> TaskState:
    values = {
        "task": task,
        "framework": net.adapter.framework,
        "optimizer": net.optimizer,
        "random": position(random),
    }
    return TaskState(arrays=net.state(), values=values)


def restore(net: Net, state: TaskState, *, task: str) -> np.random.Generator:
    """Restore the optimizer; the stream, as it stood. Raises StateMismatch before anything is changed."""
    check_same(state, {"task": task, "framework": net.adapter.framework, "optimizer": net.optimizer})
    random = at(state.values.get("random"))
    net.load(state.arrays)
    return random


def check_same(state: TaskState, here: Mapping[str, str]) -> None:
    """Raises StateMismatch if `state` has other values than `here`."""
    for what, ours in here.items():
        theirs = state.values.get(what)
        if theirs != ours:
            raise StateMismatch(f"the saved state has {what} {str(theirs)[:40]!r}, this learner {ours!r}")
