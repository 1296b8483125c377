"""The base model and the rows that a run fine-tunes with, as its machines meet them: who creates it names them by their
content, who joins finds them here (a folder, the Hugging Face cache) or has what is attached fetched. All are seen through a
folder of links, which holds the run's files and no others."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple

from swarm.core.errors import DataMissing, FileChanged, FileRefused, UsageError
from swarm.core.events import Building, Trouble, WorkerEvent
from swarm.core.manifest import DataRef, FileRef, Manifest, ModelRef
from swarm.core.sentences import amount
from swarm.files.attach import describe
from swarm.files.cache import Cache
from swarm.mailbox.contract import Mailbox
from swarm.runtime.attached import ATTACHED_BYTES, attach_patiently, fetch_patiently

ROWS = ("train.jsonl", "valid.jsonl", "test.jsonl")
PATTERNS = (
    "*.json",
    "model*.safetensors",
    "*.jinja",
    "*.model",
    "*.tiktoken",
    "*.txt",
)  # what MLX-LM reads of a model's folder
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?")
PART_BYTES = 8 << 20

Emit = Callable[[WorkerEvent], None]


class Chosen(NamedTuple):
    """What a new run is made with."""

    model: ModelRef
    rows: tuple[DataRef, ...]
    paths: dict[DataRef, Path]


class Digests:
    """SHA-256 of files. One that has not changed since is not read again."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, int, int, int], str]] = {}

    def of(self, path: Path) -> tuple[str, int]:
        """(SHA-256, bytes). Raises OSError, FileChanged."""
        path = path.resolve()  # a link, as the Hugging Face cache holds them, and its file are read once
        with path.open("rb", buffering=0) as file:
            before = _state(os.fstat(file.fileno()))
            known = self._known.get(path)
            if known is None or known[0] != before:
                hashed, part = hashlib.sha256(), memoryview(bytearray(PART_BYTES))
                while count := file.readinto(part):
                    hashed.update(part[:count])
                if _state(os.fstat(file.fileno())) != before:
                    raise FileChanged(f"{path} changed while it was read")
                known = self._known[path] = (before, hashed.hexdigest())
            return known[1], before[2]


class Gathered:
    """A run's base model and rows on this machine."""

    def __init__(self, model: Path, data: Path, digests: Digests, *, fetched: Path | None = None) -> None:
        """`fetched`: where the base model stays, if all of it came with the run."""
        self.model, self.data, self.fetched, self._digests = model, data, fetched, digests

    def hashes(self) -> dict[str, str]:
        """SHA-256 by file, `model/config.json` or `data/train.jsonl`, as they are now; what cannot be read is left out."""
        found = {}
        for what, folder in (("model", self.model), ("data", self.data)):
            for path in sorted(folder.iterdir()):
                with contextlib.suppress(OSError, FileChanged):
                    found[f"{what}/{path.name}"] = self._digests.of(path)[0]
        return found


def wanted_hashes(manifest: Manifest) -> dict[str, str]:
    """As Gathered.hashes has them, of the run."""
    files = () if manifest.model is None else manifest.model.files
    model = {f"model/{ref.name}": ref.sha256 for ref in files}
    return model | {f"data/{ref.name}": ref.sha256 for ref in manifest.task.data}


def choose(model: str, data: str | None, *, emit: Emit) -> Chosen:
    """The base model, a folder or a Hugging Face repository, and the folder of rows, for a new run; None: of these its manifest
    says nothing. Raises UsageError."""
    folder, revision = _model_folder(model, emit)
    names = sorted({path.name for pattern in PATTERNS for path in folder.glob(pattern) if path.is_file()})
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise UsageError(f"{folder} is no model's folder: it lacks config.json or model*.safetensors")
    digests, rows = Digests(), Path(data or "")
    here = [] if data is None else [name for name in ROWS if (rows / name).is_file()]
    if data is not None and ROWS[0] not in here:
        raise UsageError(f"{rows} holds no {ROWS[0]}: the data of a fine-tuning is a folder with train, valid and test.jsonl")
    emit(Building(what=f"{amount(sum((folder / name).stat().st_size for name in names))} of base model, to know it again"))
    paths = {_ref(folder / name, digests): folder / name for name in names}
    files = tuple(paths)
    paths |= {_ref(rows / name, digests): rows / name for name in here}
    try:
        ref = ModelRef(name=model if revision else folder.resolve().name, revision=revision, files=files)
    except ValueError as error:
        raise UsageError(f"{model}: {error}") from error
    return Chosen(ref, tuple(paths)[len(files) :], paths)


async def attach_chosen(
    mailbox: Mailbox, run: str, chosen: Chosen, *, model: bool, data: bool | None, emit: Emit
) -> tuple[FileRef, ...]:
    """Put the rows, and the model if it is wanted, into the mailbox; returns what the manifest is to name. `data` None: if they
    are small enough. Raises UsageError for what cannot be attached, FileChanged."""
    size = sum(ref.size_bytes for ref in chosen.rows)
    if data is None and size >= ATTACHED_BYTES:
        emit(Trouble(message=f"the data, {amount(size)}, is not attached without --attach: who joins passes it with --data"))
    refs = [*(chosen.rows if data or (data is None and size < ATTACHED_BYTES) else ()), *(chosen.model.files if model else ())]
    found = []
    for ref in refs:
        kind: Literal["data", "model"] = "data" if ref in chosen.rows else "model"
        try:
            file = describe(chosen.paths[ref], kind=kind)
        except FileRefused as error:
            raise UsageError(f"not attached: {error}") from error
        if file.ref.sha256 != ref.sha256:
            raise FileChanged(f"{chosen.paths[ref]} changed while the run was made")
        found.append(await attach_patiently(mailbox, run, file, emit))
    return tuple(found)


