"""The rank of this machine as a process that its agent started: its events are read on a thread, its last words are kept."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from pathlib import Path
from typing import Protocol

import msgspec

from swarm.core.errors import UsageError
from swarm.core.rankenv import VARIABLES, group_environment, group_file
from swarm.core.rankjob import Halt, Phase, RankEnded, RankEvent, RankPlan, decode_event, encode_command
from swarm.core.ranks import Plan
from swarm.host.children import ending, python

GROUP_FILE = "group.json"
LINE_BYTES = 1 << 20  # of an event, at most


class Process(Protocol):
    """A rank that runs here, as its agent needs it; tests have one of their own."""

    pid: int
    last: RankEnded | None
    halting: bool

    @property
    def over(self) -> bool: ...
    @property
    def code(self) -> int | None: ...
    def events(self) -> list[RankEvent]: ...
    def died(self) -> str: ...
    def joined(self) -> bool: ...
    def halt(self) -> None: ...
    def end(self) -> None: ...


class Child:
    """A rank on a leash: it ends when this process does."""

    def __init__(self, plan: Plan, told: RankPlan, home: Path) -> None:
        """Starts it. `home`: an existing folder for the file that names the group."""
        group = home / GROUP_FILE
        group.write_text(group_file(plan))
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environment |= group_environment(plan, told.rank, str(group))
        self.process = subprocess.Popen(
            python("swarm.parallel.rank", "-"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self.pid = self.process.pid
        self.last: RankEnded | None = None
        self.halting = False
        self._events: deque[RankEvent] = deque()
        self._in_group = threading.Event()
        self._reader = threading.Thread(target=self._read, name="rank-events", daemon=True)
        self._reader.start()
        self._write(msgspec.json.encode(told) + b"\n")

    @property
    def over(self) -> bool:
        """Whether it has ended, and all that it told is here."""
        return self.process.poll() is not None and not self._reader.is_alive()

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def events(self) -> list[RankEvent]:
        """Those since the last call."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def joined(self) -> bool:
        return self._in_group.is_set()

    def died(self) -> str:
        if not self.over:
            return ""
        if self.last is not None:
            return self.last.reason
        code = self.process.returncode
        return "the ranks did not come together in time" if code == -signal.SIGALRM else f"its process {ending(code)}"

    def halt(self) -> None:
        """Let all ranks save, and end."""
        if not self.halting:
            self.halting = True
            self._write(encode_command(Halt()))

    def end(self) -> None:
        """At once."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it is gone, which `died` says
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline(LINE_BYTES):
            with contextlib.suppress(UsageError):
                event = decode_event(line)
                if isinstance(event, RankEnded):
                    self.last = event
                if not isinstance(event, Phase) or event.what != "meeting":
                    self._in_group.set()
                self._events.append(event)
