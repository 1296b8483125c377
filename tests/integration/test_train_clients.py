"""A task's clients trained by what a worker runs (swarm/runtime/federation.py), in both frameworks, over a memory mailbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from swarm.core.clients import client_id, sampled
from swarm.core.errors import NotFinite, UsageError
from swarm.core.events import Trained, WorkerEvent
from swarm.core.manifest import Manifest, TaskRef
from swarm.core.records import EvalRecord, LearnerRecord, RoundRecord
from swarm.core.specs import FedAvg
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.federation import check_new, train_clients
from swarm.tasks import registry
from swarm.tasks.lenet5 import places
from tests.integration.simulation import new_run

ROUNDS, SEED = 2, 17
MLP = {"model": "mlp"}
FAST = {"beat_s": 0.05, "lease_s": 2.0}
SPEC = FedAvg(clients=4, per_round=3, partition="dirichlet:1", batch_size=64, lr=0.1, training_seed=29, **FAST)


@pytest.fixture(params=["torch", "mlx"])
def framework(request: pytest.FixtureRequest) -> str:
    pytest.importorskip({"torch": "torch", "mlx": "mlx.core"}[request.param])
    return str(request.param)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As a seeded worker has it."""
    try:
        import torch
    except ImportError:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def build(framework: str, *, data: Path | None = None, private: bool = False, options: Mapping[str, str] = MLP) -> Any:
    task = registry.get("lenet5")
    how: dict[str, Any] = {"options": task.options(options), "data": task.data(None), "data_path": data, "seed": SEED}
    return registry.build(task, framework=framework, device="cpu", private=private, buffers=True, **how)


class Run:
    """A run of the digits in a mailbox of its own."""

    def __init__(self, spec: FedAvg, framework: str, *, learner: Any = None, **fields: Any) -> None:
        self.store, self.events = MemoryStore(), list[WorkerEvent]()
        adapter = (learner or build(framework)).adapter
        described = {"task": TaskRef(name="lenet5"), "rounds": ROUNDS, "seed": SEED} | fields
        self.manifest: Manifest = asyncio.run(new_run(self.store, spec, adapter=adapter, **described))

    def train(self, learner: Any, name: str = "a", *, leaves_after: int | None = None) -> None:
        """To the end of the run, or of so many clients."""
        leaves: list[Callable[[], None]] = []

        def emit(event: WorkerEvent) -> None:
            self.events.append(event)
            if (
                leaves_after is not None
                and isinstance(event, Trained)
                and sum(isinstance(e, Trained) for e in self.events) == leaves_after
            ):
                leaves[0]()

        here = {"machine": name, "machine_name": name, "boot": "b", "pid": 1, "process": "1", "version": "0"}
        common = {
            "mailbox": MemoryMailbox(self.store),
            "manifest": self.manifest,
            "me": LearnerRecord(learner=name, incarnation=1, **here),  # type: ignore[arg-type]
            "gone": lambda _: False,
            "alive": lambda _: True,
            "emit": emit,
        }
        train_clients(learner, leaves.append, common)

    def read(self) -> tuple[list[RoundRecord], list[EvalRecord]]:
        async def read() -> tuple[list[Any], list[Any]]:
            exchange = Exchange(MemoryMailbox(self.store), self.manifest)
            return [await exchange.round(r) for r in range(ROUNDS)], [await exchange.eval(r) for r in range(ROUNDS)]

        records, evals = asyncio.run(read())
        assert None not in (*records, *evals)
        return records, evals


