"""Walking over arrays in blocks that stay in cache, with scratch that is allocated once per thread."""

from __future__ import annotations

import collections
import math
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 65_536
"""Elements: four fp32 blocks fit in 1 MiB, which is a core's L2."""

MAPPED_BYTES, ALIGNED = 33 << 20, 64
_SLACK = 64  # a piece has so small a part of itself to spare: what takes its place may have a header

_spare: collections.deque[NDArray[np.uint8]] = collections.deque(maxlen=1)

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
    """Arrays of these shapes and dtypes, not filled, in a `piece` of memory. As many of their own they would stay in the heap
    of the thread that asked for them."""
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in arrays.items()}
    whole = sum(-(-size // ALIGNED) * ALIGNED for size in sizes.values())
    memory = piece(whole) if whole else np.empty(0, np.uint8)
    found, at = {}, 0
    for name, (shape, dtype) in arrays.items():
        found[name] = memory[at : at + sizes[name]].view(dtype).reshape(shape)
        at += -(-sizes[name] // ALIGNED) * ALIGNED
    return found


def copies(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Of C-contiguous arrays, in one piece."""
    found = in_one_piece({name: (array.shape, array.dtype) for name, array in tensors.items()})
    for name, array in tensors.items():
        np.copyto(found[name], array)
    return found


def piece(size: int) -> NDArray[np.uint8]:
    """Memory of `size` bytes, not filled, as an array. Once nobody holds it, nor any array in it, it is kept for the next one
    that is asked for: the system clears memory that it gives anew, page by page, which takes longer than copying as much. One
    such piece is kept at most, the largest, until `forget`: a delta, the sums, what comes in take each other's place."""
    wanted = max(size, MAPPED_BYTES)
    kept = _take()
    if kept is not None and not wanted <= kept.size <= 2 * wanted:
        if kept.size > wanted:
            _keep(kept)  # far too large, and the next one may be as large
        kept = None  # now: else both would be there at once
    if kept is None:
        # The C library of Linux maps what is so large, whatever was freed before. What is not touched takes no memory.
        kept = np.empty(wanted + wanted // _SLACK, np.uint8)
    return np.asarray(_Piece(kept))[:size]


def forget() -> None:
    """Give the memory that is kept back to the system: none is needed for now."""
    _spare.clear()


class _Piece:
    """What the arrays in a piece of memory hold on to."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        _keep(self._memory)


def _take() -> NDArray[np.uint8] | None:
    try:
        return _spare.pop()
    except IndexError:
        return None


def _keep(memory: NDArray[np.uint8]) -> None:
    """May be called at any time, in any thread, also while another call is under way in the same one: so there is no lock. What
    two that come at once may lose is a piece of memory that could have been kept."""
    other = _take()
    _spare.append(memory if other is None or other.size < memory.size else other)


def same_size(*arrays: NDArray[Any]) -> int:
    """The shape's element count. Raises ValueError unless all arrays have one shape."""
    shape = arrays[0].shape
    for array in arrays[1:]:
        if array.shape != shape:
            raise ValueError(f"arrays differ in shape: {shape} and {array.shape}")
    return arrays[0].size
