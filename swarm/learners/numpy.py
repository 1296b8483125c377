"""The reference adapter: a model that is a dict of NumPy arrays."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import SchemaMismatch
from swarm.tensors.payload import check
from swarm.tensors.precision import CODES
from swarm.tensors.schema import Schema, TensorSpec


class NumpyAdapter:
    """Over a dict of F32, F16 or BF16 arrays. They are written in place and never replaced."""

    framework = "numpy"

    def __init__(self, model: Mapping[str, NDArray[Any]]) -> None:
        self._model = model

    def schema(self) -> Schema:
        refused = [name for name, array in self._model.items() if array.dtype not in CODES]
        if refused:
            raise SchemaMismatch(refused, advice=f"only F32, F16 and BF16 are exchanged: {', '.join(sorted(refused))}")
        return Schema(TensorSpec(name, CODES[array.dtype], array.shape) for name, array in self._model.items())

    def snapshot(self, names: Container[str] | None = None) -> Mapping[str, NDArray[np.generic]]:
        wanted = ((name, array) for name, array in self._model.items() if names is None or name in names)
        views = {name: np.require(array, requirements="C").view() for name, array in wanted}
        for view in views.values():
            view.flags.writeable = False
        return views

    def apply(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        check(tensors, (spec for spec in self.schema() if spec.name in tensors))
        for name, array in tensors.items():
            np.copyto(self._model[name], array, casting="no")

    def warnings(self, mapped: Container[str] | None = None) -> tuple[str, ...]:
        return ()
