"""Run: what its keys do, and that it keeps still where it should."""

from types import SimpleNamespace
from typing import Any

import pytest
from textual.widgets import Button

from tui.app import SwarmApp
from tui.messages import LogLine
from tui.screens.dialogs import Choice
from tui.screens.join import JoinScreen
from tui.screens.run import RunScreen
from tui.widgets.plot import PlotPane
from tui.widgets.table import Cell, Row, Table
from tui.widgets.toned import Lines, Words

SIZE = (120, 36)


def over(fixed: SimpleNamespace, shown: Any, **more: Any) -> SwarmApp:
    jobs = (shown.job,) if shown.job else ()
    app: SwarmApp = fixed.app_over(fixed.home_shown(fixed.home(shown.state, jobs=jobs)), shown, **more)
    return app


def head(app: SwarmApp) -> str:
    return str(app.screen.query_one("#head", Words).content)


def banner(app: SwarmApp) -> str:
    return str(app.screen.query_one("#banner", Words).content)


def drawn(app: SwarmApp) -> list[str]:
    """The lines on the screen, as the terminal gets them."""
    return ["".join(segment.text for segment in line) for line in app.screen._compositor.render_strips()]


def learners(app: SwarmApp) -> list[str]:
    return [row.key for row in app.screen.query_one("#learners", Table).rows]


async def test_j_joins_a_run_that_is_not_trained_here(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        app.feed.joining = fixed.join_shown(at=fixed.AT)
        await pilot.press("w", "J")
        assert isinstance(app.screen, JoinScreen)
        await pilot.press("enter")
        assert app.feed.asked[-1] == ("join", fixed.AT)
        await pilot.press("escape")
        app.feed.tell(fixed.run_shown(fixed.run_state(), job=fixed.job(state="starting")))
        await pilot.pause()
        assert "this machine joins as studio" in banner(app)
        await pilot.press("J")
        assert isinstance(app.screen, RunScreen)
        app.feed.tell(fixed.run_shown(fixed.run_state(), job=fixed.job(state="failed", message="no data here")))
        await pilot.pause()
        assert "the worker on this machine failed: no data here" in banner(app)
        assert "log.txt" in banner(app)
        gone = fixed.job(state="dropped", message="learner 'studio' was dropped from the run, asked for on mbp")
        app.feed.tell(fixed.run_shown(fixed.run_state(), job=gone))
        await pilot.pause()
        assert "this machine trains no more: learner 'studio' was dropped from the run, asked for on mbp" in banner(app)
        assert "failed" not in banner(app)


@pytest.mark.parametrize("end", ["done", "stopped"])
async def test_an_ended_run_is_neither_joined_nor_stopped(fixed: SimpleNamespace, end: str) -> None:
    state = fixed.run_state(closed=40) if end == "done" else fixed.run_state(stop=True)
    app = over(fixed, fixed.run_shown(state))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "J", "S")
        assert isinstance(app.screen, RunScreen)
        assert end in banner(app)


async def test_leaving_asks_first(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(), job=fixed.job()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "L")
        assert isinstance(app.focused, Button)
        assert app.focused.id == "cancel"
        await pilot.press("up", "enter")
        assert app.feed.asked[-1] == ("leave", fixed.job().id)


async def test_stopping_asks_first(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "S", "enter", "S", "k", "enter")
        assert app.feed.asked[1:] == [("stop", fixed.AT)]


async def test_space_freezes_the_view_and_goes_on_with_the_newest(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "space")
        assert "FROZEN" in head(app)
        app.feed.tell(fixed.run_shown(fixed.run_state(closed=13)))
        await pilot.pause()
        assert "r12/40" in head(app)
        await pilot.press("space")
        assert "r13/40" in head(app)
        assert "FROZEN" not in head(app)


