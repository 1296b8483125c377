"""What no program can do without: copying, hashing, writing and reading the bytes once."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np

from swarm.bench.options import Options

CHUNK_BYTES = 1 << 20


def cpu_s(work: Callable[[], object], *, repeats: int = 5) -> float:
    """The least CPU time, of all threads, that `work` took."""
    best = float("inf")
    for _ in range(repeats):
        started_s = time.process_time()
        work()
        best = min(best, time.process_time() - started_s)
    return best


def limits(options: Options) -> dict[str, float]:
    """CPU seconds for as many bytes as the F32 parameters have."""
    size = sum(int(np.prod(shape)) for shape in options.shapes.values())
    data = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    other = np.zeros_like(data)
    raw, into = data.view(np.uint8).data, other.view(np.uint8).data
    path = Path(options.folder) / f"limit-{uuid4().hex}"

    def sha256() -> None:
        sha = hashlib.sha256()
        for start in range(0, len(raw), CHUNK_BYTES):
            sha.update(raw[start : start + CHUNK_BYTES])

    def write() -> None:
        path.unlink(missing_ok=True)
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(raw), CHUNK_BYTES):
                file.write(raw[start : start + CHUNK_BYTES])
            os.fsync(file.fileno())

    def read() -> None:
        with path.open("rb", buffering=0) as file:
            for start in range(0, len(raw), 8 * CHUNK_BYTES):
                file.readinto(into[start : start + 8 * CHUNK_BYTES])

    try:
        found = {
            "size_bytes": float(len(raw)),
            "memcpy_s": cpu_s(lambda: np.copyto(other, data)),
            "sha256_s": cpu_s(sha256),
            "write_s": cpu_s(write),
            "read_s": cpu_s(read),
        }
    finally:
        path.unlink(missing_ok=True)
    # One hash and write per delta; the closer reads and hashes two, passes five times over memory, hashes and writes two;
    # one follower reads and hashes; both apply.
    hashed, written = found["sha256_s"], found["write_s"]
    found["floor_s"] = (
        2 * (hashed + written)
        + 2 * (found["read_s"] + hashed)
        + 5 * found["memcpy_s"]
        + 2 * (hashed + written)
        + (found["read_s"] + hashed)
        + 2 * found["memcpy_s"]
    )
    return found
