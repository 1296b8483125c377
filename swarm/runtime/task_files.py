"""The files that a task is built with on this machine: its data and, for one that fine-tunes a model, that model; of a run that
is made here, and of one that is joined."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from swarm.core.errors import DataMissing, UsageError
from swarm.core.events import Trouble
from swarm.core.jobs import CreateRun, Learn
from swarm.core.manifest import DataRef, FileRef, Manifest, ModelRef
from swarm.core.specs import Algorithm, FedAvg
from swarm.files.attach import Attachment
from swarm.mailbox.contract import Mailbox
from swarm.runtime.attached import Emit, attach_patiently, chosen, task_data
from swarm.runtime.model_files import ROWS, Chosen, Digests, attach_chosen, choose, gathered, linked
from swarm.tasks import registry
from swarm.tasks.contract import Task

TRAIN, VALID = ROWS[:2]


@dataclass(frozen=True)
class NewFiles:
    """What a new run is made with: hashed, and not attached yet."""

    data: tuple[DataRef, ...]  # as the manifest names it: of private data it says nothing
    model: ModelRef | None
    path: Path | None  # of the data on this machine
    file: Attachment | None  # to be attached: of a task without a model
    chosen: Chosen | None  # of one with a model
    unseen: bool = False  # nothing is there that every learner may be evaluated on

    @contextlib.contextmanager
    def seen(self) -> Iterator[tuple[Path | None, Path | None]]:
        """(data, model) for the task to be built with, for the time of the block. Raises DataMissing."""
        if self.chosen is None:
            yield self.path, None
            return
        with TemporaryDirectory(prefix="swarm-") as into:
            model = linked(Path(into, "model"), {ref.name: self.chosen.paths[ref] for ref in self.chosen.model.files})
            shared = {ref.name: self.chosen.paths[ref] for ref in self.data}
            if self.path is None or TRAIN in shared:
                yield self.path, model
            else:
                yield linked(Path(into, "data"), shared | {TRAIN: _own(self.path)}), model

    async def attached(self, mailbox: Mailbox, create: CreateRun, emit: Emit) -> tuple[FileRef, ...]:
        """Write into the mailbox what is to be attached, for as long as that takes. Raises UsageError, FileChanged."""
        if self.chosen is not None:
            return await attach_chosen(
                mailbox, create.run, self.chosen, model=create.attach_model, data=create.attach, emit=emit
            )
        return () if self.file is None else (await attach_patiently(mailbox, create.run, self.file, emit),)


def new_files(task: Task, create: CreateRun, order: Learn, emit: Emit) -> NewFiles:
    """Raises UsageError, DataMissing, FileChanged."""
    path, private = Path(order.data) if order.data else None, _private(create.algorithm)
    if registry.takes_model(task):
        if order.model is None:
            raise UsageError(
                f"task {task.name} fine-tunes a model: pass it with --model, a folder or a Hugging Face repository"
            )
        if path is None and not private:
            task.data(None)  # says what it needs
        found = choose(order.model, None if private else order.data, emit=emit)
        if private and path is not None and create.attach:
            found = _shared(found, path)
        unseen = not any(ref.name == VALID for ref in found.rows)
        if unseen and not private:
            raise UsageError(f"{path} holds no {VALID}: without it there are no rows to evaluate on")
        if unseen and create.eval_every:
            emit(
                Trouble(
                    message="nothing is evaluated, since the clients' rows are nobody else's business; "
                    f"--attach puts the {VALID} of --data into the run, for all"
                )
            )
        return NewFiles(found.rows, found.model, path, None, found, unseen)
    if order.model is not None or create.attach_model:
        raise UsageError(f"task {task.name} fine-tunes no model that is given to it: leave --model out")
    data = tuple(task.data(None if private else path))
    file = None if path is None or private or _shipped(task, data) else chosen(path, data, wanted=create.attach, emit=emit)
    return NewFiles(data, None, path, file, None)


@contextlib.contextmanager
def joined_files(
    mailbox: Mailbox, manifest: Manifest, *, data: str | None, model: str | None, emit: Emit
) -> Iterator[tuple[Path | None, Path | None]]:
    """(data, model) for a run's task to be built with, for the time of the block: what a person gave, else what is found here,
    else what is attached. Raises DataMissing, which names what is missing or differs, UsageError, FileRefused,
    CacheUnusable."""
    if manifest.model is None:
        if model is not None:
            raise UsageError(f"run {manifest.name} fine-tunes no model that is given to it: leave --model out")
        with task_data(mailbox, manifest, data, emit) as path:
            yield path, None
        return
    private = _private(manifest.algorithm)
    with (
        TemporaryDirectory(prefix="swarm-") as into,
        gathered(mailbox, manifest, model=model, data=None if private else data, into=Path(into), emit=emit) as found,
    ):
        if private and data is not None:
            (found.data / TRAIN).symlink_to(_own(Path(data)))
        yield found.data if manifest.task.data or private else None, found.model


def to_write_with(manifest: Manifest) -> Manifest:
    """`manifest` as it is joined to write only: a model that is given needs no data for that."""
    if manifest.model is None:
        return manifest
    return msgspec.structs.replace(manifest, task=msgspec.structs.replace(manifest.task, data=()))


def _private(algorithm: Algorithm) -> bool:
    return isinstance(algorithm, FedAvg) and algorithm.private


def _own(folder: Path) -> Path:
    """A private client's rows to train on. Raises DataMissing."""
    if not (folder / TRAIN).is_file():
        raise DataMissing(f"{folder} holds no {TRAIN}: a private client's data is a folder with rows to train on")
    return (folder / TRAIN).absolute()


def _shared(found: Chosen, folder: Path) -> Chosen:
    """With the rows that all evaluate on, though those to train on are private. Raises UsageError."""
    path = folder / VALID
    try:
        sha256, size = Digests().of(path)
    except OSError as error:
        raise UsageError(f"--attach puts {path} into the run, for all to evaluate on: {error.strerror or error}") from error
    ref = DataRef(name=VALID, sha256=sha256, size_bytes=size)
    return found._replace(rows=(ref,), paths={**found.paths, ref: path})


def _shipped(task: Task, data: tuple[DataRef, ...]) -> bool:
    """Whether it is the data that comes with swarm, and so is everywhere."""
    with contextlib.suppress(DataMissing):
        return [(ref.sha256, ref.size_bytes) for ref in task.data(None)] == [(ref.sha256, ref.size_bytes) for ref in data]
    return False
