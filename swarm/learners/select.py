"""Which adapter a model needs, told from the modules of its base classes: no framework is imported to decide."""

from __future__ import annotations

from typing import Any, assert_never

from swarm.core.errors import UsageError
from swarm.learners.adapted import adapted
from swarm.learners.contract import Adapter, OptimizerState
from swarm.learners.layout import Layout
from swarm.learners.modules import layout_of
from swarm.learners.parts import framework_of


def adapter_for(model: Any, layout: Layout | str | None = None, *, buffers: bool = False) -> Adapter:
    """The adapter for a torch.nn.Module, an mlx.nn.Module or a dict of NumPy arrays.

    `layout`: how its parameters map to the canonical ones: rules, or 'auto' for those found from the types of its modules
    (`layout_of`), or None for parameters as they are. `buffers`: exchange what the model keeps beside its parameters, too
    (learners/parts.py says what that is); otherwise nothing touches it. Raises UsageError for any other model or layout.
    """
    adapter = _plain(model, buffers=buffers)
    if layout is None:
        return adapter
    if layout == "auto":
        layout = layout_of(model, buffers=buffers)
    if not isinstance(layout, Layout):
        raise UsageError(f"{layout!r} is no layout: None, 'auto' or a Layout")
    return adapted(adapter, layout, local=None if buffers else lambda: _plain(model, buffers=True).schema())


def optimizer_for(optimizer: Any, model: Any) -> OptimizerState:
    """What is kept of a torch.optim.Optimizer or an mlx.optimizers.Optimizer, which trains `model`. Raises UsageError for any
    other one."""
    places = {base.__module__.partition(".")[0] for base in type(optimizer).__mro__}
    match framework_of(model):
        case "torch" if "torch" in places:
            from swarm.learners.torch import TorchOptimizer

            return TorchOptimizer(optimizer, model)
        case "mlx" if "mlx" in places:
            from swarm.learners.mlx import MlxOptimizer

            return MlxOptimizer(optimizer, model)
    raise UsageError(
        f"a {type(optimizer).__name__} is no optimizer of a {type(model).__name__}: pass a torch.optim.Optimizer or an "
        "mlx.optimizers.Optimizer of the model's parameters; anything else is kept with state="
    )


def _plain(model: Any, *, buffers: bool) -> Adapter:
    framework = framework_of(model)
    match framework:
        case "torch":
            from swarm.learners.torch import TorchAdapter

            return TorchAdapter(model, buffers=buffers)
        case "mlx":
            from swarm.learners.mlx import MlxAdapter

            return MlxAdapter(model, buffers=buffers)
        case "numpy":
            from swarm.learners.numpy import NumpyAdapter

            return NumpyAdapter(model, buffers=buffers)
    assert_never(framework)
