"""How many rows go through the model at once: measured before the first step, and fewer when the memory turns out too small."""

from __future__ import annotations

from collections.abc import Callable

USED = 0.9  # of what a rank may take, at most: other sizes leave other gaps

TOO_MUCH = (
    "unable to allocate",  # [malloc] Unable to allocate … bytes: CPU, Metal and CUDA
    "greater than the maximum allowed buffer size",  # [metal::malloc] Attempting to allocate …
    "[metal::malloc] resource limit",  # … exceeded
    "insufficient memory",  # [METAL] Command buffer execution failed: … (…:kIOGPUCommandBufferCallbackErrorOutOfMemory)
    "out of memory",  # cudaMallocAsync(…) failed: out of memory
    "outofmemory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)
"""What MLX says, in lower case, when a pass is too much for the memory and can be tried again with less. It does not always
come to words: on Linux without a GPU, MLX crashes or the system ends the process."""


def out_of_memory(error: BaseException) -> bool:
    words = str(error).lower()
    return isinstance(error, MemoryError) or any(each in words for each in TOO_MUCH)


def rows_that_fit(peak: Callable[[int], int], *, base: int, most: int, memory_bytes: int) -> int:
    """How many rows of the greatest length may go through the model at once: at most `most`, and else a power of two, so that
    small differences between two starts make none. `base`: bytes that this process has before; `peak`: that it has at most
    during a pass of so many rows. Nothing is tried that is expected to take more than the memory. 0 if one row already does."""
    allowed = USED * memory_bytes
    rows, bytes_ = 0, base
    more, each = 1, 0.0
    while rows < most and bytes_ + (more - rows) * each <= allowed:
        try:
            found = peak(more)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            break
        if found > allowed:
            break
        each = max(0.0, (found - bytes_) / (more - rows))
        rows, bytes_, more = more, found, min(2 * more, most)
    return rows
