"""A tensor's name, dtype and shape, as manifests and payload headers list them."""

from __future__ import annotations

import math

import msgspec

DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes per element of the dtypes that a parameter may have, by Safetensors code."""
BUFFER_DTYPE_BYTES = {**DTYPE_BYTES, "I32": 4, "I64": 8}
"""The same of buffers."""
MAX_RANK = 64  # NumPy's own limit
MAX_BYTES = 2**63 - 1
RESERVED = "__metadata__"  # a Safetensors header keeps free text under this name


class TensorSpec(msgspec.Struct, frozen=True):
    """Raises ValueError for a name that no header can hold, an unknown dtype code, or an impossible shape."""

    name: str
    dtype: str
    """'F32', 'F16' or 'BF16'; of a buffer also 'I32' or 'I64'."""
    shape: tuple[int, ...]
    """() is a scalar; a dimension may be 0."""
    buffer: bool = False
    """Not trained: a running statistic, or a counter."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name == RESERVED:
            raise ValueError(f"{self.name!r} cannot name a tensor")
        try:
            self.name.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{self.name!r} cannot name a tensor: it is not Unicode text") from None
        known = BUFFER_DTYPE_BYTES if self.buffer else DTYPE_BYTES
        if self.dtype not in known:
            raise ValueError(f"{self.name}: dtype must be one of {', '.join(known)}, got {self.dtype!r}")
        check_shape(self.shape, known[self.dtype], name=self.name)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.size * BUFFER_DTYPE_BYTES[self.dtype]


def check_shape(shape: object, item_bytes: int, *, name: str) -> None:
    """Raises ValueError unless `shape` is a tuple of at most 64 integers >= 0 whose array has fewer than 2^63 bytes.

    Zeros count as ones, as in NumPy's own check, and the product stops at the bound: so no shape takes long to refuse.
    """
    if not isinstance(shape, tuple) or len(shape) > MAX_RANK:
        raise ValueError(f"{name}: a shape is a tuple of at most {MAX_RANK} integers")
    size_bytes = item_bytes
    for n in shape:
        if type(n) is not int or n < 0:
            raise ValueError(f"{name}: dimensions must be integers >= 0")
        size_bytes *= max(n, 1)
        if size_bytes > MAX_BYTES:
            raise ValueError(f"{name}: the shape has more than 2^63 - 1 bytes")
