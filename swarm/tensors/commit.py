"""What a round commits for one parameter: theta, the outer state (momentum, maybe a master copy) and maybe an update.

A master copy is what the outer step is taken on: theta alone, in 16 bits, would round small steps away. An update is the
step in the commit_dtype: a holder of the old theta who fetches it rebuilds the new one, to the byte, from fewer bytes. Theta
is then what the update leads to, and the master keeps what was meant, so that the error of one update is corrected by the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import NotFinite
from swarm.core.specs import DiLoCo
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import flat, same_size, scratch, spans
from swarm.tensors.codec import Decoder, encode
from swarm.tensors.finite import all_finite
from swarm.tensors.outer import step
from swarm.tensors.precision import DTYPES, F32, cast, widened


@dataclass(frozen=True)
class OuterStep:
    """How a run commits: `lr` and `beta` of the Nesterov step; the dtype of the stored momentum, of master copies (None: none
    but where an update needs one) and of updates (None: none)."""

    lr: float
    beta: float
    momentum_dtype: str = "F32"
    master_dtype: str | None = "F32"
    commit_dtype: str | None = None

    @classmethod
    def of(cls, algorithm: DiLoCo) -> OuterStep:
        return cls(
            lr=algorithm.outer_lr,
            beta=algorithm.outer_momentum,
            momentum_dtype=algorithm.momentum_dtype,
            master_dtype=algorithm.master_dtype,
            commit_dtype=algorithm.commit_dtype,
        )

    def master_code(self, spec: TensorSpec) -> str | None:
        """The dtype of a parameter's master copy; None if it has none, as an F32 parameter without updates."""
        if self.commit_dtype is not None:
            return self.master_dtype or "F32"
        return None if spec.dtype == "F32" else self.master_dtype

    def outer_specs(self, specs: Iterable[TensorSpec]) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, Safetensors code, shape) of every tensor of an outer payload: momentum by the parameter's name, and
        `<name>.master`."""
        found = []
        for spec in specs:
            found.append((spec.name, self.momentum_dtype, spec.shape))
            master = self.master_code(spec)
            if master is not None:
                found.append((master_name(spec.name), master, spec.shape))
        return found


@dataclass(frozen=True)
class Committed:
    """One parameter's arrays for the three payloads."""

    theta: NDArray[Any]
    outer: dict[str, NDArray[Any]]
    update: dict[str, NDArray[Any]] = field(default_factory=dict)


def master_name(name: str) -> str:
    return f"{name}.master"


def commit(
    spec: TensorSpec,
    how: OuterStep,
    *,
    theta: NDArray[Any],  # Θ; stays as it is
    outer: Mapping[str, NDArray[Any]] | None,  # the outer payload before; None: no momentum, and Θ is its own master
    delta: NDArray[np.float32],  # the merged one; given up: its memory is in the result
    in_place: bool = False,  # reuse the memory of `outer`'s momentum
) -> Committed:
    """The outer step on one parameter. All C-contiguous and of its shape.

    Raises NotFinite if a number of the new Θ, momentum, master or update is not finite: `delta`, and with `in_place` the
    momentum, are worthless then.
    """
    code = how.master_code(spec)
    momentum = None if outer is None else outer[spec.name]
    base = theta if outer is None or code is None else outer[master_name(spec.name)]
    if in_place and momentum is not None:
        new_momentum = momentum
    else:
        new_momentum = np.empty(spec.shape, DTYPES[how.momentum_dtype])
    if not step(base, delta, momentum=momentum, new_momentum=new_momentum, lr=how.lr, beta=how.beta):
        raise NotFinite(spec.name)
    state = {spec.name: new_momentum}
    target: NDArray[Any] = delta
    if code is not None:
        if code != "F32":
            target = np.empty(spec.shape, DTYPES[code])
            cast(delta, target)
        state[master_name(spec.name)] = target
    update: dict[str, NDArray[Any]] = {}
    if how.commit_dtype is not None:
        update = encode(theta, target, spec=spec, dtype=how.commit_dtype)
        new_theta = rebuild(theta, update, spec=spec, dtype=how.commit_dtype)
    elif target.dtype == DTYPES[spec.dtype]:
        new_theta = target
    else:
        new_theta = np.empty(spec.shape, DTYPES[spec.dtype])
        cast(target, new_theta)
    if not all(all_finite(array) for array in (new_theta, target) if array is not delta):
        raise NotFinite(spec.name)
    return Committed(new_theta, state, update)


def rebuild(
    theta: NDArray[Any],
    update: Mapping[str, NDArray[Any]],
    *,
    spec: TensorSpec,
    dtype: str,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """The new Θ of one parameter, to the byte, from the old one and its update at the commit_dtype `dtype`: Θ - Q⁻¹(q) in
    fp32, rounded once. In `out`, which may be `theta` itself, else in a new array. ValueError if they differ in shape."""
    if out is None:
        out = np.empty(theta.shape, theta.dtype)
    size = same_size(theta, out)
    old, new, decoder = flat(theta), flat(out), Decoder(update, spec, dtype)
    moved, wide = scratch(2)
    with np.errstate(all="ignore"):
        for span in spans(size):
            q = decoder.block(span, moved)
            target = new[span]
            found = target if target.dtype == F32 else moved[: q.size]
            np.subtract(widened(old[span], wide), q, out=found)
            if found is not target:
                np.copyto(target, found, casting="unsafe")
    return out
