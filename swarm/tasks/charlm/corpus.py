"""A text as batches of bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import UsageError

U8 = NDArray[np.uint8]


class Corpus:
    """The last tenth of the text is held out; the rest is trained on. Raises UsageError if either is shorter than one
    window, which is `seq_len` bytes and the one after them."""

    def __init__(self, text: bytes, *, seq_len: int, eval_windows: int) -> None:
        data = np.frombuffer(text, np.uint8)
        split = len(data) - len(data) // 10
        self._train, held_out = data[:split], data[split:]
        self._offsets = np.arange(seq_len + 1)
        if len(held_out) < len(self._offsets):
            need = 10 * len(self._offsets)
            raise UsageError(f"the text has {len(data)} bytes, and seq_len {seq_len} needs at least {need}")
        # Spread over the whole held-out part, and fixed: every learner, in every round, is measured by the same bytes.
        count = min(eval_windows, len(held_out) // len(self._offsets))
        starts = np.linspace(0, len(held_out) - len(self._offsets), count).astype(np.int64)
        self._held_out = held_out[starts[:, None] + self._offsets]

    def batch(self, random: np.random.Generator, size: int) -> tuple[U8, U8]:
        """Random windows of the training part: (size, seq_len) bytes, and for each the byte that follows it."""
        starts = random.integers(0, len(self._train) - len(self._offsets), size, endpoint=True)
        return _shifted(self._train[starts[:, None] + self._offsets])

    def held_out(self, size: int) -> Iterator[tuple[U8, U8]]:
        """The fixed windows of the held-out part, `size` at a time; the last batch may be smaller."""
        for start in range(0, len(self._held_out), size):
            yield _shifted(self._held_out[start : start + size])


def _shifted(windows: U8) -> tuple[U8, U8]:
    return np.ascontiguousarray(windows[:, :-1]), np.ascontiguousarray(windows[:, 1:])
