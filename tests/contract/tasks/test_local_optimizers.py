"""The optimizers of local training: one meaning in PyTorch and MLX, and it is the formulas'.

`textbook` states them once more, apart from swarm/tasks/descent.py, in float64.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from swarm.core.training import OPTIMIZER_OPTIONS, LocalTraining
from tests.contract.tasks.local_nets import COUNT, NOTHING, PARAMETERS, client, parameters, probe

F64 = np.ndarray[Any, np.dtype[np.float64]]
VALUES: dict[str, list[Any]] = {
    "momentum": [0.0, 0.5, 0.9],
    "dampening": [0.0, 0.3, 1.0],
    "nesterov": [False, True],
    "weight_decay": [0.0, 0.01, 0.3],
    "beta1": [0.0, 0.5, 0.9],
    "beta2": [0.0, 0.9, 0.999, 0.99999],
    "alpha": [0.0, 0.9, 0.99],
    "eps": [1e-8, 1e-3, 1.0],
    "bias_correction": [True, False],
}
THETA = np.random.default_rng(1).normal(size=COUNT)
GRADIENTS = np.random.default_rng(2).normal(size=(3, COUNT))
GRADIENTS[1, 0] = 0.0  # a unit that did not fire
RATES = (0.1, 0.05, 0.02)
_TRAINED: dict[tuple[str, str], np.ndarray[Any, Any]] = {}


def specs(optimizer: str, **more: Any) -> Iterator[LocalTraining]:
    """Every combination of the values above, those left out that the spec refuses; and the defaults."""
    names = list(OPTIMIZER_OPTIONS[optimizer])  # type: ignore[index]
    for values in itertools.product(*(VALUES[name] for name in names)):
        given = dict(zip(names, values, strict=True))
        if given.get("dampening") and (given["nesterov"] or not given["momentum"]):
            continue
        if given.get("nesterov") and not given["momentum"]:
            continue
        yield LocalTraining(optimizer=optimizer, **given, **more)  # type: ignore[arg-type]
    given = {name: 0.9 for name, default in OPTIMIZER_OPTIONS[optimizer].items() if default is None}  # type: ignore[index]
    yield LocalTraining(optimizer=optimizer, **given, **more)


def textbook(spec: LocalTraining) -> F64:
    """θ after the three steps."""
    theta, anchor = THETA.astype(np.float32).astype(np.float64), THETA.astype(np.float32).astype(np.float64)
    first = second = np.zeros(COUNT)
    o = {name: spec.option(name) for name in OPTIMIZER_OPTIONS[spec.optimizer]}
    for t, (g, lr) in enumerate(zip(GRADIENTS.astype(np.float32).astype(np.float64), RATES, strict=True), 1):
        g = g + spec.prox_mu * (theta - anchor)
        if spec.clip_grad_norm is not None:
            g = g * min(1.0, spec.clip_grad_norm / math.sqrt(float((g**2).sum())))
        if spec.optimizer in ("sgd", "momentum"):
            g = g + o["weight_decay"] * theta
            first = o["momentum"] * first + (1 - o["dampening"]) * g
            if o["nesterov"]:
                theta = theta - lr * (g + o["momentum"] * first)
            else:
                theta = theta - lr * (first if o["momentum"] else g)
        elif spec.optimizer in ("adam", "adamw"):
            theta = theta - lr * o.get("weight_decay", 0.0) * theta
            first = o["beta1"] * first + (1 - o["beta1"]) * g
            second = o["beta2"] * second + (1 - o["beta2"]) * g**2
            mean, square = first, second
            if o["bias_correction"]:
                mean, square = first / (1 - o["beta1"] ** t), second / (1 - o["beta2"] ** t)
            theta = theta - lr * mean / (np.sqrt(square) + o["eps"])
        elif spec.optimizer == "rmsprop":
            second = o["alpha"] * second + (1 - o["alpha"]) * g**2
            theta = theta - lr * g / (np.sqrt(second) + o["eps"])
        else:
            theta = theta - lr * (np.sign(o["beta1"] * first + (1 - o["beta1"]) * g) + o["weight_decay"] * theta)
            first = o["beta2"] * first + (1 - o["beta2"]) * g
    return theta


def trained(framework: str, spec: LocalTraining) -> np.ndarray[Any, Any]:
    """θ after the three steps, flat, in float32."""
    key = (framework, repr(spec))
    if key in _TRAINED:
        return _TRAINED[key]
    net = probe(framework, a=THETA[:3], b=THETA[3:].reshape(2, 2), unused=np.zeros(2))
    with client(net, spec) as step:
        for gradient, lr in zip(GRADIENTS, RATES, strict=True):
            step(gradient[None].astype(np.float32), NOTHING, lr=lr)
    after = parameters(net)
    return _TRAINED.setdefault(key, np.concatenate([after[name].ravel() for name in PARAMETERS]))


def test_every_option_is_tried() -> None:
    assert set(VALUES) == {name for options in OPTIMIZER_OPTIONS.values() for name in options}


@pytest.mark.parametrize("optimizer", OPTIMIZER_OPTIONS)
def test_three_steps_are_those_of_the_formula(optimizer: str, framework: str) -> None:
    for spec in specs(optimizer):
        np.testing.assert_allclose(trained(framework, spec), textbook(spec), rtol=1e-6, atol=1e-6, err_msg=str(spec))


@pytest.mark.usefixtures("both_frameworks")
@pytest.mark.parametrize("optimizer", OPTIMIZER_OPTIONS)
def test_three_steps_agree_between_the_frameworks(optimizer: str) -> None:
    """To 1e-6; without a root or a division, in which the frameworks' kernels round differently, to the bit: else the sign that
    Lion goes by could be another one."""
    for spec in specs(optimizer):
        torch, mlx = trained("torch", spec), trained("mlx", spec)
        if optimizer in ("sgd", "momentum", "lion"):
            np.testing.assert_array_equal(torch, mlx, err_msg=str(spec))
        else:
            np.testing.assert_allclose(torch, mlx, rtol=1e-6, atol=1e-6, err_msg=str(spec))


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("limit", [None, 0.0, 0.5, 2.0, 1e6])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_clipping_and_fedprox_come_before_the_optimizer(optimizer: str, limit: float | None, mu: float, framework: str) -> None:
    spec = LocalTraining(optimizer=optimizer, clip_grad_norm=limit, prox_mu=mu)  # type: ignore[arg-type]
    np.testing.assert_allclose(trained(framework, spec), textbook(spec), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZER_OPTIONS)
def test_a_limit_of_zero_leaves_no_movement(optimizer: str, framework: str) -> None:
    decay = {"weight_decay": 0.0} if "weight_decay" in OPTIMIZER_OPTIONS[optimizer] else {}  # type: ignore[index]
    given = {"momentum": 0.9} if optimizer == "momentum" else {}
    spec = LocalTraining(optimizer=optimizer, clip_grad_norm=0.0, **decay, **given)  # type: ignore[arg-type]
    net = probe(framework, a=THETA[:3])
    before = parameters(net)
    with client(net, spec) as step:
        for size in (1.0, 1e-30):  # the squares of the latter are zero
            step(np.full((1, COUNT), size, np.float32), NOTHING, lr=0.1)
    after = parameters(net)
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_a_parameter_without_a_part_in_the_loss_decays_and_a_frozen_one_stays(framework: str) -> None:
    net = probe(framework, unused=np.full(2, 2.0), frozen=np.full(1, 3.0))
    with client(net, LocalTraining(optimizer="adamw", weight_decay=0.5)) as step:
        step(np.zeros((1, COUNT), np.float32), NOTHING, lr=0.1)
    np.testing.assert_allclose(parameters(net)["unused"], 2.0 * (1 - 0.1 * 0.5), rtol=1e-6)
    assert "frozen" not in parameters(net)
    assert net.predict(np.eye(COUNT, dtype=np.float32)[:1]).shape == (1,)
