"""Tells a person of something through a command of their own choice: of the settings or the command line, never of a peer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence

from swarm.core.plaintext import plain

LIMIT_S = 10.0  # that a command may take
MAX_CHARS = 300  # of the news


def notify(command: Sequence[str], news: str, *, limit_s: float = LIMIT_S) -> str:
    """Run `command` with the news as one more argument, without a shell; blocks until it ends. What was wrong with it in words,
    else ''. Raises nothing."""
    if not command:
        return ""
    who = plain(command[0], 60)
    with tempfile.TemporaryFile() as said:  # no pipe: a child that it leaves behind would hold that open
        try:
            process = subprocess.Popen(
                [*command, plain(news, MAX_CHARS)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # a Ctrl-C meant for us is not for it
            )
        except (OSError, ValueError) as error:
            return f"{who}: {plain(getattr(error, 'strerror', None) or str(error), 200)}"
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"{who} had not ended after {limit_s:g} s"
        if code == 0:
            return ""
        said.seek(0)
        words = said.read(4096).decode(errors="replace").strip().splitlines()
    return f"{who} ended with code {code}" + (f": {plain(words[-1], 200)}" if words else "")
