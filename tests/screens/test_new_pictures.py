"""Pictures of New run, compared with those that people have looked at (see test_snapshots.py)."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from textual.events import Paste
from textual.pilot import Pilot

from swarm.api import planning
from tests.screens.test_new import OPENING, seen
from tests.screens.test_snapshots import DRAWN_WITH, pytestmark, same_colours_everywhere
from tui.messages import Answered
from tui.screens.new import LookAhead, NewScreen, OpenForm
from tui.widgets.form import Form

__all__ = ["DRAWN_WITH", "pytestmark", "same_colours_everywhere"]
SIZES = [(120, 36), (80, 24), (50, 20)]
MLX_LM = {"mlx-lm": {"run.model": "mlx-community/SmolLM2-135M-Instruct", "run.data": "~/data/poems", "spec.iters": "600"}}


def drawing(state: str, *, theme: str = "") -> Callable[[Pilot[None]], Any]:
    async def draw(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        if theme:
            app.theme = theme
        await pilot.press("n")
        screen = app.screen
        assert isinstance(screen, NewScreen)
        question = next(what for _, what in app.feed.asked if isinstance(what, OpenForm))
        if state == "opening":
            return
        opening = OPENING
        if state == "mlx-lm":
            opening = planning.Opening(tasks=OPENING.tasks, mailbox=OPENING.mailbox, method="mlx-lm", values=MLX_LM)
        app.feed.tell(Answered(question, opening))
        await pilot.pause()
        form = screen.query_one("#form", Form)
        if state == "wrong":
            for key, value in (("spec.fragments", "200"), ("run.rounds", "forty")):
                form.go(key)
                form.post_message(Paste(value))
                await pilot.pause()
            form.go("spec.fragments")
        screen._look()
        await pilot.pause()
        looked = [what for _, what in app.feed.asked if isinstance(what, LookAhead)][-1]
        unknown = seen(measured=False, parameters=None, estimate=None, link=None, fits=seen().fits[:1], memory_bytes=None)
        app.feed.tell(Answered(looked, unknown if state == "mlx-lm" else seen()))
        await pilot.pause()

    return draw


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", ["ready", "wrong"])
def test_new_run(fixed: SimpleNamespace, snap_compare: Callable[..., bool], state: str, size: tuple[int, int]) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home(), sightings=fixed.sightings()))
    assert snap_compare(app, terminal_size=size, run_before=drawing(state))


def test_new_run_of_a_fine_tuning(fixed: SimpleNamespace, snap_compare: Callable[..., bool]) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home()))
    assert snap_compare(app, terminal_size=(120, 36), run_before=drawing("mlx-lm"))


def test_new_run_in_a_light_theme(fixed: SimpleNamespace, snap_compare: Callable[..., bool]) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home()))
    assert snap_compare(app, terminal_size=(80, 24), run_before=drawing("wrong", theme="textual-light"))


def test_new_run_without_colours(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = fixed.app_over(fixed.home_shown(fixed.home()))
    assert snap_compare(app, terminal_size=(80, 24), run_before=drawing("wrong"))


def test_new_run_in_ascii(fixed: SimpleNamespace, snap_compare: Callable[..., bool]) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home()), ascii=True)
    assert snap_compare(app, terminal_size=(120, 36), run_before=drawing("ready"))
