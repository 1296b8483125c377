"""What this machine draws for a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Drawn(NamedTuple):
    power_w: float | None  # now; None: nothing here tells
    energy_wh: float | None  # so far


Draws: TypeAlias = Callable[[bool], Drawn]
"""Asked again and again, with whether the training rests: what the machine draws then is not drawn for it."""


def untold(resting: bool) -> Drawn:
    """Nothing here tells."""
    return Drawn(None, None)
