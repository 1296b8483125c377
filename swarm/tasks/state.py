"""Saving and restoring the inner loop of the built-in tasks, the same for all of them: the optimizer, and the position in
the learner's stream, which is also that in the data, since the stream draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import StateMismatch
from swarm.tasks.contract import TaskState
from swarm.tasks.net import Net
from swarm.tasks.streams import at, position

Layout: TypeAlias = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape by name


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
    here = {"task": task, "framework": net.adapter.framework, "optimizer": net.optimizer}
    for what, ours in here.items():
        theirs = state.values.get(what)
        if theirs != ours:
            raise StateMismatch(f"the saved state has {what} {str(theirs)[:40]!r}, this learner {ours!r}")
    random = at(state.values.get("random"))
    net.load(state.arrays)
    return random


def check(arrays: Mapping[str, NDArray[Any]], wanted: Layout) -> None:
    """Raises StateMismatch that names the first array that is missing, not asked for, or of another dtype or shape."""
    found = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    for name in sorted(wanted.keys() | found.keys()):
        if found.get(name) != wanted.get(name):
            raise StateMismatch(
                f"the saved optimizer state is of another model: {name[:100]} is {_words(found.get(name))}, "
                f"and should be {_words(wanted.get(name))}"
            )


def _words(layout: tuple[np.dtype[Any], tuple[int, ...]] | None) -> str:
    return "absent" if layout is None else f"{layout[0]} {layout[1]}"
