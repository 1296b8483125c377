"""How a framework's parameters map to the canonical ones that cross the mailbox: names, axis order, splits.

The canonical axis order is PyTorch's: a convolution's weight is (out, in, kernel…). Names are free: what counts is that
all learners of a run have the same. Nothing is computed, only moved, so bytes survive, NaN payloads and subnormals too.

    Layout((Permute("conv.weight", axes=(0, 2, 1)), Split("attn.in_proj_weight", to=("attn.q", "attn.k", "attn.v"))))

A parameter is meant by its dotted name, in which `*` stands for one component and `**` for one or more: "blocks.*.conv.weight".
The wildcards of `to` repeat what those of the parameter stood for, in order. What no rule takes stays as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias, assert_never

from swarm.core.errors import SchemaMismatch, UsageError
from swarm.tensors.schema import Schema, TensorSpec

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rename:
    """The same array under another name. Renamed to itself, a parameter is declared to be right as it is."""

    parameter: str
    to: str

    def __post_init__(self) -> None:
        _same_wildcards(self.parameter, self.to)


@dataclass(frozen=True, slots=True)
class Permute:
    """Canonical axis i is the framework's axis axes[i], as in np.transpose: MLX's Conv2d weight (out, h, w, in) has
    (0, 3, 1, 2).

    `view` (one entry may be -1) reorders within an axis: the framework's array is seen in that shape, its axes are
    permuted, and the canonical array gets the framework's shape again. So MLX's linear layer over flattened feature maps
    (height 4, width 5, channels 8) has view=(-1, 4, 5, 8), axes=(0, 3, 1, 2).
    """

    parameter: str
    axes: Shape
    to: str = ""  # the same name
    view: Shape | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", self.to or self.parameter)
        _same_wildcards(self.parameter, self.to)
        if sorted(self.axes) != list(range(len(self.axes))):
            raise UsageError(f"layout of {self.parameter}: axes {self.axes} are no permutation of 0…n−1")
        if self.view is not None and len(self.view) != len(self.axes):
            raise UsageError(f"layout of {self.parameter}: {len(self.axes)} axes do not fit the view {self.view}")
        if self.view is not None and (min(self.view, default=0) < -1 or self.view.count(-1) > 1):
            raise UsageError(f"layout of {self.parameter}: the view {self.view} may have one -1, and nothing else below 0")

    @property
    def back(self) -> Shape:
        """The inverse permutation."""
        return tuple(self.axes.index(i) for i in range(len(self.axes)))


@dataclass(frozen=True, slots=True)
class Split:
    """One framework parameter is several canonical ones, lying one after the other along `axis`: equal parts, or parts of
    `sizes`. Along axis 0 a snapshot copies nothing."""

    parameter: str
    to: tuple[str, ...]
    axis: int = 0
    sizes: Shape | None = None

    def __post_init__(self) -> None:
        for name in self.to:
            _same_wildcards(self.parameter, name)
        if len(self.to) < 2:
            raise UsageError(f"layout of {self.parameter}: a split needs at least two names")
        if self.sizes is not None and (len(self.sizes) != len(self.to) or min(self.sizes) < 0):
            raise UsageError(f"layout of {self.parameter}: {len(self.to)} names do not fit the sizes {self.sizes}")


@dataclass(frozen=True, slots=True)
class Join:
    """Several framework parameters, one after the other along `axis`, are one canonical parameter."""

    parameters: tuple[str, ...]
    to: str
    axis: int = 0

    def __post_init__(self) -> None:
        for name in self.parameters:
            _same_wildcards(name, self.to)
        if len(self.parameters) < 2:
            raise UsageError(f"layout of {self.to}: a join needs at least two parameters")


Rule: TypeAlias = Rename | Permute | Split | Join


@dataclass(frozen=True, slots=True)
class Layout:
    """The rules of one model in one framework. No parameter may be taken by two of them."""

    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        for rule in self.rules:
            if not isinstance(rule, Rename | Permute | Split | Join):
                raise UsageError(f"a layout's rules are Rename, Permute, Split and Join, got {type(rule).__name__}")


@dataclass(frozen=True, slots=True)
class Move:
    """What a rule does to one model: `inputs` are the framework's parameters, `outputs` the canonical ones."""

    rule: Rule | None  # None: nothing
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def bounds(self) -> list[tuple[slice, ...]]:
        """Where each part of a Split or Join lies in the whole."""
        if not isinstance(self.rule, Split | Join):
            raise TypeError("only a split and a join have parts")
        parts = self.outputs if isinstance(self.rule, Split) else self.inputs
        axis = self.rule.axis % len(parts[0].shape)
        ends = [0]
        for part in parts:
            ends.append(ends[-1] + part.shape[axis])
        return [(slice(None),) * axis + (slice(start, end),) for start, end in pairwise(ends)]


