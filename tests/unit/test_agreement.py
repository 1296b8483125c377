"""How far contributions agree with what they come to, against NumPy's cosine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from swarm.core.tensorspec import TensorSpec
from swarm.tensors.agreement import IN_ALL, SAMPLED, Agreement
from swarm.tensors.blocks import BLOCK
from swarm.tensors.codec import encode
from swarm.tensors.fold import Fold
from swarm.tensors.robust import Robust

SMALL = [TensorSpec("a", "F32", (7, 5)), TensorSpec("b", "F32", (11,))]
LARGE = [TensorSpec("w", "F32", (1024, 768)), TensorSpec("bias", "F32", (768,)), TensorSpec("v", "F32", (2 * BLOCK + 3,))]
Deltas = list[dict[str, NDArray[np.float32]]]


def deltas_of(specs: list[TensorSpec], count: int, *, seed: int = 0) -> Deltas:
    """Of a common direction, and each of one of its own."""
    rng = np.random.default_rng(seed)
    common = {spec.name: rng.standard_normal(spec.shape, dtype=np.float32) for spec in specs}
    return [
        {name: a + np.float32(1 + k) * rng.standard_normal(a.shape, dtype=np.float32) for name, a in common.items()}
        for k in range(count)
    ]


def cosine(a: dict[str, NDArray[Any]], b: dict[str, NDArray[Any]]) -> float:
    x, y = (np.concatenate([each[name].astype(np.float64).ravel() for name in sorted(a)]) for each in (a, b))
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def folded(deltas: Deltas, specs: list[TensorSpec], weights: list[float], **how: Any) -> tuple[Fold, dict[str, NDArray[Any]]]:
    fold = Fold(specs, weights, **{"merge": "mean", "dtype": None, **how})
    for delta in deltas:
        for spec in specs:
            encoded = encode(delta[spec.name], np.zeros(spec.shape, np.float32), spec=spec, dtype=how.get("dtype"))
            fold.add(spec.name, encoded)
    return fold, {spec.name: fold.result(spec.name) for spec in specs}


@pytest.mark.parametrize("merge", ["mean", "rda"])
@pytest.mark.parametrize("norms", [False, True])
def test_of_a_small_model_it_is_exact(merge: Any, norms: bool) -> None:
    deltas = deltas_of(SMALL, 3)
    fold, merged = folded(deltas, SMALL, [1.0, 2.0, 5.0], merge=merge, norms=norms)
    assert fold.cosines == pytest.approx([cosine(delta, merged) for delta in deltas], abs=1e-4)


@pytest.mark.parametrize("dtype", [None, "BF16", "F8_E4M3", "F4"])
def test_of_a_large_one_it_is_good_enough_for_people(dtype: str | None) -> None:
    deltas = deltas_of(LARGE, 3)
    fold, merged = folded(deltas, LARGE, [1.0, 1.0, 1.0], dtype=dtype)
    tolerance = 0.1 if dtype == "F4" else 0.03
    assert fold.cosines == pytest.approx([cosine(delta, merged) for delta in deltas], abs=tolerance)
    assert len(fold._agreement._merged) <= SAMPLED + len(LARGE)


@pytest.mark.parametrize("trim", [None, 0.1])
def test_of_a_median_and_of_a_trimmed_mean(trim: float | None) -> None:
    deltas = deltas_of(LARGE, 5)
    robust = Robust(LARGE, len(deltas), trim=trim, dtype=None)
    for spec in LARGE:
        for k, delta in enumerate(deltas):
            robust.look(k, spec.name, delta)
        robust.add(spec.name, deltas)
    merged = {spec.name: robust.result(spec.name) for spec in LARGE}
    assert robust.cosines == pytest.approx([cosine(delta, merged) for delta in deltas], abs=0.03)


def test_equal_ones_agree_and_opposite_ones_do_not() -> None:
    [delta] = deltas_of(SMALL, 1)
    opposite = {name: -a for name, a in delta.items()}
    fold, _ = folded([delta, delta, opposite], SMALL, [1.0, 1.0, 1.0])
    assert fold.cosines == [1.0, 1.0, -1.0]


def test_where_there_is_no_direction_nothing_is_told() -> None:
    [delta] = deltas_of(SMALL, 1)
    nothing = {name: np.zeros_like(a) for name, a in delta.items()}
    opposite = {name: -a for name, a in delta.items()}
    assert folded([delta, nothing], SMALL, [1.0, 1.0])[0].cosines == [1.0, None]
    assert folded([delta, opposite], SMALL, [1.0, 1.0])[0].cosines == [None, None], "they come to nothing"


@pytest.mark.parametrize("size", [1e-38, 1e38])
def test_tiny_and_huge_numbers(size: float) -> None:
    with np.errstate(over="ignore"):
        deltas = [{name: a * np.float32(size) for name, a in delta.items()} for delta in deltas_of(SMALL, 2)]
        deltas = [{name: np.clip(a, -3e38, 3e38) for name, a in delta.items()} for delta in deltas]
    fold, merged = folded(deltas, SMALL, [1.0, 1.0])
    assert fold.cosines == pytest.approx([cosine(delta, merged) for delta in deltas], abs=2e-3)


def test_begun_again_it_knows_nothing_of_before() -> None:
    bad, good, other = deltas_of(SMALL, 3)
    fold, _ = folded([bad, good, other], SMALL, [1.0, 1.0, 1.0])
    fold.restart([1.0, 1.0])
    for delta in (good, other):
        for spec in SMALL:
            fold.add(spec.name, delta)
    merged = {spec.name: fold.result(spec.name) for spec in SMALL}
    assert fold.cosines == pytest.approx([cosine(good, merged), cosine(other, merged)], abs=1e-4)


def test_buffers_are_no_direction() -> None:
    specs = [*SMALL, TensorSpec("mean", "F32", (4,), buffer=True), TensorSpec("count", "I64", (), buffer=True)]
    deltas = deltas_of(SMALL, 2)
    extra = {"mean": np.full(4, 1e9, np.float32), "count": np.array(7)}
    fold = Fold(specs, [1.0, 1.0], merge="mean", dtype=None)
    robust = Robust(specs, 2, trim=None, dtype=None)
    for k, delta in enumerate(deltas):
        for spec in specs:
            fold.add(spec.name, delta | extra)
            robust.look(k, spec.name, delta | extra)
    for spec in specs:
        robust.add(spec.name, [delta | extra for delta in deltas])
        fold.result(spec.name)
        robust.result(spec.name)
    merged = {name: (deltas[0][name] + deltas[1][name]) / 2 for name in ("a", "b")}
    wanted = pytest.approx([cosine(delta, merged) for delta in deltas], abs=1e-4)
    assert fold.cosines == wanted
    assert robust.cosines == wanted


@pytest.mark.parametrize("count", [1, 2, 16, 100, 10_000])
def test_its_memory_does_not_grow_with_the_contributions(count: int) -> None:
    agreement = Agreement([TensorSpec("w", "F32", (50_000_000,))], count)
    assert agreement._places.size <= IN_ALL
    assert agreement._merged.size >= min(SAMPLED, IN_ALL // count) // 2


def test_blocks_that_begin_anywhere() -> None:
    spec = TensorSpec("w", "F32", (SAMPLED * 5,))
    numbers = np.random.default_rng(3).standard_normal(spec.shape, dtype=np.float32)
    whole, pieces = Agreement([spec], 1), Agreement([spec], 1)
    whole.take(whole.place(0, "w"), 0, numbers)
    for start in range(0, spec.size, 1000):
        pieces.take(pieces.place(0, "w"), start, numbers[start : start + 1000])
    assert np.array_equal(whole._places, pieces._places)
    assert whole._places.all(), "every place was taken"
