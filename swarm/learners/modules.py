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
from typing import Any, Literal, TypeAlias

from swarm.core.errors import UsageError
from swarm.learners.layout import Layout, Permute, Rename, Rule, Shape, Split

Framework: TypeAlias = Literal["torch", "mlx", "numpy"]

_CONVS = {f"Conv{n}d" for n in (1, 2, 3)}
_TRANSPOSED = {f"ConvTranspose{n}d" for n in (1, 2, 3)}
_RECURRENT = {"RNN", "LSTM", "GRU"}
_NAMED = 3  # parameters that a warning names


def framework_of(model: Any) -> Framework:
    """Told from the modules of the base classes. Raises UsageError for what is no model."""
    bases = _bases(model)
    if ("torch", "Module") in bases:
        return "torch"
    if ("mlx", "Module") in bases:  # before dict, which it derives from
        return "mlx"
    if isinstance(model, dict) and all(type(value).__module__ == "numpy" for value in model.values()):
        return "numpy"
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise UsageError(f"no adapter for a {kind}: pass a torch.nn.Module, an mlx.nn.Module or a dict of NumPy arrays")


def layout_of(model: Any) -> Layout:
    """The rules for the modules above, of the parameters that are trainable now. What else there is keeps its name and
    axes, and `warnings_for` says what of that is known not to fit. Raises UsageError for what is no model."""
    framework = framework_of(model)
    if framework == "numpy":
        return Layout()
    shapes = _trainable(model, framework)
    rules = _torch_rules(model, shapes) if framework == "torch" else _mlx_rules(model, shapes)
    return Layout(tuple(rules))


def _torch_rules(model: Any, shapes: dict[str, Shape]) -> Iterator[Rule]:
    for path, kind, _ in _modules(model, "torch"):
        if kind != "MultiheadAttention":
            continue
        for packed, part in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
            if (name := _joined(path, packed)) in shapes:
                yield Split(name, to=tuple(_joined(path, f"{which}_proj.{part}") for which in ("query", "key", "value")))
        for which in ("query", "key", "value"):  # of different widths, PyTorch too keeps three
            if (name := _joined(path, f"{which[0]}_proj_weight")) in shapes:
                yield Rename(name, to=_joined(path, f"{which}_proj.weight"))


def _mlx_rules(model: Any, shapes: dict[str, Shape]) -> Iterator[Rule]:
    found = list(_modules(model, "mlx"))
    sequential = {path for path, kind, _ in found if kind == "Sequential"}
    axes = {_joined(path, "weight"): order for path, _, order in found if order is not None}
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
        walked = _joined(walked, part)
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
    shapes = _trainable(model, framework)
    kinds: dict[_Trouble, list[str]] = {}
    for path, kind, order in _modules(model, framework):
        name = _joined(path, "weight")
        if order is not None and name in shapes and len(order) == len(shapes[name]):
            hidden = tuple(shapes[name][axis] for axis in order) == shapes[name]
            declared = mapped is not None and (framework == "torch" or name in mapped)
            if not declared and (hidden or framework == "mlx"):
                kinds.setdefault(_Axes(kind, hidden), []).append(f"{name} {_sized(shapes[name])}")
        elif mapped is not None and (kind in _RECURRENT or kind == "MultiheadAttention"):
            prefix = _joined(path, "")
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
        return f"{_listed(names)}: {other} has the axes of {self.kind} in another order, and {shown}; {advice}"


@dataclass(frozen=True)
class _Alone:
    """Parameters that the other framework's module lacks."""

    kind: str

    def line(self, framework: Framework, names: list[str]) -> str:
        other = "MLX" if framework == "torch" else "PyTorch"
        return (
            f"{_listed(names)}: {other}'s {self.kind} has other parameters, and no layout is known; rules by hand may map them"
        )


_Trouble: TypeAlias = _Axes | _Alone


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _sized(shape: Shape) -> str:
    return "×".join(map(str, shape))


# Models, without their frameworks


def _bases(value: object) -> set[tuple[str, str]]:
    return {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}


def _modules(model: Any, framework: Framework) -> Iterator[tuple[str, str, Shape | None]]:
    """(path, kind, order): the modules of known kinds, sorted by path. `order`: the axes of the parameter 'weight' that
    turn it into the other framework's order, if that is another one; in MLX, Permute's `axes`."""
    for path, module in sorted(model.named_modules(), key=lambda item: str(item[0])):
        names = {name for root, name in _bases(module) if root == framework}
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


def _trainable(model: Any, framework: Framework) -> dict[str, Shape]:
    """Shapes of the trainable parameters by name; one that has none yet is left out."""
    if framework == "torch":
        named = ((name, one) for name, one in model.named_parameters() if one.requires_grad)
        return {name: tuple(one.shape) for name, one in named if not hasattr(one, "materialize")}
    return {name: tuple(array.shape) for name, array in _leaves(model.trainable_parameters())}


def _leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """MLX's trees of dicts and lists, named as its tree_flatten does."""
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _leaves(value, _joined(path, str(key)))
    else:
        yield path, tree


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