def moves(layout: Layout, schema: Schema, *, local: Callable[[], Schema] | None = None) -> tuple[Move, ...]:
    """What `layout` does to the framework's `schema`: every parameter is the input of exactly one move. `local` is asked for
    tensors that are not exchanged when a rule takes nothing of `schema`: it may take those only.

    Raises SchemaMismatch, in one line that names the parameter: a rule that matches nothing, two that take or give one
    name, a permutation of another rank, an axis that is not there or does not split, parts that do not fit together.
    """
    found = [move for rule in layout.rules if not _idle(rule, schema, local) for move in _matches(rule, schema)]
    taken: dict[str, Move] = {}
    for move in found:
        for spec in move.inputs:
            if spec.name in taken:
                raise _wrong(spec.name, "two rules take it")
            taken[spec.name] = move
    found += [Move(None, (spec,), (spec,)) for spec in schema if spec.name not in taken]
    given: dict[str, Move] = {}
    for move in found:
        for spec in move.outputs:
            if spec.name in given:
                sources = sorted(source.name for one in (given[spec.name], move) for source in one.inputs)
                raise _wrong(spec.name, f"the layout gives this name twice, to {' and '.join(dict.fromkeys(sources))}")
            given[spec.name] = move
    return tuple(found)


def _patterns(rule: Rule) -> tuple[str, ...]:
    return rule.parameters if isinstance(rule, Join) else (rule.parameter,)


def _idle(rule: Rule, schema: Schema, local: Callable[[], Schema] | None) -> bool:
    patterns = _patterns(rule)
    if local is None or any(_names(pattern, schema) for pattern in patterns):
        return False
    return all(_names(pattern, local()) for pattern in patterns)


def _matches(rule: Rule, schema: Schema) -> list[Move]:
    patterns = _patterns(rule)
    by_pattern = [_names(pattern, schema) for pattern in patterns]
    for pattern, names in zip(patterns, by_pattern, strict=True):
        if not names:
            raise _wrong(pattern, "a rule of the layout matches no trainable parameter or buffer of that name")
    made = []
    for captured in dict.fromkeys(key for names in by_pattern for key in names):
        for pattern, names in zip(patterns, by_pattern, strict=True):
            if captured not in names:
                raise _wrong(_filled(pattern, captured), "a rule of the layout joins it, and there is no such parameter")
        inputs = tuple(schema[names[captured]] for names in by_pattern)
        to = rule.to if isinstance(rule, Split) else (rule.to,)
        try:
            specs = zip(to, _shapes(rule, inputs), strict=True)
            outputs = tuple(
                TensorSpec(_filled(name, captured), inputs[0].dtype, shape, buffer=inputs[0].buffer) for name, shape in specs
            )
        except ValueError as error:  # a name that no payload can hold
            raise _wrong(inputs[0].name, str(error)) from None
        made.append(Move(rule, inputs, outputs))
    return made


