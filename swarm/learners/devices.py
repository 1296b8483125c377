"""Which framework, device and CPU threads to train on, decided before any framework is imported."""

from __future__ import annotations

import importlib.util
import platform
import re
import sys
from collections.abc import Sequence
from typing import Any

from swarm.core.errors import DeviceUnavailable, UsageError
from swarm.host.accelerators import Card

_MODULES = {"torch": "torch", "mlx": "mlx.core"}  # the package mlx alone may lack its backend
_NEEDS = {"mps": "torch", "cuda": "torch", "metal": "mlx"}
_DEVICE = re.compile(r"auto|cpu|mps|metal|cuda(?::\d+)?", re.ASCII)


_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def thread_environment(threads: int) -> dict[str, str]:
    """The environment in which libraries that are loaded later compute with so many CPU threads."""
    # Of fewer threads than it asked for, which a dynamic count allows, PyTorch waits for the others for ever.
    return dict.fromkeys(_THREADS, str(threads)) | {"OMP_DYNAMIC": "FALSE"}


def cannot_honour(threads: int, why: str) -> str:
    """A sentence on a thread count that does not hold in this process."""
    count = f"{threads} thread{'s' if threads > 1 else ''}"
    return f"this machine cannot honour {count}: {why}, so replay is not exact here"


def installed_frameworks() -> tuple[str, ...]:
    """Those of 'torch' and 'mlx' that could be imported here, found without importing them."""
    return tuple(name for name, module in _MODULES.items() if _found(module))


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # the parent package is missing, or is set to None in sys.modules
        return False


def on_apple_silicon() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def resolve(
    framework: str,
    device: str,
    offered: Sequence[str],
    *,
    installed: Sequence[str] | None = None,
    apple_silicon: bool | None = None,
) -> tuple[str, str]:
    """(framework, device) to train on: framework 'auto', 'torch' or 'mlx', device 'auto', 'cpu', 'mps', 'cuda',
    'cuda:N' or 'metal'.

    `offered` are the task's frameworks. metal implies mlx, mps and cuda imply torch; otherwise 'auto' prefers mlx on
    Apple silicon and torch elsewhere, of those offered and installed. The device is returned as given: whether it is
    present, only its framework can tell (`device` in learners/torch.py and learners/mlx.py). Raises UsageError for
    what does not fit together or is not installed, DeviceUnavailable for a device that no machine of this kind has.
    `installed` and `apple_silicon`: of this machine, unless given.
    """
    installed = installed_frameworks() if installed is None else installed
    apple_silicon = on_apple_silicon() if apple_silicon is None else apple_silicon
    if framework not in ("auto", *_MODULES):
        raise UsageError(f"{framework!r} is no framework: auto, torch or mlx")
    if not _DEVICE.fullmatch(device):
        raise UsageError(f"{device!r} is no device: auto, cpu, mps, metal, cuda or cuda:N")
    kind = device.partition(":")[0]
    if kind in ("mps", "metal") and not apple_silicon:
        raise DeviceUnavailable(f"device {device} is absent: it needs a Mac with Apple silicon")
    needed = _NEEDS.get(kind)
    if needed and framework not in ("auto", needed):
        raise UsageError(f"device {device} needs framework {needed}, not {framework}")
    if needed or framework != "auto":
        chosen = needed or framework
        if chosen not in offered:
            raise UsageError(f"the task has no model for {chosen}: it offers {', '.join(offered)}")
        if chosen not in installed:
            raise UsageError(f"{chosen} is not installed here: pip install 'homeswarm[{chosen}]'")
        return chosen, device
    preference = ("mlx", "torch") if apple_silicon else ("torch", "mlx")
    for candidate in preference:
        if candidate in offered and candidate in installed:
            return candidate, device
    wanted = [name for name in preference if name in offered]
    extra = "train" if len(wanted) > 1 else wanted[0] if wanted else ""
    if not extra:
        raise UsageError(f"the task offers no framework of torch and mlx, only: {', '.join(offered) or 'none'}")
    raise UsageError(f"{' or '.join(wanted)} is not installed here: pip install 'homeswarm[{extra}]'")


def cards_of(framework: str, device: str) -> tuple[Card, ...]:
    """NVIDIA's cards of a `device` that was chosen, or of several, such as 'cuda:0+cuda:1', as the framework that is loaded
    tells of them; () for another device. One that is not told of has neither id nor memory."""
    numbers = [each.partition(":")[2] or "0" for each in device.split("+") if each.partition(":")[0] == "cuda"]
    return tuple(_card(framework, int(number)) for number in numbers)


def _card(framework: str, number: int) -> Card:
    loaded: Any = sys.modules.get(_MODULES.get(framework, ""))
    try:
        if framework == "torch":
            told = loaded.cuda.get_device_properties(number)
            uuid, memory_bytes = str(getattr(told, "uuid", "")), int(told.total_memory)
        else:
            info = loaded.device_info()
            uuid, memory_bytes = str(info.get("uuid", "")), int(info.get("total_memory", 0))
    except Exception:  # whatever a driver, or a version, has to say
        return Card("", 0)
    return Card(f"GPU-{uuid.removeprefix('GPU-')}" if uuid else "", memory_bytes)
