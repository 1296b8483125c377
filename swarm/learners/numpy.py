"""The reference adapter: a model that is a dict of NumPy arrays."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import SchemaMismatch
from swarm.learners.parts import warnings_of
from swarm.tensors.payload import check
from swarm.tensors.precision import BUFFER_DTYPES, CODES
from swarm.tensors.schema import Schema, TensorSpec

_BUFFER_CODES = {dtype: code for code, dtype in BUFFER_DTYPES.items()}


class Arrays(dict[str, NDArray[Any]]):
    """A model some of whose arrays are not trained: those named in `buffers`, which may be I32 and I64, too."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], *, buffers: Iterable[str]) -> None:
        super().__init__(arrays)
        self.buffers = frozenset(buffers)


class NumpyAdapter:
    """Over a dict of F32, F16 or BF16 arrays. They are written in place and never replaced. Of a plain dict all are
    parameters; `Arrays` has buffers."""

    framework = "numpy"

    def __init__(self, model: Mapping[str, NDArray[Any]], *, buffers: bool = False) -> None:
        self._model = model
        self._buffers = buffers
        self._untrained = model.buffers if isinstance(model, Arrays) else frozenset[str]()

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """What is exchanged."""
        ours = self._buffers
        return {n: a for n, a in self._model.items() if n not in self._untrained or (ours and a.dtype in _BUFFER_CODES)}

    def schema(self) -> Schema:
        arrays = self._arrays()
        refused = [name for name, array in arrays.items() if name not in self._untrained and array.dtype not in CODES]
        if refused:
            raise SchemaMismatch(refused, advice=f"only F32, F16 and BF16 are exchanged: {', '.join(sorted(refused))}")
        return Schema(
            TensorSpec(name, _BUFFER_CODES[array.dtype], array.shape, buffer=name in self._untrained)
            for name, array in arrays.items()
        )

    def snapshot(self, names: Container[str] | None = None) -> Mapping[str, NDArray[np.generic]]:
        wanted = ((name, array) for name, array in self._arrays().items() if names is None or name in names)
        views = {name: np.require(array, requirements="C").view() for name, array in wanted}
        for view in views.values():
            view.flags.writeable = False
        return views

    def apply(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        check(tensors, (spec for spec in self.schema() if spec.name in tensors))
        for name, array in tensors.items():
            np.copyto(self._model[name], array, casting="no")

    def warnings(self, mapped: Container[str] | None = None) -> tuple[str, ...]:
        if not self._buffers:
            return ()
        arrays = ((name, self._model[name]) for name in sorted(self._untrained & self._model.keys()))
        local = (f"{name} ({array.dtype})" for name, array in arrays if array.dtype not in _BUFFER_CODES)
        return warnings_of(local=local, frozen=())
