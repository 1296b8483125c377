"""Which parameters are synchronised together, and when."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from swarm.core.tensorspec import TensorSpec


def by_bytes(tensors: Iterable[TensorSpec], fragments: int) -> tuple[tuple[str, ...], ...]:
    """Names by fragment, each sorted: the largest tensor first, ties by name, into the lightest fragment, of equal ones into
    the one with fewest tensors (so that empty tensors leave no fragment empty).

    There are never more fragments than tensors. Depends on names and sizes alone, so that every learner finds the same plan.
    Raises ValueError if there is no tensor, or no fragment.
    """
    ordered = sorted(tensors, key=lambda t: (-t.size_bytes, t.name))
    if not ordered:
        raise ValueError("a model without trainable parameters cannot be trained")
    if fragments < 1:
        raise ValueError(f"fragments must be >= 1, got {fragments}")
    bins: list[tuple[int, int, int]] = [(0, 0, i) for i in range(min(fragments, len(ordered)))]  # bytes, tensors, index
    names: list[list[str]] = [[] for _ in bins]
    for tensor in ordered:
        weight, count, index = bins[0]
        names[index].append(tensor.name)
        heapq.heapreplace(bins, (weight + tensor.size_bytes, count + 1, index))
    return tuple(tuple(sorted(part)) for part in names)


class Schedule:
    """Round r synchronises fragment r mod P at inner step (r div P)·H + ⌊((r mod P)+1)·H/P⌋."""

    def __init__(self, *, sync_every: int, fragments: int) -> None:
        if not 1 <= fragments <= sync_every:
            raise ValueError(f"1 <= fragments <= sync_every must hold, got {fragments} and {sync_every}")
        self.sync_every, self.fragments = sync_every, fragments

    def fragment(self, round: int) -> int:
        return round % self.fragments

    def step(self, round: int) -> int:
        """The inner step, counted from the start of the run, after which `round` is due; 0 for round −1."""
        if round < 0:
            return 0
        turn, fragment = divmod(round, self.fragments)
        return turn * self.sync_every + (fragment + 1) * self.sync_every // self.fragments

    def steps_before(self, round: int) -> int:
        """Inner steps between the round before and `round`."""
        return self.step(round) - self.step(round - 1)
