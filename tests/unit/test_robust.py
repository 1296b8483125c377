"""The median and the trimmed mean of each number, against NumPy's in float64, and what a liar can do to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from swarm.core.errors import NotFinite
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import BLOCK
from swarm.tensors.codec import encode
from swarm.tensors.precision import BUFFER_DTYPES
from swarm.tensors.robust import Robust, left_out

CODES = [None, "F32", "F16", "BF16", "F8_E4M3", "F4"]


def merged(deltas: list[NDArray[Any]], *, trim: float | None, dtype: str | None = None, spec: TensorSpec | None = None) -> Any:
    spec = spec or TensorSpec("w", "F32", deltas[0].shape)
    robust = Robust([spec], len(deltas), trim=trim, dtype=dtype)
    contributions = [encode(d, np.zeros_like(d), spec=spec, dtype=dtype) if not spec.buffer else {"w": d} for d in deltas]
    for k, tensors in enumerate(contributions):
        robust.look(k, spec.name, tensors)
    robust.add(spec.name, contributions)
    return robust.result(spec.name)


def plainly(deltas: list[NDArray[Any]], trim: float | None) -> NDArray[np.float64]:
    rows = np.sort(np.stack(deltas).astype(np.float64), axis=0)
    if trim is None:
        return np.asarray(np.median(rows, axis=0))
    cut = left_out(len(deltas), trim)
    return np.asarray(rows[cut : len(rows) - cut].mean(axis=0))


trims = st.none() | st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.4, 0.49])
stacks = st.tuples(st.integers(1, 11), st.integers(0, 9))


@given(stacks.flatmap(lambda s: npst.arrays(np.float32, s, elements=st.floats(-(2.0**100), 2.0**100, width=32))), trims)
def test_it_is_numpys(rows: NDArray[np.float32], trim: float | None) -> None:
    found = merged(list(rows), trim=trim)
    assert found.dtype == np.float32
    want = plainly(list(rows), trim)
    np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-6 * max(1.0, float(np.abs(rows).max(initial=0))))
    if trim is None and len(rows) % 2:
        np.testing.assert_array_equal(found, want)


@given(
    stacks.flatmap(lambda s: npst.arrays(np.float32, s, elements=st.sampled_from([0.0, -0.0, 1.0, -1.0]))), trims, st.randoms()
)
def test_the_order_of_contributions_does_not_matter(rows: NDArray[np.float32], trim: float | None, random: Any) -> None:
    shuffled = random.sample(list(rows), len(rows))
    assert merged(shuffled, trim=trim).tobytes() == merged(list(rows), trim=trim).tobytes()


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 9000])
def test_several_blocks(count: int) -> None:
    size = 2 * BLOCK + 17 if count < 100 else 70
    rows = np.random.default_rng(count).standard_normal((count, size)).astype(np.float32)
    found = merged(list(rows), trim=None)
    np.testing.assert_allclose(found, np.median(rows, axis=0), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", CODES)
def test_every_precision(dtype: str | None) -> None:
    random = np.random.default_rng(1)
    exact = [(random.integers(-1, 2, (5, 131)) * 2.0).astype(np.float32) for _ in range(5)]  # which all of them hold
    assert (merged(exact, trim=0.2, dtype=dtype) == plainly(exact, 0.2).astype(np.float32)).all()


def test_the_largest_numbers_have_a_median() -> None:
    big = np.full(3, 3.4e38, np.float32)
    assert (merged([big, big], trim=None) == big).all()
    assert (merged([big] * 9, trim=0.1) == big).all()


@given(st.integers(1, 2000), st.integers(0, 49))
def test_what_is_left_out_is_exact(count: int, percent: int) -> None:
    assert left_out(count, percent / 100) == percent * count // 100
    kept = count - 2 * left_out(count, None)
    assert kept == (1 if count % 2 else 2)


@pytest.mark.parametrize(("trim", "liars"), [(None, 2), (0.4, 2), (0.2, 1)])
def test_a_few_liars_cannot_move_it_beyond_the_honest(trim: float | None, liars: int) -> None:
    random = np.random.default_rng(5)
    honest = [random.standard_normal(50).astype(np.float32) for _ in range(5 - liars)]
    found = merged([*honest, *[np.full(50, 1e30, np.float32)] * liars], trim=trim)
    assert (found <= np.maximum.reduce(honest)).all()
    assert (found >= np.minimum.reduce(honest)).all()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_floating_buffers(dtype: str) -> None:
    spec = TensorSpec("w", dtype, (2,), buffer=True)
    values = [np.array(v, BUFFER_DTYPES[dtype]) for v in ([1, 5], [2, 6], [64, 0])]
    found = merged(values, trim=None, dtype="F4", spec=spec)
    assert (found.dtype, found.tolist()) == (BUFFER_DTYPES[dtype], [2, 5])


@pytest.mark.parametrize("dtype", ["I32", "I64"])
def test_integer_buffers(dtype: str) -> None:
    spec, code = TensorSpec("w", dtype, (3,), buffer=True), BUFFER_DTYPES[dtype]
    top = int(np.iinfo(code).max)
    values = [np.array(v, code) for v in ([top, 1, 5], [top, 2, 5], [top, 3, 5], [-top, 4, 5])]
    found = merged(values, trim=None, spec=spec)
    assert (found.dtype, found.tolist()) == (code, [top, 3, 5])
    assert merged(values, trim=0.0, spec=spec).tolist() == [
        math.floor(top / 2 + 0.5) if dtype == "I32" else (top + 1) // 2,
        3,
        5,
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_told_of_the_one(bad: float) -> None:
    specs = [TensorSpec("b", "F32", (2,), buffer=True), TensorSpec("w", "F32", (2,))]
    robust = Robust(specs, 2, trim=None, dtype=None)
    good = {"b": np.ones(2, np.float32), "w": np.array([3, 4], np.float32)}
    for name in ("b", "w"):
        robust.look(0, name, good)
        with pytest.raises(NotFinite) as caught:
            robust.look(1, name, good | {name: np.array([1, bad], np.float32)})
        assert caught.value.name == name
    assert robust.norms[0] == 5


def test_it_begins_again_whatever_was_taken() -> None:
    specs = [TensorSpec(name, "F32", (2,)) for name in "abc"]
    robust = Robust(specs, 1, trim=None, dtype=None)
    for taken in (["a", "b", "c"], ["b"], []):
        robust.restart(1)
        for spec in specs:
            robust.add(spec.name, [{spec.name: np.full(2, ord(spec.name), np.float32)}])
        assert {name: robust.result(name).tolist() for name in taken} == {name: [ord(name)] * 2 for name in taken}
