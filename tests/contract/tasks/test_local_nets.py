"""One suite for both frameworks' LocalNets (swarm/tasks/local.py)."""

from __future__ import annotations

import contextlib
import gc
import random
import shutil
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.errors import NotFinite, UsageError
from swarm.core.training import OPTIMIZER_OPTIONS, LocalTraining
from tests.contract.tasks.local_nets import COUNT, NOTHING, batch, client, deep, parameters, probe, same, statistics

X, Y = batch()
ROW = np.ones((1, COUNT), np.float32)
OPTIMIZERS = [
    LocalTraining(optimizer=name, momentum=0.9 if name == "momentum" else None)  # type: ignore[arg-type]
    for name in OPTIMIZER_OPTIONS
]


def by_name(spec: LocalTraining) -> str:
    return spec.optimizer


def steps(net: Any, spec: LocalTraining, *, count: int = 4, seed: int | None = 3, lr: float = 0.05) -> list[float]:
    with client(net, spec) as step, net.seeded(seed):
        return [step(*batch(n), lr=lr) for n in range(count)]


@pytest.mark.parametrize("spec", OPTIMIZERS, ids=by_name)
def test_each_client_begins_with_a_fresh_optimizer(spec: LocalTraining, framework: str) -> None:
    net, _, _ = deep(framework, norm=False)
    start = parameters(net)
    losses = steps(net, spec)
    first = parameters(net)
    assert not same(start, first)
    net.adapter.apply(start)
    assert steps(net, spec) == losses
    assert same(parameters(net), first)


def test_a_client_that_nobody_ended_is_ended_by_the_next(framework: str) -> None:
    net, _, _ = deep(framework, norm=False)
    start = parameters(net)
    losses = steps(net, OPTIMIZERS[2])
    net.adapter.apply(start)
    net.begin(OPTIMIZERS[2])
    net.step(X, Y, lr=0.1)
    net.adapter.apply(start)
    assert steps(net, OPTIMIZERS[2]) == losses


def test_no_step_without_a_client(framework: str) -> None:
    net, _, _ = deep(framework)
    with pytest.raises(RuntimeError, match="begin"):
        net.step(X, Y, lr=0.1)
    steps(net, LocalTraining())
    net.end()
    with pytest.raises(RuntimeError, match="begin"):
        net.step(X, Y, lr=0.1)


def test_the_loss_is_that_before_the_step_without_fedproxs_term(framework: str) -> None:
    net, _, _ = deep(framework, dropout=0.0, norm=False)
    with client(net, LocalTraining(prox_mu=100.0)) as step:
        for n in range(3):
            before = net.loss(*batch(n))
            assert step(*batch(n), lr=0.005) == pytest.approx(before, rel=1e-6)


def test_training_lowers_the_loss(framework: str) -> None:
    for spec in OPTIMIZERS:
        net, _, _ = deep(framework, dropout=0.0)
        first = net.loss(X, Y)
        with client(net, spec) as step:
            for _ in range(60):
                step(X, Y, lr=0.02)
        assert net.loss(X, Y) < first - 0.1, spec.optimizer


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(lr: float, framework: str) -> None:
    net, _, _ = deep(framework)
    before = parameters(net)
    with client(net, LocalTraining()) as step, pytest.raises(ValueError, match="learning rate"):
        step(X, Y, lr=lr)
    assert same(parameters(net), before)


# Gradients that are not finite


