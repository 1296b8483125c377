"""Choosing the next byte, and showing bytes to people."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import UsageError


def choose(logits: NDArray[Any], temperature: float, random: np.random.Generator) -> int:
    """One byte by its logits (256,): the likeliest at temperature 0, otherwise drawn from softmax(logits / temperature).

    In float64 and by one uniform number, so that two frameworks, whose logits differ in the last bits, write the same
    text but for rare ties.
    """
    if temperature == 0:
        return int(np.argmax(logits))
    scores = logits.astype(np.float64)
    with np.errstate(under="ignore"):
        weights = np.exp((scores - scores.max()) / temperature)
    cumulated = np.cumsum(weights)
    return int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right").clip(max=len(cumulated) - 1))


def check_writing(*, max_tokens: int, temperature: float) -> None:
    """Raises UsageError."""
    if max_tokens < 0:
        raise UsageError(f"max_tokens must be >= 0, got {max_tokens}")
    if not 0 <= temperature < math.inf:
        raise UsageError(f"temperature must be >= 0 and finite, got {temperature}")


def printable(text: bytes) -> str:
    """One line, never longer than the bytes: what is not printable or not UTF-8 becomes a space, runs of spaces one."""
    decoded = text.decode(errors="replace")
    shown = "".join(c if c.isprintable() and c != "\ufffd" else " " for c in decoded)
    return " ".join(shown.split())
