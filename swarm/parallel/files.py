"""Files that appear whole or not at all, and are on the disk when the call returns; and where checkpoints are."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from swarm.core.errors import CheckpointUnsaved
from swarm.mailbox.disk import sync, sync_folder


def written(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, and put it in its place; folders are made. Raises CheckpointUnsaved; what was
    there stays."""
    staged = path.with_name(f".{os.getpid()}-{path.name}")  # the same suffix: MLX adds one else
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(staged)
        fd = os.open(staged, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync(fd)
        finally:
            os.close(fd)
        staged.replace(path)
        sync_folder(str(path.parent))
    except (OSError, RuntimeError) as error:  # MLX's is a RuntimeError
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        words = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise CheckpointUnsaved(f"{path}: not written: {words}") from error


def checkpoint_path(folder: Path, *, generation: int, step: int) -> Path:
    return folder / f"{generation:06d}" / f"{step:010d}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """Those of all generations, oldest first."""
    return sorted(
        path
        for path in folder.glob("*/*.safetensors")
        if re.fullmatch(r"\d{6}/\d{10}\.safetensors", f"{path.parent.name}/{path.name}")
    )


def remove_checkpoints(folder: Path, *, before: int) -> None:
    """Remove those of the generations before `before`, and what these left unfinished. For whoever knows that no generation
    will begin with them any more: a rank does not."""
    for home in folder.glob("[0-9]" * 6):
        if int(home.name) < before:
            with contextlib.suppress(OSError):
                for path in home.iterdir():
                    if path.suffix == ".safetensors":
                        path.unlink()
                home.rmdir()
