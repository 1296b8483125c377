"""Buffers travel as values, whatever the deltas' precision, and are merged exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from swarm.core.errors import NotFinite, SchemaMismatch
from swarm.core.specs import DiLoCo
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.buffers import BufferMean, whole
from swarm.tensors.codec import check_names, encode, payload_specs, room
from swarm.tensors.commit import OuterStep, commit, rebuild
from swarm.tensors.fold import Fold
from swarm.tensors.payload import Packed, check, unpack
from swarm.tensors.precision import BUFFER_DTYPES
from swarm.tensors.schema import Schema, check_equal

CODES = [None, "F32", "F16", "BF16", "F8_E4M3", "F4"]
FLOATING, INTEGERS = ["F32", "F16", "BF16"], ["I32", "I64"]
samples = st.lists(st.integers(0, 2**53 - 1), min_size=1, max_size=6).filter(any)


def buffer(dtype: str, shape: tuple[int, ...] = (3,)) -> TensorSpec:
    return TensorSpec("b", dtype, shape, buffer=True)


def mean(spec: TensorSpec, values: list[Any], weights: list[float]) -> Any:
    found = BufferMean(spec, weights)
    for value in values:
        found.add(np.array(value, BUFFER_DTYPES[spec.dtype]))
    result = found.result()
    assert (result.dtype, result.shape) == (BUFFER_DTYPES[spec.dtype], spec.shape)
    return result


@pytest.mark.parametrize("dtype", INTEGERS)
@given(samples, st.data())
def test_integers_are_the_nearest_to_their_exact_mean(dtype: str, weights: list[int], data: st.DataObject) -> None:
    limits = np.iinfo(BUFFER_DTYPES[dtype])
    values = [data.draw(st.integers(int(limits.min), int(limits.max))) for _ in weights]
    exact = sum(Fraction(w) * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    found = mean(buffer(dtype, ()), values, [float(w) for w in weights])
    assert abs(int(found) - exact) <= Fraction(1, 2)
    assert min(values) <= found <= max(values)


@given(st.integers(-(2**63), 2**63 - 1), samples)
def test_equal_integers_of_any_size_stay(value: int, weights: list[int]) -> None:
    assert int(mean(buffer("I64", ()), [value] * len(weights), [float(w) for w in weights])) == value


def test_halves_go_upwards() -> None:
    assert mean(buffer("I32"), [[1, -1, 4], [2, -2, 4]], [1.0, 1.0]).tolist() == [2, -1, 4]


@pytest.mark.parametrize("dtype", FLOATING)
@given(samples, st.data())
def test_a_mean_stays_within_what_it_is_of(dtype: str, weights: list[int], data: st.DataObject) -> None:
    elements = st.floats(0, 60000, width=16)  # variances
    arrays = [data.draw(npst.arrays(np.float16, 3, elements=elements)).astype(BUFFER_DTYPES[dtype]) for _ in weights]
    found = mean(buffer(dtype), arrays, [float(w) for w in weights]).astype(np.float64)
    wide = [a.astype(np.float64) for a, w in zip(arrays, weights, strict=True) if w]
    assert (found >= np.minimum.reduce(wide)).all()
    assert (found <= np.maximum.reduce(wide)).all()
    exact = np.average([a.astype(np.float64) for a in arrays], axis=0, weights=weights)
    np.testing.assert_allclose(found, exact, rtol={"F32": 1e-6, "F16": 1e-3, "BF16": 1e-2}[dtype], atol=1e-7)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False), samples)
def test_equal_values_stay(value: float, weights: list[int]) -> None:
    found = mean(buffer("F32", ()), [value] * len(weights), [float(w) for w in weights])
    assert found == np.float32(value)


@given(st.lists(st.floats(0, 1e30), min_size=1, max_size=5))
def test_weights_as_integers_keep_their_proportion(weights: list[float]) -> None:
    found = whole(weights)
    assert [Fraction(n) * Fraction(weights[0]) for n in found] == [Fraction(found[0]) * Fraction(w) for w in weights]


@pytest.mark.parametrize("dtype", CODES)
def test_a_payload_holds_their_values(dtype: str | None) -> None:
    specs = [
        TensorSpec("n", "I64", (), buffer=True),
        TensorSpec("var", "F32", (3,), buffer=True),
        TensorSpec("w", "F32", (64,)),
    ]
    out = room(specs, dtype)
    here = {"n": np.array(2**53 + 1), "var": np.array([0, 1e-30, 3e30], np.float32), "w": np.ones(64, np.float32)}
    for spec in specs:
        kept = np.full(spec.shape, 7, np.float32)
        anchor = np.zeros(spec.shape, BUFFER_DTYPES[spec.dtype])
        encode(anchor, here[spec.name], spec=spec, dtype=dtype, residual=kept, kept=kept, out=out)
        assert spec.name == "w" or not kept.any(), "nothing of it is still to be sent"
    found = unpack(b"".join(Packed(out)))
    check(found, specs, dtype)
    assert found["n"].tolist() == 2**53 + 1
    assert found["var"].tobytes() == here["var"].tobytes()
    assert [(n, c, s) for n, c, s in payload_specs(specs[:2], dtype)] == [("n", "I64", ()), ("var", "F32", (3,))]
    check_names([TensorSpec("w", "F32", ()), TensorSpec("w.scale", "F32", (), buffer=True)], None)
    check_names([TensorSpec("w", "F32", (), buffer=True), TensorSpec("w.scale", "F32", ())], "F4")


def test_a_payload_with_another_dtype_for_a_buffer_is_refused() -> None:
    for wrong in (np.zeros(3, np.float32), np.zeros(3, np.int64)):
        with pytest.raises(SchemaMismatch):
            check({"b": wrong}, [buffer("I32")], "F8_E4M3")


def test_what_cannot_be_published() -> None:
    zero = np.zeros(3, np.float32)
    for bad in (np.nan, np.inf):
        with pytest.raises(NotFinite) as caught:
            encode(zero, np.array([0, bad, 1], np.float32), spec=buffer("F32"), dtype="F4")
        assert caught.value.name == "b"
    with pytest.raises(ValueError, match="must be I32"):
        encode(zero, zero, spec=buffer("I32"), dtype=None)


@pytest.mark.parametrize("merge", ["mean", "rda"])
def test_a_fold_merges_them_beside_parameters(merge: Any) -> None:
    specs = [TensorSpec("n", "I32", (2,), buffer=True), TensorSpec("v", "F32", (2,), buffer=True), TensorSpec("w", "F32", (2,))]
    fold = Fold(specs, [1.0, 1.0], merge=merge, dtype=None, norms=True)

    def add(k: int, v: float) -> None:
        tensors = {"n": np.array([k, 9], np.int32), "v": np.array([v, 2], np.float32), "w": np.array([3, 4], np.float32)}
        for spec in specs:
            fold.add(spec.name, tensors)

    add(1, 4.0)
    with pytest.raises(NotFinite):
        add(1, np.nan)
    fold.restart([1.0, 3.0])
    add(1, 4.0)
    add(5, 8.0)
    assert fold.norms == [5.0, 5.0], "of parameters alone"
    assert fold.result("n").tolist() == [4, 9]
    assert fold.result("v").tolist() == [7, 2]
    np.testing.assert_allclose(fold.result("w"), [3, 4], rtol=1e-6)


def test_their_new_value_is_the_merged_one() -> None:
    spec, new = buffer("I64"), np.array([1, 2, 3])
    old = np.zeros(3, np.int64)
    for how in (OuterStep.of(DiLoCo()), OuterStep.of(DiLoCo(commit_dtype="F4"))):
        done = commit(spec, how, theta=old, outer={}, delta=new)
        assert done.theta is new
        assert done.outer == {} == {name: 0 for name, _, _ in how.outer_specs([spec])}
        if how.commit_dtype:
            check(done.update, [spec], "F4")
            assert rebuild(old, done.update, spec=spec, dtype="F4").tolist() == [1, 2, 3]


def test_a_schema_tells_them_apart() -> None:
    plain, kept = Schema([TensorSpec("b", "F32", (3,))]), Schema([buffer("F32")])
    assert plain.digest != kept.digest
    with pytest.raises(SchemaMismatch) as caught:
        check_equal(plain, kept)
    assert caught.value.names == ("b",)
