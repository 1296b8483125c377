"""Screens in a real terminal: tmux, on a socket of its own, without anybody's settings."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping

HANG_S = 120.0  # nothing here takes so long on a machine that works


class Screen:
    """A window of its own."""

    def __init__(self, tmux: Tmux, name: str) -> None:
        self._tmux, self.name = tmux, name

    def shown(self) -> str:
        return self._tmux.tell("capture-pane", "-p", "-t", self.name)

    def press(self, *keys: str) -> None:
        self._tmux.tell("send-keys", "-t", self.name, *keys)

    def type(self, words: str) -> None:
        self._tmux.tell("send-keys", "-t", self.name, "-l", words)

    def until(self, wanted: Callable[[str], object], what: str, *, within_s: float = HANG_S) -> str:
        """What is shown once `wanted` holds."""
        until_s = time.monotonic() + within_s
        while not wanted(shown := self.shown()):
            assert time.monotonic() < until_s, f"{self.name} never shows {what}:\n{shown}"
            time.sleep(0.1)
        return shown

    def until_shown(self, *patterns: str) -> str:
        """All of these, each on one line."""
        return self.until(lambda shown: all(re.search(pattern, shown) for pattern in patterns), " and ".join(patterns))


class Tmux:
    def __init__(self) -> None:
        self._socket = f"swarm-{secrets.token_hex(4)}"

    def tell(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, "-f", "/dev/null", *arguments]
        # Said, not inherited: readline, which pytest loads, puts a size of 80 by 24 into the process's own copy.
        env = dict(os.environ)
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True).stdout

    def screen(self, name: str, *command: str, env: Mapping[str, str], columns: int = 120, rows: int = 36) -> Screen:
        size = ("-x", str(columns), "-y", str(rows))
        values = [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
        self.tell("new-session", "-d", "-s", name, *size, *values, *command)
        self.tell("set-option", "-t", name, "remain-on-exit", "on")  # what a screen that fails says stays readable
        return Screen(self, name)

    def close(self) -> None:
        with contextlib.suppress(subprocess.SubprocessError):
            self.tell("kill-server")


@contextlib.contextmanager
def tmux() -> Iterator[Tmux]:
    found = Tmux()
    try:
        yield found
    finally:
        found.close()
