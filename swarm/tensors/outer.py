"""The outer optimizers, on the merged delta Δ = anchor - θ, in fp32, in place.

`Nesterov` is DiLoCo's (arXiv:2311.08105). FedAvg's are `Average`, the mean itself (arXiv:1602.05629), `Momentum`, FedAvgM
(arXiv:1909.06335), and `Adaptive`, FedAdam and FedYogi (arXiv:2003.00295, algorithm 2).

Only additions, multiplications, divisions, square roots and signs, each rounded to fp32: the same bytes on every machine. A
dot product, a norm, a power or a fused multiply-add would not be; so there is no correction of Adam's bias, which the paper
has none of either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from swarm.core.specs import DiLoCo, FedAvg
from swarm.tensors.blocks import flat, same_size, scratch, spans
from swarm.tensors.finite import finite_block
from swarm.tensors.precision import F32, widened

V = ".v"
_LEAST = np.float32(2.0**-126)


@dataclass(frozen=True)
class Nesterov:
    """m ← βm + Δ; Θ ← Θ - η(Δ + βm): torch.optim.SGD(nesterov=True) on Δ from zero momentum on."""

    lr: float
    beta: float
    kept: ClassVar[tuple[str, ...]] = ("",)
    """What follows a parameter's name, of each array that is kept for it from round to round."""


@dataclass(frozen=True)
class Average:
    """Θ ← Θ - ηΔ: with an η of 1 the clients' mean. Nothing is kept."""

    lr: float
    kept: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Momentum:
    """m ← βm + Δ; Θ ← Θ - ηm: torch.optim.SGD on Δ from zero momentum on."""

    lr: float
    beta: float
    kept: ClassVar[tuple[str, ...]] = ("",)


@dataclass(frozen=True)
class Adaptive:
    """m ← β₁m + (1 - β₁)Δ; Θ ← Θ - ηm / (√v + τ), with v ← β₂v + (1 - β₂)Δ² (Adam) or, `yogi`,
    v ← v - (1 - β₂)Δ² sign(v - Δ²); from m = 0 and v = τ² on, the least that the paper allows.

    1 - β is taken in float64 before it is rounded; ηm before it is divided. A τ below 2^-126 counts as that: so no
    denominator is zero."""

    lr: float
    beta1: float
    beta2: float
    tau: float
    yogi: bool = False
    kept: ClassVar[tuple[str, ...]] = ("", V)


Rule: TypeAlias = Nesterov | Average | Momentum | Adaptive


def rule_of(algorithm: DiLoCo | FedAvg) -> Rule:
    assert algorithm.outer_lr is not None
    match algorithm:
        case DiLoCo():
            return Nesterov(algorithm.outer_lr, algorithm.outer_momentum)
        case FedAvg(outer="fedavg"):
            return Average(algorithm.outer_lr)
        case FedAvg(outer="fedavgm"):
            return Momentum(algorithm.outer_lr, algorithm.outer_momentum)
        case FedAvg(outer="fedadam" | "fedyogi"):
            return Adaptive(
                algorithm.outer_lr,
                algorithm.outer_beta1,
                algorithm.outer_beta2,
                algorithm.outer_eps,
                yogi=algorithm.outer == "fedyogi",
            )
        case _:
            assert_never(algorithm)  # type: ignore[arg-type]  # mypy does not narrow by the values of a field


