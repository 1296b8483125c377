"""What whoever watches a long run keeps of it: the newest records whole, of older ones so many that memory is bounded. Pure.

Everywhere, `keep` is how many of the newest stay as they are; None: everything stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from swarm.core.records import EvalRecord, RoundRecord

T = TypeVar("T")
OLDER = 1024  # older ones that stay, at most, and evenly spread


def kept_rounds(records: tuple[RoundRecord, ...], keep: int | None) -> tuple[RoundRecord, ...]:
    """The newest of contiguous records; the very newest always stays."""
    return records if keep is None else records[-max(1, keep) :]


def kept_evals(records: tuple[EvalRecord, ...], keep: int | None) -> tuple[EvalRecord, ...]:
    """The newest ones, and of older ones, evenly spread by round, what a curve needs: samples and confusions are large."""
    if keep is None or len(records) <= keep:
        return records
    old, newest = list(records[: len(records) - keep]), records[len(records) - keep :]
    n = len(old) - 1
    while n >= 0 and (old[n].sample or old[n].confusion):  # those before are bare already
        old[n] = msgspec.structs.replace(old[n], sample="", confusion=())
        n -= 1
    return (*spread(old, lambda each: each.round), *newest)


def spread(items: Sequence[T], at: Callable[[T], int]) -> tuple[T, ...]:
    """`items`, or, if they are more than OLDER, the first of every 2, 4, 8, … steps of `at`, which ascends: whichever they
    are, those that stayed once are the first of twice as many steps, too."""
    return tuple(items if len(items) <= OLDER else firsts(items, at, stride_for([at(each) for each in items])))


def stride_for(places: Sequence[int]) -> int:
    """The power of two by which they are thinned; 1 if they are few enough. Fewer than OLDER are left, by a quarter: else each
    new one would have all of them thinned again."""
    stride, left = 1, len(places)
    if left <= OLDER:
        return stride
    while left > OLDER * 3 // 4:
        stride *= 2
        left = len({place // stride for place in places})
    return stride


def firsts(items: Sequence[T], at: Callable[[T], int], stride: int) -> list[T]:
    """The first of each stretch of `stride`."""
    if stride == 1:
        return list(items)
    first: dict[int, T] = {}
    for item in items:
        first.setdefault(at(item) // stride, item)
    return list(first.values())
