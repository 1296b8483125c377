"""The outer step in place, master copies, and updates that rebuild theta to the byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from swarm.core.errors import NotFinite
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import BLOCK
from swarm.tensors.codec import encode
from swarm.tensors.commit import Committed, OuterStep, commit, rebuild
from swarm.tensors.outer import Nesterov, step
from swarm.tensors.payload import Packed, check, check_entries, unpack
from swarm.tensors.precision import BF16, DTYPES, F16, F32
from tests.unit.plain import nesterov

COMMIT_CODES = ["F32", "F16", "BF16", "F8_E4M3", "F4"]


@pytest.mark.parametrize("size", [0, 1, BLOCK, 2 * BLOCK + 17])
@pytest.mark.parametrize("momentum_dtype", [F32, F16, BF16])
@pytest.mark.parametrize("base_dtype", [F32, F16, BF16])
def test_a_step_in_place_is_the_plain_one(size: int, momentum_dtype: np.dtype[Any], base_dtype: np.dtype[Any]) -> None:
    random = np.random.default_rng(size)
    base, momentum, delta = (random.standard_normal(size).astype(np.float32) for _ in range(3))
    base, momentum = base.astype(base_dtype), momentum.astype(momentum_dtype)
    theta, m = nesterov(base, momentum, delta, lr=0.7, beta=0.9)
    before = base.tobytes()
    apart, kept = np.empty_like(momentum), delta.copy()
    assert step(Nesterov(0.7, 0.9), base, kept, old=[momentum], new=[apart])
    assert step(Nesterov(0.7, 0.9), base, delta, old=[momentum], new=[momentum])
    assert base.tobytes() == before
    assert delta.tobytes() == kept.tobytes() == theta.tobytes()
    assert momentum.tobytes() == apart.tobytes() == m.astype(momentum_dtype).tobytes()


@pytest.mark.parametrize("momentum_dtype", [F32, F16, BF16])
def test_no_momentum_is_zero_momentum(momentum_dtype: np.dtype[Any]) -> None:
    base, delta = np.array([1.0, -2.0, 0.5], np.float32), np.array([0.5, -0.0, 0.0], np.float32)
    theta, m = nesterov(base, np.zeros(3, np.float32), delta, lr=0.7, beta=0.9)
    new = np.empty(3, momentum_dtype)
    step(Nesterov(0.7, 0.9), base, delta, old=None, new=[new])
    assert delta.tobytes() == theta.tobytes()
    assert new.tobytes() == m.astype(momentum_dtype).tobytes()


def test_arrays_that_do_not_fit_are_refused() -> None:
    one, two = np.zeros(1, np.float32), np.zeros(2, np.float32)
    with pytest.raises(ValueError, match="shape"):
        step(Nesterov(1, 0), one, two, old=None, new=[two])
    with pytest.raises(ValueError, match="F32"):
        step(Nesterov(1, 0), one, one.astype(np.float16), old=None, new=[one])  # type: ignore[arg-type]


def test_the_rules_for_masters() -> None:
    f32, bf16 = TensorSpec("a", "F32", (3,)), TensorSpec("b", "BF16", (2,))

    def codes(**more: Any) -> list[tuple[str, str]]:
        return [(name, code) for name, code, _ in OuterStep(Nesterov(1, 0), **more).outer_specs([f32, bf16])]

    assert codes() == [("a", "F32"), ("b", "F32"), ("b.master", "F32")]
    assert codes(master_dtype=None, momentum_dtype="BF16") == [("a", "BF16"), ("b", "BF16")]
    assert codes(master_dtype="BF16") == [("a", "F32"), ("b", "F32"), ("b.master", "BF16")]
    every = [("a", "F32"), ("a.master", "F32"), ("b", "F32"), ("b.master", "F32")]
    assert codes(commit_dtype="F4") == codes(commit_dtype="F4", master_dtype=None) == every


def rounds(spec: TensorSpec, how: OuterStep, count: int) -> list[tuple[NDArray[Any], Committed]]:
    """(Θ before, what was committed) of each round: steps that all go one way, with some noise."""
    random = np.random.default_rng(7)
    theta = random.standard_normal(spec.shape).astype(DTYPES[spec.dtype])
    drift = random.standard_normal(spec.shape) * 1e-4
    outer, done = None, []
    for _ in range(count):
        delta = (drift + random.standard_normal(spec.shape) * 1e-4).astype(np.float32)
        committed = commit(spec, how, theta=theta, outer=outer, delta=delta)
        done.append((theta, committed))
        theta, outer = committed.theta, committed.outer
    return done


@pytest.mark.parametrize("commit_dtype", COMMIT_CODES)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_an_update_rebuilds_theta_and_its_error_does_not_grow(dtype: str, commit_dtype: str) -> None:
    spec = TensorSpec("w", dtype, (5, 131))
    how = OuterStep(Nesterov(0.7, 0.9), commit_dtype=commit_dtype)
    plain = OuterStep(Nesterov(0.7, 0.9), master_dtype="F32", commit_dtype="F32")
    exact = [done.outer["w.master"] for _, done in rounds(spec, plain, 200)]
    errors = []
    held = None  # by a learner that only ever fetches updates
    for (theta, done), meant in zip(rounds(spec, how, 200), exact, strict=True):
        check_entries(unpack(b"".join(Packed(done.outer))), how.outer_specs([spec]))
        update = unpack(b"".join(Packed(done.update)))
        check(update, [spec], commit_dtype)
        held = theta.copy() if held is None else held
        held = rebuild(held, update, spec=spec, dtype=commit_dtype, out=held)
        assert held.tobytes() == done.theta.tobytes()
        assert rebuild(theta, update, spec=spec, dtype=commit_dtype).tobytes() == done.theta.tobytes()
        assert done.outer["w.master"].tobytes() == meant.tobytes()  # whatever the update's precision
        errors.append(float(np.abs(done.theta.astype(np.float32) - meant).max()))
    first = np.abs(exact[0] - rounds(spec, how, 1)[0][0].astype(np.float32)).max()
    assert max(errors[100:]) <= 2 * max(errors[:100])
    if dtype == "F32":
        assert max(errors) < 10 * first  # a fraction of what 200 steps have moved it
        assert np.abs(exact[-1] - exact[0]).max() > 100 * max(errors[100:])


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_a_master_keeps_steps_that_theta_would_round_away(dtype: str) -> None:
    spec = TensorSpec("w", dtype, (4,))
    for master, moves in (("F32", True), (None, False)):
        how = OuterStep(Nesterov(1.0, 0.0), master_dtype=master)
        theta, outer = np.full(4, 8, DTYPES[dtype]), None
        for _ in range(100):
            done = commit(spec, how, theta=theta, outer=outer, delta=np.full(4, 1e-3, np.float32))
            theta, outer = done.theta, done.outer
        assert (theta.astype(np.float32) != 8).all() == moves
        if master:
            assert theta.tobytes() == outer["w.master"].astype(DTYPES[dtype]).tobytes()
            np.testing.assert_allclose(outer["w.master"], 7.9, rtol=1e-5)


def test_memory_is_reused() -> None:
    spec, delta = TensorSpec("w", "F32", (8,)), np.ones(8, np.float32)
    theta, momentum = np.ones(8, np.float32), np.ones(8, np.float32)
    theta.flags.writeable = False
    done = commit(spec, OuterStep(Nesterov(0.7, 0.9)), theta=theta, outer={"w": momentum}, delta=delta, in_place=True)
    assert done.theta is delta
    assert done.outer["w"] is momentum
    assert done.update == {}


@pytest.mark.parametrize("momentum_dtype", ["F32", "F16"])
def test_numbers_that_overflow_are_not_committed(momentum_dtype: str) -> None:
    spec, theta = TensorSpec("w", "F32", (2,)), np.zeros(2, np.float32)
    how = OuterStep(Nesterov(0.5, 0.5), momentum_dtype=momentum_dtype)
    commit(spec, how, theta=theta, outer=None, delta=np.full(2, 60000, np.float32))
    with pytest.raises(NotFinite):
        commit(spec, how, theta=theta, outer=None, delta=np.full(2, 3e38 if momentum_dtype == "F32" else 70000, np.float32))
    half = TensorSpec("h", "F16", (2,))
    with pytest.raises(NotFinite):  # theta overflows, its master does not
        commit(half, how, theta=theta.astype(np.float16), outer=None, delta=np.full(2, -1e5, np.float32))
    update = OuterStep(Nesterov(1, 0), commit_dtype="F16")
    with pytest.raises(NotFinite):  # the update overflows
        commit(spec, update, theta=theta, outer=None, delta=np.full(2, 1e6, np.float32))


def test_an_update_of_another_theta_gives_other_bytes() -> None:
    spec = TensorSpec("w", "F32", (3,))
    old, new = np.array([1, 2, 3], np.float32), np.array([1.5, 2, 2.5], np.float32)
    update = encode(old, new, spec=spec, dtype="F8_E4M3")
    assert rebuild(old, update, spec=spec, dtype="F8_E4M3").tolist() == [1.5, 2, 2.5]
    assert rebuild(old + 1, update, spec=spec, dtype="F8_E4M3").tolist() == [2.5, 3, 3.5]
    with pytest.raises(ValueError, match="shape"):
        rebuild(old, update, spec=spec, dtype="F8_E4M3", out=np.empty(2, np.float32))
