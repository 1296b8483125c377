"""The moment before Home is there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from textual.screen import Screen

from tests.screens.conftest import run_from_the_start
from tui import text
from tui.screens.home import HomeScreen
from tui.widgets.toned import Words

SIZE = (120, 36)


async def test_one_line_is_shown_until_home_is_loaded(fixed: SimpleNamespace, monkeypatch: Any) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())))
    opens = app._open_home
    monkeypatch.setattr(app, "_open_home", lambda: None)  # it takes its time
    async with run_from_the_start(app, size=SIZE) as pilot:
        assert type(app.screen) is Screen
        assert str(app.screen.query_one("#head", Words).content) == "".join(words for words, _ in text.OPENING)
        await pilot.press("comma", "question_mark", "ctrl+p", "n", "escape")
        assert len(app.screen_stack) == 1, "whatever is pressed: nothing lies beneath Home"
        opens()
        await pilot.pause()
        assert isinstance(app.screen, HomeScreen)
        await pilot.press("question_mark")
        assert len(app.screen_stack) == 3


async def test_the_app_can_be_left_before_home_is_loaded(fixed: SimpleNamespace, monkeypatch: Any) -> None:
    app = fixed.app_over(None)
    opens = app._open_home
    monkeypatch.setattr(app, "_open_home", lambda: None)
    async with run_from_the_start(app, size=SIZE) as pilot:
        await pilot.press("q")
        opens()
    assert app.return_code == 0
