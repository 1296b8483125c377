"""The arithmetic of a round as one would write it down, on whole arrays in fp32: what the code that works in blocks, in place
and part by part must give to the byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.tensors.fold import normalised


def weighted_mean(deltas: Sequence[NDArray[Any]], weights: Sequence[float]) -> NDArray[np.float32]:
    terms = [delta.astype(np.float32) * scale for delta, scale in zip(deltas, normalised(weights), strict=True)]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return np.asarray(total)


def nesterov(
    theta: NDArray[Any], momentum: NDArray[Any], delta: NDArray[np.float32], *, lr: float, beta: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(new theta, new momentum)."""
    eta, decay = np.float32(lr), np.float32(beta)
    momentum = momentum.astype(np.float32) * decay + delta
    return theta.astype(np.float32) - (delta + momentum * decay) * eta, momentum
