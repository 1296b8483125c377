"""What rounding takes from a delta comes with a later one, through rejections and lateness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import scratch, spans
from swarm.tensors.codec import Decoder, encode
from swarm.tensors.precision import DTYPES

SPEC = TensorSpec("w", "F32", (70,))


def numbers(q: dict[str, NDArray[Any]], dtype: str) -> NDArray[np.float64]:
    (block,) = scratch(1)
    (span,) = spans(SPEC.size)
    return Decoder(q, SPEC, dtype).block(span, block).astype(np.float64)


@pytest.mark.parametrize("residual_dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("dtype", ["F8_E4M3", "F4", "BF16", "F16"])
@given(
    fates=st.lists(st.sampled_from(["accepted", "rejected", "late"]), min_size=1, max_size=25),
    seed=st.integers(0, 2**32 - 1),
    exponent=st.integers(-9, 9),
)
def test_what_was_accepted_and_the_residual_are_what_was_meant(
    dtype: str, residual_dtype: str, fates: list[str], seed: int, exponent: int
) -> None:
    random = np.random.default_rng(seed)
    scales = 2.0 ** random.integers(-4, 5, SPEC.shape) * 2.0**exponent
    residual = np.zeros(SPEC.shape, DTYPES[residual_dtype])
    meant, accepted = np.zeros(SPEC.shape), np.zeros(SPEC.shape)
    size, decided = 0.0, 0
    for fate in fates:
        theta = (random.standard_normal(SPEC.shape) * scales).astype(np.float32)
        anchor = (random.standard_normal(SPEC.shape) * scales).astype(np.float32)
        kept = np.empty_like(residual)
        q = encode(anchor, theta, spec=SPEC, dtype=dtype, residual=residual, kept=kept)
        size = max(size, float(np.abs(anchor - theta).max()))
        if fate == "accepted":
            meant += (anchor - theta).astype(np.float64)
            accepted += numbers(q, dtype)
            residual, decided = kept, decided + 1
        # Neither rejected nor late ones reached Θ: nothing of them was sent, and alignment decides about their steps.
    assert np.isfinite(residual).all()
    unit = {"F32": 2.0**-23, "BF16": 2.0**-8, "F16": 2.0**-10}[residual_dtype]
    lost = {"F8_E4M3": 2.0**-4, "F4": 0.3, "BF16": 2.0**-8, "F16": 2.0**-10}[dtype]  # of the largest number, by one rounding
    subnormal = 2.0**-24 if "F16" in (dtype, residual_dtype) else 0.0
    rounding = 4 * size * (2.0**-23 + lost * unit) + 2 * subnormal
    assert np.abs(accepted + residual.astype(np.float64) - meant).max() <= decided * rounding
    assert np.abs(residual.astype(np.float64)).max() <= 2 * lost * size + subnormal  # it does not grow


def test_without_feedback_it_would_not_track() -> None:
    theta = np.zeros(SPEC.shape, np.float32)
    anchor = np.full(SPEC.shape, 0.01, np.float32)
    anchor[0] = 1.0  # beside it, F4 rounds the others to zero
    for feedback in (True, False):
        residual, accepted = np.zeros(SPEC.shape, np.float32), np.zeros(SPEC.shape)
        for _ in range(200):
            q = encode(anchor, theta, spec=SPEC, dtype="F4", residual=residual if feedback else None, kept=residual)
            accepted += numbers(q, "F4")
        assert (np.abs(accepted[:32] / 200 - anchor[:32]) < 2e-3).all() == feedback
