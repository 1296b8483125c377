"""Several ranks in one process, one thread each: their sums need no socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np


class Meeting:
    """Where the threads bring their arrays. Sums are taken in the order of ranks."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.collectives = 0
        self._parts: list[Any] = [None] * size
        self._total: Any = None
        self._barrier = threading.Barrier(size, action=self._sum)
        self._taken = threading.Barrier(size)

    def _sum(self) -> None:
        first, *rest = self._parts
        self._total = first.copy()
        for part in rest:
            assert (part.shape, part.dtype) == (first.shape, first.dtype)
            self._total = self._total + part
        self.collectives += 1

    def sum(self, rank: int, part: Any) -> Any:
        self._parts[rank] = part
        self._barrier.wait(60)
        total = self._total
        self._taken.wait(60)  # before anybody brings the next one
        return total

    def give_up(self) -> None:
        self._barrier.abort()
        self._taken.abort()


class FakeGroup:
    def __init__(self, meeting: Meeting, rank: int) -> None:
        self._meeting, self.rank, self.size = meeting, rank, meeting.size

    def all_sum(self, array: mx.array) -> mx.array:
        return mx.array(self._meeting.sum(self.rank, np.array(array)))

    def later(self, parts: Sequence[mx.array], after: mx.array | None) -> mx.array:
        return self.all_sum(mx.concatenate(list(parts)))


def on_ranks(size: int, work: Callable[[FakeGroup], Any]) -> list[Any]:
    """What `work` returns on each rank; raises what the lowest rank raised that failed by itself."""
    meeting = Meeting(size)
    results: list[Any] = [None] * size
    errors: list[BaseException | None] = [None] * size

    def run(rank: int) -> None:
        try:
            results[rank] = work(FakeGroup(meeting, rank))
        except BaseException as error:
            errors[rank] = error
            meeting.give_up()
        finally:
            mx.clear_streams()  # else MLX aborts the process when it ends

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [error for error in errors if error is not None]
    for error in failed:
        if not isinstance(error, threading.BrokenBarrierError):
            raise error
    assert not failed
    return results
