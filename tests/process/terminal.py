"""The `swarm` command as a person runs it: a real process, its output as it comes, and a guard against hanging."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from swarm.core.records import Beat
from swarm.learners.devices import installed_frameworks
from swarm.tape import Tape
from tests.integration.handmade import on

ROOT = Path(__file__).parents[2]
SABOTAGE = Path(__file__).parent / "sabotage"
BARE = os.pathsep.join([str(Path(__file__).parent / "frameworkless"), str(ROOT)])  # a PYTHONPATH without frameworks
HANG_S = 120.0  # nothing here takes so long on a machine that works, however busy it is
# MLX loads in a tenth of the time.
FRAMEWORK = ("--framework", "mlx" if "mlx" in installed_frameworks() else "torch", "--device", "cpu", "--threads", "1")
TINY = ("--task", "mlp", "--sync-every", "10", "--beat-s", "0.2", "--lease-s", "2", *FRAMEWORK)


class Command:
    """`swarm ARGV`, running."""

    def __init__(self, *argv: str, sabotage: str = "", stdout: int = subprocess.PIPE, **environment: str) -> None:
        path = os.pathsep.join([str(SABOTAGE), str(ROOT)] if sabotage else [str(ROOT)])
        self.argv = argv
        self.process = subprocess.Popen(
            [sys.executable, "-m", "swarm", *argv],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, "SABOTAGE": sabotage} | environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines), daemon=True)
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
            if stream is not None
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[bytes], lines: list[str]) -> None:
        for line in stream:
            lines.append(line.decode().rstrip("\n"))
            self._news.put(None)
        self._news.put(None)

    def until(self, text: str) -> str:
        """The first line, on either stream, that holds `text`."""
        until_s = time.monotonic() + HANG_S
        while True:
            for line in (*self.err, *self.out):
                if text in line:
                    return line
            alive = any(reader.is_alive() for reader in self._readers)
            assert alive, f"{text!r} never came: {self}"
            assert time.monotonic() < until_s, f"{text!r} does not come: {self}"
            with contextlib.suppress(queue.Empty):
                self._news.get(timeout=0.2)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code. Whatever it said, it was no traceback."""
        try:
            code = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"hangs: {self}")
        for reader in self._readers:
            reader.join(HANG_S)
        assert "Traceback" not in "\n".join((*self.out, *self.err)), str(self)
        return code

    def objects(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out]

    def __str__(self) -> str:
        return f"swarm {' '.join(self.argv)}: code {self.process.poll()}, out {self.out[-20:]}, err {self.err[-20:]}"


class Terminal:
    """Starts commands, and leaves none behind."""

    def __init__(self, state: Path) -> None:
        self._jobs = state / "jobs"
        self._commands: list[Command] = []

    def start(self, *argv: str, sabotage: str = "", stdout: int = subprocess.PIPE, **environment: str) -> Command:
        command = Command(*argv, sabotage=sabotage, stdout=stdout, **environment)
        self._commands.append(command)
        return command

    def run(self, *argv: str, code: int = 0) -> Command:
        command = self.start(*argv)
        assert command.wait() == code, str(command)
        return command

    def objects(self, *argv: str) -> list[dict[str, object]]:
        return self.run(*argv, "--json").objects()

    def workers(self) -> dict[str, int]:
        """By job id, the pids of this test's workers that run."""
        from swarm import launcher

        return {job.id: job.pid for job in launcher.jobs() if job.pid}

    def close(self) -> None:
        for command in self._commands:
            with contextlib.suppress(ProcessLookupError):
                command.process.kill()
            command.process.wait()
        for pid in self.workers().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def terminal(state: Path) -> Iterator[Terminal]:
    found = Terminal(state)
    try:
        yield found
    finally:
        found.close()


def eventually(holds: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < until_s, f"never: {what}"
        time.sleep(0.05)


def beats(location: str, run: str) -> dict[str, Beat]:
    """Each learner's newest beat."""

    async def read(tape: Tape) -> dict[str, Beat]:
        return {learner: beat for learner, (_, beat) in (await tape.beats({})).items()}

    return on(location, run, read)  # type: ignore[return-value]
