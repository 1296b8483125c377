"""A share that takes calls and never answers: what a person is told, and that nobody is kept by it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.faults.share import Share, mounted
from tests.process.terminal import BARE, Terminal, terminal

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
FOR_EVER_S = 3600.0


@pytest.fixture
def swarm(state_dir: Path) -> Iterator[Terminal]:
    with terminal(state_dir) as found:
        yield found


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[Share]:
    """Whoever has called it cannot even be killed before it is unmounted."""
    with mounted(tmp_path) as share:
        share.new("mailbox")
        share.fails({"delay_s": FOR_EVER_S})
        yield share


@pytest.mark.parametrize("words", [("runs", "--json", "--mailbox"), pytest.param(("init", "--json"), marks=pytest.mark.slow)])
def test_who_waits_is_told_and_ends_at_once(hung: Share, swarm: Terminal, words: tuple[str, ...]) -> None:
    command = swarm.start(*words, str(hung.at))
    command.until(f"waiting for {hung.at} to answer")
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    assert command.out == []
    assert command.err == [f"waiting for {hung.at} to answer (Ctrl-C ends this)", "", "swarm: interrupted"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [("doctor",), ("mailbox", "size"), ("status", "any")])
def test_a_command_ends_with_what_it_has_to_say(hung: Share, swarm: Terminal, words: tuple[str, ...]) -> None:
    command = swarm.start(*words, "--mailbox", str(hung.at), PYTHONPATH=BARE)
    assert command.wait() == 1
    assert any("no answer for" in line or "has not answered for" in line for line in (*command.out, *command.err)), str(command)
