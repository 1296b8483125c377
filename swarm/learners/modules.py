"""What is known of a model's parameters from the types of its modules, told without importing a framework.

                        PyTorch (canonical order)    MLX
    Conv1d/2d/3d        (out, in/groups, k…)         (out, k…, in/groups)
    ConvTranspose1d/2d/3d  (in, out, k…)             (out, k…, in)
    Bilinear            (out, in1, in2)              (out, in2, in1)
    attention           in_proj_weight (3d, d)       query_proj, key_proj, value_proj: canonical, as these axes are equal
    Sequential          0.weight                     layers.0.weight

Not seen here: functions between the modules. A linear layer over flattened feature maps counts channels first in PyTorch and
last in MLX, if the model does not transpose before it flattens: that is for Permute's `view`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from swarm.learners.layout import Layout, Permute, Rename, Rule, Shape, Split
from swarm.learners.parts import Framework, bases_of, framework_of, joined, listed, mlx_parts, torch_parts

_CONVS = {f"Conv{n}d" for n in (1, 2, 3)}
_TRANSPOSED = {f"ConvTranspose{n}d" for n in (1, 2, 3)}
_RECURRENT = {"RNN", "LSTM", "GRU"}


def layout_of(model: Any, *, buffers: bool = False) -> Layout:
    """The rules for the modules above, of the parameters that are trainable now, and of `buffers` if they are exchanged.
    What else there is keeps its name and axes, and `warnings_for` says what of that is known not to fit. Raises UsageError
    for what is no model."""
    framework = framework_of(model)
    if framework == "numpy":
        return Layout()
    shapes = _shapes(model, framework, buffers=buffers)
    rules = _torch_rules(model, shapes) if framework == "torch" else _mlx_rules(model, shapes)
    return Layout(tuple(rules))


def _torch_rules(model: Any, shapes: dict[str, Shape]) -> Iterator[Rule]:
    for path, kind, _ in _modules(model, "torch"):
        if kind != "MultiheadAttention":
            continue
        for packed, part in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
            if (name := joined(path, packed)) in shapes:
                yield Split(name, to=tuple(joined(path, f"{which}_proj.{part}") for which in ("query", "key", "value")))
        for which in ("query", "key", "value"):  # of different widths, PyTorch too keeps three
            if (name := joined(path, f"{which[0]}_proj_weight")) in shapes:
                yield Rename(name, to=joined(path, f"{which}_proj.weight"))


def _mlx_rules(model: Any, shapes: dict[str, Shape]) -> Iterator[Rule]:
    found = list(_modules(model, "mlx"))
    sequential = {path for path, kind, _ in found if kind == "Sequential"}
    axes = {joined(path, "weight"): order for path, _, order in found if order is not None}
    for name, shape in shapes.items():
        canonical = _without_layers(name, sequential)
        order = axes.get(name)
        if order is not None and len(order) == len(shape):
            yield Permute(name, axes=order, to=canonical)
        elif canonical != name:
            yield Rename(name, to=canonical)


def _without_layers(name: str, sequential: set[str]) -> str:
    """`name` without the component 'layers' that MLX's Sequential puts before the number of a layer."""
    kept, walked = [], ""
    for part in name.split("."):
        if not (part == "layers" and walked in sequential):
            kept.append(part)
        walked = joined(walked, part)
    return ".".join(kept)


def warnings_for(model: Any, mapped: Container[str] | None = None) -> tuple[str, ...]:
    """One line per kind of module whose parameters mean something else in the other framework.

    `mapped`: the names that a declared layout takes, in the framework; None if none is declared. Without one: every
    module in MLX with other axes, and in PyTorch, whose order is the canonical one, those where the shapes cannot show it.
    With one: those that it leaves out, and what has no counterpart. Raises UsageError for what is no model.
    """
    framework = framework_of(model)
    if framework == "numpy":
        return ()
    shapes = _shapes(model, framework)
    kinds: dict[_Trouble, list[str]] = {}
    for path, kind, order in _modules(model, framework):
        name = joined(path, "weight")
        if order is not None and name in shapes and len(order) == len(shapes[name]):
            hidden = tuple(shapes[name][axis] for axis in order) == shapes[name]
            declared = mapped is not None and (framework == "torch" or name in mapped)
            if not declared and (hidden or framework == "mlx"):
                kinds.setdefault(_Axes(kind, hidden), []).append(f"{name} {_sized(shapes[name])}")
        elif mapped is not None and (kind in _RECURRENT or kind == "MultiheadAttention"):
            prefix = joined(path, "")
            own = [one for one in shapes if one.startswith(prefix) and "." not in one[len(prefix) :]]
            if kind == "MultiheadAttention":
                own = [one for one in own if one[len(prefix) :] in ("bias_k", "bias_v")]
            own = [one for one in own if one not in mapped]
            if own:
                kinds.setdefault(_Alone(kind), []).extend(own)
    return tuple(trouble.line(framework, names) for trouble, names in kinds.items())


@dataclass(frozen=True)
class _Axes:
    """Axes in another order; `hidden` where the shapes are equal all the same."""

    kind: str
    hidden: bool

    def line(self, framework: Framework, names: list[str]) -> str:
        other = "MLX" if framework == "torch" else "PyTorch"
        shown = "the shape does not show it" if self.hidden else "the shapes differ"
        advice = "declare a layout ('auto' maps these) if the run may have learners in both"
        return f"{listed(names)}: {other} has the axes of {self.kind} in another order, and {shown}; {advice}"


@dataclass(frozen=True)
class _Alone:
    """Parameters that the other framework's module lacks."""

    kind: str

    def line(self, framework: Framework, names: list[str]) -> str:
        other = "MLX" if framework == "torch" else "PyTorch"
        return (
            f"{listed(names)}: {other}'s {self.kind} has other parameters, and no layout is known; rules by hand may map them"
        )


_Trouble: TypeAlias = _Axes | _Alone


def _sized(shape: Shape) -> str:
    return "×".join(map(str, shape))


# Models, without their frameworks


def _modules(model: Any, framework: Framework) -> Iterator[tuple[str, str, Shape | None]]:
    """(path, kind, order): the modules of known kinds, sorted by path. `order`: the axes of the parameter 'weight' that
    turn it into the other framework's order, if that is another one; in MLX, Permute's `axes`."""
    for path, module in sorted(model.named_modules(), key=lambda item: str(item[0])):
        names = {name for root, name in bases_of(module) if root == framework}
        for kind in sorted(names & (_CONVS | _TRANSPOSED | _RECURRENT | {"Bilinear", "MultiheadAttention", "Sequential"})):
            yield str(path), kind, _order(kind, framework)


def _order(kind: str, framework: Framework) -> Shape | None:
    if kind == "Bilinear":
        return 0, 2, 1
    if kind not in _CONVS | _TRANSPOSED:
        return None
    rank = 2 + int(kind[-2])
    last = rank - 1
    if kind in _CONVS:
        return (0, last, *range(1, last)) if framework == "mlx" else (0, *range(2, rank), 1)
    return (last, 0, *range(1, last)) if framework == "mlx" else (1, *range(2, rank), 0)


def _shapes(model: Any, framework: Framework, *, buffers: bool = False) -> dict[str, Shape]:
    """Shapes of the parameters that are trained, and of buffers, by name; one that has none yet is left out."""
    parts = torch_parts(model) if framework == "torch" else mlx_parts(model)
    named = parts.parameters | (parts.buffers if buffers else {})
    return {name: tuple(one.shape) for name, one in named.items() if not hasattr(one, "materialize")}
