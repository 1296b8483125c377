"""Home: what its keys do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from textual.widgets import Button

from tui.app import SwarmApp
from tui.messages import CommandEnded
from tui.screens.dialogs import Page
from tui.screens.home import HomeScreen
from tui.screens.run import RunScreen
from tui.transitions import Note
from tui.view_home import job_detail
from tui.widgets.table import Table
from tui.widgets.toned import Words

SIZE = (120, 36)


@pytest.fixture
def busy(fixed: SimpleNamespace) -> Any:
    """Three runs, of which one is trained here, and a failed job."""
    trained = fixed.run_state()
    two = ("studio", "mbp")
    idle = fixed.run_state(run="aaaa2222", name="digits-calm-lynx", learners=two, left=two, rounds=None)
    done = fixed.run_state(run="bbbb3333", name="charlm-warm-owl", closed=20, rounds=20)
    words = "no data here: pass --data FILE"
    failed = fixed.job(id="20250301-113000-d4e5f6", state="failed", run="aaaa2222", name="digits-calm-lynx", message=words)
    return fixed.home_shown(fixed.home(done, idle, trained, jobs=(failed, fixed.job())))


@pytest.fixture
def quiet(fixed: SimpleNamespace) -> Any:
    """One run, no job."""
    return fixed.home_shown(fixed.home(fixed.run_state()))


def names(app: SwarmApp, table: str = "#runs") -> list[str]:
    return [row.cells[0].text for row in app.screen.query_one(table, Table).rows]


def words(app: SwarmApp, selector: str) -> str:
    return str(app.screen.query_one(selector, Words).content)


async def test_runs_that_can_be_joined_come_first(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE):
        assert names(app) == ["charlm-brave-otter*", "digits-calm-lynx", "charlm-warm-owl"]
        assert names(app, "#jobs") == ["charlm-brave-otter", "digits-calm-lynx"]


async def test_enter_opens_the_run_and_esc_comes_back(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy, fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter")
        assert isinstance(app.screen, RunScreen)
        assert app.feed.asked == [("show", fixed.AT)]
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)
        assert app.feed.asked[-1] == ("show", None)


async def test_enter_on_a_job_opens_its_run(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2", "j", "enter")
        assert isinstance(app.screen, RunScreen)
        assert app.screen.at.run == "aaaa2222"


async def test_p_pauses_the_run_under_the_cursor_and_lets_it_go_on(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("P", "enter")  # cancel has the focus
        assert app.feed.asked == []
        await pilot.press("P", "up", "enter")
        assert app.feed.asked == [("pause", fixed.AT)]
        paused = fixed.run_state(controls=(fixed.Control(action="pause", by="mbp"),))
        app.feed.tell(fixed.home_shown(fixed.home(paused)))
        await pilot.pause()
        assert words(app, "#detail") == "‖ charlm-brave-otter is paused by mbp: P lets it go on"
        await pilot.press("P")
        assert app.feed.asked[-1] == ("resume", fixed.AT)


async def test_an_ended_run_is_not_paused(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("G", "P")
        assert isinstance(app.screen, HomeScreen)
        assert app.feed.asked == []


async def test_joining_a_run_of_a_program_says_how(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(task="library")
    app = fixed.app_over(fixed.home_shown(fixed.home(state)), fixed.run_shown(state))
    async with app.run_test(size=SIZE) as pilot:
        assert "joined by starting that program here" in words(app, "#detail")
        await pilot.press("J")
        assert isinstance(app.screen, HomeScreen)
        assert ["joined by starting that program here" in n.message for n in app._notifications] == [True]
        await pilot.press("enter", "J")
        assert isinstance(app.screen, RunScreen)
        assert app.feed.asked == [("show", fixed.AT)]


async def test_a_failed_job_shows_its_last_words_and_its_log(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        assert words(app, "#detail") == ""
        await pilot.press("2", "G")
        assert "no data here: pass --data FILE" in words(app, "#detail")
        assert "~/.local/state/swarm/jobs/20250301-113000-d4e5f6/log.txt" in words(app, "#detail")


async def test_moving_sorting_and_filtering(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        table = app.screen.query_one("#runs", Table)
        moves = {"j": 1, "down": 2, "k": 1, "up": 0, "G": 2, "g": 0, "end": 2, "home": 0, "pagedown": 2, "pageup": 0}
        for key, place in moves.items():
            await pilot.press(key)
            assert table.cursor == table.rows[place].key
        await pilot.press("s")
        assert names(app) == ["charlm-brave-otter*", "charlm-warm-owl", "digits-calm-lynx"]
        assert "run▴" in table.render_line(0).text
        await pilot.press("slash", *"owl")
        assert [row.cells[0].text for row in table.rows] == ["charlm-warm-owl"]
        assert table.cursor == table.rows[0].key
        await pilot.press("enter")
        assert isinstance(app.screen, HomeScreen)
        assert names(app) == ["charlm-warm-owl"]
        await pilot.press("slash", "escape")
        assert len(names(app)) == 3


async def test_filtering_for_nothing_leaves_no_row_and_no_crash(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("slash", *"xyz", "enter", "j", "G", "enter", "S", "s")
        assert names(app) == []
        assert isinstance(app.screen, HomeScreen)


async def test_a_run_that_is_trained_here_is_not_joined_again(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("J")
        assert isinstance(app.screen, HomeScreen)


async def test_stopping_asks_first_and_cancel_has_the_focus(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("S")
        assert isinstance(app.focused, Button)
        assert app.focused.id == "cancel"
        assert "for everybody" in app.export_screenshot().replace("&#160;", " ")
        await pilot.press("enter")
        assert app.feed.asked == []
        await pilot.press("S", "up", "enter")
        assert app.feed.asked == [("stop", fixed.AT)]


async def test_an_ended_run_is_not_stopped(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("G", "S")
        assert isinstance(app.screen, HomeScreen)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quitting_without_a_job_asks_nothing(fixed: SimpleNamespace, quiet: Any, key: str) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running or app._exit
    assert app.feed.closed


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_quitting_with_a_job_asks_whether_it_goes_on(fixed: SimpleNamespace, busy: Any, key: str) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press(key)
        assert [button.id for button in app.screen.query(Button)] == ["keep", "leave", "cancel"]
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)
        await pilot.press(key, "enter")
        assert app._exit
    assert app.feed.asked == []


async def test_leaving_first_quits_when_the_worker_was_told(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("q", "down", "enter")
        assert app.feed.asked == [("leave", fixed.job().id)]
        assert not app._exit
        app.feed.tell(CommandEnded("leave", fixed.job().id))
        await pilot.pause()
        assert app._exit


async def test_ctrl_c_twice_quits_at_once(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("ctrl+c", "ctrl+c")
        assert app._exit
    assert app.feed.asked == []


async def test_a_failed_command_is_told(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        app.feed.tell(CommandEnded("join", "k4m7q2xw", "the [b]share[/b] is full"))
        await pilot.pause()
        assert [n.message for n in app._notifications] == ["could not join: the [b]share[/b] is full"]


async def test_notes_are_toasted_once(fixed: SimpleNamespace, quiet: Any) -> None:
    app = fixed.app_over(quiet)
    async with app.run_test(size=SIZE) as pilot:
        note = Note("air joined", n=1)
        for notes in ((note,), (note,), (note, Note("round 3 closed", toast=False, n=2))):
            app.feed.tell(fixed.home_shown(quiet.home, notes=notes))
            await pilot.pause()
        assert [n.message for n in app._notifications] == ["air joined"]


async def test_rescan_and_picture(fixed: SimpleNamespace, quiet: Any, tmp_path: Path) -> None:
    app = fixed.app_over(quiet, pictures=tmp_path)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("r", "f8")
        assert app.feed.asked == [("rescan", None)]
        (picture,) = tmp_path.glob("*.svg")
        assert "charlm-brave-otter" in picture.read_text(encoding="utf-8")


async def test_the_page_of_facts(fixed: SimpleNamespace, busy: Any) -> None:
    app = fixed.app_over(busy)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("f12")
        assert isinstance(app.screen, Page)
        for fact in ("textual", "/mnt/share/swarm: 3 runs", "3, the last took 0.0 s", "no data here: pass --data FILE"):
            assert fact in app.screen.text
        await pilot.press("c")
        assert app.clipboard == app.screen.text


async def test_a_job_that_was_dropped_says_by_whom(fixed: SimpleNamespace) -> None:
    said = "learner 'studio' was dropped from the run, asked for on mbp"
    dropped = fixed.job(state="dropped", message=said)
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state(), jobs=(dropped,))))
    async with app.run_test(size=SIZE):
        (row,) = app.screen.query_one("#jobs", Table).rows
        assert [cell.text for cell in row.cells if cell.text in ("○ dropped", said)] == ["○ dropped", said]
        assert not row.quiet
        assert next(job_detail(dropped))[0][0] == "○ charlm-brave-otter was dropped: "


async def test_hostile_names_stay_text(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(name="[red]otter[/] [@click=app.quit]x[/]")
    job = fixed.job(name="[b]x", state="failed", message="[/nope] \x1b[2J")
    app = fixed.app_over(fixed.home_shown(fixed.home(state, jobs=(job,))))
    async with app.run_test(size=SIZE) as pilot:
        assert names(app)[0].startswith("[red]otter[/] [@click")
        await pilot.press("S", "escape", "2", "q", "escape")
        assert isinstance(app.screen, HomeScreen)


async def test_snapshots_that_come_while_the_app_closes_are_nothing(fixed: SimpleNamespace, busy: Any) -> None:
    run = fixed.run_shown(fixed.run_state())
    app = fixed.app_over(busy, run)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter")
        screen = app.screen
        assert isinstance(screen, RunScreen)
        await screen.remove_children()
        app.run_shown = fixed.run_shown(fixed.run_state(closed=13))
        screen.update()
        assert screen.shown is app.run_shown
