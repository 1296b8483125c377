"""One trainable parameter as the manifest describes it."""

from __future__ import annotations

import math

import msgspec

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class TensorSpec(msgspec.Struct, frozen=True, order=True):
    name: str
    dtype: str  # F32, F16 or BF16
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a parameter has no name")
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"{self.name}: dtype {self.dtype!r} is none of {', '.join(ITEM_BYTES)}")
        if any(n < 0 for n in self.shape):
            raise ValueError(f"{self.name}: negative shape {self.shape}")

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.size * ITEM_BYTES[self.dtype]
