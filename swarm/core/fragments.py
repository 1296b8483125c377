"""Which parameters are synchronised together, and when."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from swarm.core.tensorspec import TensorSpec


def by_bytes(tensors: Iterable[TensorSpec], fragments: int) -> tuple[tuple[str, ...], ...]:
    """Names by fragment, each sorted: the largest tensor first, ties by name, into the lightest fragment.

    There are never more fragments than tensors. Depends on names and sizes alone, so that every learner finds the same plan.
    """
    ordered = sorted(tensors, key=lambda t: (-t.size_bytes, t.name))
    if not ordered:
        raise ValueError("a model without trainable parameters cannot be trained")
    bins: list[tuple[int, int, list[str]]] = [(0, i, []) for i in range(min(fragments, len(ordered)))]
    for tensor in ordered:
        weight, index, names = heapq.heappop(bins)
        names.append(tensor.name)
        heapq.heappush(bins, (weight + tensor.size_bytes, index, names))
    return tuple(tuple(sorted(names)) for _, _, names in sorted(bins, key=lambda b: b[1]))


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