def step(
    rule: Rule,
    base: NDArray[Any],  # F32, F16 or BF16: Θ, or its master copy
    delta: NDArray[np.float32],  # becomes the new Θ (or master), not rounded to its dtype yet
    *,
    old: Sequence[NDArray[Any]] | None,  # by `rule.kept`: F32, F16 or BF16 (Adaptive: F32); None: as in the first round
    new: Sequence[NDArray[Any]],  # the same after the step; may be the arrays of `old`
) -> bool:
    """One step of `rule`, whose constants are rounded to fp32.

    `delta` is given up for the result: no array is made, and `base` stays as it is. What is kept is rounded to its dtype; this
    step's Θ is not. Returns whether all of the new numbers are finite. C-contiguous arrays of one shape; ValueError
    otherwise, and if `delta` is not F32.
    """
    if delta.dtype != F32:
        raise ValueError(f"the merged delta must be F32, got {delta.dtype}")
    if len(new) != len(rule.kept) or (old is not None and len(old) != len(new)):
        raise ValueError(f"{type(rule).__name__} keeps {len(rule.kept)} arrays, not {len(new)}")
    if isinstance(rule, Adaptive) and any(array.dtype != F32 for array in (*new, *(old or ()))):
        raise ValueError("what Adaptive keeps must be F32")
    size = same_size(base, delta, *new, *(old or ()))
    b, d = flat(base), flat(delta)
    stored = [flat(array) for array in new]
    before = None if old is None else [flat(array) for array in old]
    _, wide = scratch(2)
    sound = True
    with np.errstate(all="ignore"):
        for span in spans(size):
            update, after = d[span], [array[span] for array in stored]
            _move(rule, update, None if before is None else [array[span] for array in before], after)
            np.subtract(widened(b[span], wide), update, out=update)
            sound = sound and finite_block(update, wide) and all(finite_block(block, wide) for block in after)
    return sound


def _move(rule: Rule, update: NDArray[np.float32], old: Sequence[NDArray[Any]] | None, new: Sequence[NDArray[Any]]) -> None:
    """`update`, Δ, becomes what is taken from Θ; `new` what is kept. All (n,)."""
    eta = np.float32(rule.lr)
    match rule:
        case Nesterov(beta=beta):
            m, wide = _accumulate(update, np.float32(beta), old, new[0])
            np.multiply(m, np.float32(beta), out=wide)
            _store(m, new[0])
            np.add(update, wide, out=update)
            np.multiply(update, eta, out=update)
        case Momentum(beta=beta):
            m, _ = _accumulate(update, np.float32(beta), old, new[0])
            np.multiply(m, eta, out=update)
            _store(m, new[0])
        case Average():
            np.multiply(update, eta, out=update)
        case Adaptive():
            _adapt(rule, update, old, new)
        case _:
            assert_never(rule)


def _accumulate(
    update: NDArray[np.float32], beta: np.float32, old: Sequence[NDArray[Any]] | None, stored: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """βm + Δ, not stored yet unless it is F32; and a block to use."""
    first, second = scratch(2)
    m = stored if stored.dtype == F32 else first[: update.size]
    if old is None:
        m[:] = 0
    else:
        np.multiply(widened(old[0], m), beta, out=m)
    np.add(m, update, out=m)
    return m, second[: update.size]


def _store(m: NDArray[np.float32], stored: NDArray[Any]) -> None:
    if m is not stored:
        np.copyto(stored, m, casting="unsafe")


def _adapt(
    rule: Adaptive, update: NDArray[np.float32], old: Sequence[NDArray[Any]] | None, new: Sequence[NDArray[Any]]
) -> None:
    m, v = new
    square, spare = (block[: update.size] for block in scratch(2))
    tau = max(np.float32(rule.tau), _LEAST)
    if old is None:
        m[:] = 0
        v[:] = tau * tau
    else:
        np.multiply(old[0], np.float32(rule.beta1), out=m)
        if v is not old[1]:
            np.copyto(v, old[1])
    np.multiply(update, np.float32(1 - rule.beta1), out=spare)
    np.add(m, spare, out=m)
    np.multiply(update, update, out=square)
    if rule.yogi:
        np.subtract(v, square, out=spare)
        np.sign(spare, out=spare)
        np.multiply(square, np.float32(1 - rule.beta2), out=square)
        np.multiply(square, spare, out=square)
        np.subtract(v, square, out=v)
    else:
        np.multiply(v, np.float32(rule.beta2), out=v)
        np.multiply(square, np.float32(1 - rule.beta2), out=square)
        np.add(v, square, out=v)
    np.sqrt(v, out=spare)
    np.add(spare, tau, out=spare)
    np.multiply(m, np.float32(rule.lr), out=update)
    np.divide(update, spare, out=update)
