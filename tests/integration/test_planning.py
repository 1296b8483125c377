"""A run before it is made: what can be said of it, and how it is begun, over a real folder and without a worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swarm import api
from swarm.api import planning, preview
from swarm.core.errors import UsageError, WorkerFailed
from swarm.core.estimates import Link, Shape, Sized, gradient_bytes
from swarm.core.events import Created, Failed, WorkerEvent
from swarm.core.jobs import Learn
from swarm.core.records import Participant
from swarm.core.specs import DiLoCo
from swarm.core.tensorspec import TensorSpec
from swarm.host import remembered, settings
from swarm.host.asking import asked
from swarm.runtime import sizing
from tests.integration import tiny_llama
from tests.integration.handmade import make_mailbox, make_run, write_rounds

TASKS = {task.name: task for task in planning.opening().tasks}
SHAPE = Shape(tensors=(TensorSpec("w", "F32", (1000, 100)),))


@pytest.fixture(autouse=True)
def nothing_known(state_dir: Path) -> Iterator[None]:
    preview.forget()
    yield
    preview.forget()


@pytest.fixture
def mailbox(tmp_path: Path) -> str:
    location = make_mailbox(tmp_path / "mailbox")
    settings.remember_mailbox(location)
    return location


def look(method: Any = "diloco", task: str = "charlm", home: api.Home | None = None, **values: str) -> preview.Preview:
    texts = {key.replace("__", "."): text for key, text in values.items()}
    chosen = None if method == "mlx-lm" else TASKS[task]
    return asyncio.run(preview.preview(method, chosen, {"task": task, **texts}, home=home))


def home_of(location: str) -> api.Home:
    return asyncio.run(api.HomeWatch((location,)).poll())


# What can be said of it


def test_all_is_well_and_the_rest_is_found_out(mailbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[api.SwarmError | bytes] = []

    async def answer(module: str, question: bytes, *, limit_s: float) -> bytes:
        asked_for.append(question)
        return msgspec.json.encode(Sized(shape=SHAPE))

    monkeypatch.setattr(preview, "asked", answer)
    monkeypatch.setattr(preview, "measure_link", lambda location: Link(write_bytes_per_s=1e6, read_bytes_per_s=2e6))
    first = look()
    assert first.problems == {}
    assert first.location == mailbox
    assert (first.estimate, first.link, first.measured) == (None, None, False)
    assert [tick.name for tick in first.fits[0].ticks] == ["framework", "memory", "share"]
    for _ in range(2):  # asked again, nothing is measured again
        asyncio.run(preview.measure("diloco", TASKS["charlm"], {"task": "charlm"}))
    assert len(asked_for) == 1
    found = look()
    assert found.measured
    assert found.parameters == 100_000
    assert found.estimate is not None
    assert found.estimate.up_s == found.estimate.up_bytes / 1e6
    assert found.memory_bytes is not None
    assert look(spec__sync_every="7").measured, "other numbers of the method have the same model"
    assert not look(option__size="base").measured, "another model has not been measured"


def test_the_model_is_measured_before_there_is_a_mailbox(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(module: str, question: bytes, *, limit_s: float) -> bytes:
        return msgspec.json.encode(Sized(shape=SHAPE))

    monkeypatch.setattr(preview, "asked", answer)
    asyncio.run(preview.measure("diloco", TASKS["charlm"], {"task": "charlm"}))
    found = look()
    assert (found.parameters, found.measured) == (100_000, True)
    assert "mailbox" in found.problems


def test_what_the_framework_says_is_a_problem_of_its_field(mailbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "task charlm has no data that can be dealt out to clients"

    async def answer(module: str, question: bytes, *, limit_s: float) -> bytes:
        return msgspec.json.encode(Sized(problem=words))

    monkeypatch.setattr(preview, "asked", answer)
    asyncio.run(preview.measure("fedavg", TASKS["charlm"], {"task": "charlm"}))
    assert look("fedavg").problems == {"task": words}


def test_a_model_that_cannot_be_measured_is_said_to_be_unknown(mailbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(module: str, question: bytes, *, limit_s: float) -> bytes:
        raise WorkerFailed("no answer within 90 s")

    monkeypatch.setattr(preview, "asked", answer)
    monkeypatch.setattr(preview, "measure_link", lambda location: Link(write_bytes_per_s=1.0, read_bytes_per_s=1.0))
    asyncio.run(preview.measure("diloco", TASKS["charlm"], {"task": "charlm"}))
    found = look()
    assert (found.no_shape, found.problems, found.measured) == ("no answer within 90 s", {}, True)


@pytest.mark.parametrize(
    ("values", "key", "words"),
    [
        ({"mailbox": "/nowhere/at/all"}, "mailbox", "/nowhere/at/all"),
        ({"here__data": "/nowhere/x.txt"}, "here.data", "/nowhere/x.txt"),
        ({"here__model": "org/name"}, "here.model", "fine-tunes no model"),
        ({"here__device": "metal"}, "here.framework", ""),
        ({"option__seq_len": "7"}, "option.seq_len", "must be >= 8"),
    ],
)
def test_what_is_wrong_here_is_laid_to_its_field(mailbox: str, values: dict[str, str], key: str, words: str) -> None:
    found = look(**values)
    assert key in found.problems
    assert words in found.problems[key]


def test_a_fine_tuning_needs_a_folder_with_rows_and_a_model(mailbox: str, tmp_path: Path) -> None:
    found = look("mlx-lm", run__data=str(tmp_path), run__model="no model")
    assert found.problems["run.data"] == f"{tmp_path} holds no train.jsonl"
    assert "neither a folder here" in found.problems["run.model"]
    (tmp_path / "train.jsonl").write_text("{}\n")
    (tmp_path / "model").mkdir()
    found = look("mlx-lm", run__data=str(tmp_path), run__model=str(tmp_path / "model"))
    assert "holds no *.safetensors" in found.problems["run.model"]
    (tmp_path / "model" / "model.safetensors").write_bytes(b"x" * 1000)
    found = look("mlx-lm", run__data=str(tmp_path), run__model=str(tmp_path / "model"))
    assert set(found.problems) <= {""}  # MLX-LM may not be installed here
    assert found.memory_bytes is not None


def test_private_clients_need_data_of_their_own(mailbox: str) -> None:
    found = look("fedavg", "lenet5", spec__private="true")
    assert found.problems == {"here.data": "the clients of this run are private: this machine's own data is needed"}
    assert look("fedavg", "lenet5", spec__private="true", join="no").problems == {}


def test_without_any_mailbox_it_says_how_one_is_made() -> None:
    assert "swarm init" in look().problems["mailbox"]


def test_a_name_that_is_taken_and_a_pace_that_is_known_come_from_the_runs_that_are_there(mailbox: str) -> None:
    manifest = make_run(mailbox, "taken", "testrun1")
    write_rounds(mailbox, manifest, 2)
    home = home_of(mailbox)
    assert f"a run {manifest.name} exists" in look(home=home, run__name=manifest.name).problems["run.name"]
    [state] = home.mailboxes[0].runs
    options = planning.registry.get("charlm").options({})
    part = Participant(learner="me", unit="me", weight=1.0, tokens=100, steps=50, train_loss=1.0, seconds_s=5.0, size_bytes=1)
    newest = msgspec.structs.replace(state.rounds[-1], participants=(part,))
    like = msgspec.structs.replace(
        manifest, task=msgspec.structs.replace(manifest.task, name="charlm", options=options), algorithm=DiLoCo()
    )
    state = msgspec.structs.replace(state, manifest=like, rounds=(newest,))
    view = msgspec.structs.replace(home.mailboxes[0], runs=(state,))
    job = SimpleNamespace(run=state.run, learner="me")
    trained = msgspec.structs.replace(home, mailboxes=(view,), jobs=(job,))
    found = look(home=trained)
    assert found.pace == preview.Pace(run=state.name, unit_s=0.1)
    assert look(home=trained, option__batch_size="3").pace is None
    assert look(home=msgspec.structs.replace(trained, jobs=())).pace is None


# How it is begun


class Workers:
    """Stands in for the launcher: notes the orders down, and tells what it was given."""

    def __init__(self, *told: WorkerEvent, code: int | None = None) -> None:
        self.orders: list[Learn] = []
        self._told, self._code = list(told), code

    def start(self, order: Learn, *, foreground: bool) -> Any:
        assert not foreground
        self.orders.append(order)
        told, self._told = self._told, []
        events = SimpleNamespace(read=lambda: [told.pop(0)] if told else [])
        return SimpleNamespace(process=SimpleNamespace(poll=lambda: self._code), events=events, job=Path("/nowhere"))


@pytest.fixture
def begun(mailbox: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def begin(workers: Workers, method: Any = "diloco", making_s: float = 5.0, **values: str) -> Any:
        monkeypatch.setattr(planning.launcher, "start", workers.start)
        texts = {key.replace("__", "."): text for key, text in values.items()}
        task = None if method == "mlx-lm" else TASKS[planning.TASKS[method]]
        return asyncio.run(planning.begin(method, task, texts, making_s=making_s))

    return begin


def test_it_is_begun_when_the_run_is_made(begun: Callable[..., Any], mailbox: str) -> None:
    workers = Workers(Created(run="r", name="my-run"))
    found = begun(workers, run__name="my-run", spec__sync_every="50", run__workers="3", mailbox=mailbox, nonsense="1")
    assert (found.location, found.name, found.joins, found.made) == (mailbox, "my-run", True, True)
    first, *others = workers.orders
    assert first.create is not None
    assert first.create.algorithm == DiLoCo(sync_every=50)
    assert found.run == first.create.run
    assert [each.create for each in others] == [None, None]
    assert [each.learner for each in others] == [f"{first.learner}-2", f"{first.learner}-3"]
    assert remembered.load().values == {"diloco": {"spec.sync_every": "50", "run.workers": "3"}}  # nor its name, nor the place


def test_it_is_only_made(begun: Callable[..., Any]) -> None:
    workers = Workers(Created(run="r", name="n"))
    assert not begun(workers, join="no", run__workers="3").joins
    [order] = workers.orders
    assert not order.join


def test_what_the_worker_says_last_is_why_it_failed(begun: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Failed(error="UsageError", message="torch or mlx is not installed here: pip install 'homeswarm[train]'")
    workers = Workers(failed, code=2)
    with pytest.raises(WorkerFailed, match="torch or mlx is not installed here"):
        begun(workers, run__workers="2")
    assert len(workers.orders) == 1  # there is no run that others could join
    monkeypatch.setattr(planning.launcher, "last_words", lambda folder: "Killed")
    with pytest.raises(WorkerFailed, match="Killed"):
        begun(Workers(code=-9))


def test_what_takes_long_goes_on_by_itself(begun: Callable[..., Any]) -> None:
    assert not begun(Workers(), making_s=0.0).made


def test_a_name_that_is_taken_starts_nothing(begun: Callable[..., Any], mailbox: str) -> None:
    manifest = make_run(mailbox, "taken", "testrun1")
    workers = Workers()
    with pytest.raises(UsageError, match="choose another name"):
        begun(workers, run__name=manifest.name)
    with pytest.raises(api.MailboxError):
        begun(workers, mailbox="/nowhere/at/all")
    assert workers.orders == []
    assert remembered.load().values == {}


# A process of its own


async def test_a_process_is_asked_and_answers_in_a_line() -> None:
    assert await asked("platform", b"", limit_s=30.0)  # Python's own: it prints one
    with pytest.raises(WorkerFailed, match="No module named"):
        await asked("swarm.no_such_module", b"", limit_s=30.0)
    with pytest.raises(WorkerFailed, match="no answer within 0 s"):
        await asked("json.tool", b"[", limit_s=0.2)  # it waits for the end of its input


def request(method: Any, task: str, **values: str) -> Any:
    texts = {key.replace("__", "."): text for key, text in values.items()}
    return planning.request_of(method, TASKS[task], {"task": task, **texts})


def test_a_models_shape_is_told_by_building_it(state_dir: Path) -> None:
    pytest.importorskip("torch")
    found = sizing.answered(request("diloco", "mlp"))
    assert found.shape is not None
    assert sum(tensor.size for tensor in found.shape.tensors) == 740
    buffers = sizing.answered(request("fedavg", "lenet5", option__norm="batch"))
    assert buffers.shape is not None
    assert any(tensor.buffer for tensor in buffers.shape.tensors)
    with pytest.raises(UsageError, match="no data that can be dealt out"):
        sizing.answered(request("fedavg", "charlm"))
    assert "not on this machine" in sizing.answered(request("diloco", "lora", here__model="org/name")).unknown


def test_the_adapters_of_a_language_model_are_what_is_trained_of_it(tmp_path: Path) -> None:
    pytest.importorskip("mlx_lm")
    folder = tiny_llama.make_model(tmp_path / "model")
    values = {"run.model": str(folder), "run.data": str(tmp_path), "spec.num_layers": "-1"}
    tuned = sizing.answered(planning.request_of("mlx-lm", None, values))
    assert tuned.shape is not None
    assert tuned.shape.model_bytes > 0
    adapters = sizing.answered(request("diloco", "lora", here__model=str(folder), option__num_layers="-1"))
    assert adapters.shape is not None
    assert sum(t.size for t in tuned.shape.tensors) == sum(t.size for t in adapters.shape.tensors) > 0
    assert gradient_bytes(tuned.shape) < tuned.shape.model_bytes


def test_the_data_is_read_once_for_each_state_of_it(mailbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"words " * 2000)
    reads: list[object] = []
    task = planning.registry.get("charlm")
    data = type(task).data
    monkeypatch.setattr(type(task), "data", lambda self, path: reads.append(path) or data(self, path))
    for _ in range(3):
        assert look(here__data=str(text)).problems == {}
    assert len(reads) == 1
    os.utime(text, (1, 1))
    look(here__data=str(text))
    assert len(reads) == 2
