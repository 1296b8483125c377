"""Memory that was freed, given back to the system."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

LARGE_BYTES = 32 << 20
"""From here on it is worth its time. The C library of Linux maps single blocks of this size, and gives them back by itself;
the many smaller ones that a model consists of it keeps, in a heap for each thread that no other thread takes from."""


def give_back() -> None:
    """Before a lot of memory is asked for: else what one thread freed stays beside what another one asks for."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Callable[[int], int] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim  # glibc
    except (OSError, AttributeError, TypeError):  # another system's C library, which does so by itself or cannot
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    found: Callable[[int], int] = trim
    return found
