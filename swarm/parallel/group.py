"""What ranks do together: everything is a sum over all of them, and each sum is known when the call returns."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

from swarm.core.errors import GroupBroken, ReplicasDiffer

CHUNK_BYTES = 64 << 20  # of a broadcast
LOW = 4096  # fp32 holds counts exactly up to 2²⁴ only: they travel in two parts


class Group(Protocol):
    """The ranks of one generation."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_sum(self, array: mx.array) -> mx.array:
        """The sum over all ranks, evaluated; the same bits on each. Raises GroupBroken: this group must not be used again,
        since the next collective may hang."""

    def later(self, parts: Sequence[mx.array], after: mx.array | None) -> mx.array:
        """The sum over all ranks of these vectors, one after the other, once it is evaluated (see `unbroken`): other things can
        be computed meanwhile. `after`: the one that this rank asked for before, of those that are not evaluated yet. Each rank
        must ask for the same ones, and for no `all_sum` before all of them are evaluated."""


class Alone:
    """One machine."""

    rank, size = 0, 1

    def all_sum(self, array: mx.array) -> mx.array:
        mx.eval(array)
        return array

    def later(self, parts: Sequence[mx.array], after: mx.array | None) -> mx.array:
        return mx.concatenate(list(parts))


class Collective:
    """The ranks of `mx.distributed`, with any of its backends."""

    def __init__(self, group: Any, *, on_cpu: bool = True) -> None:
        """`on_cpu`: all backends but NCCL; Metal's all-reduce throws."""
        self.rank, self.size = int(group.rank()), int(group.size())
        self._group = group
        self._stream = {"stream": mx.cpu} if on_cpu else {}
        self._device = mx.cpu if on_cpu else mx.gpu
        self._aside: Any = None

    def all_sum(self, array: mx.array) -> mx.array:
        mx.eval(array)  # what goes wrong here is not the group's fault
        with unbroken(self):
            total = mx.distributed.all_sum(array, group=self._group, **self._stream)
            mx.eval(total)
        return total

    def later(self, parts: Sequence[mx.array], after: mx.array | None) -> mx.array:
        if self._aside is None:
            self._aside = mx.new_stream(self._device)  # one: two would run collectives side by side, in any order
        flat: Any = mx.concatenate(list(parts), stream=self._aside)
        if after is not None:  # MLX orders a graph as it sees fit, and so differently on a rank that computes less
            flat = mx.depends(flat, after)
        return mx.distributed.all_sum(flat, group=self._group, stream=self._aside)


@contextmanager
def unbroken(group: Group) -> Iterator[None]:
    """Evaluate sums over all ranks in it. Raises GroupBroken: the group must not be used again."""
    try:
        yield
    except RuntimeError as error:
        raise GroupBroken(f"rank {group.rank} lost the others: {' '.join(str(error).split()):.300}") from error


def initialised(backend: str, *, rank: int, size: int) -> Group:
    """The group that the environment describes: for ring, MLX_RANK and MLX_HOSTFILE. Blocks until all ranks are there. Raises
    GroupBroken if they do not come together, or are others than expected."""
    if size == 1:
        return Alone()
    try:
        group = mx.distributed.init(strict=True, backend=backend)
    except (RuntimeError, ValueError) as error:
        raise GroupBroken(f"rank {rank} found no {backend} group: {' '.join(str(error).split()):.200}") from error
    if (group.rank(), group.size()) != (rank, size):
        raise GroupBroken(f"the {backend} group says rank {group.rank()} of {group.size()}, the plan says {rank} of {size}")
    return Collective(group, on_cpu=backend != "nccl")


def split_count(count: int) -> tuple[float, float]:
    """A count as two numbers whose sums over ranks fp32 holds exactly."""
    return float(count % LOW), float(count // LOW)


def joined_count(low: float, high: float) -> int:
    return round(low) + LOW * round(high)


def numbers(array: mx.array) -> list[float]:
    """The values of a vector."""
    found: Any = array.tolist()
    return list(found)


def sums(group: Group, *, loss: float, tokens: int) -> tuple[float, int]:
    """(loss, tokens), each summed over all ranks."""
    total = group.all_sum(mx.array([loss, *split_count(tokens)], mx.float32))
    value, low, high = numbers(total)
    return value, joined_count(low, high)


def how_many(group: Group, flag: bool) -> int:
    """On how many ranks a flag is set."""
    return round(numbers(group.all_sum(mx.array([float(flag)])))[0])


def agree(group: Group, digests: Mapping[str, bytes]) -> None:
    """See that every rank holds what rank 0 holds. `digests`: SHA-256 by what it is of. Raises ReplicasDiffer, on every rank,
    with the first that differs."""
    table = np.zeros((group.size, len(digests), 32), np.uint8)
    table[group.rank] = np.frombuffer(b"".join(digests.values()), np.uint8).reshape(len(digests), 32)
    everybody = np.asarray(group.all_sum(mx.array(table)))
    for k, what in enumerate(digests):
        other = [rank for rank in range(group.size) if bytes(everybody[rank, k]) != bytes(everybody[0, k])]
        if other:
            raise ReplicasDiffer(what, other)


def broadcast(group: Group, named: Mapping[str, mx.array]) -> Iterator[dict[str, mx.array]]:
    """Rank 0's arrays, bit for bit, a part at a time: a receiver that puts each part in its place, and holds `named` no longer,
    never has two of everything. The others pass arrays of the same names, shapes and dtypes. It is a sum in which the others
    are zero, byte by byte: so nothing is rounded, and −0 stays −0."""
    pending = deque(named.items())
    del named
    while pending:
        chunk = [pending.popleft()]
        while pending and sum(array.nbytes for _, array in (*chunk, pending[0])) <= CHUNK_BYTES:
            chunk.append(pending.popleft())
        raw = mx.concatenate([array.reshape(-1).view(mx.uint8) for _, array in chunk])
        raw = group.all_sum(raw if group.rank == 0 else mx.zeros_like(raw))
        found, start = {}, 0
        for name, array in chunk:
            found[name] = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
            start += array.nbytes
        mx.eval(found)
        yield found


def digest(named: Iterable[tuple[str, mx.array]]) -> bytes:
    """SHA-256 over names, dtypes, shapes and bytes, in the order of names."""
    found = hashlib.sha256()
    for name, array in sorted(named, key=lambda each: each[0]):
        found.update(f"{name} {array.dtype} {list(array.shape)}\n".encode())
        found.update(np.asarray(array.reshape(-1).view(mx.uint8)).data)
    return found.digest()


def schema(named: Iterable[tuple[str, mx.array]]) -> bytes:
    """SHA-256 over names, dtypes and shapes."""
    lines = sorted(f"{name} {array.dtype} {list(array.shape)}\n" for name, array in named)
    return hashlib.sha256("".join(lines).encode()).digest()
