"""The task lora in runs: adapters that learners agree on, clients that replay, base models that are told apart, and what
MLX-LM's tools read of it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx_lm")

from swarm import worker
from swarm.core.clients import client_index
from swarm.core.errors import DataMissing, UsageError
from swarm.core.events import Trouble, WorkerEvent
from swarm.core.jobs import CreateRun, Export, Generate, Learn
from swarm.core.manifest import Manifest
from swarm.core.specs import DiLoCo, FedAvg
from swarm.host.identity import identity
from swarm.mailbox import open_mailbox
from swarm.mailbox.memory import MemoryStore
from swarm.runtime.handoff import Assignment
from swarm.runtime.task_files import joined_files
from swarm.tasks import registry
from swarm.tasks.contract import ClientStep
from swarm.tensors.payload import Packed
from tests.integration.federation import ClientLearner
from tests.integration.handmade import make_mailbox
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.tiny_llama import completions, make_data, make_model

OPTIONS = {"num_layers": "-1", "max_seq_length": "64", "learning_rate": "0.01", "sample_tokens": "4"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data"), train=completions(40), valid=completions(12, seed=1))


def trainable(model: Path, data: Path, *, seed: int = 0) -> Any:
    task = registry.get("lora")
    options, refs = task.options(OPTIONS), task.data(data)
    how = {"framework": "mlx", "device": "cpu", "options": options, "data": refs, "data_path": data}
    return registry.build(task, seed=seed, model_path=model, **how)


# Learners over one mailbox, in virtual time


class Tunes(Learner):
    """Its inner steps are the task's."""

    def __init__(self, store: MemoryStore, manifest: Manifest, name: str, machines: Machines, *, task: Any) -> None:
        super().__init__(store, manifest, name, machines, adapter=task.adapter)
        self.task, self.loss = task, 0.0
        task.use_stream(name, 1)

    def step(self) -> None:
        done = self.task.step()
        self.tokens, self.loss = done.tokens, done.loss
        self.steps += 1

    def distance(self) -> float:
        return self.loss


def test_two_learners_agree_on_adapters_that_are_better(model: Path, data: Path) -> None:
    spec = DiLoCo(sync_every=5, fragments=2, quorum_size=2)
    tasks = [trainable(model, data, seed=seed) for seed in (3, 4)]  # the second is given the first one's by the run
    before = tasks[0].evaluate().loss

    async def main() -> list[Learner]:
        store, machines = MemoryStore(), Machines()
        manifest = await new_run(store, spec, adapter=tasks[0].adapter, rounds=8)
        learners = [Tunes(store, manifest, name, machines, task=task) for name, task in zip("ab", tasks, strict=True)]
        assert await together(*(learner.live() for learner in learners)) == ["done"] * 2
        return list(learners)

    learners = virtually(main())
    assert learners[0].params == learners[1].params
    after = [task.evaluate().loss for task in tasks]
    assert after[0] == after[1] < before - 0.1


