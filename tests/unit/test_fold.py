"""Merging contributions one at a time: the plain mean's bytes, and RDA against an oracle in float64."""

from __future__ import annotations

import itertools
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
from swarm.tensors.blocks import BLOCK, scratch, spans
from swarm.tensors.codec import Decoder, encode
from swarm.tensors.fold import Fold, is_embedding, normalised
from tests.unit.plain import weighted_mean

CODES = [None, "F32", "F16", "BF16", "F8_E4M3", "F4"]
weight_lists = st.lists(st.floats(0, 1e12), min_size=1, max_size=4).filter(lambda weights: sum(weights) > 1e-9)


def delta(x: NDArray[np.float32], spec: TensorSpec, dtype: str | None) -> dict[str, NDArray[Any]]:
    return encode(x, np.zeros_like(x), spec=spec, dtype=dtype)


def numbers(q: dict[str, NDArray[Any]], spec: TensorSpec, dtype: str | None) -> NDArray[np.float32]:
    decoder, (block,) = Decoder(q, spec, dtype), scratch(1)
    parts = [decoder.block(span, block).copy() for span in spans(spec.size)]
    return np.concatenate([*parts, np.empty(0, np.float32)]).reshape(spec.shape)


def fold(deltas: list[dict[str, NDArray[Any]]], specs: list[TensorSpec], weights: list[float], **how: Any) -> Fold:
    found = Fold(specs, weights, **how)
    for q in deltas:
        for spec in specs:
            found.add(spec.name, q)
    return found


def rda(deltas: list[NDArray[np.float32]], weights: list[float]) -> NDArray[np.float64]:
    wide = [d.astype(np.float64) for d in deltas]
    norms = [float(np.sqrt((d * d).sum())) for d in wide]
    scales = [float(w) for w in normalised(weights)]
    direction = sum(w / n * d for w, n, d in zip(scales, norms, wide, strict=True) if n)
    length = sum(w * n for w, n in zip(scales, norms, strict=True))
    total = float(np.sqrt((np.asarray(direction) ** 2).sum()))
    return np.asarray(direction) * (length / total) if total > 1e-4 else np.zeros(deltas[0].shape)


@given(weight_lists, st.sampled_from(CODES), st.data())
def test_the_mean_has_the_bytes_of_the_plain_one(weights: list[float], dtype: str | None, data: st.DataObject) -> None:
    spec = TensorSpec("w", "F32", data.draw(npst.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=40)))
    elements = st.floats(-60000, 60000, width=32)
    deltas = [delta(data.draw(npst.arrays(np.float32, spec.shape, elements=elements)), spec, dtype) for _ in weights]
    want = weighted_mean([numbers(q, spec, dtype) for q in deltas], weights)
    found = fold(deltas, [spec], weights, merge="mean", dtype=dtype, norms=True)
    exact = [math.sqrt(math.fsum(x * x for x in numbers(q, spec, dtype).reshape(-1).tolist())) for q in deltas]
    np.testing.assert_allclose(found.norms, exact, rtol=1e-12)
    assert found.result("w").tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("merge", ["mean", "rda"])
def test_several_tensors_of_several_blocks(merge: Any, dtype: str | None) -> None:
    random = np.random.default_rng(3)
    specs = [TensorSpec(name, "F32", shape) for name, shape in (("a", (2 * BLOCK + 17,)), ("e", (9, 11)), ("z", (0, 4)))]
    weights = [3.0, 0.0, 7.5]
    deltas = [
        {n: a for s in specs for n, a in delta(random.standard_normal(s.shape).astype(np.float32), s, dtype).items()}
        for _ in weights
    ]
    found = fold(deltas, specs, weights, merge=merge, dtype=dtype, embeddings=frozenset({"e"}))
    for spec in specs:
        parts = [numbers(q, spec, dtype) for q in deltas]
        result = found.result(spec.name)
        assert result.shape == spec.shape
        if merge == "mean" or spec.name == "e":
            assert result.tobytes() == weighted_mean(parts, weights).tobytes()
        else:
            np.testing.assert_allclose(result, rda(parts, weights), rtol=1e-5, atol=1e-7)


@given(st.integers(1, 4), st.integers(0, 2**32 - 1), st.integers(-100, 100))
def test_rda_has_the_mean_length(learners: int, seed: int, exponent: int) -> None:
    random = np.random.default_rng(seed)
    spec = TensorSpec("w", "F32", (50,))
    deltas = [(random.standard_normal(50) * 2.0**exponent).astype(np.float32) for _ in range(learners)]
    weights = random.uniform(0.1, 1, learners).tolist()
    result = fold([{"w": d} for d in deltas], [spec], weights, merge="rda", dtype="F32").result("w").astype(np.float64)
    lengths = [float(np.linalg.norm(d.astype(np.float64))) for d in deltas]
    assert np.linalg.norm(result) == pytest.approx(np.average(lengths, weights=weights), rel=1e-5)
    np.testing.assert_allclose(result, rda(deltas, weights), rtol=1e-4, atol=1e-6 * lengths[0])