async def test_nothing_is_painted_behind_a_dialog(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        run = app.screen
        assert isinstance(run, RunScreen)
        before = run.shown
        await pilot.press("S")
        app.feed.tell(fixed.run_shown(fixed.run_state(closed=13)))
        await pilot.pause()
        assert run.shown is before
        await pilot.press("escape")
        assert "r13/40" in head(app)


async def test_an_unchanged_value_repaints_nothing(fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    state = fixed.run_state()
    app = over(fixed, fixed.run_shown(state))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()
        painted: list[str | None] = []
        for kind in (Words, Table, Lines, PlotPane):
            monkeypatch.setattr(kind, "refresh", lambda self, *a, **k: painted.append(self.id) or self)
        app.feed.tell(fixed.run_shown(state))
        await pilot.pause()
        assert painted == []
        app.feed.tell(fixed.run_shown(state, age_s=1.4))
        await pilot.pause()
        assert set(painted) == {"head"}


@pytest.mark.parametrize("n", range(4))
async def test_only_the_row_that_changed_is_repainted(fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()
        table = app.screen.query_one("#learners", Table)
        before = drawn(app)
        rendered: list[int] = []
        render_line = Table.render_line
        monkeypatch.setattr(Table, "render_line", lambda self, y: rendered.append(y) or render_line(self, y))
        rows = list(table.rows)
        rows[n] = Row(key=rows[n].key, cells=(*rows[n].cells[:1], Cell("! other"), *rows[n].cells[2:]))
        table.show(tuple(rows))
        await pilot.pause()
        assert rendered == [1 + n]
        changed = [y for y, (old, new) in enumerate(zip(before, drawn(app), strict=True)) if old != new]
        assert changed == [table.content_region.y + 1 + n]
        assert "! other" in drawn(app)[changed[0]]


async def test_numbers_go_to_the_panes(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        for key, pane in (("4", "log"), ("2", "loss"), ("3", "rounds"), ("4", "log"), ("1", "learners")):
            await pilot.press(key)
            assert app.focused is not None
            assert app.focused.id == pane


async def test_the_log_follows_until_the_reader_scrolls_up(fixed: SimpleNamespace) -> None:
    lines = tuple(LogLine(f"line {n}") for n in range(100))
    app = over(fixed, fixed.run_shown(fixed.run_state(), log=lines[:90]))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "4")
        log = app.screen.query_one("#log", Lines)
        assert log.render_line(log.scrollable_content_region.height - 1).text.strip() == "line 89"
        await pilot.press("g")
        app.feed.tell(fixed.run_shown(fixed.run_state(), log=lines[:95]))
        await pilot.pause()
        assert log.render_line(0).text.strip() == "line 0"
        await pilot.press("G")
        app.feed.tell(fixed.run_shown(fixed.run_state(), log=lines))
        await pilot.pause()
        assert log.render_line(log.scrollable_content_region.height - 1).text.strip() == "line 99"


async def test_sorting_and_filtering_learners(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(silent=("mbp",))))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        assert learners(app) == ["air", "linux-3090", "studio", "mbp"]
        await pilot.press("s", "s", "s", "s")
        assert learners(app) == ["linux-3090", "studio", "air", "mbp"]
        await pilot.press("slash", *"silent", "enter")
        assert learners(app) == ["mbp"]


@pytest.mark.parametrize(
    ("size", "visible"),
    [
        ((120, 36), {"learners", "loss", "rounds", "log"}),
        ((80, 24), {"learners", "loss", "rounds", "log"}),
        ((59, 24), {"learners"}),
        ((20, 5), {"learners"}),
        ((1, 1), set()),
    ],
)
async def test_no_size_is_refused(fixed: SimpleNamespace, size: tuple[int, int], visible: set[str]) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(silent=("air",)), job=fixed.job()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.resize_terminal(*size)
        for _ in range(50):  # the classes of the new size come with its first layout, and with them the second one
            await pilot.pause()
            panes = {id for id in ("learners", "loss", "rounds", "log") if app.screen.query_one(f"#{id}").region.area}
            if panes >= visible and (size[0] >= 60 or panes <= {"learners"}):
                break
        assert panes >= visible
        assert size[0] >= 60 or panes <= {"learners"}
        await pilot.press("question_mark", "escape", "q", "escape")
        await pilot.resize_terminal(*SIZE)
        assert isinstance(app.screen, RunScreen)


async def test_a_snapshot_of_another_run_is_not_shown(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        app.feed.tell(fixed.run_shown(fixed.run_state(run="bbbb3333", name="other")))
        await pilot.pause()
        assert fixed.NAME in head(app)


async def test_plain_ascii_is_ascii_to_the_last_cell(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state(silent=("air",)), job=fixed.job())
    app = over(fixed, shown, ascii=True)
    async with app.run_test(size=SIZE) as pilot:
        for keys in ((), ("enter",), ("q",), ("escape", "question_mark"), ("escape", "S"), ("escape", "ctrl+p")):
            await pilot.press(*keys)
            await pilot.pause()
            words = "".join(drawn(app))
            assert words.isascii(), {c for c in words if not c.isascii()}


async def test_no_color_is_grey_and_draws_the_plot(fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = over(fixed, fixed.run_shown(fixed.run_state(silent=("air",)), job=fixed.job()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()
        segments = [segment for line in app.screen._compositor.render_strips() for segment in line]
        assert any("\u2801" <= c <= "\u28ff" for segment in segments for c in segment.text)
        colors = [c for s in segments if s.style for c in (s.style.color, s.style.bgcolor) if c and c.triplet]
        assert colors
        assert {len(set(color.triplet)) for color in colors if color.triplet} == {1}


async def test_a_light_theme_redraws_the_plot(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()

        def plot_colors() -> set[str]:
            return {
                segment.style.color.name
                for line in app.screen._compositor.render_strips()
                for segment in line
                if segment.style and segment.style.color and any("\u2801" <= c <= "\u28ff" for c in segment.text)
            }

        before = plot_colors()
        app.theme = "textual-light"
        await pilot.pause()
        assert len(before) == len(plot_colors())
        assert not before & plot_colors()


async def test_p_asks_before_it_pauses_and_lets_it_go_on_at_once(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "P")
        assert isinstance(app.focused, Button)
        assert app.focused.id == "cancel"
        await pilot.press("up", "enter")
        assert app.feed.asked[-1] == ("pause", fixed.AT)
        paused = fixed.run_state(controls=(fixed.Control(action="pause", by="mbp"),))
        app.feed.tell(fixed.run_shown(paused))
        await pilot.pause()
        assert "‖ PAUSED" in head(app)
        assert "paused by mbp" in banner(app)
        await pilot.press("P")
        assert isinstance(app.screen, RunScreen)
        assert app.feed.asked[-1] == ("resume", fixed.AT)


async def test_x_drops_the_learner_under_the_cursor(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(left=("air",))))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        table = app.screen.query_one("#learners", Table)
        await pilot.press("j")
        chosen = table.cursor
        await pilot.press("x")
        assert isinstance(app.screen, Choice)
        assert app.focused is not None
        assert app.focused.id == "cancel"
        await pilot.press("up", "enter")
        assert app.feed.asked[-1] == ("drop", (fixed.AT, chosen))
        await pilot.press("G")  # air, which has left
        assert table.cursor == "air"
        await pilot.press("x")
        assert isinstance(app.screen, RunScreen)


async def test_a_run_that_was_extended_shows_its_new_end(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(controls=(fixed.Control(action="extend", rounds=80),))
    app = over(fixed, fixed.run_shown(state))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        assert "r12/80" in head(app)


async def test_nothing_is_paused_or_dropped_in_a_run_that_has_ended(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(closed=40)))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "P", "x")
        assert isinstance(app.screen, RunScreen)
        assert app.feed.asked[-1][0] == "show"


@pytest.mark.parametrize("size", [(120, 36), (40, 12), (40, 8), (24, 5)])
async def test_what_enter_would_choose_is_in_sight_on_small_screens(fixed: SimpleNamespace, size: tuple[int, int]) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=size) as pilot:
        await pilot.press("w", "P")
        assert isinstance(app.screen, Choice)
        await pilot.pause()
        assert any("Cancel" in line for line in drawn(app))
        await pilot.press("up")
        await pilot.pause()
        assert any("Pause it" in line for line in drawn(app))