@pytest.mark.parametrize("limit", [None, 0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("spec", OPTIMIZERS, ids=by_name)
def test_a_gradient_that_is_not_finite_changes_nothing(
    spec: LocalTraining, bad: float, limit: float | None, framework: str
) -> None:
    """1e30: finite, but the norm of all is not."""
    given = {"optimizer": spec.optimizer, "momentum": spec.momentum, "clip_grad_norm": limit, "prox_mu": 0.1}
    spec = LocalTraining(**given)  # type: ignore[arg-type]
    broken = ROW.copy()
    broken[0, 5] = bad  # of b
    nets = [probe(framework, a=np.arange(3)) for _ in range(2)]
    with client(nets[0], spec) as step, client(nets[1], spec) as undisturbed:
        step(ROW, NOTHING, lr=0.1)
        before = parameters(nets[0])
        with pytest.raises(NotFinite, match="gradient of b"):
            step(broken, NOTHING, lr=0.1)
        assert same(parameters(nets[0]), before)
        step(-2 * ROW, NOTHING, lr=0.1)
        for row in (ROW, -2 * ROW):
            undisturbed(row, NOTHING, lr=0.1)
    assert same(parameters(nets[0]), parameters(nets[1]))


def test_running_statistics_outlive_a_batch_that_is_not_finite(framework: str) -> None:
    net, model, _ = deep(framework)
    with client(net, LocalTraining(local_dtype="F16")) as step:
        step(X, Y, lr=0.1)
        before = statistics(model)
        with pytest.raises(NotFinite):
            step(np.full_like(X, np.nan), Y, lr=0.1)
        assert statistics(model) == before
        step(X, Y, lr=0.1)
        assert statistics(model) != before


def test_running_statistics_are_no_parameters(framework: str) -> None:
    """Neither decayed nor pulled to where they were: they follow the batches. In MLX not even once a whole model was frozen."""
    net, model, _ = deep(framework, dropout=0.0, buffers=True)
    assert {"inner.norm.running_mean", "inner.norm.running_var"} <= {spec.name for spec in net.adapter.schema()}
    if framework == "mlx":
        model.freeze()
        model.unfreeze()
    hidden = X @ parameters(net)["fc1.weight"].T
    with client(net, LocalTraining(weight_decay=0.5, prox_mu=5.0)) as step:
        step(X, Y, lr=0.0)
        step(X, Y, lr=0.1)
    np.testing.assert_allclose(statistics(model)[:8], (1 - 0.9**2) * hidden.mean(0), rtol=1e-5, atol=1e-6)


def test_what_the_model_raises_changes_nothing(framework: str) -> None:
    net, _, _ = deep(framework)
    with client(net, LocalTraining()) as step:
        step(X, Y, lr=0.1)
        before = parameters(net)
        with pytest.raises((RuntimeError, ValueError)):
            step(X[:, :3], Y, lr=0.1)
        assert same(parameters(net), before)
        step(X, Y, lr=0.1)
        assert not same(parameters(net), before)


# Modes


def modes(model: Any) -> list[bool]:
    found = model.modules()
    return [module.training for module in found]


def test_every_submodule_trains_in_a_step_and_gets_its_mode_back(framework: str) -> None:
    net, model, seen = deep(framework)
    before = modes(model)
    assert set(before) == {True, False}
    with client(net, LocalTraining()) as step:
        step(X, Y, lr=0.1)
        assert all(seen.modes)
        assert modes(model) == before
        net.loss(X, Y)
        assert not any(seen.modes)
        assert modes(model) == before
        net.predict(X)
        assert not any(seen.modes)
        assert modes(model) == before
    assert modes(model) == before


@pytest.mark.parametrize("call", ["step", "loss", "predict"])
def test_modes_are_given_back_when_the_model_raises(call: str, framework: str) -> None:
    net, model, _ = deep(framework, activation="fail")
    before = modes(model)
    calls: dict[str, Callable[[], Any]] = {
        "step": lambda: net.step(X, Y, lr=0.1),
        "loss": lambda: net.loss(X, Y),
        "predict": lambda: net.predict(X),
    }
    with client(net, LocalTraining()):
        with pytest.raises(ArithmeticError):
            calls[call]()
        assert modes(model) == before
    assert modes(model) == before


def test_evaluation_changes_nothing(framework: str) -> None:
    net, model, _ = deep(framework)
    steps(net, LocalTraining())
    before, kept = parameters(net), statistics(model)
    assert net.loss(X, Y) == net.loss(X, Y)
    np.testing.assert_array_equal(net.predict(X), net.predict(X))
    assert net.predict(X).shape == (6, 3)
    assert same(parameters(net), before)
    assert statistics(model) == kept


# Random states


def drawn(framework: str) -> list[float]:
    """The next number of each global random state."""
    numbers = [random.random(), float(np.random.random())]
    with contextlib.suppress(ImportError):
        import torch

        numbers.append(torch.rand(()).item())
    with contextlib.suppress(ImportError):
        import mlx.core as mx

        numbers.append(float(mx.random.uniform().item()))  # type: ignore[arg-type]
    assert len(numbers) >= 3
    return numbers


def as_without(framework: str, work: Callable[[], object]) -> bool:
    """Whether the global random states go on after `work` as if it had not been."""
    net, _, _ = deep(framework)
    with net.seeded(99):
        expected = [drawn(framework) for _ in range(2)]
    with net.seeded(99):
        found = [drawn(framework)]
        work()
        found.append(drawn(framework))
    return found == expected


@settings(max_examples=25, deadline=None)
@given(seed=st.none() | st.integers(0, 2**64 - 1))
def test_random_states_are_given_back(seed: int | None) -> None:
    for framework in ("torch", "mlx"):
        try:
            net, _, _ = deep(framework)
        except ImportError:
            continue

        def work(net: Any = net, framework: str = framework) -> None:
            with contextlib.suppress(ZeroDivisionError), net.seeded(seed):
                drawn(framework)
                raise ZeroDivisionError

        assert as_without(framework, work)


def test_a_seed_gives_equal_draws_and_none_gives_others(framework: str) -> None:
    net, _, _ = deep(framework)
    found = {}
    for seed in (0, 1, 2**32 + 2, 2**64 - 1):  # PyTorch's generator on the CPU goes by the lower half
        with net.seeded(seed):
            found[seed] = drawn(framework)
        with net.seeded(seed):
            assert drawn(framework) == found[seed]
    with net.seeded(None):
        found[-1] = drawn(framework)
    with net.seeded(None):
        found[-2] = drawn(framework)
    for column in zip(*found.values(), strict=True):
        assert len(set(column)) == len(found)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed: int, framework: str) -> None:
    net, _, _ = deep(framework)

    def work() -> None:
        with pytest.raises(ValueError, match="seed"), net.seeded(seed):
            pass

    assert as_without(framework, work)


def test_dropout_follows_the_seed(framework: str) -> None:
    losses = []
    for seed in (1, 1, 2):
        net, _, _ = deep(framework, norm=False)
        losses.append(steps(net, LocalTraining(), seed=seed))
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("spec", OPTIMIZERS, ids=by_name)
def test_equal_seeds_give_equal_bytes(spec: LocalTraining, dtype: str, framework: str) -> None:
    ends = []
    for _ in range(2):
        net, _, _ = deep(framework)
        given = {"optimizer": spec.optimizer, "momentum": spec.momentum, "clip_grad_norm": 0.5, "prox_mu": 0.1}
        steps(net, LocalTraining(local_dtype=dtype, **given))  # type: ignore[arg-type]
        ends.append(parameters(net))
    assert same(*ends)


def test_calls_may_come_from_different_threads(framework: str) -> None:
    nets = [deep(framework)[0] for _ in range(2)]
    spec = LocalTraining(optimizer="adam", prox_mu=0.1, clip_grad_norm=1.0)

    def work(net: Any, n: int) -> None:
        with net.seeded(n):
            net.step(*batch(n), lr=0.1)

    for net in nets:
        net.begin(spec)
    for n in range(3):
        work(nets[0], n)
        thread = threading.Thread(target=work, args=(nets[1], n))
        thread.start()
        thread.join()
    assert same(parameters(nets[0]), parameters(nets[1]))


# FedProx and memory


def test_fedprox_pulls_to_where_this_client_began(framework: str) -> None:
    net = probe(framework, a=np.full(3, 5.0))
    spec = LocalTraining(prox_mu=1.0)
    for start in (5.0, -3.0):
        net.adapter.apply({"a": np.full(3, start, np.float32)})
        with client(net, spec) as step:
            step(np.full((1, COUNT), 4.0, np.float32), NOTHING, lr=0.5)  # away from it by 2
            step(np.zeros((1, COUNT), np.float32), NOTHING, lr=0.5)  # half way back
        np.testing.assert_allclose(parameters(net)["a"], start - 1.0, rtol=1e-6)


def held_bytes(framework: str) -> int:
    """What the framework's arrays take."""
    gc.collect()
    if framework == "torch":
        import torch

        return sum(
            one.untyped_storage().nbytes() for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)
        )
    import mlx.core as mx

    return mx.get_active_memory()


