"""`swarm doctor` as a person runs it, on this machine as it is: with or without multicast, other machines and frameworks."""

from __future__ import annotations

import getpass
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm.core.diagnosis import TOPICS
from swarm.learners.devices import installed_frameworks
from tests.integration.handmade import make_mailbox
from tests.process.terminal import BARE, Command, Terminal, terminal

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
TOKEN = "hf_0123456789abcdefghijklmn"
LONGEST_S = 60.0  # it promises a quarter of that; a call that hangs would never end
TRIED = ("marker", "race", "visibility", "listing", "names", "syncing", "clock", "verdict")


@pytest.fixture
def mailbox(tmp_path: Path, state_dir: Path) -> str:
    return make_mailbox(tmp_path / "mailbox")


@pytest.fixture
def swarm(state_dir: Path) -> Iterator[Terminal]:
    with terminal(state_dir) as found:
        yield found


def by_check(command: Command) -> dict[tuple[object, object], dict[str, object]]:
    return {(each["topic"], each["check"]): each for each in command.objects()}


def test_this_machine_is_looked_at_from_end_to_end(swarm: Terminal, mailbox: str) -> None:
    command = swarm.start("doctor", "--json", "--mailbox", mailbox)
    code = command.wait()
    found = by_check(command)
    assert [each["topic"] for each in found.values()] == sorted((t for t, _ in found), key=TOPICS.index), "grouped"
    assert {topic for topic, _ in found} == set(TOPICS)
    assert code == int(any(not each["ok"] for each in found.values())), str(command)
    for name in ("folder", "file system", "mailbox", "writable", "exclusive creation", "free space", "timings", *TRIED):
        assert found["share", name]["verdict"] in ("ok", "warning"), found["share", name]
    assert "create " in str(found["share", "timings"]["detail"])
    assert "8 processes" in str(found["share", "race"]["detail"])
    assert str(found["share", "verdict"]["detail"]).startswith("fit")
    assert len(os.listdir(f"{mailbox}/tmp")) == 0
    for framework in installed_frameworks():
        tried = [each for (topic, name), each in found.items() if topic == "framework" and str(name).startswith(framework)]
        assert tried, f"nothing is said of {framework}"
        assert all(each["verdict"] in ("ok", "warning") for each in tried), tried
    assert any(str(name).startswith(("interface", "multicast")) for topic, name in found if topic == "network")


def test_a_share_that_hangs_holds_nothing_up(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    (tmp_path / "now").touch()
    began_s = time.monotonic()
    command = swarm.start("doctor", "--json", "--mailbox", mailbox, sabotage=f"hang:{tmp_path / 'now'}")
    assert command.wait() == 1
    assert time.monotonic() - began_s < LONGEST_S
    found = by_check(command)
    assert "no answer for" in str(found["share", "mailbox"]["detail"])
    assert found["share", "folder"]["ok"]
    assert found["this machine", "system"]["ok"]
    assert found["settings", "settings"]["ok"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_trial_that_is_ended_midway_leaves_nothing(swarm: Terminal, mailbox: str, number: signal.Signals) -> None:
    """After Ctrl-C it is gone at once; killed, its second process removes it."""
    command = swarm.start("doctor", "--mailbox", mailbox, PYTHONPATH=BARE)
    place = Path(mailbox, "tmp")
    until(lambda: any(place.glob("*/runs/race/*")))
    command.signal(number)
    assert command.wait() == (130 if number == signal.SIGINT else -number)
    if number == signal.SIGKILL:
        until(lambda: not any(place.iterdir()))
    assert not any(place.iterdir())
    assert sorted(os.listdir(mailbox)) == ["mailbox", "runs", "tmp", "trash"]


def until(so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + LONGEST_S
    while not so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_without_a_framework_it_says_what_to_install(swarm: Terminal, mailbox: str) -> None:
    command = swarm.start("doctor", "--mailbox", mailbox, PYTHONPATH=BARE)
    assert command.wait() == 1
    assert "pip install 'homeswarm[train]'" in command.until("→ pip install")
    assert command.err[-1].startswith("1 failed, "), str(command)


def test_the_report_can_be_shown_to_anybody(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    config = tmp_path / "config" / "settings.toml"
    config.parent.mkdir()
    config.write_text('passphrase = "correct horse battery staple"\n')
    who = {"USER": "annabel", "LOGNAME": "annabel", "HF_TOKEN": TOKEN, "SWARM_TOKEN": TOKEN, "HOME": str(tmp_path)}
    who["PYTHONPATH"] = BARE  # frameworks take their time, and are looked at above
    command = swarm.start("doctor", "--report", "--mailbox", mailbox, **who)
    assert command.wait() == 1, "the settings have a fault"
    text = "\n".join(command.out)
    assert text.startswith("swarm doctor: ")
    for topic in TOPICS:
        assert f"\n{topic}\n" in text
    for secret in (TOKEN, "horse", "annabel", str(tmp_path), os.uname().nodename):
        assert secret not in text, secret
    if getpass.getuser() not in ("root", "user", "swarm"):
        assert getpass.getuser() not in text
    assert "~/mailbox" in text
