"""How far apart runs of charlm end that differ in one thing, in per cent of the F32 run's validation loss after equal rounds.

Run by hand: python -m tests.bench.convergence [seeds] [setting …]     (one seed: 35 s of CPU for `gentle`, 80 s for `default`)

Two differences that no precision is to blame for stand beside the rounding: the last bit of one parameter of Θ⁰, and other
data. The same seed gives the same numbers each time on one machine.

Measured, from seed 3 on; mean and spread (standard deviation over the seeds) are those after 30 rounds:

    gentle                            seeds    mean  spread   largest after 10, 20, 30 rounds
    F32, last bit of one parameter        3   0.000   0.000     0.000   0.000   0.000
    F32, other data                       3   0.858   0.865     8.139   1.879   1.825
    F8+ef                                 5   0.016   0.042     0.069   0.217   0.083
    F8                                    3   0.007   0.048     0.171   0.040   0.047
    F4+ef                                 5  -0.010   0.064     0.222   0.630   0.100
    F4                                    5   0.173   0.107     2.414   0.554   0.304

    default
    F32, last bit of one parameter        2   0.076   0.110     0.001   0.030   0.154
    F32, other data                       2   0.587   0.842     0.716   0.825   1.182
    F8+ef                                 3  -0.311   0.483     1.049   0.757   0.868
    F8                                    2  -0.425   0.246     0.381   0.098   0.599
    F4+ef                                 3   0.384   0.625     1.160   2.015   1.103
    F4                                    2  -0.254   0.724     0.093   1.314   0.766

With so few inner steps a round, the default momentum of 0.9 leaves a run unsettled: F32 ended at 2.44, 2.40 and 3.00, and 3.00
is what counting the bytes gives. There, one per cent is less than two spreads of F8+ef or F4+ef, and other data make as much.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from swarm.core.specs import DiLoCo
from tests.integration.pair import Pair, charlm

FIRST_SEED = 3
ROUNDS, EVERY = 30, 10  # in all, between two evaluations


class Setting(NamedTuple):
    outer: dict[str, Any]  # of the method
    task: dict[str, str]


SETTINGS = {
    "default": Setting({"sync_every": 8}, {}),
    "gentle": Setting({"sync_every": 4, "outer_momentum": 0.6}, {"learning_rate": "5e-4", "seq_len": "32"}),
}


class Variant(NamedTuple):
    delta_dtype: str = "F32"
    error_feedback: bool = True
    nudge: bool = False
    names: Sequence[str] = ("a", "b")


VARIANTS = {
    "F32": Variant(),
    "F32, last bit of one parameter": Variant(nudge=True),
    "F32, other data": Variant(names=("c", "d")),
    "F8+ef": Variant("F8_E4M3"),
    "F8": Variant("F8_E4M3", error_feedback=False),
    "F4+ef": Variant("F4"),
    "F4": Variant("F4", error_feedback=False),
}


def curve(setting: Setting, variant: Variant, seed: int) -> list[float]:
    """The validation loss after every EVERY rounds, in nats per byte."""
    learners = charlm(seed, names=variant.names, **setting.task)
    if variant.nudge:
        name, array = next(iter(learners[0].adapter.snapshot().items()))
        nudged = np.array(array)
        nudged.flat[0] = np.nextafter(nudged.flat[0], np.float32(1))
        learners[0].adapter.apply({name: nudged})
    spec = DiLoCo(delta_dtype=variant.delta_dtype, error_feedback=variant.error_feedback, **setting.outer)  # type: ignore[arg-type]
    pair = Pair(spec, learners)
    losses = []
    for _ in range(ROUNDS // EVERY):
        pair.train(EVERY)
        losses.append(pair.loss())
    return losses


def compared(setting: Setting, seeds: Sequence[int]) -> Iterator[str]:
    """Lines of a table, and F32's losses at the end."""
    full = [curve(setting, VARIANTS["F32"], seed) for seed in seeds]
    rounds = ", ".join(map(str, range(EVERY, ROUNDS + 1, EVERY)))
    yield f"{'':32}{'mean':>8}{'spread':>8}   largest after {rounds} rounds"
    for name, variant in VARIANTS.items():
        if name == "F32":
            continue
        off = []
        for seed, reference in zip(seeds, full, strict=True):
            losses = curve(setting, variant, seed)
            off.append([100 * (a / b - 1) for a, b in zip(losses, reference, strict=True)])
        last = [percents[-1] for percents in off]
        spread = statistics.stdev(last) if len(last) > 1 else math.nan
        largest = [max(map(abs, at_one_round)) for at_one_round in zip(*off, strict=True)]
        yield f"{name:32}{statistics.mean(last):8.3f}{spread:8.3f}   {' '.join(f'{x:7.3f}' for x in largest)}"
    yield f"F32 ends at {', '.join(f'{losses[-1]:.3f}' for losses in full)}"


def main() -> None:
    import torch

    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for title in sys.argv[2:] or SETTINGS:
        setting = SETTINGS[title]
        print(f"\n{title}: {setting.outer | setting.task}", flush=True)
        for line in compared(setting, range(FIRST_SEED, FIRST_SEED + count)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
