"""What a run is configured with. Defaults, ranges and one-line help stand here once; command line and forms derive from it."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

MAX_INT = 10**9  # of a spec's counts
MAX_REAL = 1e100  # of any number in a record: sums and products of a few stay finite


class Option(msgspec.Struct, frozen=True):
    """One field of a spec, for whoever builds an option or a form field of it."""

    name: str
    type: type  # int, float, str, bool
    default: Any
    optional: bool  # may be None
    choices: tuple[str, ...]
    minimum: float | None
    help: str


DeltaDtype = Literal["F32", "F16", "BF16", "F8_E4M3", "F4"]
WideDtype = Literal["F32", "F16", "BF16"]


class DiLoCo(msgspec.Struct, frozen=True, tag="diloco", tag_field="method"):
    """Distributed low-communication training (arXiv:2311.08105; by fragments arXiv:2501.18512, with a quorum
    arXiv:2604.21428): inner steps on each learner, one outer step per round."""

    sync_every: Annotated[int, Meta(ge=1, description="inner steps between two rounds of one fragment (H)")] = 100
    fragments: Annotated[int, Meta(ge=1, description="parts of the model, synchronised in turn (P)")] = 1
    in_flight: Annotated[
        int, Meta(ge=1, description="rounds that a learner may have reported to before they are committed")
    ] = 1
    overlap_steps: Annotated[
        int, Meta(ge=0, description="inner steps a learner may go on before it waits for the round it reported to")
    ] = 0
    quorum_size: Annotated[int, Meta(ge=1, description="snapshots that may close a round")] = 1
    start_learners: Annotated[int, Meta(ge=1, description="learners that round 0 waits for; by default the quorum")] | None = (
        None
    )
    grace_s: (
        Annotated[float, Meta(ge=0, description="wait for the others after the quorum, in s; by default from past rounds")]
        | None
    ) = None
    follow: Annotated[
        bool, Meta(description="a learner that missed a round starts on the open one anew; else it goes on counting its steps")
    ] = True
    alignment: Annotated[
        Literal["overwrite", "blend", "carry", "adaptive"],
        Meta(
            description="what becomes of inner steps made since the report: given up, averaged in, kept, or kept as they agree"
        ),
    ] = "overwrite"
    merge: Annotated[
        Literal["mean", "rda"], Meta(description="weighted mean, or its direction with the weighted mean of the norms")
    ] = "mean"
    partition: Annotated[
        Literal["bytes", "strided"], Meta(description="fragments of equal size, or of every P-th transformer block")
    ] = "bytes"
    outer_lr: Annotated[float, Meta(gt=0, description="learning rate of the outer Nesterov step")] = 0.7
    outer_momentum: Annotated[float, Meta(ge=0, lt=1, description="momentum of the outer Nesterov step")] = 0.9
    delta_dtype: (
        Annotated[DeltaDtype, Meta(description="precision of published deltas; by default each parameter's own")] | None
    ) = None
    commit_dtype: (
        Annotated[DeltaDtype, Meta(description="precision of updates committed beside the parameters; by default none are")]
        | None
    ) = None
    momentum_dtype: Annotated[WideDtype, Meta(description="precision in which the outer momentum is stored")] = "F32"
    master_dtype: Annotated[
        WideDtype, Meta(description="precision of the master copy of parameters that are F16 or BF16, or committed as updates")
    ] = "F32"
    residual_dtype: Annotated[WideDtype, Meta(description="precision of what error feedback keeps back")] = "F32"
    error_feedback: Annotated[bool, Meta(description="what rounding a delta loses is added to the next one")] = True
    global_batch_size: (
        Annotated[
            int, Meta(ge=1, description="samples of an inner step over all start-learners; by default the task's for each")
        ]
        | None
    ) = None
    flush_on_close: Annotated[bool, Meta(description="a learner that leaves reports the steps it has made")] = False
    max_delta_norm: (
        Annotated[float, Meta(gt=0, description="L2 norm above which a delta is rejected; by default none")] | None
    ) = None
    weight_unit: Annotated[Literal["tokens", "samples"], Meta(description="what a learner's work is counted in")] = "tokens"
    beat_s: Annotated[float, Meta(ge=0.01, le=60, description="seconds between two signs of life")] = 5.0
    lease_s: Annotated[float, Meta(gt=0, le=3600, description="seconds without one after which a learner counts as gone")] = (
        30.0
    )
    keep_s: Annotated[float, Meta(gt=0, description="seconds after which an unused payload may be deleted")] = 600.0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.fragments > self.sync_every:
            raise ValueError(f"fragments must be <= sync_every ({self.sync_every}), got {self.fragments}")
        if self.in_flight > self.fragments:
            raise ValueError(f"in_flight must be <= fragments ({self.fragments}), got {self.in_flight}")
        if self.overlap_steps >= self.sync_every:
            raise ValueError(f"overlap_steps must be < sync_every ({self.sync_every}), got {self.overlap_steps}")
        if self.lease_s < 2 * self.beat_s:
            raise ValueError(f"lease_s must be >= 2 × beat_s ({2 * self.beat_s:g}), got {self.lease_s:g}")
        if self.global_batch_size is not None and self.global_batch_size < self.starters:
            raise ValueError(f"global_batch_size must be >= start_learners ({self.starters}), got {self.global_batch_size}")

    @property
    def starters(self) -> int:
        """Live learners that round 0 waits for."""
        return self.quorum_size if self.start_learners is None else self.start_learners

    @property
    def batch_size(self) -> int | None:
        """Samples of one learner's inner step: its equal part of `global_batch_size`, rounded up; None: the task's own."""
        return None if self.global_batch_size is None else -(-self.global_batch_size // self.starters)


def options(spec: type[msgspec.Struct]) -> Iterator[Option]:
    """The fields of a spec class, in order."""
    allowed = _allowed(spec)
    for field in msgspec.structs.fields(spec):
        kinds, metas = allowed[field.name]
        choices = _choices(kinds)
        lows = [m.ge if m.ge is not None else m.gt for m in metas if m.ge is not None or m.gt is not None]
        yield Option(
            name=field.name,
            type=str if choices else next(k for k in kinds if k is not type(None)),
            default=field.default,
            optional=type(None) in kinds,
            choices=choices,
            minimum=lows[0] if lows else None,
            help=next((m.description for m in metas if m.description), ""),
        )


def differences(here: msgspec.Struct, there: msgspec.Struct) -> list[str]:
    """Fields of two specs of one class that differ, in words."""
    names = [field.name for field in msgspec.structs.fields(here)]
    pairs = [(name, getattr(here, name), getattr(there, name)) for name in names]
    return [f"{name} is {mine} here, {theirs} in the run" for name, mine, theirs in pairs if mine != theirs]


def check_ranges(spec: msgspec.Struct) -> None:
    """Enforce each field's type, choices and Meta range, which msgspec itself does on decoding only. Raises ValueError."""
    for name, (kinds, metas) in _allowed(type(spec)).items():
        value = getattr(spec, name)
        if value is None and type(None) in kinds:
            continue
        choices = _choices(kinds)
        if choices:
            if value not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}")
        elif bool in kinds:
            if type(value) is not bool:
                raise ValueError(f"{name} must be true or false, got {value!r:.100}")
        elif int in kinds:
            if type(value) is not int or abs(value) > MAX_INT:
                raise ValueError(f"{name} must be a whole number of at most {MAX_INT}, got {value!r:.100}")
        elif float in kinds and (type(value) not in (int, float) or not -MAX_REAL <= value <= MAX_REAL):
            raise ValueError(f"{name} must be a finite number, got {value!r:.100}")
        for m in metas:
            for limit, ok, sign in (
                (m.ge, m.ge is None or value >= m.ge, ">="),
                (m.gt, m.gt is None or value > m.gt, ">"),
                (m.le, m.le is None or value <= m.le, "<="),
                (m.lt, m.lt is None or value < m.lt, "<"),
            ):
                if not ok:
                    raise ValueError(f"{name} must be {sign} {limit:g}, got {value!r:.100}")


@functools.cache  # to evaluate the annotations takes milliseconds, and a list of runs makes as many specs
def _allowed(spec: type[msgspec.Struct]) -> dict[str, tuple[tuple[Any, ...], tuple[Meta, ...]]]:
    """By field, as `_unwrap` tells them apart."""
    return {name: _unwrap(hint) for name, hint in typing.get_type_hints(spec, include_extras=True).items()}


def _unwrap(hint: Any) -> tuple[tuple[Any, ...], tuple[Meta, ...]]:
    """(the types that a hint allows, all that is said about them). Limits stand beside the type that they limit, since
    msgspec refuses them on a union."""
    if typing.get_origin(hint) is Annotated:
        base, *extras = typing.get_args(hint)
        kinds, metas = _unwrap(base)
        return kinds, (*(m for m in extras if isinstance(m, Meta)), *metas)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [_unwrap(part) for part in typing.get_args(hint)]
        return tuple(k for kinds, _ in parts for k in kinds), tuple(m for _, metas in parts for m in metas)
    return (hint,), ()


def _choices(kinds: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(c for t in kinds if typing.get_origin(t) is Literal for c in typing.get_args(t))
