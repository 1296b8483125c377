"""The byte boundary to a model: three methods. An adapter knows its framework, everything else knows only bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from swarm.tensors.schema import Schema


class Adapter(Protocol):
    framework: str
    """'numpy', 'torch' or 'mlx': for people; the protocol never reads it."""

    def schema(self) -> Schema:
        """Every trainable parameter. Raises SchemaMismatch for what cannot be exchanged (dtype, identity tie)."""
        ...

    def snapshot(self) -> Mapping[str, NDArray[np.generic]]:
        """Host views of all parameters by name, C-contiguous, in the schema's dtypes (BF16 as ml_dtypes.bfloat16).

        Zero copy on the CPU and on unified memory, one copy from a separate device. Read-only, and valid only until
        the next training step or apply.
        """
        ...

    def apply(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Set the named parameters, which may be some of them. Raises SchemaMismatch for an unknown name, a wrong shape
        or a wrong dtype before anything is changed. The arrays may be reused by the caller afterwards."""
        ...
