"""The rows that are learned and evaluated on: files of one folder, known by their content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from swarm.core.errors import DataMissing, UsageError
from swarm.core.manifest import DataRef

PARTS = ("train.jsonl", "valid.jsonl", "test.jsonl")
UNLEARNED = -1  # a target that is none: of a prompt, or of padding
WHAT_DATA_IS = "a folder with train.jsonl and valid.jsonl"


def describe(path: Path | None) -> list[DataRef]:
    """What is in a folder. Raises UsageError."""
    if path is None:
        raise UsageError(f"task lora brings no data along: pass {WHAT_DATA_IS} with --data")
    if not path.is_dir():
        raise UsageError(f"{path} is no folder: the data of task lora is {WHAT_DATA_IS}")
    try:
        refs = [_ref(path / part) for part in PARTS if (path / part).is_file()]
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    for part in PARTS[:2]:
        if part not in {ref.name for ref in refs}:
            raise UsageError(f"{path} holds no {part}: the data of task lora is {WHAT_DATA_IS}")
    return refs


def load(wanted: list[DataRef], path: Path | None, *, private: bool) -> Path | None:
    """The folder `path`, in which the files `wanted` are; None if there is nothing to be read. What else is in it is read of a
    private client only. Raises DataMissing, UsageError."""
    for ref in wanted:
        if ref.name not in PARTS:
            raise UsageError(f"task lora trains on {', '.join(PARTS)}, and the run names {ref.name!r}")
        advice = f"pass the run's folder with --data; the file's SHA-256 starts with {ref.sha256[:12]}"
        if path is None:
            raise DataMissing(f"the run trains on {ref.name}: {advice}")
        try:
            found = _ref(path / ref.name)
        except OSError as error:
            raise DataMissing(f"cannot read {path / ref.name}: {error.strerror or error}; {advice}") from error
        if found != ref:
            raise DataMissing(f"{path / ref.name} is not the one that the run was made with: {advice}")
    return path if wanted or private else None


def _ref(path: Path) -> DataRef:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
        return DataRef(name=path.name, sha256=digest.hexdigest(), size_bytes=file.tell())
