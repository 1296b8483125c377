"""The keys of the plot, and that it is drawn anew only when something changed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tui import plotting
from tui.app import SwarmApp
from tui.screens.run import RunScreen
from tui.widgets.plot import PlotPane

SIZE = (120, 36)


def over(fixed: SimpleNamespace, state: object = None) -> SwarmApp:
    shown = fixed.run_shown(state or fixed.run_state())
    app: SwarmApp = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    return app


def pane(app: SwarmApp) -> PlotPane:
    return app.screen.query_one(PlotPane)


def title(app: SwarmApp) -> str:
    return f"{pane(app).border_title} | {pane(app).border_subtitle}"


async def test_m_a_y_t_and_o_change_what_is_drawn_and_the_title_says_so(fixed: SimpleNamespace) -> None:
    app = over(fixed)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()
        assert title(app) == "Loss  train ⠒⠒ 2.084  validation × 2.124 | by rounds, all"
        await pilot.press("m")
        assert title(app) == "Tokens/s  ⠒⠒ 45.5k | by rounds, all"
        await pilot.press("a")
        assert title(app).endswith("by inner steps, all")
        await pilot.press("a", "y")
        assert title(app).endswith("by time in rounds, all, log")
        await pilot.press("t")
        assert title(app).endswith("by time in rounds, last hour, log")
        await pilot.press("t", "a", "o")
        assert title(app) == "Tokens/s of each | by rounds, last 20 rounds, log"
        assert [t.name for t in pane(app).chart.traces] == ["air", "linux-3090", "mbp", "studio"]
        await pilot.press("o", "y", "t", "m", "m", "m")
        assert title(app).startswith("Loss  train")
        assert title(app).endswith("by rounds, all")


async def test_the_view_outlives_new_data_and_the_screen(fixed: SimpleNamespace) -> None:
    app = over(fixed)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "m", "y", "t")
        before = title(app)
        app.feed.tell(fixed.run_shown(fixed.run_state(closed=13)))
        await pilot.pause()
        assert title(app) == before
        assert pane(app).chart.traces[0].points[-1][0] == 12
        await pilot.press("escape", "w")
        await pilot.pause()
        assert title(app) == before
        await pilot.press("space")
        app.feed.tell(fixed.run_shown(fixed.run_state(closed=14)))
        await pilot.pause()
        await pilot.press("y")
        assert not pane(app).chart.log, "frozen data may be looked at otherwise"
        assert pane(app).chart.traces[0].points[-1][0] == 12


async def test_the_palette_names_the_metrics(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.fed_state())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()
        commands = {c.title: c.callback for c in app.get_system_commands(app.screen)}
        named = [name for name in commands if name.startswith("plot ")]
        assert named == ["plot Loss", "plot Samples/s", "plot Round time", "plot Bytes per round"]
        commands["plot Bytes per round"]()
        assert pane(app).chart.title == "Bytes per round"
        assert "plot Accuracy" in {c.title for c in app.get_system_commands(app.screen)}


async def test_the_learner_under_the_cursor_is_drawn_in_any_case(fixed: SimpleNamespace) -> None:
    names = tuple(f"m{n}" for n in range(9))
    app = over(fixed, fixed.run_state(learners=names))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "o", "G")
        await pilot.pause()
        assert [t.name for t in pane(app).chart.traces] == ["m0", "m1", "m2", "m3", "m4", "m8"]
        assert "3 learners more" in title(app)
        await pilot.press("k")
        await pilot.pause()
        assert pane(app).chart.traces[-1].name == "m7"


async def test_o_is_not_there_where_nothing_is_known_of_each(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.job_state())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()
        assert not app.screen.check_action("overlay", ())
        before = pane(app).chart
        await pilot.press("o", "a", "y")
        assert pane(app).chart != before
        assert isinstance(app.screen, RunScreen)


@pytest.mark.parametrize("size", [(80, 24), (20, 6)])
async def test_the_keys_work_at_every_size(fixed: SimpleNamespace, size: tuple[int, int]) -> None:
    app = over(fixed)
    async with app.run_test(size=size) as pilot:
        await pilot.press("w", "m", "a", "y", "t", "o", "2")
        await pilot.pause()
        view = app.plot_view
        assert (view.metric, view.axis, view.log, view.window, view.each) == ("rate", "steps", True, 1, True)
        assert pane(app).chart.title == "Tokens/s of each"


async def test_it_is_drawn_once_for_each_change(fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    state = fixed.run_state()
    app = over(fixed, state)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()
        drawn: list[object] = []
        draw = plotting.lines
        monkeypatch.setattr(plotting, "lines", lambda chart, width, height: drawn.append(chart) or draw(chart, width, height))
        app.feed.tell(fixed.run_shown(state, age_s=1.4))
        await pilot.pause()
        await pilot.press("j", "4", "1")
        await pilot.pause()
        assert drawn == []
        app.feed.tell(fixed.run_shown(fixed.run_state(closed=13)))
        await pilot.pause()
        assert len(drawn) == 1
        await pilot.press("y")
        await pilot.pause()
        assert len(drawn) == 2
        app.theme = "textual-light"
        await pilot.pause()
        assert len(drawn) == 2  # the same cells in other colours
