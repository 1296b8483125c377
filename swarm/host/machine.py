"""What this machine is, as far as training asks for it."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import sys
from pathlib import Path
from uuid import uuid4

import psutil

from swarm import __version__
from swarm.core.diagnosis import Machine
from swarm.host.paths import state_dir


def machine() -> Machine:
    memory = psutil.virtual_memory()
    folder = state_dir()
    there = _nearest(folder)
    return Machine(
        platform=sys.platform,
        system=_system(),
        python=platform.python_version(),
        version=__version__,
        cpus=os.cpu_count() or 1,
        memory_bytes=memory.total,
        free_memory_bytes=memory.available,
        state_dir=str(folder),
        state_problem=_obstacle(there),
        state_free_bytes=_free_bytes(there),
    )


def used_bytes(pid: int) -> int | None:
    """Memory that a process and those that it started have; None if it is gone."""
    try:
        process = psutil.Process(pid)
        return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
    except psutil.Error:
        return None


def has_nvidia() -> bool:
    """Whether a driver for NVIDIA's cards is loaded. Linux tells it."""
    return os.path.exists("/proc/driver/nvidia/version")


def _system() -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]} {platform.machine()}"
    return f"{platform.system()} {platform.release()} {platform.machine()}"


def _nearest(folder: Path) -> Path:
    """It, or of the folders above it the first that is there."""
    return next((each for each in (folder, *folder.parents) if each.is_dir()), Path("/"))


def _obstacle(folder: Path) -> str:
    """Why no file can be made there, in words; "": one was made, and is gone again."""
    path = folder / f".swarm-{uuid4().hex}"
    try:
        with path.open("xb") as file:
            file.write(b"x")
    except OSError as error:
        return error.strerror or str(error)
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return ""


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 0
