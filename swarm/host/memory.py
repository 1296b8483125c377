"""What the C library of Linux does with memory that was freed. Elsewhere these functions do nothing."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

LARGE_BYTES = 32 << 20
"""From here on giving memory back is worth its time. The C library of Linux maps single blocks of this size, and gives them
back by itself; the many smaller ones that a model consists of it keeps, in a heap of each thread, which no other uses."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt(3)
_MOST = 2**31 - 1  # that mallopt takes


def give_back() -> None:
    """Before a lot of memory is asked for: else what one thread freed stays beside what another one asks for."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(ctypes.c_size_t(0))


def keep_freed() -> None:
    """For a process that asks again and again for what it has just freed, as a step of training on the CPU does: else it goes
    back to the system after each step, which clears every page anew."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _MOST)


@functools.cache
def _glibc() -> Any:
    """None for another C library, which has no such calls."""
    try:
        libc = ctypes.CDLL(None)
        _ = libc.malloc_trim, libc.mallopt
    except (OSError, AttributeError, TypeError):
        return None
    return libc
