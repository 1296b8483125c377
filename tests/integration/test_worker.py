"""What a worker does before it trains, with a task of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from swarm import worker
from swarm.core.errors import DataMissing, UsageError
from swarm.core.events import Trouble, WorkerEvent
from swarm.core.jobs import CreateRun, Export, Learn
from swarm.core.manifest import DataRef, Manifest
from swarm.core.sentences import settings
from swarm.core.specs import DiLoCo, FedAvg
from swarm.host.identity import identity
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox import open_mailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.manifests import run_ids
from swarm.tasks import registry
from swarm.tensors.payload import Packed
from tests.integration.handmade import make_mailbox, make_run, manifest_of_another_format


class Task:
    """One parameter of it has the name that another one's scale would have."""

    name, frameworks = "own", ("torch",)

    def data(self, path: Path | None) -> list[DataRef]:
        if path is None:
            raise DataMissing("pass it")
        data = path.read_bytes()
        return [DataRef(name=path.name, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))]

    def build(self, **how: Any) -> Any:
        return SimpleNamespace(adapter=NumpyAdapter({"norm": np.zeros(3, np.float32), "norm.scale": np.ones(3, np.float32)}))


@pytest.mark.parametrize("delta_dtype", ["F4", None])
def test_names_that_the_runs_payloads_need_are_told_before_a_file_is_attached(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch, delta_dtype: Any
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(registry, "get", lambda name, package="": Task())
    data, store = tmp_path / "data.txt", MemoryStore()
    data.write_text("some text, which is attached by default\n" * 50)
    create = CreateRun(
        run="aaaa1111", name="own", task="own", options={}, algorithm=DiLoCo(delta_dtype=delta_dtype), rounds=1, seed=0
    )
    order = Learn(
        mailbox="memory",
        run=create.run,
        create=create,
        learner="a",
        may_rename=False,
        framework="torch",
        device="cpu",
        data=str(data),
    )
    told: list[WorkerEvent] = []
    before = set(store.objects)
    if delta_dtype is None:
        manifest, _ = worker._create(order, create, identity(), MemoryMailbox(store), told.append)  # type: ignore[arg-type]
        assert [ref.size_bytes for ref in manifest.files] == [data.stat().st_size]
        assert asyncio.run(run_ids(MemoryMailbox(store))) == ["aaaa1111"]
        return
    with pytest.raises(UsageError, match=r"F4 keeps 'norm'"):
        worker._create(order, create, identity(), MemoryMailbox(store), told.append)  # type: ignore[arg-type]
    assert store.objects.keys() == before


def test_the_network_is_told_over_the_interface_of_the_order(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = make_mailbox(tmp_path / "mailbox")
    make_run(mailbox, "own", "aaaa1111")
    used: list[tuple[str, ...]] = []

    def advertised(manifest: Manifest, *, interfaces: tuple[str, ...], **_: object) -> None:
        used.append(interfaces)
        raise UsageError("enough is seen")

    monkeypatch.setattr(worker, "advertised", advertised)
    monkeypatch.setattr(worker, "_leave_on_signals", lambda emit: None)
    for interface in (None, "en7"):
        order = Learn(mailbox=mailbox, run="aaaa1111", learner="a", may_rename=False, interface=interface)
        with contextlib.ExitStack() as part, pytest.raises(UsageError, match="enough"):
            worker.learn(order, identity(), worker.EventFile(tmp_path), part)
    assert used == [(), ("en7",)]


def new_mlp(mailbox: str, run: str, *, seed: int, **fields: Any) -> Learn:
    asked: dict[str, Any] = {"algorithm": DiLoCo(fragments=2), "options": {}, "task": "mlp", **fields}
    create = CreateRun(run=run, name=f"mlp-{run}", rounds=1, seed=seed, **asked)
    return Learn(mailbox=mailbox, run=run, create=create, learner="a", may_rename=False, framework="torch", device="cpu")


def make(order: Learn, emit: Callable[[WorkerEvent], None] = lambda event: None) -> Manifest:
    box = open_mailbox(order.mailbox)
    asyncio.run(box.open())
    assert order.create is not None
    return worker._create(order, order.create, identity(), box, emit)[0]  # type: ignore[arg-type]


def test_a_run_begins_with_what_was_exported_of_another(tmp_path: Path, state_dir: Path) -> None:
    pytest.importorskip("torch")
    mailbox = make_mailbox(tmp_path / "mailbox")
    files = {run: tmp_path / f"{run}.safetensors" for run in ("first", "second", "fresh")}
    first = make(new_mlp(mailbox, "first", seed=1))
    worker.export(Export(mailbox=mailbox, run="first", file=str(files["first"])))
    data = files["first"].read_bytes()
    second = make(new_mlp(mailbox, "second", seed=2, base_model=str(files["first"])))
    fresh = make(new_mlp(mailbox, "fresh", seed=2))
    for run in ("second", "fresh"):
        worker.export(Export(mailbox=mailbox, run=run, file=str(files[run])))
    assert files["second"].read_bytes() == data != files["fresh"].read_bytes()
    assert second.init == first.init != fresh.init
    assert second.base == DataRef(name="first.safetensors", sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    assert first.base is None
    assert not second.files, "it is not in the mailbox twice"


def test_no_run_is_made_of_a_base_model_that_does_not_fit(tmp_path: Path, state_dir: Path) -> None:
    pytest.importorskip("torch")
    mailbox = make_mailbox(tmp_path / "mailbox")
    path = tmp_path / "other.safetensors"
    path.write_bytes(b"".join(Packed({"w": np.zeros(3, np.float32)})))
    with pytest.raises(UsageError, match=r"other\.safetensors cannot be the base model: parameter '.*' is missing"):
        make(new_mlp(mailbox, "first", seed=1, base_model=str(path)))
    box = open_mailbox(mailbox)
    asyncio.run(box.open())
    assert asyncio.run(box.list("runs/")) == []


@pytest.mark.parametrize(
    ("spec", "task", "join", "reason"),
    [
        (FedAvg(partition="by-label:99"), "lenet5", True, "the samples have 10 labels"),
        (FedAvg(native={"foo": 1}), "lenet5", True, "'foo' is none of PyTorch's SGD"),
        (FedAvg(), "charlm", False, "no data that can be dealt out"),
        (FedAvg(clients=3, partition="by-label:3"), "lenet5", False, "leave some of the 10 labels to nobody"),
        (FedAvg(native={"foo": 1}), "lenet5", False, ""),  # of another framework, perhaps
    ],
)
def test_no_run_is_made_of_clients_that_cannot_be_trained(
    tmp_path: Path, state_dir: Path, spec: FedAvg, task: str, join: bool, reason: str
) -> None:
    pytest.importorskip("torch")
    mailbox = make_mailbox(tmp_path / "mailbox")
    order = new_mlp(mailbox, "first", seed=1, algorithm=spec, options={"model": "mlp"} if task == "lenet5" else {})
    assert order.create is not None
    order = msgspec.structs.replace(order, join=join, create=msgspec.structs.replace(order.create, task=task))
    if not reason:
        assert make(order).run == "first"
        return
    with pytest.raises(UsageError, match=reason):
        make(order)
    assert asyncio.run(run_ids(open_mailbox(mailbox))) == []


def test_fragments_that_the_model_does_not_give_are_told_and_not_shown(tmp_path: Path, state_dir: Path) -> None:
    pytest.importorskip("torch")
    mailbox = make_mailbox(tmp_path / "mailbox")
    order = new_mlp(mailbox, "first", seed=1, algorithm=DiLoCo(fragments=8, in_flight=2))
    told: list[WorkerEvent] = []
    manifest = make(order, told.append)
    assert [e.message for e in told if isinstance(e, Trouble)] == ["the model has 6 parameters: 6 fragments instead of 8"]
    assert (manifest.algorithm.fragments, manifest.algorithm.in_flight, len(manifest.init)) == (6, 2, 6)
    assert settings(manifest.algorithm).split()[1] == "P=6"


def test_a_run_of_the_same_name_is_noticed(tmp_path: Path, state_dir: Path) -> None:
    mailbox = make_mailbox(tmp_path / "mailbox")
    one = make_run(mailbox, "twin", "aaaa1111")
    make_run(mailbox, "other", "bbbb2222")
    box = open_mailbox(mailbox)
    asyncio.run(box.open())
    assert not asyncio.run(worker.has_namesakes(box, one))
    manifest_of_another_format(mailbox, make_run(mailbox, "twin", "cccc3333"))
    assert not asyncio.run(worker.has_namesakes(box, one)), "what cannot be read is no namesake, and no obstacle"
    make_run(mailbox, "twin", "dddd4444")
    assert asyncio.run(worker.has_namesakes(box, one))