@contextlib.contextmanager
def gathered(
    mailbox: Mailbox, manifest: Manifest, *, model: str | None, data: str | None, into: Path, emit: Emit
) -> Iterator[Gathered]:
    """The run's base model and rows, verified, below the folder `into`. `model`, `data`: where a person says they are on this
    machine. Raises DataMissing with what is missing or differs and what to do, UsageError, CacheUnusable."""
    assert manifest.model is not None
    digests = Digests()
    with ExitStack() as stack:
        cache = stack.enter_context(Cache())
        find = _Finder(mailbox, manifest, cache, digests, emit)
        given = None if model is None else _model_folder(model, emit)[0]
        named = {ref: _in_hub(manifest.model, ref.name) for ref in manifest.model.files} if given is None else {}
        advice = f"pass the base model {manifest.model.name} with --model, a folder or a Hugging Face repository"
        found = {ref: find.file(ref, "model", given, named.get(ref), advice) for ref in manifest.model.files}
        models = linked(into / "model", {ref.name: path for ref, path in found.items()})
        advice = "pass its folder with --data"
        rows = None if data is None else Path(data)
        found = {ref: find.file(ref, "data", rows, None, advice) for ref in manifest.task.data}
        links = linked(into / "data", {ref.name: path for ref, path in found.items()})
        files = Gathered(models, links, digests, fetched=find.kept(manifest.model))
        files.hashes()  # of what was fetched, too: from here on only what has changed is read again, beside a beating heart
        yield files


class _Finder:
    def __init__(self, mailbox: Mailbox, manifest: Manifest, cache: Cache, digests: Digests, emit: Emit) -> None:
        self._mailbox, self._manifest, self._cache, self._digests, self._emit = mailbox, manifest, cache, digests, emit
        self._fetched: dict[DataRef, FileRef] = {}

    def file(self, ref: DataRef, kind: Literal["data", "model"], folder: Path | None, known: Path | None, advice: str) -> Path:
        """Where it is: in `folder`, which a person named, at `known`, which may be another one, or attached to the run."""
        if folder is not None:
            path = folder / ref.name
            try:
                if self._digests.of(path) == (ref.sha256, ref.size_bytes):
                    return path.absolute()
            except FileNotFoundError:
                raise DataMissing(f"{folder} holds no {ref.name}, which run {self._manifest.name} was made with") from None
            except OSError as error:
                raise DataMissing(f"{path} cannot be read: {error.strerror}") from error
            raise DataMissing(f"{path} is not the {ref.name} that run {self._manifest.name} was made with: its hash differs")
        with contextlib.suppress(OSError, FileChanged):
            if known is not None and self._digests.of(known) == (ref.sha256, ref.size_bytes):
                return known
        files = (f for f in self._manifest.files if f.kind == kind and (f.sha256, f.name) == (ref.sha256, ref.name))
        attached = next(files, None)
        if attached is None:
            raise DataMissing(f"{ref.name} of run {self._manifest.name} is not on this machine, nor attached to it: {advice}")
        self._fetched[ref] = attached
        return asyncio.run(fetch_patiently(self._mailbox, self._manifest.run, attached, self._cache, self._emit))

    def kept(self, model: ModelRef) -> Path | None:
        """A folder of the cache with the whole model, if all of it was fetched."""
        files = [self._fetched[ref] for ref in model.files if ref in self._fetched]
        return self._cache.folder(tuple(files)) if len(files) == len(model.files) else None


def _model_folder(given: str, emit: Emit) -> tuple[Path, str]:
    """(the folder of a base model, its revision). A repository that is not in the Hugging Face cache is downloaded into it: a
    person named it, no mailbox did. Raises UsageError."""
    folder = Path(given).expanduser()
    if folder.is_dir():
        return folder, ""
    if folder.is_absolute() or not REPOSITORY.fullmatch(given):
        raise UsageError(f"{given} is no folder, nor the name of a Hugging Face repository")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UsageError(f"{given} is no folder here, and Hugging Face's library is not installed: homeswarm[mlx-lm]") from None
    try:
        with contextlib.suppress(Exception):
            path = Path(snapshot_download(given, allow_patterns=list(PATTERNS), local_files_only=True))
            if (path / "config.json").is_file():
                return path, path.name
        emit(Building(what=f"{given}, which is downloaded from Hugging Face"))
        path = Path(snapshot_download(given, allow_patterns=list(PATTERNS)))
    except Exception as error:  # of networks and of accounts, anything
        words = " ".join(str(error).split())
        raise UsageError(f"{given} is no folder here, and cannot be downloaded: {words:.200}") from error
    return path, path.name


def _in_hub(model: ModelRef, name: str) -> Path | None:
    """A file of the repository at that revision, if it is in the Hugging Face cache."""
    if not model.revision or not REPOSITORY.fullmatch(model.name):
        return None
    with contextlib.suppress(Exception):
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(model.name, name, revision=model.revision)
        return Path(found) if isinstance(found, str) else None
    return None


def _ref(path: Path, digests: Digests) -> DataRef:
    try:
        sha256, size = digests.of(path)
        return DataRef(name=path.name, sha256=sha256, size_bytes=size)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be used: {error}") from error


def linked(folder: Path, paths: Mapping[str, Path]) -> Path:
    """A folder that holds links to these files, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, path in paths.items():
        (folder / name).symlink_to(path)
    return folder


def _state(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
