"""A share that stops to answer, with everything real up to the system's calls: every key of every screen answers at once."""

from __future__ import annotations

import builtins
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.pilot import Pilot

from swarm import api
from swarm.api import preview
from swarm.core.errors import WorkerFailed
from tests.integration.handmade import beat, make_mailbox, make_run, write_rounds
from tui.app import SwarmApp
from tui.commands import KEYS, Place
from tui.feed import Feed
from tui.screens.dialogs import Page
from tui.screens.home import HomeScreen
from tui.screens.join import JoinScreen
from tui.screens.live import LiveScreen
from tui.screens.network import NetworkScreen
from tui.screens.new import NewScreen
from tui.screens.run import RunScreen
from tui.screens.settings import SettingsScreen

RUN = "aaaa1111"
CALLS = [
    (os, "stat"),
    (os, "lstat"),
    (os, "scandir"),
    (os, "listdir"),
    (os, "open"),
    (os, "mkdir"),
    (os, "rename"),
    (os, "statvfs"),
]
CALLS += [(builtins, "open"), (io, "open")]
LEAVES = {"leave_app", "back", "start", "picture"}


class Share:
    """What touches the folder hangs from `hangs` on: on the screen's own thread, it is an error at once."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.hung, self.hangs, self._back = str(folder), 0, False, threading.Event()
        self.touched: list[str] = []  # on the screen's thread
        self._screen = threading.current_thread()
        for module, name in CALLS:
            patch.setattr(module, name, self._through(getattr(module, name)))

    def _through(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def through(path: Any, *args: Any, **more: Any) -> Any:
            if self.hangs and isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self.folder):
                if threading.current_thread() is self._screen:
                    self.touched.append(f"{call.__name__} {path}")
                else:
                    self.hung += 1
                    self._back.wait()
            return call(path, *args, **more)

        return through

    def answer(self) -> None:
        self.hangs = False
        self._back.set()


@pytest.fixture
def share(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Share]:
    location = make_mailbox(tmp_path / "share")
    manifest = make_run(location, "mlp-one", RUN)
    write_rounds(location, manifest, 40)
    for name in ("studio", "mbp"):
        beat(location, RUN, name, 0)
    found = Share(tmp_path / "share", monkeypatch)
    yield found
    found.answer()


class Harmless:
    """`swarm.api`, but for what would start a process."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start_join(self, mailbox: str, run: str) -> None:
        self.asked.append("join")

    def start_order(self, *order: object) -> None:
        self.asked.append("start")

    def __getattr__(self, name: str) -> Any:
        return getattr(api, name)


async def until(pilot: Pilot[Any], wanted: Callable[[], object]) -> None:
    while not wanted():
        await pilot.pause()


async def every_key(pilot: Pilot[Any], screen: LiveScreen, *more: Place) -> None:
    """Press all keys that work here, and come back from wherever one leads."""
    app = pilot.app
    for key in [each for place in (*screen.PLACES, *more) for each in KEYS[place] if each.action not in LEAVES]:
        await pilot.press(key.keys.split(",")[0])
        for _ in range(6):
            if app.screen is screen:
                break
            await pilot.press("escape")
        assert app.screen is screen, f"{key.keys} leads to {app.screen}, and not back"
    await pilot.press("f12")
    assert isinstance(app.screen, Page)
    await pilot.press("escape")


async def unasked(module: str, question: bytes, *, limit_s: float) -> bytes:
    raise WorkerFailed("no process is started here, to build a model in")


async def test_every_key_answers_while_every_read_hangs(
    share: Share, tmp_path: Path, fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preview, "asked", unasked)
    feed = Feed(Harmless(), (share.folder,), home_s=0.5, run_s=0.5)  # type: ignore[arg-type]
    app = SwarmApp(feed, pictures=tmp_path)
    async with app.run_test(size=(100, 28)) as pilot:
        await until(pilot, lambda: app.home and app.home.home.mailboxes and app.home.home.mailboxes[0].runs)
        home = app.screen
        assert isinstance(home, HomeScreen)
        await pilot.press("w")
        run = app.screen
        assert isinstance(run, RunScreen)
        await until(pilot, lambda: run.shown and len(run.shown.state.learners) == 2 and run.shown.state.open_round == 40)
        share.hangs = True
        await until(pilot, lambda: share.hung)

        assert run.table.cursor == "mbp"
        await pilot.press("j")
        assert run.table.cursor == "studio"
        await every_key(pilot, run, Place.EVERYWHERE)
        await pilot.press("escape")
        assert app.screen is home
        await every_key(pilot, home)
        for key, kind in (("J", JoinScreen), ("d", NetworkScreen), ("comma", SettingsScreen), ("n", NewScreen)):
            await pilot.press("1", key)
            screen = app.screen
            assert isinstance(screen, kind)
            await every_key(pilot, screen)
            await pilot.press("escape")
            assert app.screen is home
        await pilot.press("q")
        assert app._exit
    assert share.hangs, "nothing waited for an answer"
    assert share.touched == []
