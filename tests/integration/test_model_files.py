"""Base model and rows of a fine-tuning: named by their content, found on this machine or fetched, never taken for others."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from swarm.core.errors import DataMissing, FileChanged, UsageError
from swarm.core.events import Transfer, Trouble, WorkerEvent
from swarm.core.finetune import FineTune
from swarm.core.manifest import Manifest, TaskRef
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime import model_files
from swarm.runtime.model_files import Chosen, Digests, Gathered, attach_chosen, choose, gathered, linked, wanted_hashes

FILES = {
    "config.json": b"{}",
    "model-00001-of-00002.safetensors": save({"a": np.ones(3)}),
    "model-00002-of-00002.safetensors": save({"b": np.ones(2)}),
    "tokenizer.json": b"[]",
}
ROWS = {"train.jsonl": b'{"text": "a"}\n', "valid.jsonl": b'{"text": "b"}\n'}
pytestmark = pytest.mark.usefixtures("state_dir")


def silent(event: WorkerEvent) -> None: ...


def folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(parents=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder(tmp_path / "base", FILES | {"README.md": b"hello", "modeling.py": b"import os", "pytorch_model.bin": b"x"})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return folder(tmp_path / "data", ROWS | {"notes.txt": b"mine"})


def manifest_of(chosen: Chosen, files: tuple = ()) -> Manifest:  # type: ignore[type-arg]
    task = TaskRef(name="mlx-lm", data=chosen.rows)
    return Manifest(run="testrun1", name="ft", algorithm=FineTune(), task=task, model=chosen.model, files=files)


class Run:
    """A run of these folders, and what is attached to it."""

    def __init__(self, model: str | Path, data: Path, *, attach_model: bool = False, attach_data: bool = False) -> None:
        self.mailbox, self.events = MemoryMailbox(MemoryStore()), list[WorkerEvent]()
        self.chosen = choose(str(model), str(data), emit=silent)
        attaching = attach_chosen(
            self.mailbox, "testrun1", self.chosen, model=attach_model, data=attach_data, emit=self.events.append
        )
        self.manifest = manifest_of(self.chosen, asyncio.run(attaching))

    @contextmanager
    def joined(self, into: Path, model: Path | str | None = None, data: Path | None = None) -> Iterator[Gathered]:
        texts = (None if place is None else str(place) for place in (model, data))
        given = dict(zip(("model", "data"), texts, strict=True))
        with gathered(self.mailbox, self.manifest, into=into, emit=self.events.append, **given) as files:  # type: ignore[arg-type]
            yield files


def test_a_run_names_what_mlx_lm_reads_and_nothing_else(model: Path, data: Path) -> None:
    chosen = choose(str(model), str(data), emit=silent)
    assert [ref.name for ref in chosen.model.files] == sorted(FILES)
    assert [ref.name for ref in chosen.rows] == ["train.jsonl", "valid.jsonl"]
    assert chosen.model.name == "base"
    assert chosen.model.revision == ""
    hashes = {f"model/{name}": hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
    hashes |= {f"data/{name}": hashlib.sha256(rows).hexdigest() for name, rows in ROWS.items()}
    assert wanted_hashes(manifest_of(chosen)) == hashes


def test_given_folders_are_seen_through_links_to_the_runs_files_only(model: Path, data: Path, tmp_path: Path) -> None:
    with Run(model, data).joined(tmp_path / "into", model, data) as files:
        assert {path.name: path.read_bytes() for path in files.model.iterdir()} == FILES
        assert {path.name: path.read_bytes() for path in files.data.iterdir()} == ROWS
        assert files.fetched is None
        assert files.hashes() == wanted_hashes(Run(model, data).manifest)
        (model / "config.json").write_bytes(b"[]")  # under the running job
        wanted = wanted_hashes(Run(model, data).manifest)
        assert files.hashes() == wanted
        assert files.hashes()["model/config.json"] == hashlib.sha256(b"[]").hexdigest()
        (model / "tokenizer.json").unlink()
        assert "model/tokenizer.json" not in files.hashes()


@pytest.mark.parametrize("where", ["model", "data"])
@pytest.mark.parametrize("how", ["other", "missing"])
def test_a_file_that_differs_is_named(model: Path, data: Path, tmp_path: Path, where: str, how: str) -> None:
    run = Run(model, data, attach_model=True, attach_data=True)
    path = model / "model-00002-of-00002.safetensors" if where == "model" else data / "valid.jsonl"
    if how == "missing":
        path.unlink()
        words = f"{path.parent} holds no {path.name}, which run ft was made with"
    else:
        path.write_bytes(path.read_bytes()[::-1])
        words = f"{path} is not the {path.name} that run ft was made with: its hash differs"
    with pytest.raises(DataMissing) as caught, run.joined(tmp_path / "into", model, data):
        pass
    assert str(caught.value) == words


def test_what_is_attached_is_fetched_once(model: Path, data: Path, tmp_path: Path) -> None:
    run = Run(model, data, attach_model=True, attach_data=True)
    assert {file.name: file.kind for file in run.manifest.files} == dict.fromkeys(FILES, "model") | dict.fromkeys(ROWS, "data")
    with run.joined(tmp_path / "into") as files:
        assert {path.name: path.read_bytes() for path in files.model.iterdir()} == FILES
        assert files.hashes() == wanted_hashes(run.manifest)
        assert files.fetched is not None
        assert {path.name for path in files.fetched.iterdir()} == set(FILES)
        assert files.fetched != files.model
    run.events.clear()
    with run.joined(tmp_path / "again"):
        pass
    assert {event.how for event in run.events if isinstance(event, Transfer)} <= {"have"}


def test_a_model_that_is_given_is_not_fetched(model: Path, data: Path, tmp_path: Path) -> None:
    run = Run(model, data, attach_model=True, attach_data=True)
    run.events.clear()
    with run.joined(tmp_path / "into", model) as files:
        assert files.fetched is None
    fetched = {event.file for event in run.events if isinstance(event, Transfer)}
    assert fetched == set(ROWS)


def test_what_is_nowhere_is_named_with_what_to_do(model: Path, data: Path, tmp_path: Path) -> None:
    run = Run(model, data)
    with pytest.raises(DataMissing) as caught, run.joined(tmp_path / "into", None, data):
        pass
    advice = "pass the base model base with --model, a folder or a Hugging Face repository"
    assert str(caught.value) == f"config.json of run ft is not on this machine, nor attached to it: {advice}"
    with (
        pytest.raises(DataMissing, match=r"train\.jsonl of run ft .* pass its folder with --data"),
        run.joined(tmp_path / "b", model),
    ):
        pass


def test_big_data_is_attached_on_request_only(model: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "ATTACHED_BYTES", 3)
    chosen, told = choose(str(model), str(data), emit=silent), list[WorkerEvent]()
    for asked, count in ((None, 0), (True, 2), (False, 0)):
        attaching = attach_chosen(MemoryMailbox(MemoryStore()), "testrun1", chosen, model=False, data=asked, emit=told.append)
        assert len(asyncio.run(attaching)) == count
    assert ["--attach" in event.message for event in told if isinstance(event, Trouble)] == [True]


def test_a_file_that_changes_while_the_run_is_made(model: Path, data: Path) -> None:
    chosen = choose(str(model), str(data), emit=silent)
    (data / "train.jsonl").write_bytes(b"{}\n")
    attaching = attach_chosen(MemoryMailbox(MemoryStore()), "testrun1", chosen, model=False, data=True, emit=silent)
    with pytest.raises(FileChanged, match=r"train\.jsonl changed while the run was made"):
        asyncio.run(attaching)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model, data: (model / "config.json").unlink(), "is no model's folder: it lacks config.json or model"),
        (lambda model, data: [path.unlink() for path in model.glob("*.safetensors")], "is no model's folder"),
        (lambda model, data: (data / "train.jsonl").unlink(), "holds no train.jsonl"),
    ],
)
def test_what_no_run_can_be_made_of(model: Path, data: Path, change: object, words: str) -> None:
    change(model, data)  # type: ignore[operator]
    with pytest.raises(UsageError) as caught:
        choose(str(model), str(data), emit=silent)
    assert words in str(caught.value)


def test_what_is_neither_a_folder_nor_a_repository(data: Path, tmp_path: Path) -> None:
    for given in (str(tmp_path / "nowhere"), "a/b/c", "../x", "a b"):
        with pytest.raises(UsageError, match="is no folder, nor the name of a Hugging Face repository"):
            choose(given, str(data), emit=silent)


def test_a_hash_is_computed_once_for_a_link_and_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = folder(tmp_path / "f", {"a": b"1"})
    link = linked(tmp_path / "links", {"b": files / "a"}) / "b"
    digests, real, counted = Digests(), hashlib.sha256, list[int]()

    def counting(*data: bytes) -> object:
        counted.append(1)
        return real(*data)

    monkeypatch.setattr(model_files.hashlib, "sha256", counting)
    assert digests.of(files / "a") == digests.of(link) == (real(b"1").hexdigest(), 1)
    assert len(counted) == 1
    (files / "a").write_bytes(b"22")
    assert digests.of(link) == (real(b"22").hexdigest(), 2)


def test_links_are_replaced_as_a_whole(tmp_path: Path) -> None:
    files = folder(tmp_path / "f", {"a": b"1", "b": b"2"})
    linked(tmp_path / "links", {"a": files / "a"})
    assert [path.name for path in linked(tmp_path / "links", {"b": files / "b"}).iterdir()] == ["b"]
    assert (files / "a").exists()


# The Hugging Face cache

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds org/tiny, as its library lays it out; nothing can be downloaded."""
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    cache = tmp_path / "hf" / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = cache / "models--org--tiny"
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    folder(repository / "blobs", {hashlib.sha256(data).hexdigest(): data for data in FILES.values()})
    for name, content in FILES.items():
        (snapshot / name).symlink_to(Path("../../blobs") / hashlib.sha256(content).hexdigest())
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(REVISION)
    return snapshot


