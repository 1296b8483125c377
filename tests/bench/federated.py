"""How well FedAvg learns to read the digits, beside a reference: an MLP 64-64-10, 10 clients, all of them in each round, three
local epochs, SGD 0.1, batch 16. One learner trains and closes every round as `swarm start fedavg` does, over a mailbox in
memory; the accuracies are those of the run's evaluations.

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

import asyncio
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from swarm.core.manifest import Manifest, TaskRef
from swarm.core.records import LearnerRecord
from swarm.core.specs import FedAvg
from swarm.exchange import Exchange, create_run
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.federation import train_clients
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
        beat_s=0.5,  # then it looks at its mailbox every 0.05 s
    )


def build(framework: str, seed: int, **options: str) -> Any:
    task: Any = registry.get("lenet5")
    made, data = task.options({"model": "mlp"} | options), task.data(None)
    return task.build(framework=framework, device="cpu", options=made, data=data, data_path=None, seed=seed)


async def begun(mailbox: MemoryMailbox, learner: Any, how: FedAvg, seed: int) -> Manifest:
    schema, theta = learner.adapter.schema(), learner.adapter.snapshot()
    draft = Manifest(
        run="federate",
        name="federate",
        algorithm=how,
        task=TaskRef(name="lenet5"),
        tensors=tuple(schema),
        schema_sha256=schema.digest,
        rounds=AT[-1],
        seed=seed,
    )
    return (await create_run(mailbox, draft, [{name: theta[name] for name in names} for names in draft.plan]))[0]


async def accuracies(exchange: Exchange, how: FedAvg) -> list[float]:
    found = []
    for rounds in AT:
        record, evaluated = await exchange.round(rounds - 1), await exchange.eval(rounds - 1)
        assert record is not None
        assert len(record.participants) == how.per_round
        assert evaluated is not None
        found.append(evaluated.metrics["accuracy"])
    return found


def curve(framework: str, partition: str, seed: int) -> list[float]:
    learner, how, store = build(framework, seed), spec(partition, seed), MemoryStore()
    manifest = asyncio.run(begun(MemoryMailbox(store), learner, how, seed))
    here = {"machine": "here", "machine_name": "here", "boot": "b", "pid": 1, "process": "1", "version": "0"}
    common = {
        "mailbox": MemoryMailbox(store),
        "manifest": manifest,
        "me": LearnerRecord(learner="a", incarnation=1, **here),  # type: ignore[arg-type]
        "gone": lambda _: False,
        "alive": lambda _: True,
    }
    train_clients(learner, lambda leave: None, common)
    return asyncio.run(accuracies(Exchange(MemoryMailbox(store), manifest), how))


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
    missed = False
    for line in report(framework, range(int(sys.argv[2]) if len(sys.argv) > 2 else 3)):
        print(line, flush=True)
        missed = missed or "NOT within" in line
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