class TunesClients(ClientLearner):
    def __init__(self, store: MemoryStore, manifest: Manifest, name: str, machines: Machines, *, task: Any) -> None:
        spec = manifest.algorithm
        assert isinstance(spec, FedAvg)
        rows = task.deal(spec, seed=3)
        samples = {f"client-{index:04d}": count for index, count in enumerate(rows)}
        steps = -(-max(rows) // spec.batch_size) * spec.local_epochs
        super().__init__(store, manifest, name, machines, adapter=task.adapter, samples=samples, steps=steps)
        self.task = task
        self.training: Iterator[ClientStep] = iter(())

    def step_of(self, client: Assignment, step: int) -> None:
        spec, index = self.exchange.manifest.algorithm, client_index(client.unit)
        if step == 0:
            self.training = self.task.train_client(spec, index=index, unit=client.unit, round=client.round)
        next(self.training)


def test_two_clients_replay_to_the_byte_however_many_train_them(model: Path, data: Path) -> None:
    spec = FedAvg(clients=2, per_round=2, batch_size=8, optimizer="adam", lr=0.01, training_seed=29)

    def trained(*names: str) -> tuple[str, float]:
        tasks = [trainable(model, data, seed=3) for _ in names]

        async def main() -> list[Learner]:
            store, machines = MemoryStore(), Machines()
            manifest = await new_run(store, spec, adapter=tasks[0].adapter, rounds=3)
            learners = [TunesClients(store, manifest, name, machines, task=t) for name, t in zip(names, tasks, strict=True)]
            assert await together(*(learner.live() for learner in learners)) == ["done"] * len(names)
            return list(learners)

        learners = virtually(main())
        assert len({learner.params for learner in learners}) == 1
        return learners[0].params, tasks[0].evaluate().loss

    alone = trained("a")
    assert trained("b", "c") == alone
    assert alone[1] < trainable(model, data, seed=3).evaluate().loss - 0.1


# Workers


def order(mailbox: str, model: Path | str | None, data: Path | None, **fields: Any) -> Learn:
    task = fields.pop("task", "lora")
    options = registry.get(task).options(fields.pop("options", OPTIONS))
    asked: dict[str, Any] = {"algorithm": DiLoCo(), "rounds": 1, "seed": 5, **fields}
    create = CreateRun(run="aaaa1111", name="tuned", task=task, options=options, **asked)
    given = {"data": None if data is None else str(data), "model": None if model is None else str(model)}
    place = {"framework": "mlx", "device": "cpu"}
    return Learn(mailbox=mailbox, run=create.run, create=create, learner="a", may_rename=False, **given, **place)


def make(told: Learn, events: list[WorkerEvent] | None = None) -> Manifest:
    box = open_mailbox(told.mailbox)
    asyncio.run(box.open())
    assert told.create is not None
    emit: Any = (lambda event: None) if events is None else events.append
    return worker._create(told, told.create, identity(), box, emit)[0]


def joined(mailbox: str, manifest: Manifest, *, model: Path | None, data: Path | None = None) -> dict[str, str]:
    """Text of the data files, as a joining task sees them."""
    given = {"model": None if model is None else str(model), "data": None if data is None else str(data)}
    with joined_files(open_mailbox(mailbox), manifest, emit=lambda event: None, **given) as (rows, base):
        assert base is not None
        assert {path.name for path in base.iterdir()} == {ref.name for ref in manifest.model.files}  # type: ignore[union-attr]
        return {} if rows is None else {path.name: path.read_text() for path in rows.iterdir()}


@pytest.fixture
def mailbox(tmp_path: Path, state_dir: Path) -> str:
    return make_mailbox(tmp_path / "mailbox")


def test_the_run_names_its_base_model_and_rows_and_exchanges_adapters_only(mailbox: str, model: Path, data: Path) -> None:
    manifest = make(order(mailbox, model, data))
    assert manifest.model is not None
    assert {ref.name for ref in manifest.model.files} == {path.name for path in model.iterdir()}
    assert [ref.name for ref in manifest.task.data] == ["train.jsonl", "valid.jsonl"]
    assert {tensor.name.rpartition(".")[2] for tensor in manifest.tensors} == {"lora_a", "lora_b"}
    assert {(ref.kind, ref.name) for ref in manifest.files} == {("data", "train.jsonl"), ("data", "valid.jsonl")}
    rows = joined(mailbox, manifest, model=model)
    assert rows == {name: (data / name).read_text() for name in ("train.jsonl", "valid.jsonl")}


def test_another_base_model_or_other_rows_are_refused_by_the_files_name(
    mailbox: str, model: Path, data: Path, tmp_path: Path
) -> None:
    manifest = make(order(mailbox, model, data))
    other = make_model(tmp_path / "other", seed=1)
    with pytest.raises(DataMissing, match=rf"^{other}/model.safetensors is not the model.safetensors that run tuned"):
        joined(mailbox, manifest, model=other)
    with pytest.raises(DataMissing, match=r"of run tuned is not on this machine, nor attached to it: pass the base model"):
        joined(mailbox, manifest, model=None)
    shutil.copytree(data, tmp_path / "rows")
    with (tmp_path / "rows" / "valid.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(DataMissing, match=r"rows/valid.jsonl is not the valid.jsonl that run tuned was made with"):
        joined(mailbox, manifest, model=model, data=tmp_path / "rows")


def test_an_attached_base_model_is_fetched(mailbox: str, model: Path, data: Path) -> None:
    manifest = make(order(mailbox, model, data, attach_model=True))
    assert joined(mailbox, manifest, model=None).keys() == {"train.jsonl", "valid.jsonl"}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": None}, "pass it with --model, a folder or a Hugging Face repository"),
        ({"data": None}, "task lora brings no data along"),
        ({"task": "mlp", "options": {}, "data": None}, "task mlp fine-tunes no model that is given to it: leave --model out"),
        ({"model": "/nowhere/at/all"}, "is no folder"),
        ({"algorithm": FedAvg(clients=2, partition="dirichlet:0.5")}, "this task's have none: iid"),
        ({"options": {**OPTIONS, "num_layers": "9"}}, "num_layers is 9, and the model has 2 layers"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run_is_made(
    mailbox: str, model: Path, data: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        make(order(mailbox, **{"model": model, "data": data, **given}))
    assert asyncio.run(open_mailbox(mailbox).list("runs/")) == []


def test_a_run_without_a_base_model_takes_none(mailbox: str, model: Path) -> None:
    manifest = make(order(mailbox, None, None, task="mlp", options={}))
    with (
        pytest.raises(UsageError, match="run tuned fine-tunes no model that is given to it"),
        joined_files(open_mailbox(mailbox), manifest, data=None, model=str(model), emit=lambda event: None),
    ):
        pass


PRIVATE = FedAvg(private=True, per_round=2)


def test_private_rows_stay_private(mailbox: str, model: Path, data: Path, tmp_path: Path) -> None:
    events: list[WorkerEvent] = []
    manifest = make(order(mailbox, model, data, algorithm=PRIVATE), events)
    assert (manifest.task.data, manifest.files, manifest.eval_every) == ((), (), 0)
    assert [e.message for e in events if isinstance(e, Trouble) and "nothing is evaluated" in e.message]
    own = make_data(tmp_path / "own", train=completions(3, seed=9), valid=completions(2, seed=9))
    assert joined(mailbox, manifest, model=model, data=own) == {"train.jsonl": (own / "train.jsonl").read_text()}
    (own / "train.jsonl").unlink()
    with pytest.raises(DataMissing, match=r"own holds no train\.jsonl"):
        joined(mailbox, manifest, model=model, data=own)


def test_a_private_run_may_share_the_rows_that_all_evaluate_on(mailbox: str, model: Path, data: Path, tmp_path: Path) -> None:
    manifest = make(order(mailbox, model, data, algorithm=PRIVATE, attach=True))
    assert [ref.name for ref in manifest.task.data] == [ref.name for ref in manifest.files] == ["valid.jsonl"]
    assert manifest.eval_every == 1
    own = make_data(tmp_path / "own", train=completions(3, seed=9), valid=completions(2, seed=9))
    rows = joined(mailbox, manifest, model=model, data=own)
    assert rows == {"train.jsonl": (own / "train.jsonl").read_text(), "valid.jsonl": (data / "valid.jsonl").read_text()}


# What comes out


def test_an_exported_folder_is_an_adapter_of_mlx_lm(mailbox: str, model: Path, data: Path, tmp_path: Path) -> None:
    """Its tools make of it the model that the run has."""
    import mlx.core as mx
    import mlx_lm

    task = trainable(model, data, seed=5)
    for _ in range(5):
        task.step()
    trained, start = {name: array.copy() for name, array in task.adapter.snapshot().items()}, tmp_path / "start"
    file = tmp_path / "trained.safetensors"
    file.write_bytes(b"".join(Packed(trained)))
    make(order(mailbox, model, data, base_model=str(file)))
    worker.export(Export(mailbox=mailbox, run="aaaa1111", file=f"{start}/"))
    assert sorted(path.name for path in start.iterdir()) == ["adapter_config.json", "adapters.safetensors"]
    assert json.loads((start / "adapter_config.json").read_text())["model"] == model.name
    assert (start / "adapters.safetensors").read_bytes() == file.read_bytes()
    tuned, _ = mlx_lm.load(str(model), adapter_path=str(start))
    tokens = mx.array([[5, 6, 7, 8, 9]])
    with mx.stream(mx.cpu):
        ours, plain = task._writer._model(tokens), mlx_lm.load(str(model))[0](tokens)
        np.testing.assert_allclose(np.array(tuned(tokens)), np.array(ours), rtol=1e-5, atol=1e-6)
        assert float(mx.abs(plain - ours).max()) > 0.01


def test_a_plain_run_is_not_written_to_a_folder(mailbox: str, tmp_path: Path) -> None:
    make(order(mailbox, None, None, task="mlp", options={}))
    with pytest.raises(UsageError, match="is a folder: run tuned is written to one file"):
        worker.export(Export(mailbox=mailbox, run="aaaa1111", file=str(tmp_path)))


def test_it_writes_with_the_base_model_and_without_the_rows(
    mailbox: str, model: Path, data: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    make(order(mailbox, model, data, attach=False))
    ask = Generate(mailbox=mailbox, run="aaaa1111", prompt="the cat", max_tokens=8, temperature=0.8, seed=1, model=str(model))
    assert worker.generate(ask, lambda event: None) == 0  # type: ignore[arg-type]
    expected = b"".join(trainable(model, data, seed=5).generate(b"the cat", max_tokens=8, temperature=0.8, seed=1))
    assert capfdbinary.readouterr().out == expected + b"\n"
