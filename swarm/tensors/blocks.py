"""Walking over arrays in blocks that stay in cache, with scratch that is allocated once per thread."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 65_536
"""Elements: four fp32 blocks fit in 1 MiB, which is a core's L2."""

MAPPED_BYTES, ALIGNED = 33 << 20, 64

_local = threading.local()


def spans(size: int) -> Iterator[slice]:
    """Slices of at most BLOCK elements that cover `size` elements in order."""
    for start in range(0, size, BLOCK):
        yield slice(start, min(start + BLOCK, size))


def flat(array: NDArray[Any]) -> NDArray[Any]:
    """`array` as one axis, sharing its memory. Raises ValueError if it is not C-contiguous: a copy would not be
    written through."""
    if not array.flags.c_contiguous:
        raise ValueError("the array must be C-contiguous")
    return array.reshape(-1)


def scratch(count: int) -> list[NDArray[np.float32]]:
    """`count` fp32 blocks of BLOCK elements, the same ones at every call in this thread: no caller may keep them."""
    blocks: list[NDArray[np.float32]] = _local.__dict__.setdefault("blocks", [])
    while len(blocks) < count:
        blocks.append(np.empty(BLOCK, np.float32))
    return blocks[:count]


def wide_scratch() -> NDArray[np.float64]:
    """One float64 block of BLOCK elements, the same one at every call in this thread: no caller may keep it."""
    block: NDArray[np.float64] | None = _local.__dict__.get("wide")
    if block is None:
        block = _local.wide = np.empty(BLOCK, np.float64)
    return block


def in_one_piece(arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> dict[str, NDArray[Any]]:
    """Arrays of these shapes and dtypes, not filled, in one piece of memory that goes back to the system as a whole once nobody
    holds any of them. As many pieces of their own they would stay in the heap of the thread that asked for them."""
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in arrays.items()}
    # The C library of Linux maps what is so large, whatever was freed before. What is not touched takes no memory.
    piece = np.empty(max(sum(-(-size // ALIGNED) * ALIGNED for size in sizes.values()), MAPPED_BYTES), np.uint8)
    found, at = {}, 0
    for name, (shape, dtype) in arrays.items():
        found[name] = piece[at : at + sizes[name]].view(dtype).reshape(shape)
        at += -(-sizes[name] // ALIGNED) * ALIGNED
    return found


def same_size(*arrays: NDArray[Any]) -> int:
    """The shape's element count. Raises ValueError unless all arrays have one shape."""
    shape = arrays[0].shape
    for array in arrays[1:]:
        if array.shape != shape:
            raise ValueError(f"arrays differ in shape: {shape} and {array.shape}")
    return arrays[0].size
