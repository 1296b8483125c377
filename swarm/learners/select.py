"""Which adapter a model needs, told from the modules of its base classes: no framework is imported to decide."""

from __future__ import annotations

from typing import Any

from swarm.core.errors import UsageError
from swarm.learners.contract import Adapter


def adapter_for(model: Any) -> Adapter:
    """The adapter for a torch.nn.Module, an mlx.nn.Module or a dict of NumPy arrays. Raises UsageError for anything
    else."""
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in type(model).__mro__}
    if ("torch", "Module") in bases:
        from swarm.learners.torch import TorchAdapter

        return TorchAdapter(model)
    if ("mlx", "Module") in bases:  # before dict, which it derives from
        from swarm.learners.mlx import MlxAdapter

        return MlxAdapter(model)
    if isinstance(model, dict) and all(type(value).__module__ == "numpy" for value in model.values()):
        from swarm.learners.numpy import NumpyAdapter

        return NumpyAdapter(model)
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    raise UsageError(f"no adapter for a {kind}: pass a torch.nn.Module, an mlx.nn.Module or a dict of NumPy arrays")