@pytest.mark.slow
@pytest.mark.parametrize("bad", [False, True])
def test_nothing_of_a_client_is_kept(bad: bool, framework: str) -> None:
    big = np.zeros(100_000)  # of 400 kB
    net = probe(framework, unused=big)
    spec = LocalTraining(optimizer="adam", prox_mu=0.5)
    before = held_bytes(framework)
    net.begin(spec)
    net.step(ROW, NOTHING, lr=0.1)
    assert held_bytes(framework) >= before + 3 * 400_000  # anchor, m, v
    if bad:
        with pytest.raises(NotFinite):
            net.step(ROW * np.nan, NOTHING, lr=0.1)
    net.end()
    assert held_bytes(framework) < before + 100_000


# Half precision


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_has_masters_in_f32(dtype: str, framework: str) -> None:
    ends = {}
    for local_dtype in ("F32", dtype):
        net, _, seen = deep(framework, dropout=0.0, norm=False)
        with client(net, LocalTraining(optimizer="adam", local_dtype=local_dtype)) as step:  # type: ignore[arg-type]
            for n in range(5):
                step(*batch(n), lr=0.01)
                assert {spec.dtype for spec in net.adapter.schema()} == {"F32"}
        trained_in = seen.dtype
        assert net.predict(X).dtype == np.float32
        assert "float32" in seen.dtype
        ends[local_dtype] = parameters(net)
    assert {"F16": "torch.float16", "BF16": "bfloat16"}[dtype].removeprefix("torch.") in trained_in
    for name, array in ends["F32"].items():
        np.testing.assert_allclose(ends[dtype][name], array, atol=0.02)
    assert not same(ends["F32"], ends[dtype])


