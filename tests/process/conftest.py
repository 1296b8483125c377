from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.integration.handmade import make_mailbox
from tests.process.hosts import Lan, lan
from tests.process.terminal import Terminal, terminal


@pytest.fixture(autouse=True)
def nothing_outlives_its_test() -> Iterator[None]:
    """What a test that fails has started would take the machine's time from those that follow."""
    me = psutil.Process()
    before = set(me.children(recursive=True))
    yield
    left = set(me.children(recursive=True)) - before
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)


@pytest.fixture
def mailbox(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that commands of this test use without being told."""
    location = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    return location


@pytest.fixture
def swarm(mailbox: str, state_dir: Path) -> Iterator[Terminal]:
    """Commands of one machine."""
    with terminal(state_dir) as found:
        yield found


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Lan]:
    """Hosts that are joined by a bridge; skips where none can be made."""
    if shutil.which("ip") is None:
        pytest.skip("no ip command: hosts cannot be made here")
    made = lan(tmp_path)
    try:
        found = made.__enter__()
    except OSError as error:
        pytest.skip(f"hosts cannot be made here: {error}")
    try:
        yield found
    finally:
        made.__exit__(None, None, None)
