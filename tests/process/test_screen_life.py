"""The life of the screen: from a first start to a run of its own, which outlives it, and which later screens find and steer."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import queue
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.message import Message
from textual.pilot import Pilot

from swarm import api, launcher
from swarm.learners.devices import installed_frameworks
from tests.process.terminal import HANG_S, ROOT, eventually, terminal
from tui.app import SwarmApp
from tui.feed import Feed
from tui.messages import CommandEnded, HomePolled
from tui.screens.dialogs import Choice
from tui.screens.run import RunScreen

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]P].*?(?:\x07|\x1b\\)|.)", re.DOTALL)


class Screen:
    """`swarm tui` in a terminal of its own."""

    def __init__(self, *argv: str) -> None:
        self._terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 36, 120, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "swarm", "tui", *argv],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self._painted = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # of Linux, at the end
            while data := os.read(self._terminal, 1 << 16):
                self._painted += data.decode(errors="replace")

    def until(self, words: str) -> None:
        eventually(lambda: words in ESCAPES.sub("", self._painted), f"{words} on the screen: {self._painted[-2000:]!r}")

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(HANG_S)


@pytest.fixture
def screen(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    monkeypatch.setenv("HOME", str(tmp_path))
    with terminal(state_dir):  # whose workers end with it
        found = Screen()
        yield found
        found.kill()


class Watching:
    """A feed, and what it tells."""

    def __init__(self) -> None:
        self.feed = Feed(api, home_s=0.1, run_s=0.1)
        self._posted: queue.Queue[Message] = queue.Queue()
        self.feed.start(self._posted.put)

    def until(self, fits: Callable[[Any], bool], kind: type[Message] = HomePolled) -> Any:
        until_s = time.monotonic() + HANG_S
        while True:
            message = self._posted.get(timeout=max(0.1, until_s - time.monotonic()))
            if isinstance(message, kind) and fits(message):
                return message


async def until(pilot: Pilot[Any], wanted: Callable[[], bool]) -> None:
    until_s = time.monotonic() + HANG_S
    while not wanted():
        assert time.monotonic() < until_s, pilot.app.export_screenshot()
        await pilot.pause(0.05)


async def found_again(job: str) -> None:
    """By another screen, which is then left while the job goes on."""
    app = SwarmApp(Feed(api, home_s=0.2, run_s=0.2))
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: bool(app.home and [j.id for j in app.home.home.jobs if j.state == "running"] == [job]))
        await pilot.press("w")
        run = app.screen
        assert isinstance(run, RunScreen)
        await until(pilot, lambda: bool(run.shown and run.shown.running))
        await until(pilot, lambda: any("closed" in line.text for line in run.shown.log))  # type: ignore[union-attr]
        await pilot.press("q")
        assert isinstance(app.screen, Choice)
        await pilot.press("enter")  # keep
        await pilot.pause()
        assert not app.is_running


@pytest.mark.slow
@pytest.mark.skipif(not installed_frameworks(), reason="there is nothing to train with")
async def test_a_run_begun_at_the_first_start_outlives_its_screen(screen: Screen, tmp_path: Path) -> None:
    screen.until("installed")
    screen.until("a new folder")
    assert not (tmp_path / "swarm").exists()  # nothing is written before somebody says so
    assert not (tmp_path / "config").exists()
    screen.press("\x1b[B\x1b[B\x1b[B\r")
    screen.until("RUNNING")
    (job,) = launcher.jobs()
    assert (job.state, job.mailbox) == ("running", str(tmp_path / "swarm"))

    screen.kill()

    def rounds() -> int:
        return len(list((tmp_path / "swarm").glob("runs/*/rounds/*/*/record.json")))

    before = rounds()
    eventually(lambda: rounds() > before, "a round after the screen was killed")
    await found_again(job.id)
    assert launcher.job(job.id).state == "running"

    two = Watching(), Watching()
    seen = [each.until(lambda m: bool(m.shown.home.jobs and m.shown.home.mailboxes[0].runs)).shown.home for each in two]
    assert seen[0].jobs == seen[1].jobs
    assert [view.location for view in seen[0].mailboxes] == [str(tmp_path / "swarm")]
    two[0].feed.leave(job.id)
    assert two[0].until(lambda m: m.command == "leave", CommandEnded).problem == ""
    for each in two:
        each.until(lambda m: m.shown.home.jobs[0].state == "left")
        each.feed.close()


def contents(place: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_ino) for path in [place, *place.rglob("*")]}


def test_a_machine_that_only_watches_loads_no_framework_and_writes_nothing(tmp_path: Path, state_dir: Path) -> None:
    """In a process of its own, with a mailbox that nobody may write."""
    from tests.integration.handmade import make_mailbox

    location = make_mailbox(tmp_path / "mailbox")
    before = contents(Path(location))
    script = f"""
import asyncio, sys
from swarm import api
from tui.app import SwarmApp
from tui.feed import Feed

async def main():
    app = SwarmApp(Feed(api, ({location!r},), home_s=0.05, run_s=0.05))
    async with app.run_test(size=(120, 36)) as pilot:
        while app.home is None or app.feed.facts.home_polls < 5:
            await pilot.pause(0.02)
        assert app.home.home.mailboxes[0].problem == "", app.home.home
    print([name for name in ("torch", "mlx", "numpy") if name in sys.modules])

asyncio.run(main())
"""
    for path in [Path(location), *Path(location).rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
    finally:
        for path in [Path(location), *Path(location).rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert done.stdout == "[]\n", done.stderr
    assert contents(Path(location)) == before
