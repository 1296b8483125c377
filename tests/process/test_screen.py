"""The screen over a real run: it sees rounds close, starts a worker, and stops the run for everybody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from swarm import api
from swarm.core.specs import DiLoCo
from tests.process.machines import HANG_S, make_mailbox, new_run, start
from tui.app import SwarmApp
from tui.feed import Feed
from tui.screens.join import JoinScreen
from tui.screens.run import RunScreen

pytest.importorskip("torch")
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]

SPEC = DiLoCo(sync_every=50, quorum_size=2, start_learners=1, beat_s=0.2, lease_s=4.0)


async def until(pilot: Pilot[Any], wanted: Callable[[], bool]) -> None:
    until_s = time.monotonic() + HANG_S
    while not wanted():
        assert time.monotonic() < until_s, pilot.app.export_screenshot()
        await pilot.pause(0.05)


async def test_a_run_is_watched_joined_and_stopped(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = await asyncio.to_thread(make_mailbox, tmp_path)
    run = new_run(rounds=None, algorithm=SPEC)
    with monkeypatch.context() as elsewhere:  # another machine's worker: its job is not among those of this one
        elsewhere.setenv("SWARM_STATE_DIR", str(tmp_path / "other"))
        other = start(mailbox, run, "other", "torch", create=True)
    app = SwarmApp(Feed(api, (mailbox,), home_s=0.2, run_s=0.2))
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: bool(app.home and app.home.home.mailboxes[0].runs))
        await pilot.press("w")
        screen = app.screen
        assert isinstance(screen, RunScreen)

        def state() -> api.RunState:
            return screen.shown.state if screen.shown else api.RunState(run=run.run)

        await until(pilot, lambda: len(state().rounds) >= 2 and state().phase_is_certain)
        assert state().phase == "running"
        assert [v.learner for v in state().live] == ["other"]
        await until(pilot, lambda: any("closed: 1/1" in line.text for line in screen.shown.log))  # type: ignore[union-attr]

        await until(pilot, lambda: bool(screen.check_action("join", ())))
        await pilot.press("J")
        join = app.screen
        assert isinstance(join, JoinScreen)
        await until(pilot, lambda: bool(join.check_action("join", ())))
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is screen)  # the worker takes part
        await until(pilot, lambda: len(state().live) == 2)
        await until(pilot, lambda: any(len(r.participants) == 2 for r in state().rounds))
        assert len(screen.shown.running) == 1  # type: ignore[union-attr]

        await pilot.press("S", "up", "enter")
        await until(pilot, lambda: state().phase == "stopped")
        await until(pilot, lambda: not screen.shown.running)  # type: ignore[union-attr]
        assert screen.shown.jobs[0].state == "stopped"  # type: ignore[union-attr]
        await pilot.press("q")
    assert other.wait() == 0, other.words()
