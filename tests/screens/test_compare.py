"""Compare: how two runs are chosen, what is shown of them, and that it goes on while one of them does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tui import view_compare
from tui.app import SwarmApp
from tui.messages import Answered, RunAt
from tui.screens.compare import BothRuns, CompareScreen
from tui.screens.dialogs import Choice, Page
from tui.screens.home import HomeScreen
from tui.screens.run import RunScreen
from tui.view_compare import Side
from tui.view_curves import PlotView
from tui.widgets.plot import PlotPane
from tui.widgets.table import Table
from tui.widgets.toned import Words

SIZE = (120, 36)
EVERYBODY = ("studio", "mbp", "linux-3090", "air")


def ended(fixed: SimpleNamespace, *, run: str = "bbbb3333", name: str = "charlm-warm-owl", sync_every: int = 50) -> Any:
    algorithm = fixed.DiLoCo(sync_every=sync_every, quorum_size=2, start_learners=2)
    return fixed.run_state(run=run, name=name, closed=20, rounds=20, left=EVERYBODY, algorithm=algorithm)


def over(fixed: SimpleNamespace, *states: Any) -> SwarmApp:
    states = states or (fixed.run_state(), ended(fixed))
    app: SwarmApp = fixed.app_over(fixed.home_shown(fixed.home(*states)), fixed.run_shown(states[0]))
    return app


def asked(app: SwarmApp) -> list[BothRuns]:
    return [what for kind, what in app.feed.asked if kind == "ask"]


def answer(app: SwarmApp, *sides: Side, problem: str = "") -> None:
    app.feed.tell(Answered(asked(app)[-1], sides if not problem else None, problem))


def sides(fixed: SimpleNamespace, *states: Any) -> tuple[Side, Side]:
    one, other = (Side(RunAt(fixed.SHARE, state.run), state) for state in states or (fixed.run_state(), ended(fixed)))
    return one, other


def words(app: SwarmApp, id: str) -> str:
    return str(app.screen.query_one(id, Words).content)


def table(app: SwarmApp) -> dict[str, list[str]]:
    return {row.cells[0].text: [cell.text for cell in row.cells[1:]] for row in app.screen.query_one("#both", Table).rows}


async def test_c_marks_a_run_on_home_and_c_on_another_one_draws_both(fixed: SimpleNamespace) -> None:
    app = over(fixed)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c")
        rows = app.screen.query_one("#runs", Table).rows
        assert rows[0].cells[0].text.startswith("◆ ")
        assert "is marked" in words(app, "#detail")
        await pilot.press("c")
        assert isinstance(app.screen, HomeScreen)
        assert "is marked" not in words(app, "#detail")
        await pilot.press("c", "j", "c")
        await pilot.pause()
        assert isinstance(app.screen, CompareScreen)
        assert [at.run for at in asked(app)[-1].runs] == [fixed.AT.run, "bbbb3333"]
        assert "reading" in words(app, "#banner")
        answer(app, *sides(fixed))
        await pilot.pause()
        assert words(app, "#head") == "swarm ▸ compare  ◆ charlm-brave-otter ● running  ◇ charlm-warm-owl ✓ done"
        assert words(app, "#banner") == ""
        assert table(app)["sync_every"] == ["100", "50"]
        assert table(app)["rounds so far"] == ["12", "20"]
        await pilot.press("m", "a", "y", "t")
        chart = app.screen.query_one(PlotPane).chart
        assert (chart.title, chart.unit, chart.log) == ("Tokens/s", "step", True)
        assert [(t.name, t.mark) for t in chart.traces] == [("charlm-brave-otter", "◆"), ("charlm-warm-owl", "◇")]
        assert "last 100 rounds" in chart.notes
        assert "plot Loss" in {c.title for c in app.get_system_commands(app.screen)}
        for key, pane in (("2", "plot"), ("1", "both")):
            await pilot.press(key)
            assert app.focused is not None
            assert app.focused.id == pane
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)
        assert "is marked" not in words(app, "#detail")


async def test_c_on_a_run_offers_the_others_the_like_first(fixed: SimpleNamespace) -> None:
    fed = msgspec.structs.replace(fixed.fed_state(), run="aaaa0000")
    app = over(fixed, fixed.run_state(), fed, ended(fixed))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "c")
        assert isinstance(app.screen, Choice)
        assert app.focused is not None
        assert app.focused.id == "run-0"
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, CompareScreen)
        assert asked(app)[-1].runs[1].run == "bbbb3333"
        await pilot.press("escape", "c", "escape")
        assert isinstance(app.screen, RunScreen)


async def test_a_run_that_is_the_only_one_has_nothing_to_be_compared_with(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_state())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "c")
        assert isinstance(app.screen, RunScreen)
        assert asked(app) == []


async def test_it_asks_on_while_one_of_them_runs_and_no_longer(fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    app = over(fixed)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c", "j", "c")
        await pilot.pause()
        timers: list[float] = []
        monkeypatch.setattr(app.screen, "set_timer", lambda delay, callback: timers.append(delay))
        one, other = sides(fixed)
        behind = Side(one.at, one.state, behind=True)
        before = len(asked(app))
        answer(app, behind, other)
        await pilot.pause()
        assert len(asked(app)) == before + 1, "at once: more is there to be read"
        assert "reading charlm-brave-otter: 12 rounds so far" in words(app, "#banner")
        answer(app, one, other)
        await pilot.pause()
        assert len(timers) == 1
        answer(app, Side(one.at, fixed.lost(one.state), behind=True), other)
        await pilot.pause()
        assert len(timers) == 2, "a lost share is given time"
        answer(app, other, other)
        await pilot.pause()
        assert len(timers) == 2
        assert len(asked(app)) == before + 1
        await pilot.press("question_mark")
        assert isinstance(app.screen, Page)
        answer(app, one, other)  # behind a dialog nothing more is read
        await pilot.pause()
        assert len(timers) == 2
        await pilot.press("escape")
        await pilot.pause()
        assert len(asked(app)) == before + 2


async def test_what_cannot_be_read_is_one_line_and_the_other_is_drawn(fixed: SimpleNamespace) -> None:
    app = over(fixed)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("c", "j", "c")
        await pilot.pause()
        one, other = sides(fixed)
        answer(app, one, Side(other.at, problem="no run bbbb3333 in\n/mnt/share"))
        await pilot.pause()
        assert words(app, "#banner") == "✗ bbbb3333 cannot be read: no run bbbb3333 in /mnt/share"
        assert len(app.screen.query_one(PlotPane).chart.drawn) == 2  # the one's training and validation
        assert table(app)["rounds so far"] == ["12", "—"]
        answer(app, problem="RuntimeError")
        await pilot.pause()
        assert "✗ RuntimeError" in words(app, "#banner")
        lost = Side(one.at, fixed.lost(one.state))
        answer(app, lost, other)
        await pilot.pause()
        assert words(app, "#banner") == "⚠ charlm-brave-otter: the share does not answer; shown as far as it was read"


def test_runs_of_rounds_and_of_iterations_are_drawn_by_steps(fixed: SimpleNamespace) -> None:
    both = sides(fixed, fixed.run_state(), fixed.job_state())
    chart = view_compare.chart(both, PlotView())
    assert chart.unit == "step"
    assert "one has rounds, the other iterations" in chart.notes
    assert {t.name for t in chart.drawn} >= {"charlm-brave-otter", "smollm2-quiet-heron"}
    assert view_compare.chart(both, PlotView(axis="time")).unit == "time"
    assert {m.key for m in view_compare.every(both)[:2]} == {"loss", "rate"}  # what both have


def test_a_metric_that_only_one_has_draws_that_one(fixed: SimpleNamespace) -> None:
    both = sides(fixed, fixed.run_state(), fixed.fed_state())
    chart = view_compare.chart(both, PlotView(metric="metric accuracy"))
    assert [t.name for t in chart.traces if not t.points] == ["charlm-brave-otter"]
    assert chart.drawn[0].name == "lenet5-calm-lynx"


def test_two_runs_of_one_name_are_told_apart(fixed: SimpleNamespace) -> None:
    both = sides(fixed, fixed.run_state(), ended(fixed, name=fixed.NAME))
    assert view_compare.names(both) == (f"{fixed.NAME} ({fixed.AT.run})", f"{fixed.NAME} (bbbb3333)")


def test_runs_of_the_same_settings_say_so(fixed: SimpleNamespace) -> None:
    rows = view_compare.rows(sides(fixed, fixed.run_state(), fixed.run_state(run="cccc4444")))
    assert [cell.text for cell in rows[-1].cells] == ["settings", "the same", "the same"]
