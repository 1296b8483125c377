"""Two people at two machines: one starts a run, the other one's screen sees it and joins it with one key, a worker is killed,
both screens say so, and it joins again. Two hosts with a network between them, one shared folder, and two terminals."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.learners.devices import installed_frameworks
from tests.process.people import SHARE, Person, people
from tests.process.tmux import Screen

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="no tmux here: there is no terminal to see the screens in"),
]

RUN = "tiny"
START = ("start", "diloco", "--task", "mlp", "--name", RUN, "--rounds", "100000", "--sync-every", "50", "--detach")
QUICK = ("--start-learners", "1", "--quorum-size", "2", "--beat-s", "0.5", "--lease-s", "5")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Person, Person]]:
    """Where MLX is installed, nothing else is: PyTorch takes ten times as long to load."""
    without = dict.fromkeys(("studio", "mbp"), "torch" if "mlx" in installed_frameworks() else "")
    made = people(tmp_path, "studio", "mbp", without=without)
    try:
        studio, mbp = made.__enter__()
    except OSError as error:
        pytest.skip(f"hosts cannot be made here: {error}")
    try:
        yield studio, mbp
    finally:
        made.__exit__(None, None, None)


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
    for person in (studio, mbp):
        person.swarm("init", SHARE)
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


def test_one_starts_a_run_and_the_other_joins_it_with_one_key(two: tuple[Person, Person]) -> None:
    joined(*two)


@pytest.mark.slow
def test_a_worker_is_killed_which_both_see_and_joins_again(two: tuple[Person, Person]) -> None:
    studio, mbp = two
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
