"""While a machine trains, it does not go to sleep: `caffeinate` (macOS), `systemd-inhibit` (Linux)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys

SYSTEMD = "/run/systemd/system"  # is there where systemd runs (sd_booted(3)): nothing else has a lock to give
TRIED_S = 1.0  # after which a program that still runs holds the machine awake


def commands(pid: int, platform: str = sys.platform) -> tuple[tuple[str, ...], ...]:
    """What keeps the machine awake for as long as process `pid` lives, or as the command's standard input stays open; the next
    one if the one before may not. () where there is nothing of the kind."""
    if platform == "darwin":
        return (("caffeinate", "-i", "-w", str(pid)),)
    if platform != "linux":
        return ()
    who = ("--who=swarm", "--why=trains a model", "--mode=block")
    # Some systems let only who sits at the machine lock it against sleep; the desktop's own timer goes by "idle".
    return tuple(("systemd-inhibit", f"--what={what}", *who, "cat") for what in ("sleep:idle", "idle"))


class Awake:
    """Not to be used by two threads at once."""

    def __init__(self, *, platform: str = sys.platform) -> None:
        self._platform = platform
        self._process: subprocess.Popen[bytes] | None = None
        self._cannot = False

    def hold(self) -> str:
        """Keep it awake from now on. Says in words, once, why that cannot be; '' else, and where it is not known how."""
        if self._cannot or (self._process is not None and self._process.poll() is None):
            return ""
        if self._platform == "linux" and not os.path.isdir(SYSTEMD):
            self._cannot = True
            return ""
        words = ""
        for command in commands(os.getpid(), self._platform):
            path = shutil.which(command[0])
            if path is not None:
                words = self._start([path, *command[1:]])
                if not words:
                    return ""
        self._cannot = True
        return words

    def _start(self, command: list[str]) -> str:
        """Why it does not run, in words; '' if it does."""
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            return f"{command[0]}: {error.strerror}"
        try:
            process.wait(TRIED_S)
        except subprocess.TimeoutExpired:
            self._process = process
            return ""
        said = b"" if process.stderr is None else process.stderr.read()
        _close(process)
        last = said.decode(errors="replace").strip().splitlines()
        return f"{os.path.basename(command[0])}: {last[-1] if last else 'it ended at once'}"

    def release(self) -> None:
        """Let it sleep from now on."""
        process, self._process = self._process, None
        if process is None:
            return
        _close(process)  # `cat` ends with it, and systemd-inhibit with that
        if self._platform == "darwin":
            process.terminate()
        try:
            process.wait(TRIED_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TRIED_S)


def _close(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
