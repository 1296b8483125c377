"""Two people at two machines: one starts a run, the other one's screen sees it and joins it with one key, a worker is killed,
both screens say so, and it joins again. Two hosts with a network between them, one shared folder, and two terminals."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
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
FORM = {"task": "mlp", "sync every": "50", "quorum size": "2", "name": RUN, "rounds": "100000"}
FORM |= {"start learners": "1", "beat s": "0.5", "lease s": "5"}  # these are shown by f2 only


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


def field(shown: str) -> list[str]:
    """Label and value of the form's field under the cursor."""
    found = re.search(r"┃▸ +([^┃]*)┃", shown)
    return re.split(r" {2,}", found[1].strip()) if found else []


def fill_in(screen: Screen, wanted: dict[str, str]) -> None:
    """The New run form, from its first field down."""
    left = dict(wanted)
    while left:
        shown = screen.until(field, "a field under the cursor")
        label, *_ = field(shown)
        value = left.pop(label, None)
        if value is not None and "←" in shown:
            while (chosen := field(shown)) != [label, f"← {value} →"]:
                screen.press("Right")
                shown = screen.until(lambda now, before=chosen: field(now) != before, f"another {label}")
        elif value is not None:
            screen.press("C-u")
            screen.type(value)
            screen.until(lambda now, filled=[label, value]: field(now) == filled, f"{label} as it was typed")
        screen.press("Down")
        screen.until(lambda now, label=label: field(now)[:1] != [label], f"the field below {label}")


def start_by_command(studio: Person, screen: Screen) -> None:
    options = [word for label, value in FORM.items() for word in (f"--{label.replace(' ', '-')}", value)]
    studio.swarm("start", "diloco", *options, "--detach")
    screen.until_shown(rf"▸ {RUN}\* .* running ")
    screen.press("Enter")


def start_by_form(studio: Person, screen: Screen) -> None:
    screen.press("n")
    screen.until_shown("new run", "task +charlm")
    screen.press("F2")  # "▾ fewer" itself may be below what the preview leaves of the form
    fill_in(screen, FORM)
    screen.until_shown(r"\$ swarm start diloco --task mlp ", r"✓ \^s makes it")
    screen.press("C-s")


def joined(studio: Person, mbp: Person, *, start: Callable[[Person, Screen], None]) -> tuple[Screen, Screen]:
    """The screens of both, once one has started a run, and the other has seen and joined it, and both have watched rounds
    that both took part in."""
    for person in (studio, mbp):
        person.swarm("init", SHARE)
    there, here = studio.screen(), mbp.screen()
    there.until_shown(r" studio\* ", r" mbp .* watching ")
    start(studio, there)
    there.until(lambda shown: rounds(shown) >= 0, "the run")
    # Seen through the mailbox and through the network.
    here.until_shown(rf" {RUN} .* running ", r" studio .* training ", r" mbp\* .* watching ")
    here.press("Enter")
    here.until_shown("✓ share writable", "✓ enough memory", f"enter trains {RUN} on this machine")
    here.press("Enter")
    for screen in (here, there):
        close_another(screen, "2/2 learners")
    here.until_shown(r" mbp\* ", r" studio ")
    there.until_shown(r" studio\* ", r" mbp ")
    return there, here


def test_one_starts_a_run_and_the_other_joins_it_with_one_key(two: tuple[Person, Person]) -> None:
    joined(*two, start=start_by_command)


@pytest.mark.slow
def test_a_worker_is_killed_which_both_see_and_joins_again(two: tuple[Person, Person]) -> None:
    studio, mbp = two
    there, here = joined(studio, mbp, start=start_by_form)
    (worker,) = mbp.workers()
    os.kill(worker, signal.SIGKILL)
    here.until_shown("✗ the worker on this machine failed", r" mbp +\? silent")
    there.until_shown(r" mbp +\? silent", "⚠ mbp silent .* the round closes with .* still live")
    for screen in (here, there):
        close_another(screen, "1/2 learners")
    here.press("J")
    here.until_shown("✓ enough memory", f"enter trains {RUN} on this machine")
    here.press("Enter")
    for screen in (here, there):
        close_another(screen, "2/2 learners")
        screen.until(lambda shown: not any(mark in shown for mark in "✗⚠"), "that all is well")
    assert len(mbp.workers()) == 1
