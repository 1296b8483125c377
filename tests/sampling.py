"""Cases that cost much and differ little: a few of them whenever the tests run, all of them in `make slow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def sampled(cases: Sequence[Any], *, most: int = 2) -> list[Any]:
    """For `parametrize`: the first, the last and others between them stay, `most` in all; the rest gets the mark `slow`."""
    last = len(cases) - 1
    stay = {round(n * last / max(1, most - 1)) for n in range(most)}
    apart = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*case, marks=() if n in stay else pytest.mark.slow) for n, case in enumerate(apart)]
