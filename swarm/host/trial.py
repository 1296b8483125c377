"""A framework tried in a process of its own, which may crash or hang without harm."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Sequence
from importlib import metadata
from typing import IO, Any

from swarm.core.diagnosis import Tried, TriedDevice
from swarm.host.children import ending, python

KEPT = 200  # lines of what it says
LINE = 2000  # characters of one


def tried(framework: str, *, limit_s: float, command: Sequence[str] | None = None) -> Tried:
    """Blocks for `limit_s` at most; what is not done then is killed, and not waited for: a driver may keep it for ever.

    `command`: what to run; None: swarm/learners/tryout.py.
    """
    try:
        process = subprocess.Popen(
            command or python("swarm.learners.tryout", framework),
            stdin=subprocess.PIPE,  # it ends with this process: it sees the end of its input
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Tried(framework=framework, version=version(framework), error=f"cannot be started: {error}")
    said, complaints = _Lines(process.stdout), _Lines(process.stderr)
    said.join(limit_s)
    hangs = said.is_alive()
    if hangs:
        process.kill()
    code: int | None = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(0.5)
    complaints.join(0.5)
    done, devices, begun = _read(said.lines)
    why = ""
    if not hangs and not done:
        last = next((line for line in reversed(complaints.lines) if line.strip()), "")
        why = f"the process {ending(code) if code is not None else 'ended'}" + (f": {last.strip()}" if last else "")
    return Tried(
        framework=framework,
        version=version(framework),
        devices=tuple(devices),
        error=why,
        hangs_at=begun if hangs and not done else None,
        limit_s=limit_s,
    )


def version(distribution: str) -> str:
    """Of an installed package; "" if it is not installed."""
    try:
        return metadata.version(distribution)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


class _Lines(threading.Thread):
    """Reads a stream to its end. Nobody waits for it when this process ends."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        super().__init__(name="trial", daemon=True)
        self._stream, self.lines = stream, list[str]()
        self.start()

    def run(self) -> None:
        if self._stream is not None:
            for line in iter(lambda: self._stream.readline(LINE), b""):  # type: ignore[union-attr]
                self.lines = [*self.lines[-KEPT:], line.decode(errors="replace")]


def _read(lines: Sequence[str]) -> tuple[bool, list[TriedDevice], str]:
    """(whether it came to its end, the devices it was done with, what it has begun and not ended)"""
    done, devices, begun = False, list[TriedDevice](), ""
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            told: dict[str, Any] = json.loads(line)
            if "begins" in told:
                begun = str(told["begins"])
            elif "done" in told:
                done = True
            elif "name" in told:
                found = TriedDevice(
                    name=str(told["name"]),
                    what=str(told["what"]),
                    memory_bytes=int(told["memory_bytes"]),
                    took_ms=float(told["took_ms"]),
                    error=str(told["error"]),
                )
                devices.append(found)
    return done, devices, begun
