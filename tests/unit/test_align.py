"""What is left of a learner's own steps after a commit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from swarm.tensors.align import agreement, align, toward
from swarm.tensors.blocks import BLOCK
from swarm.tensors.precision import BF16, F16, F32

ALIGNMENTS = ["overwrite", "blend", "carry", "adaptive"]
ANCHOR, PUBLISHED = np.array([0, 0, 0, 0], np.float32), np.array([1, 0, 0, 0], np.float32)
COMMITTED, NOW = np.array([2, 2, 0, 0], np.float32), np.array([1, 3, 0, 0], np.float32)


@pytest.mark.parametrize(
    ("alignment", "want", "share"),
    [
        ("overwrite", [2, 2, 0, 0], 0.0),
        ("blend", [1.5, 2.5, 0, 0], 0.5),
        ("carry", [2, 5, 0, 0], 1.0),
        ("adaptive", [2, 2 + 3 / np.sqrt(2), 0, 0], 1 / np.sqrt(2)),
    ],
)
def test_each_alignment_in_figures(alignment: Any, want: list[float], share: float) -> None:
    theta = NOW.copy()
    inputs = [array.tobytes() for array in (COMMITTED, PUBLISHED, ANCHOR)]
    assert align(theta, COMMITTED, alignment=alignment, published=PUBLISHED, anchor=ANCHOR) == pytest.approx(share)
    np.testing.assert_allclose(theta, want, rtol=1e-6)
    assert [array.tobytes() for array in (COMMITTED, PUBLISHED, ANCHOR)] == inputs


@pytest.mark.parametrize(
    ("drift", "change", "share"),
    [
        ([1, 0], [-1, 0], 0.0),  # against it: nothing is kept
        ([1, 0], [0, 1], 0.0),
        ([0, 0], [1, 0], 0.0),
        ([1, 0], [0, 0], 0.0),
        ([1e-3, 0], [5, 0], 1.0),
        ([3e38, 0], [3e38, 0], 0.0),  # no finite length
        ([np.nan, 0], [1, 0], 0.0),
    ],
)
def test_how_far_two_directions_agree(drift: list[float], change: list[float], share: float) -> None:
    zero = np.zeros(2, np.float32)
    moved, committed = np.array(drift, np.float32), np.array(change, np.float32)
    assert agreement(moved, zero, committed, zero) == pytest.approx(share)


@pytest.mark.parametrize("alignment", ALIGNMENTS)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("size", [0, 1, 2 * BLOCK + 17])
def test_any_dtype_over_blocks(alignment: Any, dtype: np.dtype[Any], size: int) -> None:
    random = np.random.default_rng(size)
    theta, committed, published, anchor = (random.standard_normal(size).astype(dtype) for _ in range(4))
    t, c, p, a = (array.astype(np.float32) for array in (theta, committed, published, anchor))
    share = align(theta, committed, alignment=alignment, published=published, anchor=anchor)
    origin = c if alignment in ("overwrite", "blend") else p
    want = (c + np.float32(share) * (t - origin)).astype(dtype)
    assert theta.tobytes() == want.tobytes()
    if alignment == "adaptive" and size > 1:
        wide = [x.astype(np.float64) for x in (t, p, c, a)]
        cosine = (wide[0] - wide[1]) @ (wide[2] - wide[3])
        cosine /= np.linalg.norm(wide[0] - wide[1]) * np.linalg.norm(wide[2] - wide[3])
        assert share == pytest.approx(max(0, cosine), abs=1e-4)


@given(npst.arrays(np.float32, 5, elements=st.floats(-100, 100, width=32)))
def test_a_learner_that_made_no_steps_since_takes_over_what_was_committed(now: NDArray[np.float32]) -> None:
    committed = now + np.float32(1)
    for alignment in ("carry", "adaptive"):
        theta = now.copy()
        align(theta, committed, alignment=alignment, published=now, anchor=now)  # type: ignore[arg-type]
        assert (theta == committed).all()


def test_nothing_kept_takes_nothing_of_a_diverged_model() -> None:
    theta, committed = np.array([np.nan, np.inf], np.float32), np.array([1, 2], np.float32)
    toward(theta, committed, origin=committed, factor=0)
    assert theta.tolist() == [1, 2]


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="shape"):
        align(np.zeros(2, np.float32), np.zeros(2, np.float32), alignment="carry", published=ANCHOR, anchor=ANCHOR)