def test_f16_keeps_gradients_that_are_small(framework: str) -> None:
    """10⁻⁸ is zero in F16; scaled, it is not."""
    net, _, _ = deep(framework, dropout=0.0, norm=False)
    tiny = X * np.float32(1e-4)
    moved = {}
    for dtype in ("F32", "F16"):
        start = parameters(net)
        with client(net, LocalTraining(local_dtype=dtype)) as step:  # type: ignore[arg-type]
            step(tiny, Y, lr=1e4)
        moved[dtype] = parameters(net)["fc1.weight"] - start["fc1.weight"]
        net.adapter.apply(start)
    assert abs(moved["F32"]).max() > 0
    np.testing.assert_allclose(moved["F16"], moved["F32"], rtol=0.05, atol=0.02)


def test_f16_computes_a_batch_again_when_the_scale_is_too_large(framework: str) -> None:
    """No batch is left out: a gradient of 3,000 times 2¹⁵ is beyond F16, and trained from all the same, once."""
    net = probe(framework, a=np.zeros(3))
    with client(net, LocalTraining(local_dtype="F16")) as step:
        step(3000 * ROW, NOTHING, lr=1.0)
        step(3000 * ROW, NOTHING, lr=1.0)
    np.testing.assert_allclose(parameters(net)["a"], -6000.0, rtol=1e-3)


def test_f16_counts_a_repeated_batch_once_in_running_statistics(framework: str) -> None:
    found = {}
    for dtype in ("F32", "F16"):
        net, model, _ = deep(framework, dropout=0.0)
        last = parameters(net)["fc2.weight"] * 3000  # so that gradients before it overflow
        net.adapter.apply({"fc2.weight": last})
        with client(net, LocalTraining(local_dtype=dtype)) as step:  # type: ignore[arg-type]
            step(X, Y, lr=0.0)
        found[dtype] = statistics(model)
    np.testing.assert_allclose(found["F16"], found["F32"], rtol=0.01, atol=1e-3)


# What a framework cannot do


def refused(net: Any, spec: LocalTraining, *words: str) -> None:
    before = parameters(net)
    with pytest.raises(UsageError) as error:
        net.begin(spec)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)
    assert same(parameters(net), before)


def test_an_unknown_native_option_is_refused_with_those_there_are(framework: str) -> None:
    net, _, _ = deep(framework)
    known = {"torch": "amsgrad", "mlx": "bias_correction"}[framework]
    refused(net, LocalTraining(optimizer="adam", native={"amsgrat": True}), "'amsgrat'", known, "Adam")
    for rate in ("lr", "learning_rate"):
        refused(net, LocalTraining(native={rate: 1.0}), f"'{rate}'", "SGD")


def test_a_native_option_of_the_wrong_kind_is_refused(framework: str) -> None:
    net, _, _ = deep(framework)
    refused(net, LocalTraining(optimizer="adam", native={"eps": "small"}), "Adam")
    refused(net, LocalTraining(optimizer="adam", native={"eps": -1.0}), "Adam")
    refused(net, LocalTraining(optimizer="adam", native={"betas": 0.9}), "Adam")


def test_an_option_that_is_given_twice_is_refused(framework: str) -> None:
    net, _, _ = deep(framework)
    refused(net, LocalTraining(optimizer="adam", eps=1e-6, native={"eps": 1e-7}), "eps", "twice")
    refused(net, LocalTraining(optimizer="adam", beta1=0.5, native={"betas": 0.9}), "beta1", "betas", "twice")


def test_native_options_reach_the_frameworks_own_optimizer(framework: str) -> None:
    """Whose steps are those of the formula where they are not about what it lacks."""
    ends = {}
    for which, more in (("ours", {"eps": 1e-3}), ("theirs", {"native": {"eps": 1e-3}}), ("other", {"native": {"eps": 1.0}})):
        net, _, _ = deep(framework, dropout=0.0)
        steps(net, LocalTraining(optimizer="adam", clip_grad_norm=0.5, **more))  # type: ignore[arg-type]
        ends[which] = parameters(net)
    for name, array in ends["ours"].items():
        np.testing.assert_allclose(ends["theirs"][name], array, rtol=1e-4, atol=1e-5)
    assert not all(np.allclose(ends["other"][name], array, atol=1e-3) for name, array in ends["ours"].items())