def test_every_client_tells_its_samples_its_losses_and_its_accuracy(framework: str) -> None:
    run, learner = Run(SPEC, framework), build(framework)
    samples = learner.deal(SPEC, seed=SEED)
    run.train(learner)
    records, evals = run.read()
    for record in records:
        assert tuple(p.unit for p in record.participants) == sampled(SPEC, SEED, record.round)
        for p in record.participants:
            count = samples[int(p.unit[-4:])]
            assert (p.tokens, p.weight, p.steps) == (count, count, -(-count // 64))
            assert set(p.metrics) == {"first_loss", "last_loss", "accuracy"}
            assert p.metrics["accuracy"] * count == pytest.approx(round(p.metrics["accuracy"] * count))
            assert p.metrics["accuracy"] > 0.2
            assert p.train_loss is not None
    assert [(e.round, e.learner, sum(map(sum, e.confusion))) for e in evals] == [(0, "a", 362), (1, "a", 362)]
    assert evals[1].metrics["accuracy"] > evals[0].metrics["accuracy"]
    # The parameters that were evaluated last are those that were committed last, and that the learner is left with.
    assert learner.evaluate().metrics == evals[1].metrics


def test_a_clients_accuracy_is_that_on_its_own_samples(framework: str) -> None:
    learner = build(framework)
    spec = FedAvg(clients=2, per_round=1, partition="by-label:5", batch_size=16, lr=0.1, local_epochs=5, training_seed=29)
    learner.deal(spec, seed=SEED)
    for _ in learner.train_client(spec, index=0, unit=client_id(0), round=0):
        pass
    before = {name: array.tobytes() for name, array in learner.adapter.snapshot().items()}
    # It has learned its own five labels, and none of the other one's.
    assert learner.measure_client(0)["accuracy"] > 0.95
    assert learner.measure_client(1)["accuracy"] < 0.1
    assert {name: array.tobytes() for name, array in learner.adapter.snapshot().items()} == before
    learner.deal(FedAvg(clients=10_000, per_round=1), seed=SEED)
    assert learner.measure_client(9_999) == {}


def test_learners_that_come_and_go_come_to_the_bytes_of_one(framework: str) -> None:
    one, many = Run(SPEC, framework), Run(SPEC, framework)
    one.train(build(framework))
    many.train(build(framework), "a", leaves_after=2)
    many.train(build(framework), "b", leaves_after=4)
    many.train(build(framework), "c")
    (alone, _), (together, _) = one.read(), many.read()
    assert [record.theta.sha256 for record in together] == [record.theta.sha256 for record in alone]
    assert [{p.learner for p in record.participants} for record in together] == [{"a", "b"}, {"b", "c"}]


def test_checkpoints_are_whole_models_in_safetensors(framework: str) -> None:
    """Running statistics included, which any reader of the format finds under the canonical names."""
    learner = build(framework, options={"norm": "batch"})
    spec = FedAvg(clients=60, per_round=1, outer="fedavgm", lr=0.05, training_seed=29, **FAST)
    run = Run(spec, framework, learner=learner, checkpoint_every=1)
    run.train(learner)
    kept = {key: data for key, data in run.store.objects.items() if "/blobs/checkpoints/" in key}
    assert len(kept) == ROUNDS
    last = load(kept[max(kept)])
    assert set(last) == {tensor.name for tensor in run.manifest.tensors} >= {"norm1.running_var", "conv1.weight"}
    for name, array in learner.adapter.snapshot().items():  # a learner ends with what was committed
        np.testing.assert_array_equal(last[name], array)
    assert (last["norm1.running_var"] > 0).all()


def test_of_a_private_client_nothing_is_told_but_its_samples(framework: str, tmp_path: Path) -> None:
    spec = FedAvg(private=True, per_round=1, batch_size=16, lr=0.1, **FAST)
    run, file = Run(spec, framework), tmp_path / "mine.npz"
    with np.load(places.shipped()) as digits:
        np.savez(file, images=digits["images"][:50], labels=digits["labels"][:50])
    run.train(build(framework, data=file, private=True), "mine")
    for record in run.read()[0]:
        (p,) = record.participants
        assert (p.unit, p.learner, p.tokens, p.train_loss, p.metrics) == ("mine", "mine", 50, None, {})


def test_a_client_whose_gradient_is_not_finite_counts_for_nothing(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, learner, bad = Run(SPEC, framework), build(framework), sampled(SPEC, SEED, 0)[0]
    trained = learner.train_client

    def train(spec: FedAvg, *, index: int, unit: str, round: int) -> Iterator[Any]:
        for step in trained(spec, index=index, unit=unit, round=round):
            yield step
            if (unit, round) == (bad, 0):
                raise NotFinite("gradient of fc1.weight")

    monkeypatch.setattr(learner, "train_client", train)
    run.train(learner)
    first, second = run.read()[0]
    assert [(r.unit, r.reason) for r in first.rejected] == [(bad, "nonfinite")]
    assert len(first.participants) == 2
    assert second.rejected == ()
    assert [e.unit for e in run.events if isinstance(e, Trained) and e.flaw] == [bad]


def test_what_cannot_be_dealt_out_is_told_before_a_run_is_made(framework: str) -> None:
    learner = build(framework)
    odd = FedAvg(clients=10, per_round=1, partition="by-label:11")
    for trains in (True, False):
        with pytest.raises(UsageError, match="by-label:11: the samples have 10 labels"):
            check_new(learner, odd, task="lenet5", seed=SEED, trains=trains)
    check_new(learner, FedAvg(native={"foo": 1}), task="lenet5", seed=SEED, trains=False)  # others may have such a thing
    check_new(learner, FedAvg(private=True), task="lenet5", seed=SEED, trains=False)  # who comes brings data
    task = registry.get("mlp")
    regression = task.build(framework=framework, device="cpu", options={}, data=[], data_path=None, seed=0)
    for trains in (True, False):
        with pytest.raises(UsageError, match="task mlp has no data that can be dealt out to clients"):
            check_new(regression, FedAvg(), task="mlp", seed=SEED, trains=trains)