def test_a_repository_in_the_cache_is_named_with_its_revision_and_found_by_who_joins(
    hub: Path, data: Path, tmp_path: Path
) -> None:
    run = Run("org/tiny", data, attach_data=True)
    assert (run.chosen.model.name, run.chosen.model.revision) == ("org/tiny", REVISION)
    run.events.clear()
    with run.joined(tmp_path / "into") as files:
        assert {path.name: path.read_bytes() for path in files.model.iterdir()} == FILES
        assert files.fetched is None
    assert {event.file for event in run.events if isinstance(event, Transfer)} == set(ROWS)


@pytest.mark.parametrize("attached", [True, False])
def test_a_cached_file_that_differs_is_no_match(hub: Path, data: Path, tmp_path: Path, attached: bool) -> None:
    run = Run("org/tiny", data, attach_model=attached, attach_data=True)
    blob = (hub / "tokenizer.json").resolve()
    blob.write_bytes(b"{}")
    if attached:
        with run.joined(tmp_path / "into") as files:
            assert (files.model / "tokenizer.json").read_bytes() == FILES["tokenizer.json"]
            assert files.fetched is None
    else:
        with (
            pytest.raises(DataMissing, match=r"tokenizer\.json of run ft .* base model org/tiny"),
            run.joined(tmp_path / "into"),
        ):
            pass


def test_a_repository_that_cannot_be_downloaded(hub: Path, data: Path) -> None:
    with pytest.raises(UsageError, match="org/other is no folder here, and cannot be downloaded"):
        choose("org/other", str(data), emit=silent)
