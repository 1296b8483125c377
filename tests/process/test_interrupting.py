"""Commands that are interrupted, killed or paused: what they run in a child process is not to be noticed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.handmade import make_mailbox
from tests.process.terminal import HANG_S, ROOT, Command, Terminal, eventually, terminal

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.fixture
def swarm(state_dir: Path) -> Iterator[Terminal]:
    with terminal(state_dir) as found:
        yield found


@pytest.fixture
def waiting(swarm: Terminal, tmp_path: Path) -> Command:
    """A command that waits for its share."""
    mailbox = make_mailbox(tmp_path / "mailbox")
    (tmp_path / "now").touch()
    command = swarm.start("mailbox", "verify", "--mailbox", mailbox, sabotage=f"hang:{tmp_path / 'now'}")
    command.until("waiting for")
    return command


def child(command: Command) -> psutil.Process:
    (found,) = psutil.Process(command.process.pid).children()
    return found


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGHUP))],
    ids=lambda number: number.name,
)
def test_an_interrupt_is_one_line_however_often_it_comes(waiting: Command, number: signal.Signals) -> None:
    own = child(waiting)
    waiting.signal(number)
    waiting.signal(number)
    assert waiting.wait() == 130
    assert waiting.err[1:] == ["", "swarm: interrupted"]
    eventually(lambda: not own.is_running(), "the child ends")


SLOW_TO_END = """
import sys, time
from swarm.cli.aside import aside

class Pipe:  # full, for a moment
    def flush(self):
        print("on its way", file=sys.stderr, flush=True)
        time.sleep(0.3)

def work():
    sys.stdout = Pipe()
    return 0

aside(work)
"""


def test_interrupts_of_a_command_on_its_way_out_are_quiet() -> None:
    command = subprocess.Popen([sys.executable, "-c", SLOW_TO_END], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert command.stderr is not None
    assert command.stderr.readline() == "on its way\n"
    command.send_signal(signal.SIGINT)
    assert command.stderr.readline() == "on its way\n"
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=HANG_S)
    assert (command.returncode, err) == (130, "")


def test_the_child_of_a_command_that_is_killed_ends_with_it(waiting: Command) -> None:
    own = child(waiting)
    waiting.signal(signal.SIGKILL)
    assert waiting.wait() == -signal.SIGKILL
    eventually(lambda: not own.is_running(), "the child ends")


@pytest.mark.slow
def test_a_command_ends_as_its_child_was_killed(waiting: Command) -> None:
    child(waiting).send_signal(signal.SIGKILL)
    assert waiting.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_a_command_that_is_paused_goes_on(waiting: Command) -> None:
    own = child(waiting)
    waiting.signal(signal.SIGTSTP)
    eventually(lambda: {own.status(), psutil.Process(waiting.process.pid).status()} == {psutil.STATUS_STOPPED}, "both pause")
    waiting.signal(signal.SIGCONT)
    eventually(lambda: own.status() != psutil.STATUS_STOPPED, "it goes on")
    waiting.signal(signal.SIGINT)
    assert waiting.wait() == 130
