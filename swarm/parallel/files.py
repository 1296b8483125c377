"""Files that appear whole or not at all, and are on the disk when the call returns."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from swarm.core.errors import CheckpointUnsaved
from swarm.mailbox.disk import sync, sync_folder


def written(path: Path, write: Callable[[Path], None], *, size: int | None = None) -> None:
    """Let `write` fill a file beside `path`, and put it in its place. A Safetensors file (`size` not given) must be as long as
    its header says: MLX writes on when the disk is full, and says nothing. Raises CheckpointUnsaved; what was there stays."""
    staged = path.with_name(f".{os.getpid()}-{path.name}")  # the same suffix: MLX adds one else
    try:
        write(staged)
        _check(staged, size)
        fd = os.open(staged, os.O_RDONLY | os.O_CLOEXEC)
        try:
            sync(fd)
        finally:
            os.close(fd)
        staged.replace(path)
        sync_folder(str(path.parent))
    except (OSError, RuntimeError, ValueError) as error:
        with contextlib.suppress(OSError):
            staged.unlink(missing_ok=True)
        words = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
        raise CheckpointUnsaved(f"{path}: not written: {words}") from error


def _check(path: Path, size: int | None) -> None:
    found = path.stat().st_size
    if size is None:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > found - 8:
                raise OSError(None, "only a part of it fits on the disk")
            header = json.loads(file.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        size = 8 + length + max(ends, default=0)
    if found != size:
        raise OSError(None, f"{found} of {size} bytes are there")
