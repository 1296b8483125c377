"""Two people at two machines: one starts a run, the other one's screen sees it and joins it with one key, a worker is killed,
both screens say so, and it joins again. Two hosts with a network between them, one shared folder, and two terminals."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.learners.devices import installed_frameworks
from tests.process.hosts import HANG_S, Host, Lan
from tests.process.tmux import Screen, Tmux, tmux

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here: there is no terminal to see the screens in"),
]

FRAMEWORKLESS = Path(__file__).parent / "frameworkless"
RUN = "tiny"
START = ("start", "diloco", "--task", "mlp", "--name", RUN, "--rounds", "100000", "--sync-every", "50", "--detach")
QUICK = ("--start-learners", "1", "--quorum-size", "2", "--beat-s", "0.5", "--lease-s", "5")


class Person:
    """At a machine: a terminal in its own network and with its own name. Where MLX is installed, nothing else is: PyTorch
    takes ten times as long to load."""

    def __init__(self, host: Host, terminals: Tmux, share: Path) -> None:
        self.host, self._terminals, self.share = host, terminals, share
        absent = {"SWARM_TEST_ABSENT": "torch" if "mlx" in installed_frameworks() else ""}
        self.env = self.host.env | absent | {"PYTHONPATH": os.pathsep.join([str(FRAMEWORKLESS), self.host.env["PYTHONPATH"]])}

    def _inside(self, *command: str) -> list[str]:
        named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.host.name]
        return [*self.host.inside, *named, sys.executable, "-m", "swarm", *command, "--mailbox", str(self.share)]

    def swarm(self, *command: str) -> None:
        done = subprocess.run(
            self._inside(*command), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S
        )
        assert done.returncode == 0, done.stderr

    def init(self) -> None:
        command = [sys.executable, "-m", "swarm", "init", str(self.share)]
        subprocess.run(command, env=self.env, capture_output=True, timeout=HANG_S, check=True)

    def screen(self) -> Screen:
        return self._terminals.screen(self.host.name, *self._inside("tui"), env=self.env)

    def pids(self) -> list[int]:
        listed = subprocess.run(
            ["ip", "netns", "pids", self.host.space], capture_output=True, text=True, timeout=60, check=True
        )
        return [int(pid) for pid in listed.stdout.split()]

    def workers(self) -> list[int]:
        return [pid for pid in self.pids() if b"swarm.worker" in _command(pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def people(net: Lan, tmp_path: Path) -> Iterator[tuple[Person, Person]]:
    """Both have the share; neither has anything else of the other one's."""
    share = tmp_path / "share"
    with tmux() as terminals:
        found = tuple(Person(net.host(name), terminals, share) for name in ("studio", "mbp"))
        try:
            yield found  # type: ignore[misc]
        finally:
            for person in found:
                for pid in person.pids():
                    os.kill(pid, signal.SIGKILL)


def rounds(shown: str) -> int:
    """How far the run is, by the headline of its screen; -1 if that is not what is shown."""
    found = re.search(r"\br(\d+)/100000\b", shown.partition("\n")[0])
    return int(found[1]) if found else -1


def close_another(screen: Screen, learners: str) -> None:
    """Until its headline says that many learners, and a later round than it does now."""
    first = rounds(screen.until(lambda shown: rounds(shown) >= 0, "the run"))
    screen.until(lambda shown: rounds(shown) > first and learners in shown.partition("\n")[0], f"{learners}, r{first + 1}")


def joined(studio: Person, mbp: Person) -> tuple[Screen, Screen]:
    """The screens of both, once one has started a run, and the other has seen and joined it, and both have watched rounds
    that both took part in."""
    studio.init()
    there, here = studio.screen(), mbp.screen()
    studio.swarm(*START, *QUICK)
    # Seen through the mailbox and through the network, on both.
    there.until_shown(rf" {RUN}\* .* running ", r" studio\* .* training ", r" mbp .* watching ")
    here.until_shown(rf" {RUN} .* running ", r" studio .* training ", r" mbp\* .* watching ")
    here.press("Enter")
    here.until_shown("✓ share writable", "✓ enough memory", f"enter trains {RUN} on this machine")
    here.press("Enter")
    there.press("Enter")
    for screen in (here, there):
        close_another(screen, "2/2 learners")
    here.until_shown(r" mbp\* ", r" studio ")
    there.until_shown(r" studio\* ", r" mbp ")
    return there, here


def test_one_starts_a_run_and_the_other_joins_it_with_one_key(people: tuple[Person, Person]) -> None:
    joined(*people)


@pytest.mark.slow
def test_a_worker_is_killed_which_both_see_and_joins_again(people: tuple[Person, Person]) -> None:
    studio, mbp = people
    there, here = joined(studio, mbp)
    (worker,) = mbp.workers()
    os.kill(worker, signal.SIGKILL)
    here.until_shown("✗ the worker on this machine failed", r" mbp +\? silent")
    there.until_shown(r" mbp +\? silent", "⚠ mbp silent .* the round closes with those still live")
    for screen in (here, there):
        close_another(screen, "1/2 learners")
    here.press("Enter")
    here.until_shown("✓ enough memory", f"enter trains {RUN} on this machine")
    here.press("Enter")
    for screen in (here, there):
        close_another(screen, "2/2 learners")
        screen.until(lambda shown: not any(mark in shown for mark in "✗⚠"), "that all is well")
    assert len(mbp.workers()) == 1