def test_rda_where_there_is_no_direction() -> None:
    spec, one = TensorSpec("w", "F32", (3,)), np.array([0.1, -0.7, 0.3], np.float32)
    zero, third = np.zeros(3, np.float32), one / np.float32(3)

    def merged(*deltas: NDArray[np.float32]) -> list[float]:
        found = fold([{"w": d} for d in deltas], [spec], [1.0] * len(deltas), merge="rda", dtype=None).result("w")
        return [float(x) for x in found]

    assert merged(zero, zero) == [0, 0, 0]
    assert merged(one, -one) == [0, 0, 0]
    assert merged(one, -third) == [0, 0, 0]  # but for rounding
    assert merged(one, zero) == pytest.approx((one / 2).tolist())  # half the length along the only direction
    assert merged(one, third) == pytest.approx((one * 2 / 3).tolist())


@pytest.mark.parametrize("size", [2.0**-149, 2.0**-120, 2.0**-100, 1.0, 2.0**100, 2.0**126])
def test_rda_of_tiny_and_huge_deltas(size: float) -> None:
    spec = TensorSpec("w", "F32", (4,))
    deltas = [np.array(row, np.float32) * np.float32(size) for row in ([1, 0, 0, 0], [0, 1, 1, 0])]
    found = fold([{"w": d} for d in deltas], [spec], [1.0, 1.0], merge="rda", dtype=None).result("w")
    np.testing.assert_allclose(found, rda(deltas, [1.0, 1.0]), rtol=1e-5, atol=2.0**-149)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("merge", "norms"), [("mean", False), ("mean", True), ("rda", False)])
@pytest.mark.parametrize("at", [0, BLOCK + 3])
def test_what_is_not_finite_is_refused_and_the_rest_can_go_on(merge: Any, norms: bool, at: int, bad: float) -> None:
    spec = TensorSpec("w", "F32", (BLOCK + 5,))
    good, poisoned = np.ones(spec.shape, np.float32), np.ones(spec.shape, np.float32)
    poisoned[at] = bad
    found = Fold([spec], [1.0, 0.0], merge=merge, dtype=None, norms=norms)
    found.add("w", {"w": good})
    with pytest.raises(NotFinite) as caught:
        found.add("w", {"w": poisoned})  # a weight of zero does not help
    assert caught.value.name == "w"
    found.restart([2.0])
    found.add("w", {"w": good})
    if norms:
        assert found.norms == [math.sqrt(BLOCK + 5)]
    np.testing.assert_allclose(found.result("w"), good, rtol=1e-6)


def test_large_finite_numbers_are_not_refused() -> None:
    spec, big = TensorSpec("w", "F32", (8,)), np.full(8, 3e38, np.float32)  # the sum of squares overflows fp32
    assert (fold([{"w": big}], [spec], [1.0], merge="mean", dtype=None).result("w") == big).all()


@pytest.mark.parametrize(("dtype", "name", "at", "byte"), [("F8_E4M3", "w", 5, 0x7F), ("F4", "w.scale", 1, 0xFF)])
def test_a_quantised_delta_with_nan_in_it_is_refused(dtype: str, name: str, at: int, byte: int) -> None:
    spec = TensorSpec("w", "F32", (64,))
    q = delta(np.ones(64, np.float32), spec, dtype)
    q[name].view(np.uint8)[at] = byte
    with pytest.raises(NotFinite):
        fold([q], [spec], [1.0], merge="mean", dtype=dtype)


def test_norms_do_not_depend_on_the_order_of_the_tensors() -> None:
    random = np.random.default_rng(0)
    specs = [TensorSpec(name, "F32", (1000,)) for name in "abcd"]
    q = {spec.name: (random.standard_normal(1000) * 10.0**k).astype(np.float32) for k, spec in enumerate(specs)}
    found = {
        tuple(fold([q], list(order), [1.0], merge="mean", dtype=None, norms=True).norms)
        for order in itertools.permutations(specs)
    }
    assert len(found) == 1
    (rough,) = fold([q], specs, [1.0], merge="mean", dtype=None).norms
    assert rough == pytest.approx(next(iter(found))[0], rel=1e-5)
    large = {"a": np.full(1000, 3e38, np.float32)}  # whose squares are beyond fp32
    (norm,) = fold([large], specs[:1], [1.0], merge="mean", dtype=None).norms
    assert norm == pytest.approx(3e38 * 1000**0.5, rel=1e-5)


def test_neither_more_nor_fewer_contributions_than_weights() -> None:
    spec, q = TensorSpec("w", "F32", (2,)), {"w": np.ones(2, np.float32)}
    found = Fold([spec], [1.0, 1.0], merge="mean", dtype=None)
    found.add("w", q)
    with pytest.raises(ValueError, match="1 of 2"):
        found.result("w")
    found.add("w", q)
    with pytest.raises(ValueError, match="only 2"):
        found.add("w", q)
    assert found.result("w").tolist() == [1, 1]
    for weights in ([0.0], [-1.0], [math.nan]):
        with pytest.raises(ValueError, match="weights"):
            Fold([spec], weights, merge="mean", dtype=None)


@pytest.mark.parametrize(
    ("name", "shape", "embedding"),
    [
        ("embed.weight", (9, 4), True),
        ("transformer.wte.weight", (9, 4), True),
        ("pos.weight", (9, 4), True),
        ("model.embed_tokens.weight", (9, 4), True),
        ("tok_embeddings", (9, 4), True),
        ("embed.weight", (9,), False),
        ("embed.norm.weight", (9, 4), False),
        ("blocks.0.proj.weight", (9, 4), False),
        ("weight", (9, 4), False),
        ("", (9, 4), False),
    ],
)
def test_what_an_embedding_is(name: str, shape: tuple[int, ...], embedding: bool) -> None:
    assert is_embedding(TensorSpec(name, "F32", shape)) is embedding
