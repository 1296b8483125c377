"""How an optimizer moves a parameter: one meaning in every framework, because it is written once, over the arrays of any.

θ a parameter, g its gradient (after FedProx and clipping), η the learning rate, t the step from 1; m and v are zero at first:

    sgd, momentum   g ← g + λθ                       λ `weight_decay`: L2, before the momentum
                    v ← μv + (1 − τ)g                μ `momentum`, τ `dampening`, of the first step too
                    θ ← θ − ηv                       `nesterov`: θ ← θ − η(g + μv); μ = 0: θ ← θ − ηg
    adam            m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²
                    θ ← θ − η·m̂ / (√v̂ + ε)           m̂ = m/(1 − β₁ᵗ), v̂ = v/(1 − β₂ᵗ); no `bias_correction`: m̂ = m, v̂ = v
    adamw           θ ← θ(1 − ηλ), then as adam      λ decoupled from the gradient
    rmsprop         v ← αv + (1 − α)g²
                    θ ← θ − η·g / (√v + ε)
    lion            c ← β₁m + (1 − β₁)g,  m ← β₂m + (1 − β₂)g
                    θ ← θ(1 − ηλ) − η·sign(c)

Sources: Nesterov as in arXiv:1212.0901, Adam arXiv:1412.6980, AdamW arXiv:1711.05101, RMSprop Hinton's lecture 6e with ε
outside the root, Lion arXiv:2302.06675. Where the frameworks' own classes mean something else:

    PyTorch   SGD leaves the dampening out of the first step; Adam and AdamW always correct the bias; there is no Lion
    MLX       Adam and AdamW correct the bias when told only, and take 1 − βᵗ in float32, of which little is left where β is
              near 1 (a relative error of 3·10⁻⁵ in the first steps with β₂ 0.999); RMSprop refuses ε = 0

Here whatever depends on the step alone is computed in float64, and arrays see + − × ÷, square root and sign only, in one
order. So from equal gradients sgd, momentum and lion give equal bytes in both, unless compiled; the others differ in the last
bit, since the frameworks' kernels round roots and quotients differently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, assert_never

from swarm.core.training import LocalTraining

Kept: TypeAlias = tuple[Any, ...]  # arrays like the parameter: those of m and v that the optimizer has
Factors: TypeAlias = Mapping[str, Any]  # numbers, or arrays of one number each


def kept_arrays(spec: LocalTraining) -> int:
    """How many arrays of its size the optimizer keeps of a parameter; they begin as zeros."""
    match spec.optimizer:
        case "sgd" | "momentum":
            return 1 if spec.option("momentum") else 0
        case "adam" | "adamw":
            return 2
        case "rmsprop" | "lion":
            return 1
    assert_never(spec.optimizer)


def factors(spec: LocalTraining, *, step: int, lr: float) -> dict[str, float]:
    """The numbers that step `step` (from 1) at the rate `lr` multiplies with, for `moved`."""
    match spec.optimizer:
        case "sgd" | "momentum":
            given = spec.option("dampening")
            return {
                "rate": lr,
                "decay": spec.option("weight_decay"),
                "momentum": spec.option("momentum"),
                "fresh": 1.0 - given,
            }
        case "adam" | "adamw":
            beta1, beta2 = spec.option("beta1"), spec.option("beta2")
            corrected = spec.option("bias_correction")
            decay = spec.option("weight_decay") if spec.optimizer == "adamw" else 0.0
            return {
                "rate": lr / (1.0 - beta1**step) if corrected else lr,
                "root": 1.0 / math.sqrt(1.0 - beta2**step) if corrected else 1.0,
                "keep": 1.0 - lr * decay,
                "eps": spec.option("eps"),
                "beta1": beta1,
                "fresh1": 1.0 - beta1,
                "beta2": beta2,
                "fresh2": 1.0 - beta2,
            }
        case "rmsprop":
            alpha = spec.option("alpha")
            return {"rate": lr, "eps": spec.option("eps"), "alpha": alpha, "fresh": 1.0 - alpha}
        case "lion":
            beta1, beta2 = spec.option("beta1"), spec.option("beta2")
            return {
                "rate": lr,
                "keep": 1.0 - lr * spec.option("weight_decay"),
                "beta1": beta1,
                "fresh1": 1.0 - beta1,
                "beta2": beta2,
                "fresh2": 1.0 - beta2,
            }
    assert_never(spec.optimizer)


def moved(
    spec: LocalTraining,
    theta: Any,
    gradient: Any,
    kept: Kept,
    by: Factors,
    *,
    sqrt: Callable[[Any], Any],
    sign: Callable[[Any], Any],
) -> tuple[Any, Kept]:
    """A parameter after a step, and what the optimizer keeps of it then: new arrays, the given ones are left as they are.
    `theta`, `gradient`, `kept`: of one shape; `sqrt`, `sign`: the framework's."""
    match spec.optimizer:
        case "sgd" | "momentum":
            if spec.option("weight_decay"):
                gradient = gradient + theta * by["decay"]
            if not kept:
                return theta - gradient * by["rate"], ()
            v = kept[0] * by["momentum"] + gradient * by["fresh"]
            update = gradient + v * by["momentum"] if spec.option("nesterov") else v
            return theta - update * by["rate"], (v,)
        case "adam" | "adamw":
            m = kept[0] * by["beta1"] + gradient * by["fresh1"]
            v = kept[1] * by["beta2"] + gradient * gradient * by["fresh2"]
            if spec.optimizer == "adamw" and spec.option("weight_decay"):
                theta = theta * by["keep"]
            return theta - m * by["rate"] / (sqrt(v) * by["root"] + by["eps"]), (m, v)
        case "rmsprop":
            v = kept[0] * by["alpha"] + gradient * gradient * by["fresh"]
            return theta - gradient * by["rate"] / (sqrt(v) + by["eps"]), (v,)
        case "lion":
            c = kept[0] * by["beta1"] + gradient * by["fresh1"]
            m = kept[0] * by["beta2"] + gradient * by["fresh2"]
            if spec.option("weight_decay"):
                theta = theta * by["keep"]
            return theta - sign(c) * by["rate"], (m,)
    assert_never(spec.optimizer)
