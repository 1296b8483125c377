"""How well FedAvg learns to read the digits, beside a reference: an MLP 64-64-10, 10 clients, all of them in each round, three
local epochs, SGD 0.1, batch 16. Clients take their turns in one process; what is left out is the mailbox.

Run it by hand: python -m tests.bench.federated [torch|mlx] [seeds]        (PyTorch, three seeds: 3 min of CPU)

The reference's figures are of one seed, and neither its split nor how it dealt the samples out is known. Both count: another
fifth of the images held out moves the mean after 5, 10 and 30 rounds by up to 0.02 (the one taken lies nearest to the
reference), and with strong skew (α = 0.1) the curve depends on who got what.

Measured in PyTorch: mean over seeds 0, 1 and 2, in brackets the largest less the smallest, after the stroke the reference

                             round 1               round 5              round 10              round 30
iid            0.555 (0.135) / 0.642 0.878 (0.006) / 0.878 0.922 (0.008) / 0.939 0.965 (0.008) / 0.969   0.017 off, within 0.02
dirichlet:0.5  0.327 (0.130) / 0.481 0.840 (0.041) / 0.833 0.908 (0.036) / 0.911 0.956 (0.006) / 0.964   0.008 off, within 0.05
dirichlet:0.1  0.199 (0.050) / 0.369 0.529 (0.102) / 0.494 0.771 (0.091) / 0.719 0.913 (0.033) / 0.900
dirichlet:100  0.577 (0.072)         0.881 (0.017)         0.920 (0.014)         0.960 (0.022)
dirichlet:100 ends 0.0046 from iid: within 0.01
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from swarm.core.clients import client_id
from swarm.core.specs import FedAvg
from swarm.tasks import registry

AT = (1, 5, 10, 30)  # rounds after which the held-out images are read
REFERENCE: dict[str, Sequence[float]] = {
    "iid": (0.642, 0.878, 0.939, 0.969),
    "dirichlet:0.5": (0.481, 0.833, 0.911, 0.964),
    "dirichlet:0.1": (0.369, 0.494, 0.719, 0.900),
    "dirichlet:100": (),
}
WITHIN = {"iid": 0.02, "dirichlet:0.5": 0.05}  # of the reference, from round 5 on
LIKE_IID = 0.01  # dirichlet:100, at the end


def spec(partition: str, seed: int) -> FedAvg:
    return FedAvg(
        clients=10,
        per_round=10,
        local_epochs=3,
        batch_size=16,
        optimizer="sgd",
        lr=0.1,
        partition=partition,
        model_seed=seed,
        training_seed=seed,
        partition_seed=seed,
    )


def build(framework: str, seed: int, **options: str) -> Any:
    task: Any = registry.get("lenet5")
    made, data = task.options({"model": "mlp"} | options), task.data(None)
    return task.build(framework=framework, device="cpu", options=made, data=data, data_path=None, seed=seed)


def federate(learner: Any, how: FedAvg, rounds: int, *, seed: int = 0) -> Iterator[int]:
    """Each round: every client from the same Θ, then their mean by samples in its place. Yields the rounds that are over."""
    counts = learner.deal(how, seed=seed)
    theta = {name: array.copy() for name, array in learner.adapter.snapshot().items()}
    for round in range(rounds):
        sums = {name: np.zeros(array.shape) for name, array in theta.items()}
        for index, count in enumerate(counts):
            learner.adapter.apply(theta)
            for _ in learner.train_client(how, index=index, unit=client_id(index), round=round):
                pass
            for name, array in learner.adapter.snapshot().items():
                sums[name] += array * (count / sum(counts))
        theta = {name: total.astype(np.float32) for name, total in sums.items()}
        learner.adapter.apply(theta)
        yield round + 1


def curve(framework: str, partition: str, seed: int) -> list[float]:
    learner = build(framework, seed)
    done = federate(learner, spec(partition, seed), AT[-1], seed=seed)
    return [learner.evaluate().metrics["accuracy"] for rounds in done if rounds in AT]


def report(framework: str, seeds: Sequence[int]) -> Iterator[str]:
    """Lines of a table."""
    yield f"{'':14}" + "".join(f"{f'round {at}':>22}" for at in AT)
    means: dict[str, list[float]] = {}
    for partition, reference in REFERENCE.items():
        at_rounds = list(zip(*(curve(framework, partition, seed) for seed in seeds), strict=True))
        means[partition] = [statistics.mean(found) for found in at_rounds]
        cells = []
        for n, found in enumerate(at_rounds):
            beside = f"/ {reference[n]:.3f}" if reference else "       "
            cells.append(f"{means[partition][n]:.3f} ({max(found) - min(found):.3f}) {beside}")
        line = f"{partition:14}" + "".join(f"{cell:>22}" for cell in cells)
        if partition in WITHIN:
            off = max(abs(a - b) for a, b in zip(means[partition][1:], reference[1:], strict=True))
            line += f"   {off:.3f} off, {'within' if off <= WITHIN[partition] else 'NOT within'} {WITHIN[partition]}"
        yield line.rstrip()
    off = abs(means["dirichlet:100"][-1] - means["iid"][-1])
    yield f"dirichlet:100 ends {off:.4f} from iid: {'within' if off <= LIKE_IID else 'NOT within'} {LIKE_IID}"


def main() -> None:
    framework = sys.argv[1] if len(sys.argv) > 1 else "torch"
    if framework == "torch":
        import torch

        torch.set_num_threads(1)
    for line in report(framework, range(int(sys.argv[2]) if len(sys.argv) > 2 else 3)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