def test_pytorchs_native_options() -> None:
    torch = pytest.importorskip("torch")
    net, model, _ = deep("torch", dropout=0.0, norm=False)
    twin, theirs, _ = deep("torch", dropout=0.0, norm=False)
    del twin
    spec = LocalTraining(optimizer="adam", beta2=0.5, native={"amsgrad": True, "fused": True})
    optimizer = torch.optim.Adam(theirs.parameters(), lr=0.05, betas=(0.9, 0.5), eps=1e-8, amsgrad=True, fused=True)
    with client(net, spec) as step:
        for n in range(4):
            x, y = batch(n)
            step(x, y, lr=0.05)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(theirs(torch.from_numpy(x)), torch.from_numpy(y)).backward()
            optimizer.step()
    for mine, other in zip(model.parameters(), theirs.parameters(), strict=True):
        np.testing.assert_array_equal(mine.detach().numpy(), other.detach().numpy())
        assert mine.grad is None
    refused(net, LocalTraining(optimizer="lion", native={"fused": True}), "lion", "PyTorch")
    refused(net, LocalTraining(optimizer="adam", bias_correction=False, native={"fused": True}), "bias_correction")
    refused(net, LocalTraining(optimizer="adam", native={"fused": True, "foreach": True}), "Adam")
    refused(net, LocalTraining(momentum=0.9, dampening=0.5, native={"maximize": True}), "dampening", "first step")


def test_parameters_in_another_precision_are_refused(framework: str) -> None:
    net, model, _ = deep(framework)
    if framework == "torch":
        model.half()
    else:
        import mlx.core as mx

        model.set_dtype(mx.float16)
    refused(net, LocalTraining(), "fc1.weight", "float16", "local_dtype")


def test_a_model_with_nothing_to_train_is_refused(framework: str) -> None:
    net, model, _ = deep(framework)
    model.requires_grad_(False) if framework == "torch" else model.freeze()
    refused(net, LocalTraining(), "no trainable parameters")


def test_pytorch_refuses_to_compile() -> None:
    pytest.importorskip("torch")
    refused(deep("torch")[0], LocalTraining(compiled=True), "compiled", "PyTorch")


def test_mlx_refuses_to_compile_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlx.core")
    net, _, _ = deep("mlx")
    monkeypatch.setenv("PATH", "/nowhere")
    refused(net, LocalTraining(compiled=True), "compiled", "g++")


@pytest.mark.timeout(600)  # the first time, the C++ compiler takes seconds for each kernel
@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles with g++ on the CPU")
@pytest.mark.parametrize(
    "more",
    [
        {"momentum": 0.9, "clip_grad_norm": 0.1, "prox_mu": 0.1},
        *(
            pytest.param(more, marks=pytest.mark.slow, id=name)
            for name, more in {
                "F16": {"local_dtype": "F16"},
                "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
                "adam": {"optimizer": "adam", "clip_grad_norm": 0.1},
                "adamw": {"optimizer": "adamw", "bias_correction": False, "weight_decay": 0.1},
                "rmsprop": {"optimizer": "rmsprop", "prox_mu": 0.1},
                "lion": {"optimizer": "lion", "weight_decay": 0.1},
                "native": {"optimizer": "adam", "native": {"eps": 1e-3}},
            }.items()
        ),
    ],
)
def test_compiled_mlx_steps_equal_eager_ones(more: dict[str, Any]) -> None:
    """Dropout and running statistics included; a batch that is not finite, too."""
    pytest.importorskip("mlx.core")
    found = []
    for compiled in (False, True):
        net, model, _ = deep("mlx")
        losses = []
        with client(net, LocalTraining(compiled=compiled, **more)) as step, net.seeded(7):
            for n in range(4):
                losses.append(step(*batch(n), lr=0.1 / (n + 1)))
            before = parameters(net)
            with pytest.raises(NotFinite):
                step(np.full_like(X, np.nan), Y, lr=0.1)
            assert same(parameters(net), before)
            losses.append(step(X, Y, lr=0.1))
        after = [array for _, array in sorted(parameters(net).items())]
        found.append(np.concatenate([np.asarray(one, np.float64).ravel() for one in [losses, *after, statistics(model)]]))
    tolerance = 1e-6 if "local_dtype" not in more else 2e-3  # eager, each operation is rounded to half precision
    np.testing.assert_allclose(found[0], found[1], rtol=tolerance, atol=tolerance)
