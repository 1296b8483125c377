"""Mean and outer step against an oracle in plain Python, bit for bit; weights; which numbers are finite."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import BLOCK, MAPPED_BYTES
from swarm.tensors.finite import all_finite
from swarm.tensors.fold import Fold, normalised
from swarm.tensors.outer import Nesterov, step
from swarm.tensors.precision import BF16, CODES, DTYPES, F16, F32

dtypes = st.sampled_from([F32, F16, BF16])
# Bounded, so that no step overflows: struct refuses what fp32 cannot hold. Subnormals stay in.
values = st.floats(-(2.0**60), 2.0**60, width=32) | st.floats(-(2.0**-123), 2.0**-123, width=32) | st.floats(-2, 2, width=32)
rates = st.floats(0, 1, width=32)
weight_lists = st.lists(st.floats(0, 1e12), min_size=1, max_size=4).filter(lambda weights: sum(weights) > 1e-9)


def narrow(numbers: Sequence[float], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype == F16:
        numbers = [max(-60000.0, min(60000.0, x)) for x in numbers]
    return np.array(numbers, np.float32).astype(dtype)


def f32(x: float) -> float:
    """`x` rounded to fp32. A sum or product of two fp32 numbers in float64, rounded once more, is rounded correctly."""
    return float(struct.unpack("<f", struct.pack("<f", x))[0])


def oracle_mean(deltas: Sequence[Sequence[float]], scales: Sequence[float]) -> list[float]:
    means = []
    for column in zip(*deltas, strict=True):
        terms = [f32(x * scale) for x, scale in zip(column, scales, strict=True)]
        mean = terms[0]
        for term in terms[1:]:
            mean = f32(mean + term)
        means.append(mean)
    return means


def oracle_step(theta: float, momentum: float, update: float, lr: float, beta: float) -> tuple[float, float]:
    momentum = f32(f32(beta * momentum) + update)
    return f32(theta - f32(lr * f32(update + f32(beta * momentum)))), momentum


@st.composite
def rounds(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[np.float32], list[NDArray[Any]], list[float]]:
    """theta (n,), momentum (n,), deltas, weights."""
    n = draw(st.integers(0, 6))
    vectors = st.lists(values, min_size=n, max_size=n)
    weights = draw(weight_lists)
    dtype = draw(dtypes)
    deltas = [narrow(draw(vectors), dtype) for _ in weights]
    return narrow(draw(vectors), draw(dtypes)), narrow(draw(vectors), F32), deltas, weights


def mean(deltas: list[NDArray[Any]], weights: list[float]) -> NDArray[np.float32]:
    fold = Fold([TensorSpec("w", "F32", deltas[0].shape)], weights, merge="mean", dtype=CODES[deltas[0].dtype])
    for delta in deltas:
        fold.add("w", {"w": delta})
    return fold.result("w")


@given(rounds())
def test_the_mean_is_the_oracles(case: Any) -> None:
    _, _, deltas, weights = case
    inputs = [d.tobytes() for d in deltas]
    scales = [float(scale) for scale in normalised(weights)]
    want = oracle_mean([d.astype(np.float64).tolist() for d in deltas], scales)
    assert mean(deltas, weights).tobytes() == np.array(want, np.float32).tobytes()
    assert [d.tobytes() for d in deltas] == inputs


@given(rounds(), rates, rates)
def test_the_step_is_the_oracles(case: Any, lr: float, beta: float) -> None:
    theta, momentum, deltas, _ = case
    delta = deltas[0].astype(np.float32)
    want = [
        oracle_step(*row, lr, beta)
        for row in zip(*(a.astype(np.float64).tolist() for a in (theta, momentum, delta)), strict=True)
    ]
    assert step(Nesterov(lr, beta), theta, delta, old=[momentum], new=[momentum])
    assert momentum.tobytes() == np.array([m for _, m in want], np.float32).tobytes()
    assert delta.tobytes() == np.array([t for t, _ in want], np.float32).tobytes()


@given(rounds(), st.integers(1, 40))
def test_a_mean_of_equals_is_that_value_to_the_last_bits(case: Any, count: int) -> None:
    values = case[0].astype(np.float32)
    out = mean([values] * count, [3.0] * count)
    np.testing.assert_allclose(out, values, rtol=count * 2.0**-23, atol=count * 1e-44)
    if count == 1:
        np.testing.assert_array_equal(out, values)


@given(weight_lists, st.randoms())
def test_weights_are_normalised_in_any_order(weights: list[float], random: Any) -> None:
    order = random.sample(range(len(weights)), len(weights))
    scales = normalised(weights)
    assert normalised([weights[k] for k in order]) == [scales[k] for k in order]
    assert sum(float(scale) for scale in scales) == pytest.approx(1, abs=1e-6)
    assert all(type(scale) is np.float32 for scale in scales)


@pytest.mark.parametrize(
    "weights", [[], [0.0], [0.0, 0.0], [-1.0, 2.0], [float("nan")], [1.0, float("inf")], [1.7e308, 1.7e308]]
)
def test_weights_that_give_no_mean(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights"):
        normalised(weights)
    with pytest.raises(ValueError, match="weights"):
        Fold([], weights, merge="mean", dtype=None)


def test_a_heavy_and_a_zero_weight() -> None:
    assert mean([np.array([2.0], np.float32), np.array([100.0], np.float32)], [1e300, 0.0]).tolist() == [2]


@pytest.mark.parametrize("lr", [0.7, 1.0])
@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_nesterov_is_torchs_sgd(lr: float, beta: float) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(7)
    theta = random.standard_normal(1000).astype(np.float32)
    momentum = np.zeros_like(theta)
    parameter = torch.nn.Parameter(torch.from_numpy(theta.copy()))
    optimizer = torch.optim.SGD([parameter], lr=lr, momentum=beta, nesterov=True)
    for _ in range(10):
        update = random.standard_normal(1000).astype(np.float32)
        parameter.grad = torch.from_numpy(update.copy())
        optimizer.step()
        assert step(Nesterov(lr, beta), theta, update, old=[momentum], new=[momentum])
        theta = update
    np.testing.assert_allclose(theta, parameter.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(momentum, optimizer.state[parameter]["momentum_buffer"].numpy(), rtol=1e-5, atol=1e-5)


@given(st.sampled_from(["F32", "F16", "BF16"]), st.data())
def test_finiteness_is_told_from_any_bits(code: str, data: st.DataObject) -> None:
    unsigned = np.uint32 if code == "F32" else np.uint16
    array = data.draw(npst.arrays(unsigned, st.integers(0, 8))).view(DTYPES[code])
    assert all_finite(array) == bool(np.isfinite(array.astype(np.float64)).all())


@pytest.mark.parametrize("code", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK, 2 * BLOCK])
def test_one_value_of_any_block_counts(code: str, bad: float, at: int) -> None:
    largest = {"F32": np.finfo(np.float32).max, "F16": 65504, "BF16": 3.38e38}[code]  # their squares overflow
    array = np.full(2 * BLOCK + 1, largest, np.float32).astype(DTYPES[code])
    assert all_finite(array)
    array[at] = bad
    assert not all_finite(array)


def test_no_temporaries_of_the_models_size() -> None:
    size = 130 * BLOCK  # a little more than is mapped at least
    theta, momentum = np.zeros(size, BF16), np.zeros(size, np.float32)
    deltas = [np.zeros(size, BF16), np.zeros(size, BF16)]
    tracemalloc.start()
    try:
        merged = mean(deltas, [1, 2])
        assert step(Nesterov(0.7, 0.9), theta, merged, old=[momentum], new=[momentum])
        assert all_finite(momentum)
        assert tracemalloc.get_traced_memory()[1] < MAPPED_BYTES + 8 * BLOCK * 4  # the sums, which become the new Θ
    finally:
        tracemalloc.stop()
