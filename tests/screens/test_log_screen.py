"""The log of this machine's worker: followed, narrowed, and what stands there without one."""

from types import SimpleNamespace
from typing import Any

from tui import view_log
from tui.messages import Answered
from tui.screens.home import HomeScreen
from tui.screens.log import KEPT, LogOf, LogScreen
from tui.screens.run import RunScreen
from tui.transitions import Note
from tui.widgets.toned import Lines, Words

SIZE = (80, 24)  # without a plot, which takes its time
TOLD = ("12:00:00 joined", "12:00:01 WARN the mailbox does not answer", "12:00:02 ERROR swarm: no data", "Traceback [b]x[/]")


def over(fixed: SimpleNamespace, shown: Any) -> Any:
    return fixed.app_over(fixed.home_shown(fixed.home(shown.state, jobs=shown.jobs)), shown)


def said(app: Any) -> list[str]:
    return ["".join(words for words, _ in line) for line in app.screen.query_one("#text", Lines)._lines]


def words(app: Any, id: str) -> str:
    return str(app.screen.query_one(id, Words).content)


async def test_l_opens_the_whole_log_which_is_followed_and_narrowed(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(), job=fixed.job()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "l")
        assert isinstance(app.screen, LogScreen)
        asked = LogOf(fixed.job().id, KEPT)
        assert app.feed.asked[-1] == ("ask", asked)
        assert said(app) == ["it is read …"]
        app.feed.tell(Answered(asked, TOLD))
        await pilot.pause()
        assert said(app) == list(TOLD)
        assert "log of studio in charlm-brave-otter  running  its last 4 lines" in words(app, "#head")
        assert "the whole file: ~/.local/state/swarm/jobs/20250301-120000-a1b2c3/log.txt" in words(app, "#banner")
        await pilot.press("i")
        assert said(app) == list(TOLD[1:])
        await pilot.press("i")
        assert said(app) == [TOLD[2]]
        await pilot.press("i", "slash", *"MAIL", "enter")
        assert said(app) == [TOLD[1]]
        assert "/ MAIL" in str(app.screen.query_one("#text", Lines).border_title)
        await pilot.press("slash", "escape")
        assert said(app) == list(TOLD)
        await pilot.press("slash", *"zz", "enter")
        assert said(app) == ["nothing that is shown here"]
        await pilot.press("escape")
        assert isinstance(app.screen, RunScreen)


async def test_it_stands_still_while_one_reads_further_up(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(), job=fixed.job()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "l")
        asked, lines = LogOf(fixed.job().id, KEPT), tuple(f"12:00:00 line {n}" for n in range(100))
        app.feed.tell(Answered(asked, lines[:80]))
        await pilot.pause()
        text = app.screen.query_one("#text", Lines)
        assert text.render_line(text.scrollable_content_region.height - 1).text.strip().endswith("line 79")
        await pilot.press("k", "pageup", "space", "j", "g")
        app.feed.tell(Answered(asked, lines[20:]))
        await pilot.pause()
        assert said(app)[0].endswith("line 0"), "the end that was read has moved on, and not under the reader's eyes"
        await pilot.press("G")
        app.feed.tell(Answered(asked, lines[20:]))
        await pilot.pause()
        assert (said(app)[0], said(app)[-1]) == ("12:00:00 line 20", "12:00:00 line 99")


async def test_the_next_worker_of_this_machine_and_a_crash(fixed: SimpleNamespace) -> None:
    failed = fixed.job(id="20250301-110000-d4e5f6", state="failed", message="[b]no data here[/]")
    shown = fixed.run_shown(fixed.run_state(), job=fixed.job())
    shown = fixed.RunShown(at=shown.at, state=shown.state, now_s=shown.now_s, jobs=(failed, fixed.job()))
    app = over(fixed, shown)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "l")
        assert "running" in words(app, "#head"), "one that runs comes first"
        await pilot.press("n")
        assert app.feed.asked[-1] == ("ask", LogOf(failed.id, KEPT))
        assert "✗ it failed: [b]no data here[/]" in words(app, "#banner")
        assert "d4e5f6/log.txt" in words(app, "#banner")
        app.feed.tell(Answered(LogOf(failed.id, KEPT), None, "permission denied"))
        await pilot.pause()
        assert "✗ permission denied" in words(app, "#banner")
        await pilot.press("n")
        assert "running" in words(app, "#head")


async def test_without_a_worker_here_it_shows_what_this_screen_has_seen(fixed: SimpleNamespace) -> None:
    notes = (Note("air joined", n=1, at="12:00:00"), Note("share lost", "error", n=2, at="12:00:05"))
    app = over(fixed, fixed.run_shown(fixed.run_state(), notes=notes))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "l")
        assert said(app) == ["12:00:00 air joined", "12:00:05 share lost"]
        assert "no worker of this machine is in the run" in words(app, "#banner")
        assert app.feed.asked[-1][0] == "show", "there is no log to ask for"
        await pilot.press("i", "i")
        assert said(app) == ["12:00:05 share lost"]


async def test_home_opens_the_log_of_the_job_under_the_cursor(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(), job=fixed.job()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("2", "l")
        assert isinstance(app.screen, LogScreen)
        assert app.feed.asked[-1] == ("ask", LogOf(fixed.job().id, KEPT))
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


def test_levels() -> None:
    assert [view_log.level(line) for line in TOLD] == [0, 1, 2, 1]
    assert view_log.level("") == 0
    [(line,)] = view_log.lines(("12:00:00 \x1b[2Jx\u202ey",))
    assert line[0] == "12:00:00 xy"
