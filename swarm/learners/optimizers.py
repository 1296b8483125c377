"""What the states of all frameworks' optimizers have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import StateMismatch

Wanted: TypeAlias = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape by name


def check(arrays: Mapping[str, NDArray[Any]], wanted: Wanted) -> None:
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
