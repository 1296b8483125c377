"""What a round commits for one parameter: theta, the outer state (what the outer optimizer keeps, maybe a master copy) and
maybe an update.

A master copy is what the outer step is taken on: theta alone, in 16 bits, would round small steps away. An update is the
step in the commit_dtype: a holder of the old theta who fetches it rebuilds the new one, to the byte, from fewer bytes. Theta
is then what the update leads to, and the master keeps what was meant, so that the error of one update is corrected by the next.

A buffer is no parameter: its new value is the merged one, and it has no outer state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import NotFinite, UsageError
from swarm.core.specs import ByRounds, DiLoCo, FedAvg
from swarm.core.tensorspec import TensorSpec
from swarm.tensors.blocks import flat, same_size, scratch, spans
from swarm.tensors.codec import Decoder, encode
from swarm.tensors.finite import all_finite
from swarm.tensors.outer import Rule, rule_of, step
from swarm.tensors.precision import DTYPES, F32, cast, widened


@dataclass(frozen=True)
class OuterStep:
    """How a run commits: the outer optimizer; the dtype of what it keeps, of master copies (None: none but where an update
    needs one) and of updates (None: none)."""

    rule: Rule
    momentum_dtype: str = "F32"
    master_dtype: str | None = "F32"
    commit_dtype: str | None = None

    @classmethod
    def of(cls, algorithm: ByRounds) -> OuterStep:
        match algorithm:
            case DiLoCo():
                return cls(
                    rule_of(algorithm),
                    momentum_dtype=algorithm.momentum_dtype,
                    master_dtype=algorithm.master_dtype,
                    commit_dtype=algorithm.commit_dtype,
                )
            case FedAvg():
                return cls(rule_of(algorithm))
            case _:
                assert_never(algorithm)

    def master_code(self, spec: TensorSpec) -> str | None:
        """The dtype of a parameter's master copy; None if it has none, as an F32 parameter without updates, or a buffer."""
        if spec.buffer:
            return None
        if self.commit_dtype is not None:
            return self.master_dtype or "F32"
        return None if spec.dtype == "F32" else self.master_dtype

    def outer_specs(self, specs: Iterable[TensorSpec]) -> list[tuple[str, str, tuple[int, ...]]]:
        """(name, Safetensors code, shape) of every tensor of an outer payload: what the optimizer keeps, the first by the
        parameter's name, and `<name>.master`. Empty where nothing is kept: then there is no outer payload."""
        found = []
        for spec in specs:
            if spec.buffer:
                continue
            found += [(spec.name + suffix, self.momentum_dtype, spec.shape) for suffix in self.rule.kept]
            master = self.master_code(spec)
            if master is not None:
                found.append((master_name(spec.name), master, spec.shape))
        return found

    def check_names(self, specs: Sequence[TensorSpec]) -> None:
        """Raises UsageError if what an outer payload keeps beside a parameter would have another parameter's name."""
        names = {spec.name for spec in specs if not spec.buffer}
        for spec in specs:
            for name, _, _ in self.outer_specs([spec]):
                if name != spec.name and name in names:
                    what = "a master copy" if name == master_name(spec.name) else "the outer optimizer"
                    raise UsageError(f"{what} keeps {spec.name!r}'s beside it as {name!r}, which names a parameter")


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
    outer: Mapping[str, NDArray[Any]] | None,  # the outer payload before; None: nothing was kept, and Θ is its own master
    delta: NDArray[Any],  # the merged one, F32; given up: its memory is in the result. Of a buffer its new value
    in_place: bool = False,  # reuse the memory of what `outer` keeps
) -> Committed:
    """The outer step on one parameter. All C-contiguous and of its shape.

    Raises NotFinite if a number of the new Θ, outer state or update is not finite: `delta`, and with `in_place` what `outer`
    keeps, are worthless then.
    """
    if spec.buffer:
        return Committed(delta, {}, {} if how.commit_dtype is None else {spec.name: delta})
    code = how.master_code(spec)
    base = theta if outer is None or code is None else outer[master_name(spec.name)]
    names = [spec.name + suffix for suffix in how.rule.kept]
    old = None if outer is None else [outer[name] for name in names]
    new = old if in_place and old is not None else [np.empty(spec.shape, DTYPES[how.momentum_dtype]) for _ in names]
    if not step(how.rule, base, delta, old=old, new=new):
        raise NotFinite(spec.name)
    state = dict(zip(names, new, strict=True))
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
    fp32, rounded once; of a buffer its new value. In `out`, which may be `theta` itself, else in a new array. ValueError if
    they differ in shape."""
    if out is None:
        out = np.empty(theta.shape, theta.dtype)
    size = same_size(theta, out)
    if spec.buffer:
        np.copyto(out, update[spec.name])
        return out
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
