"""Where a run's parameters are written to, as one file or as a folder that other tools read."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from swarm.core.errors import UsageError
from swarm.core.manifest import Manifest
from swarm.tasks import registry
from swarm.tasks.contract import Exporter


def place_of(manifest: Manifest, file: str) -> tuple[Path, dict[Path, bytes]]:
    """The parameters' file, and what is to be written beside it: in a folder, if `file` is one or ends as one and the task has
    such a thing. Raises UsageError, TaskUnknown."""
    target = Path(file)
    if not (target.is_dir() or file.endswith(("/", os.sep))):
        return target, {}
    task = None if manifest.task.name == registry.LIBRARY else registry.get(manifest.task.name)
    if not isinstance(task, Exporter):
        raise UsageError(f"{file} is a folder: run {manifest.name} is written to one file")
    name, files = task.exported(manifest.task.options, model=manifest.model)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {target}: {error.strerror or error}") from error
    return target / name, {target / other: data for other, data in files.items()}


def write_whole(target: Path, chunks: Iterable[bytes | bytearray | memoryview]) -> None:
    """The file as a whole or not at all. Raises UsageError."""
    staged = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with staged.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(target)
    except OSError as error:
        staged.unlink(missing_ok=True)
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from error
