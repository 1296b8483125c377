"""What of a model is trained, what is kept beside that, and what is frozen, told without importing a framework.

    parameters   PyTorch: require a gradient. MLX: trainable. They are always exchanged.
    buffers      PyTorch: persistent buffers. MLX: what a module keeps frozen even when it is told to `unfreeze`, as BatchNorm
                 does with its running statistics (a module of one's own may do the same), and frozen integers. NumPy: what
                 a model names as such. Exchanged with `buffers`, else nobody touches them.
    frozen       parameters that a person froze. Neither trained nor exchanged: learners begin with equal ones by themselves.

Never a buffer: PyTorch's num_batches_tracked of a normalisation, which has no counterpart in MLX and counts one learner's own
batches; non-persistent buffers, and in MLX names with an underscore, which are made again from the code; arrays of quantised
layers, which are parameters however packed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from swarm.core.errors import UsageError

Framework: TypeAlias = Literal["torch", "mlx", "numpy"]

_NAMED = 3  # parameters that a warning names
_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Parts:
    """Tensors in the framework's own kind, by its names."""

    parameters: dict[str, Any]
    buffers: dict[str, Any]
    frozen: dict[str, Any]


def framework_of(model: Any) -> Framework:
    """Told from the modules of the base classes. Raises UsageError for what is no model."""
    bases = bases_of(model)
    if ("torch", "Module") in bases:
        return "torch"
    if ("mlx", "Module") in bases:  # before dict, which it derives from
        return "mlx"
    if isinstance(model, dict) and all(type(value).__module__ == "numpy" for value in model.values()):
        return "numpy"
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise UsageError(f"no adapter for a {kind}: pass a torch.nn.Module, an mlx.nn.Module or a dict of NumPy arrays")


def torch_parts(model: Any) -> Parts:
    """A tensor under several names is listed once, under the first."""
    local: set[str] = set()
    for path, module in model.named_modules():
        local |= {joined(path, name) for name in module._non_persistent_buffers_set}
        if ("torch", "_NormBase") in bases_of(module):
            local.add(joined(path, _COUNTER))
    every = dict(model.named_parameters())
    return Parts(
        parameters={name: one for name, one in every.items() if one.requires_grad},
        buffers={name: one for name, one in model.named_buffers() if name not in local},
        frozen={name: one for name, one in every.items() if not one.requires_grad},
    )


def mlx_parts(model: Any) -> Parts:
    every = dict(leaves(model.parameters()))
    # After freeze() and unfreeze() of a whole model, MLX calls BatchNorm's running statistics trainable: they are not.
    kept = tuple(joined(path, key) for path, module in model.named_modules() for key in _kept_frozen(module))
    statistics = {name for name in every if any(name == one or name.startswith(f"{one}.") for one in kept)}
    trainable = {name for name, _ in leaves(model.trainable_parameters())} - statistics
    counters = {name for name, array in every.items() if name not in trainable and str(array.dtype) in _INTEGERS}
    buffers = statistics | counters
    return Parts(
        parameters={name: array for name, array in every.items() if name in trainable},
        buffers={name: array for name, array in every.items() if name in buffers},
        frozen={name: array for name, array in every.items() if name not in trainable and name not in buffers},
    )


_INTEGERS = {"mlx.core.int32", "mlx.core.int64"}


def _kept_frozen(module: Any) -> set[str]:
    """Keys that stay frozen when `module` is told to unfreeze. It is asked on a copy, which shares the arrays."""
    if type(module).unfreeze.__qualname__ == "Module.unfreeze":
        return set()
    if any(root == "mlx" and name.startswith("Quantized") for root, name in bases_of(module)):
        return set()
    twin = copy.copy(module)
    twin._no_grad = set(module._no_grad)
    twin.unfreeze(recurse=False)
    return set(twin._no_grad)


def warnings_of(*, local: Iterable[str], frozen: Iterable[str]) -> tuple[str, ...]:
    """What people should know of the rest, where buffers are exchanged. `local`: buffers with their dtypes that cannot be."""
    lines = []
    if names := list(local):
        lines.append(
            f"{listed(names)}: every learner keeps its own, as only dense F32, F16, BF16, I32 and I64 buffers are exchanged"
        )
    if names := list(frozen):
        lines.append(
            f"{listed(names)}: frozen, so neither trained nor exchanged: every learner keeps its own, and should begin with "
            "the same"
        )
    return tuple(lines)


def listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def bases_of(value: object) -> set[tuple[str, str]]:
    """(top-level module, name) of each base class."""
    return {(base.__module__.partition(".")[0], base.__name__) for base in type(value).__mro__}


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """MLX's trees of dicts and lists, named as its tree_flatten does."""
    if isinstance(tree, dict | list | tuple):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, joined(path, str(key)))
    else:
        yield path, tree


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
