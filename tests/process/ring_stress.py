"""One rank that takes many sums of mixed sizes, and checks each:

    MLX_RANK=… MLX_HOSTFILE=… python -m tests.process.ring_stress RANK SIZE COUNT SEED

It prints the number of each collective that is done, and ends with 0 if all sums were right.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np

from swarm.parallel.group import Group, initialised, unbroken

MOST = 1 << 20  # numbers: 4 MB in fp32
BUCKETS = 12  # at most, in one evaluation
KINDS = (np.float32, np.float32, np.float32, np.uint8)  # gradients and figures; what is broadcast, and digests


def drawn(size: int, count: int, seed: int) -> Iterator[tuple[bool, list[int], Any]]:
    """(whether they are taken later, in one evaluation; their sizes; dtype), the same on every rank."""
    rng = random.Random(f"{size} {seed}")
    while count > 0:
        later = rng.random() < 0.2
        sizes = [
            max(1, int(MOST ** rng.random()) + rng.choice((-1, 0, 1))) for _ in range(rng.randint(2, BUCKETS) if later else 1)
        ]
        if rng.random() < 0.1:
            sizes[0] = rng.randint(1, size)  # fewer numbers than ranks
        yield later, sizes, rng.choice(KINDS)
        count -= len(sizes)


def part(rank: int, number: int, length: int, kind: Any) -> Any:
    """Whole numbers, so that their sum is the same in any order; of uint8, modulo 256."""
    return ((np.arange(length) * (2 * rank + 1) + number) % 251).astype(kind)


def check(total: mx.array, number: int, length: int, kind: Any, size: int) -> None:
    want = np.add.reduce([part(rank, number, length, kind) for rank in range(size)], dtype=kind)
    if not np.array_equal(np.array(total), want):
        raise SystemExit(f"collective {number}: the sum of {length} {np.dtype(kind)} is wrong")


def run(group: Group, *, count: int, seed: int) -> None:
    number, late = 0, random.Random(f"{group.rank} {seed}")
    for later, sizes, kind in drawn(group.size, count, seed):
        if late.random() < 0.1:
            time.sleep(late.random() * 0.01)  # a rank that computes for longer than the others
        parts = [mx.array(part(group.rank, number + k, length, kind)) for k, length in enumerate(sizes)]
        totals: list[mx.array] = []
        if later:
            for each in parts:
                totals.append(group.later([each], totals[-1] if totals else None))
            with unbroken(group):
                mx.eval(totals)
        else:
            totals = [group.all_sum(each) for each in parts]
        for k, (total, length) in enumerate(zip(totals, sizes, strict=True)):
            check(total, number + k, length, kind, group.size)
        number += len(sizes)
        print(number, flush=True)


if __name__ == "__main__":
    its_rank, its_size, its_count, its_seed = map(int, sys.argv[1:])
    run(initialised("ring", rank=its_rank, size=its_size), count=its_count, seed=its_seed)
    os._exit(0)
