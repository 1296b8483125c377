"""A text that one machine attaches and others train on: the commands, in real processes, each machine with its own folders."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swarm import launcher
from tests.integration.handmade import make_mailbox
from tests.process.terminal import FRAMEWORK, Command, Terminal, eventually, terminal

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]
TEXT = "All work and no play makes Jack a dull boy. " * 3000
START = ("start", "diloco", "--task", "charlm", "--sync-every", "2", "--beat-s", "0.2", "--lease-s", "2", *FRAMEWORK)
JOIN = ("join", *FRAMEWORK)


@pytest.fixture
def mailbox(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWARM_MAILBOX", make_mailbox(tmp_path / "mailbox"))
    return tmp_path / "mailbox"


@pytest.fixture
def swarm(mailbox: Path, state_dir: Path) -> Iterator[Terminal]:
    """The first machine's."""
    with terminal(state_dir) as found:
        yield found


@pytest.fixture
def elsewhere(swarm: Terminal, tmp_path: Path) -> Callable[..., Command]:
    """A command on a second machine."""
    folders = {f"SWARM_{name}_DIR": str(tmp_path / "second" / name) for name in ("STATE", "CACHE")}
    return lambda *argv, **more: swarm.start(*argv, **folders, **more)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_text(TEXT)
    return path


def left(command: Command) -> None:
    command.signal(signal.SIGINT)
    assert command.wait() == 130, str(command)


def files(mailbox: Path) -> list[str]:
    return sorted(path.name for path in mailbox.glob("runs/*/files/*/*"))


def test_who_joins_gets_the_text_and_the_second_time_nothing_is_fetched(
    swarm: Terminal, elsewhere: Callable[..., Command], mailbox: Path, text: Path, tmp_path: Path
) -> None:
    first = swarm.start(*START, "--name", "prose", "--data", str(text))
    first.until("round 0 closed")
    assert [line for line in first.err if "mine.txt" in line] == [
        "attaching mine.txt, 132 kB …",
        "attached mine.txt, 132 kB",
    ], str(first)
    left(first)
    assert files(mailbox) == ["000000", "hashes"]
    text.unlink()

    joined = elsewhere(*JOIN, "prose", "--learner-id", "second")
    joined.until("closed with second")
    assert [line for line in joined.err if "mine.txt" in line] == [
        "prose brings mine.txt along, 132 kB",
        "fetching mine.txt, 132 kB …",
        "fetched mine.txt, 132 kB",
    ], str(joined)
    left(joined)
    cached = [path for path in (tmp_path / "second" / "CACHE").rglob("*") if path.is_file()]
    assert [path.name for path in cached] == [hashlib.sha256(TEXT.encode()).hexdigest()]

    for chunk in mailbox.glob("runs/*/files/*/*"):
        chunk.unlink()
    again = elsewhere(*JOIN, "prose", "--learner-id", "second", "--json")
    again.until('"event":"RoundClosed"')
    [have] = [event for event in again.objects() if event["event"] == "Transfer"]
    assert have["how"] == "have"
    left(again)
    told = ("generate", "prose", "--prompt", "All", "--max-tokens", "8", *FRAMEWORK[:4])
    writing = elsewhere(*told, stdout=subprocess.DEVNULL)
    assert writing.wait() == 0, str(writing)
    assert writing.err == [], str(writing)

    missing = swarm.start(*JOIN, "prose")  # on the first machine, which has no copy any more
    missing.until("fetching mine.txt")
    left(missing)


@pytest.mark.slow
def test_a_fetch_whose_process_was_killed_is_gone_on_with(
    swarm: Terminal,
    elsewhere: Callable[..., Command],
    mailbox: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text.write_text(TEXT * 150)  # three chunks
    swarm.run(*START, "--name", "prose", "--data", str(text), "--no-join")
    assert files(mailbox) == ["000000", "000001", "000002", "hashes"]
    [folder] = mailbox.glob("runs/*/files/*")
    shutil.move(folder / "000002", tmp_path / "late")  # as a share can be late with

    command = elsewhere(*JOIN)
    command.until("fetching mine.txt")
    partial = tmp_path / "second" / "CACHE" / "partial" / f"{folder.name}.{len(TEXT) * 150}.0"
    eventually(lambda: partial.exists() and partial.stat().st_size == 16 << 20, "two chunks are here")
    monkeypatch.setenv("SWARM_STATE_DIR", str(tmp_path / "second" / "STATE"))
    [job] = [job for job in launcher.jobs() if job.pid]
    os.kill(job.pid, signal.SIGKILL)
    assert command.wait() == 1

    shutil.move(tmp_path / "late", folder / "000002")
    for name in ("000000", "000001"):
        (folder / name).unlink()  # not needed any more
    again = elsewhere(*JOIN)
    again.until("fetched mine.txt, 19.8 MB")
    again.until("round 0 closed")
    left(again)


@pytest.mark.slow
def test_what_is_not_attached_is_said(swarm: Terminal, mailbox: Path, text: Path, tmp_path: Path) -> None:
    make = (*START, "--no-join")
    assert "--attach needs a file" in swarm.run(*make, "--attach", code=2).err[-1]
    swarm.run(*make, "--no-attach", "--data", str(text))
    shipped = tmp_path / "copy.txt"
    shutil.copy(Path(__file__).parents[2] / "assets" / "text" / "kjv.txt", shipped)
    swarm.run(*make, "--attach", "--data", str(shipped))
    odd = shutil.copy(text, tmp_path / "mine.html")
    assert "not attached" in swarm.run(*make, "--data", str(odd)).until("who joins passes it with --data")
    assert files(mailbox) == []
    runs = len(swarm.objects("runs"))
    for name, content in (("mine.html", TEXT), ("mine.txt", "\ufeff#!/bin/sh\n" + TEXT)):
        (tmp_path / name).write_text(content)
        refused = swarm.run(*make, "--attach", "--data", str(tmp_path / name), code=2)
        assert refused.err[-1].startswith("swarm: "), str(refused)
        assert f"'{name}'" in refused.err[-1], str(refused)
    assert (files(mailbox), len(swarm.objects("runs"))) == ([], runs)


def test_rm_removes_the_files_too(swarm: Terminal, mailbox: Path, text: Path) -> None:
    swarm.run(*START, "--no-join", "--name", "prose", "--data", str(text))
    assert files(mailbox) == ["000000", "hashes"]
    swarm.run("rm", "prose", "--yes")
    assert list(mailbox.glob("runs/*")) == []
