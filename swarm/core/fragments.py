"""Which parameters are synchronised together, and when."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, TypeVar, assert_never

import msgspec

from swarm.core.specs import Algorithm, DiLoCo
from swarm.core.tensorspec import TensorSpec

A = TypeVar("A", bound=Algorithm)
Partition: TypeAlias = Literal["bytes", "strided"]


def plan(tensors: Iterable[TensorSpec], fragments: int, partition: Partition) -> tuple[tuple[str, ...], ...]:
    """Names by fragment, each sorted, as `by_bytes` or `strided` deals them out. Raises ValueError as these do."""
    match partition:
        case "bytes":
            return by_bytes(tensors, fragments)
        case "strided":
            return strided(tensors, fragments)
        case _:
            assert_never(partition)


def fitted(spec: A, tensors: Iterable[TensorSpec]) -> A:
    """`spec` as it is with these parameters: with as many fragments as `plan` makes, and no more rounds in flight than that.
    Raises ValueError as `plan` does."""
    if not isinstance(spec, DiLoCo):
        return spec
    made = len(plan(tensors, spec.fragments, spec.partition))
    return msgspec.structs.replace(spec, fragments=made, in_flight=min(spec.in_flight, made))


def by_bytes(tensors: Iterable[TensorSpec], fragments: int) -> tuple[tuple[str, ...], ...]:
    """Names by fragment, each sorted: the largest tensor first, ties by name, into the lightest fragment, of equal ones into
    the one with fewest tensors (so that empty tensors leave no fragment empty).

    There are never more fragments than tensors. Depends on names and sizes alone, so that every learner finds the same plan.
    Raises ValueError if there is no tensor, or no fragment.
    """
    return _dealt([], list(tensors), fragments)


def strided(tensors: Iterable[TensorSpec], fragments: int) -> tuple[tuple[str, ...], ...]:
    """Names by fragment, each sorted: whole transformer blocks in turn, so that a fragment has shallow and deep ones
    (arXiv:2501.18512).

    Tensors belong to one block if the first all-digit component of their dotted names is the same number: 3 in
    `blocks.3.attn.q.weight`. Counted in the order of these numbers, the blocks go to fragments 0, 1, … and round again; then
    the rest (embeddings, head, norms) as in `by_bytes`. There are never more fragments than blocks and tensors of the rest
    together. Raises ValueError as `by_bytes` does.
    """
    blocks: dict[int, list[TensorSpec]] = {}
    rest = []
    for tensor in tensors:
        # Of ASCII, and bounded, since int() refuses thousands of digits.
        index = next((part for part in tensor.name.split(".") if part.isascii() and part.isdigit() and len(part) < 10), None)
        if index is None:
            rest.append(tensor)
        else:
            blocks.setdefault(int(index), []).append(tensor)
    return _dealt([blocks[index] for index in sorted(blocks)], rest, fragments)


def _dealt(blocks: Sequence[Sequence[TensorSpec]], rest: Sequence[TensorSpec], fragments: int) -> tuple[tuple[str, ...], ...]:
    if not blocks and not rest:
        raise ValueError("a model without trainable parameters cannot be trained")
    if fragments < 1:
        raise ValueError(f"fragments must be >= 1, got {fragments}")
    parts: list[list[TensorSpec]] = [[] for _ in range(min(fragments, len(blocks) + len(rest)))]
    for k, block in enumerate(blocks):
        parts[k % len(parts)] += block
    bins = [(sum(t.size_bytes for t in part), len(part), index) for index, part in enumerate(parts)]
    heapq.heapify(bins)
    for tensor in sorted(rest, key=lambda t: (-t.size_bytes, t.name)):
        weight, count, index = bins[0]
        parts[index].append(tensor)
        heapq.heapreplace(bins, (weight + tensor.size_bytes, count + 1, index))
    return tuple(tuple(sorted(t.name for t in part)) for part in parts)


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