def _shapes(rule: Rule, inputs: tuple[TensorSpec, ...]) -> list[Shape]:
    """Of the canonical parameters."""
    name, shape = inputs[0].name, inputs[0].shape
    match rule:
        case Rename():
            return [shape]
        case Permute():
            if rule.view is not None:
                viewed(rule.view, inputs[0])
                return [shape]
            if len(rule.axes) != len(shape):
                raise _wrong(name, f"axes {rule.axes} do not fit its shape {shape}")
            return [tuple(shape[axis] for axis in rule.axes)]
        case Split():
            axis = _axis(rule.axis, inputs[0])
            sizes = rule.sizes
            if sizes is None:
                each, rest = divmod(shape[axis], len(rule.to))
                if rest:
                    raise _wrong(name, f"axis {axis} of its shape {shape} does not split into {len(rule.to)} equal parts")
                sizes = (each,) * len(rule.to)
            if sum(sizes) != shape[axis]:
                raise _wrong(name, f"axis {axis} of its shape {shape} does not split into parts of {sizes}")
            return [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
        case Join():
            axis = _axis(rule.axis, inputs[0])
            for spec in inputs[1:]:
                if spec.buffer != inputs[0].buffer:
                    raise _wrong(spec.name, f"a parameter and a buffer cannot be joined, as it and {name} would be")
                alike = (*spec.shape[:axis], *shape[axis : axis + 1], *spec.shape[axis + 1 :])
                if len(spec.shape) != len(shape) or alike != shape or spec.dtype != inputs[0].dtype:
                    ours, theirs = (f"{one.dtype} {one.shape}" for one in (spec, inputs[0]))
                    raise _wrong(spec.name, f"{ours} cannot be joined to {name}, {theirs}, along axis {axis}")
            return [(*shape[:axis], sum(spec.shape[axis] for spec in inputs), *shape[axis + 1 :])]
    assert_never(rule)


def viewed(view: Shape, spec: TensorSpec) -> Shape:
    """`view` with its -1 worked out. Raises SchemaMismatch if the parameter cannot be seen so."""
    known = math.prod(n for n in view if n >= 0)
    free = spec.size // known if known else 0
    full = tuple(free if n < 0 else n for n in view)
    if math.prod(full) != spec.size:
        raise _wrong(spec.name, f"its shape {spec.shape} cannot be seen as {view}")
    return full


def _axis(axis: int, spec: TensorSpec) -> int:
    rank = len(spec.shape)
    if not -rank <= axis < rank:
        raise _wrong(spec.name, f"its shape {spec.shape} has no axis {axis}")
    return axis % rank


def _wrong(name: str, what: str) -> SchemaMismatch:
    return SchemaMismatch((name,), advice=f"{name}: {what}")


# Patterns


def _wildcards(name: str) -> list[str]:
    return [part for part in name.split(".") if part in ("*", "**")]


def _same_wildcards(parameter: str, to: str) -> None:
    if _wildcards(parameter) != _wildcards(to):
        raise UsageError(f"layout of {parameter}: {to} does not have the same wildcards in the same order")


def _names(pattern: str, schema: Schema) -> dict[tuple[str, ...], str]:
    """Parameters that match, by what the wildcards stand for."""
    if not _wildcards(pattern):
        return {(): pattern} if pattern in schema else {}
    wild = {"*": r"([^.]+)", "**": r"(.+)"}
    regex = re.compile(r"\.".join(wild.get(part) or re.escape(part) for part in pattern.split(".")), re.DOTALL)
    found = ((regex.fullmatch(name), name) for name in schema.names)
    return {match.groups(): name for match, name in found if match}


def _filled(pattern: str, captured: Iterable[str]) -> str:
    values = iter(captured)
    return ".".join(next(values) if part in ("*", "**") else part for part in pattern.split("."))


def taken(made: Iterable[Move]) -> Mapping[str, Move]:
    """Moves by the framework's parameters that a rule takes."""
    return {spec.name: move for move in made if move.rule is not None for spec in move.inputs}
