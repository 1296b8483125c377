"""FedAvg's outer optimizers: against their formulas in float64, against torch, and what is kept for them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from swarm.core.errors import NotFinite, UsageError
from swarm.core.specs import DiLoCo, FedAvg
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import BLOCK
from swarm.tensors.commit import OuterStep, commit
from swarm.tensors.outer import Adaptive, Average, Momentum, Nesterov, Rule, rule_of, step
from swarm.tensors.payload import Packed, check_entries, unpack
from swarm.tensors.precision import DTYPES, F32

RULES = [Average(0.7), Momentum(0.7, 0.9), Adaptive(0.1, 0.9, 0.99, 1e-3), Adaptive(0.1, 0.9, 0.99, 1e-3, yogi=True)]
numbers = st.floats(-100, 100, width=32)


def plainly(rule: Rule, theta: NDArray[Any], kept: Any, delta: NDArray[Any]) -> tuple[NDArray[Any], Any]:
    """(Θ, what is kept) after one step, in float64."""
    match rule:
        case Average(lr=lr):
            return theta - lr * delta, None
        case Momentum(lr=lr, beta=beta):
            m = beta * (0 if kept is None else kept) + delta
            return theta - lr * m, m
        case Nesterov(lr=lr, beta=beta):
            m = beta * (0 if kept is None else kept) + delta
            return theta - lr * (delta + beta * m), m
        case Adaptive(lr=lr, beta1=beta1, beta2=beta2, tau=tau, yogi=yogi):
            m, v = (np.zeros_like(theta), np.full_like(theta, tau**2)) if kept is None else kept
            m = beta1 * m + (1 - beta1) * delta
            if yogi:
                v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
            else:
                v = beta2 * v + (1 - beta2) * delta**2
            return theta - lr * m / (np.sqrt(v) + tau), (m, v)


def rounds(rule: Rule, theta: NDArray[Any], deltas: list[NDArray[Any]]) -> tuple[NDArray[Any], Any]:
    """(Θ, what is kept) after all of them, in fp32, in place."""
    kept = None
    for delta in deltas:
        new = [np.empty(theta.shape, F32) for _ in rule.kept] if kept is None else kept
        moved = delta.copy()
        assert step(rule, theta, moved, old=kept, new=new)
        theta, kept = moved, new
    return theta, kept


rates = st.floats(2.0**-10, 1, width=32)
betas = st.sampled_from([0.0, 0.5, 0.9, 0.99])
rules = st.one_of(
    st.builds(Average, rates),
    st.builds(Momentum, rates, betas),
    st.builds(Nesterov, rates, betas),
    st.builds(Adaptive, rates, betas, betas, st.sampled_from([1e-3, 0.1, 1.0]), yogi=st.booleans()),
)


@given(rules, st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_every_rule_is_its_formula(rule: Rule, count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    theta, *deltas = (random.standard_normal(40).astype(np.float32) for _ in range(1 + count))
    wide, state = theta.astype(np.float64), None
    for delta in deltas:
        wide, state = plainly(rule, wide, state, delta.astype(np.float64))
    found, kept = rounds(rule, theta, deltas)
    assert found.dtype == F32
    np.testing.assert_allclose(found, wide, rtol=1e-4, atol=1e-4)
    if state is not None:
        for ours, theirs in zip(kept, state if isinstance(state, tuple) else [state], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def in_fp32(rule: Adaptive, theta: Any, kept: Any, delta: Any) -> Any:
    """The promised order of roundings, on whole arrays."""
    one, tau = np.float32, np.float32(rule.tau)
    m, v = (np.zeros_like(theta), np.full_like(theta, tau * tau)) if kept is None else kept
    m = one(rule.beta1) * m + one(1 - rule.beta1) * delta
    square = delta * delta
    if rule.yogi:
        v = v - one(1 - rule.beta2) * square * np.sign(v - square)
    else:
        v = one(rule.beta2) * v + one(1 - rule.beta2) * square
    return theta - one(rule.lr) * m / (np.sqrt(v) + tau), (m, v)


@pytest.mark.parametrize("yogi", [False, True])
@pytest.mark.parametrize("size", [0, 1, BLOCK, 2 * BLOCK + 17])
def test_an_adaptive_step_has_the_bytes_of_the_plain_one(size: int, yogi: bool) -> None:
    random = np.random.default_rng(size)
    rule = Adaptive(0.1, 0.9, 0.99, 1e-3, yogi=yogi)
    theta = first = random.standard_normal(size).astype(np.float32)
    deltas = [(random.standard_normal(size) * 10.0 ** random.integers(-6, 3, size)).astype(np.float32) for _ in range(4)]
    state = None
    for delta in deltas:
        theta, state = in_fp32(rule, theta, state, delta)
    found, kept = rounds(rule, first, deltas)
    assert found.tobytes() == theta.tobytes()
    assert [array.tobytes() for array in kept] == [array.tobytes() for array in state]


@given(npst.arrays(np.float32, (3, 8), elements=numbers), betas, st.booleans())
def test_a_second_moment_is_never_negative(deltas: NDArray[np.float32], beta2: float, yogi: bool) -> None:
    _, (_, v) = rounds(Adaptive(0.1, 0.9, beta2, 1e-3, yogi=yogi), np.zeros(8, np.float32), list(deltas))
    assert (v >= 0).all()


def test_momentum_is_torchs_sgd() -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(7)
    theta, *deltas = (random.standard_normal(1000).astype(np.float32) for _ in range(11))
    parameter = torch.nn.Parameter(torch.from_numpy(theta.copy()))
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9)
    for delta in deltas:
        parameter.grad = torch.from_numpy(delta.copy())
        optimizer.step()
    found, (m,) = rounds(Momentum(0.7, 0.9), theta, deltas)
    np.testing.assert_allclose(found, parameter.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(m, optimizer.state[parameter]["momentum_buffer"].numpy(), rtol=1e-5, atol=1e-5)


def test_adam_is_torchs_without_its_correction_of_the_bias() -> None:
    """torch corrects for a start from zero; late, with a τ too small to matter, nothing is left of either."""
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(7)
    theta, *deltas = (random.standard_normal(50).astype(np.float32) for _ in range(601))
    parameter = torch.nn.Parameter(torch.from_numpy(theta.copy()))
    optimizer = torch.optim.Adam([parameter], lr=0.01, betas=(0.5, 0.9), eps=1e-8)
    before, theirs, ours = theta, theta, theta
    kept: Any = None
    for delta in deltas:
        before = theirs
        parameter.grad = torch.from_numpy(delta.copy())
        optimizer.step()
        theirs = parameter.detach().numpy().copy()
        new = [np.empty(50, F32), np.empty(50, F32)] if kept is None else kept
        moved = delta.copy()
        assert step(Adaptive(0.01, 0.5, 0.9, 1e-8), before, moved, old=kept, new=new)
        kept, ours = new, moved
    np.testing.assert_allclose(ours - before, theirs - before, rtol=1e-3, atol=1e-6)


def test_the_plain_mean_needs_no_state_and_gives_the_clients_mean() -> None:
    spec, theta = TensorSpec("w", "F32", (3,)), np.array([1, -2, 0.5], np.float32)
    how = OuterStep.of(FedAvg())
    assert how.outer_specs([spec]) == []
    client = np.array([0.5, 4, -1], np.float32)
    done = commit(spec, how, theta=theta, outer=None, delta=theta - client)
    assert (done.theta.tolist(), done.outer, done.update) == (client.tolist(), {}, {})


def test_a_tiny_tau_divides_by_no_zero() -> None:
    theta, _ = rounds(Adaptive(1.0, 0.9, 0.99, 1e-60), np.ones(2, np.float32), [np.array([0.0, 1.0], np.float32)])
    assert np.isfinite(theta).all()
    assert theta[0] == 1


@pytest.mark.parametrize("outer", ["fedavg", "fedavgm", "fedadam", "fedyogi"])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_what_is_kept_is_what_was_announced(outer: Any, dtype: str) -> None:
    specs = [TensorSpec("n", "I64", (), buffer=True), TensorSpec("w", dtype, (4, 3))]
    how = OuterStep.of(FedAvg(outer=outer))
    names = {"fedavg": [], "fedavgm": ["w"], "fedadam": ["w", "w.v"], "fedyogi": ["w", "w.v"]}[outer]
    assert [name for name, _, _ in how.outer_specs(specs)] == names + (["w.master"] if dtype != "F32" else [])
    theta, state = np.ones((4, 3), DTYPES[dtype]), None
    for _ in range(3):
        done = commit(specs[1], how, theta=theta, outer=state, delta=np.full((4, 3), 1e-3, np.float32), in_place=True)
        check_entries(unpack(b"".join(Packed(done.outer))), how.outer_specs(specs))
        theta, state = done.theta, done.outer
    assert theta.dtype == DTYPES[dtype]
    if dtype != "F32":
        assert (state["w.master"] < 1).all(), "steps that Θ alone would round away are not lost"


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_numbers_that_overflow_are_told(rule: Rule) -> None:
    spec, how = TensorSpec("w", "F32", (2,)), OuterStep(rule)
    with pytest.raises(NotFinite):
        commit(spec, how, theta=np.full(2, -3e38, np.float32), outer=None, delta=np.full(2, 3e38, np.float32))


def test_state_that_does_not_fit_is_refused() -> None:
    one, half = np.zeros(1, np.float32), np.zeros(1, np.float16)
    with pytest.raises(ValueError, match="keeps 2 arrays"):
        step(RULES[2], one, one, old=None, new=[one])
    with pytest.raises(ValueError, match="F32"):
        step(RULES[2], one, one, old=None, new=[one, half])
    with pytest.raises(ValueError, match="keeps 0 arrays"):
        step(RULES[0], one, one, old=None, new=[one])


def test_rules_follow_from_the_run() -> None:
    assert rule_of(DiLoCo(outer_lr=0.5, outer_momentum=0.8)) == Nesterov(0.5, 0.8)
    fields: dict[str, Any] = {"outer_lr": 0.5, "outer_momentum": 0.8, "outer_beta1": 0.7, "outer_beta2": 0.6, "outer_eps": 0.1}
    found = {outer: rule_of(FedAvg(outer=outer, **fields)) for outer in ("fedavg", "fedavgm", "fedadam", "fedyogi")}
    assert found == {
        "fedavg": Average(0.5),
        "fedavgm": Momentum(0.5, 0.8),
        "fedadam": Adaptive(0.5, 0.7, 0.6, 0.1),
        "fedyogi": Adaptive(0.5, 0.7, 0.6, 0.1, yogi=True),
    }


def test_the_rate_is_one_by_default_and_small_where_the_step_does_not_shrink_with_the_delta() -> None:
    """An adaptive step is about as long as its rate in every number, however short the clients' mean is."""
    rates = {outer: rule_of(FedAvg(outer=outer)).lr for outer in ("fedavg", "fedavgm", "fedadam", "fedyogi")}  # type: ignore[arg-type]
    assert rates == {"fedavg": 1.0, "fedavgm": 1.0, "fedadam": 0.1, "fedyogi": 0.1}
    assert FedAvg() == FedAvg(outer_lr=1.0)
    assert msgspec.json.decode(msgspec.json.encode(FedAvg(outer="fedyogi")), type=FedAvg).outer_lr == 0.1
    assert b'"outer_lr":0.1' in msgspec.json.encode(FedAvg(outer="fedyogi"))


def test_names_that_would_stand_twice_are_refused() -> None:
    def of(*names: str, dtype: str = "F32") -> list[TensorSpec]:
        return [TensorSpec(name, dtype, (2,)) for name in names]

    adam = OuterStep.of(FedAvg(outer="fedadam"))
    with pytest.raises(UsageError, match=r"outer optimizer keeps 'a''s beside it as 'a\.v'"):
        adam.check_names(of("a", "a.v"))
    adam.check_names([*of("a"), TensorSpec("a.v", "F32", (2,), buffer=True)])  # which no outer payload holds
    for other in ("fedavg", "fedavgm"):
        OuterStep.of(FedAvg(outer=other)).check_names(of("a", "a.v", "a.master"))  # type: ignore[arg-type]
    for how in (OuterStep.of(FedAvg()), OuterStep.of(DiLoCo())):
        with pytest.raises(UsageError, match=r"master copy keeps 'fc''s beside it as 'fc\.master'"):
            how.check_names(of("fc", "fc.master", dtype="BF16"))
