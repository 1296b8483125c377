"""What replay to the byte hangs on beside seeds: build, device and CPU threads. No framework is imported before it is named.

PyTorch shares sums out among CPU threads and rounds by the share: a small convolutional model differs after 20 steps between
one thread, two and four, and not between one core and two that run as many threads. MLX's wheel for Linux computes on one
thread with a reference BLAS: the same model has the same bytes with OMP_NUM_THREADS 1 and 2, and on one core and on two.
"""

from __future__ import annotations

import os
import sys
from itertools import zip_longest

from swarm.core.errors import UsageError
from swarm.learners.devices import cannot_honour, thread_environment


def exactness(framework: str, device: str, *, threads: int | None) -> str:
    """A short text for manifests: 'torch 2.13.0+cpu, cpu x86_64 AVX2 on Linux, 1 thread'.

    Framework 'torch' or 'mlx'. `threads`: those that were pinned, None for what the framework uses. Two machines with
    different texts may well train to different bytes; with equal ones they do not, as far as the libraries keep their
    promises (MKL chooses its kernels by the processor's vendor, too). The count is left out where nothing hangs on it. Raises
    UsageError for another framework or device, DeviceUnavailable if the device is absent here.
    """
    match framework:
        case "torch":
            from swarm.learners import torch

            return torch.build(device, threads)
        case "mlx":
            from swarm.learners import mlx

            return mlx.build(device, threads)
    raise _unknown(framework)


def on_cpu(framework: str, device: str) -> bool:
    """Whether the device chosen, 'auto' perhaps, is the CPU here. Raises as `exactness` does."""
    match framework:
        case "torch":
            from swarm.learners import torch

            return torch.on_cpu(device)
        case "mlx":
            from swarm.learners import mlx

            return mlx.on_cpu(device)
    raise _unknown(framework)


def difference(wanted: str, here: str) -> str | None:
    """A sentence that says in what `here` differs from `wanted`, both from `exactness`; None if in nothing."""
    if wanted == here:
        return None
    pairs = list(zip_longest(here.split(", "), wanted.split(", ")))
    if here.partition(" ")[0] != wanted.partition(" ")[0]:
        pairs = pairs[:1]  # of another framework, the rest means something else
    elif any(None in pair for pair in pairs):  # threads count in one of them only
        pairs = [(here, wanted)]
    return "replay is not exact here: " + ", and ".join(f"{ours} instead of {its}" for ours, its in pairs if ours != its)


def pin(framework: str, device: str, *, threads: int | None) -> str | None:
    """Make this process compute with so many CPU threads, if `threads` is given, and with deterministic kernels.

    Returns None, or a sentence that says why replay is not exact here. It changes settings of the whole process, which stay:
    call it from the thread that trains, before the model is made. Raises as `exactness` does.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be >= 1, got {threads}")
    before = dict(os.environ)
    loaded = "mlx.core" in sys.modules
    if threads is not None:
        limit = before.get("OMP_THREAD_LIMIT", "")
        if limit.isascii() and limit.isdigit() and int(limit) < threads:  # PyTorch would wait for the others for ever
            return cannot_honour(threads, f"OMP_THREAD_LIMIT is {limit}")
        os.environ.update(thread_environment(threads))
    match framework:
        case "torch":
            from swarm.learners import torch

            return torch.pin(device, threads)
        case "mlx":
            from swarm.learners import mlx

            if threads is not None and sys.platform == "darwin" and loaded:
                if before.get("VECLIB_MAXIMUM_THREADS") != str(threads):
                    return cannot_honour(threads, "MLX was loaded before they were set")
            return mlx.pin(device)
    raise _unknown(framework)


def _unknown(framework: str) -> UsageError:
    return UsageError(f"{framework!r} is no framework: torch or mlx")
