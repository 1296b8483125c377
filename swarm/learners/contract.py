"""The byte boundary to a model: three methods. An adapter knows its framework, everything else knows only bytes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from swarm.tensors.schema import Schema


class Adapter(Protocol):
    """Bytes go through unchanged, NaN payloads and subnormals included: nothing is cast here, so equal values are equal
    bytes in every framework. Call it from the thread that trains the model, between two steps.

    An adapter made with `buffers` covers them like parameters, with `TensorSpec.buffer` set: a buffer is what a model keeps
    beside its parameters and does not learn from gradients, a running statistic or a counter, in its own dtype. One made
    without reads and writes none. Frozen parameters are neither. learners/parts.py says which is which in each framework.
    """

    framework: str
    """'numpy', 'torch' or 'mlx': for people; the protocol never reads it."""

    def schema(self) -> Schema:
        """Every trainable parameter, a tied one once, and buffers if they are covered. Raises SchemaMismatch for what
        cannot be exchanged: a parameter of a dtype that is not F32, F16 or BF16, an identity tie in MLX, a tensor without
        a shape yet. A buffer of a dtype that is not F32, F16, BF16, I32 or I64 is left out, and `warnings` says so."""
        ...

    def snapshot(self, names: Container[str] | None = None) -> Mapping[str, NDArray[np.generic]]:
        """Host views of all tensors of the schema, or of those named, by name, C-contiguous, in the schema's dtypes (BF16 as
        ml_dtypes.bfloat16).

        Zero copy on the CPU and on unified memory, one copy from a separate device and of a parameter that is strided.
        Read-only, and valid only until the next training step or apply: whoever keeps values copies them. Call `schema`
        first: what it refuses is not checked here.
        """
        ...

    def apply(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Set the named tensors, in place, which may be some of them. Raises SchemaMismatch for an unknown name, a wrong shape
        or a wrong dtype, and for a model that `schema` refuses, before anything is changed. The arrays may have any
        memory layout, and are the caller's again afterwards. The optimizer's state survives."""
        ...

    def warnings(self, mapped: Container[str] | None = None) -> tuple[str, ...]:
        """What people should know before they train this model with learners in another framework, one line each: that
        equal schemas would mean different things. Where buffers are covered, also which of them, and which frozen
        parameters, every learner keeps for itself. `mapped`: the parameters that a declared layout takes, None without
        one."""
        ...


class OptimizerState(Protocol):
    """What an inner optimizer keeps between two steps, by its framework's names of the parameters. From the thread that
    trains the model, between two steps."""

    framework: str

    name: str
    """Of the optimizer's class."""

    def check(self) -> None:
        """Raises UsageError if it could not be taken up again: it belongs to another model, or holds more than arrays and
        numbers."""
        ...

    def state(self) -> Mapping[str, NDArray[Any]]:
        """On the host: views where it can be, valid until the next step."""
        ...

    def load(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take over what `state` gave, by copy. Raises StateMismatch before anything is changed."""
        ...
