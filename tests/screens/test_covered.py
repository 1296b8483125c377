"""A screen gets the answer to what it asked, whatever lies over it, and where it is gone, what failed is said all the same."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec

from swarm.api import held_round
from swarm.api.welcoming import Begun, Folder, Machine
from tui.app import SwarmApp
from tui.messages import Answered, RunAt
from tui.screens.dialogs import Page
from tui.screens.home import HomeScreen
from tui.screens.join import JoinScreen
from tui.screens.round import RoundOf, RoundScreen
from tui.screens.run import RunScreen
from tui.screens.settings import SettingsScreen
from tui.screens.welcome import AskFolder, AskMachine, SetUp, WelcomeScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import Lines, Words

SIZE = (80, 24)


def welcoming(fixed: SimpleNamespace) -> SwarmApp:
    base = fixed.app_over(fixed.home_shown(fixed.api.Home()), fixed.run_shown(fixed.run_state()))
    return SwarmApp(base.feed, home_folder="/home/ann", welcome=True)


def asked(app: Any, kind: type) -> Any:
    return [question for what, question in app.feed.asked if what == "ask" and isinstance(question, kind)][-1]


async def set_up(pilot: Any, app: Any) -> SetUp:
    """Go to the end of the first start's page, and begin; what was asked for before came while a dialog was there."""
    await pilot.press("f12")
    assert isinstance(app.screen, Page)
    app.post_message(Answered(asked(app, AskMachine), Machine(name="studio", frameworks=("torch",), folder="/mnt/a")))
    for _ in range(100):
        if any(what == "ask" and question == AskFolder("/mnt/a") for what, question in app.feed.asked):
            break
        await pilot.pause(0.05)
    app.post_message(Answered(asked(app, AskFolder), Folder(path="/mnt/a")))
    await pilot.press("escape", "enter", "enter", "enter", "down", "enter")  # with a passphrase
    return asked(app, SetUp)  # type: ignore[no-any-return]


async def test_what_was_set_up_behind_a_dialog_is_shown_once_it_is_gone(fixed: SimpleNamespace) -> None:
    app = welcoming(fixed)
    async with app.run_test(size=SIZE) as pilot:
        question = await set_up(pilot, app)
        assert question == SetUp(name="studio", folder="/mnt/a", signed=True, train=True)
        shown = {item.label for _, item in app.screen.query_one(KeyBar).items}
        assert {"help", "quit", "commands"} <= shown
        assert "next" not in shown
        await pilot.press("f12")
        begun = Begun(mailbox=fixed.SHARE, run=fixed.AT.run, name=fixed.NAME, passphrase="abcde-fghjk")
        app.post_message(Answered(question, begun))
        await pilot.pause()
        assert isinstance(app.screen, Page)
        assert "abcde" not in app.screen.text
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, Page)
        assert "abcde-fghjk" in app.screen.text
        await pilot.press("escape")
        assert isinstance(app.screen, RunScreen)
        assert not any(isinstance(screen, WelcomeScreen) for screen in app.screen_stack)


async def test_what_fails_after_its_page_was_left_is_said(fixed: SimpleNamespace) -> None:
    app = welcoming(fixed)
    async with app.run_test(size=SIZE) as pilot:
        question = await set_up(pilot, app)
        for _ in range(5):
            if isinstance(app.screen, WelcomeScreen):
                await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)
        app.post_message(Answered(question, problem="the disk is full"))
        await pilot.pause()
        said = [toast.message for toast in app._notifications]
        assert said == ["it is set up all the same: Home shows it when it is there", "could not set up: the disk is full"]


async def test_a_round_that_is_read_behind_another_screen_is_there_when_it_is_gone(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    newest_only = msgspec.structs.replace(state, rounds=state.rounds[-4:])
    app = fixed.app_over(fixed.home_shown(fixed.home(newest_only)), fixed.run_shown(newest_only))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "3", "enter", "r", "3", "enter", "comma")
        assert isinstance(app.screen, SettingsScreen)
        app.feed.tell(Answered(RoundOf(fixed.AT, 3), held_round(state, 3)))
        await pilot.pause()
        await pilot.press("escape")
        assert isinstance(app.screen, RoundScreen)
        shown = app.screen.query_one("#text", Lines)._lines
        assert "air: came after the round had closed" in "\n".join(part for line in shown for part, _ in line)


async def test_a_run_that_is_opened_from_deep_inside_another_one_takes_its_place(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    app = fixed.app_over(fixed.home_shown(fixed.home(state)), fixed.run_shown(state))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "3", "enter")
        assert isinstance(app.screen, RoundScreen)
        other = RunAt(fixed.SHARE, "bbbb2222")
        app.open_run(other, name="other")  # as the page of the first start does, which the palette opens anywhere
        await pilot.pause()
        assert [type(screen) for screen in app.screen_stack[1:]] == [HomeScreen, RunScreen]
        app.feed.tell(replace(fixed.run_shown(state), at=other))
        await pilot.pause()
        assert app.screen.shown is not None
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_a_run_that_this_machine_joined_is_shown_once_the_dialog_is_gone(fixed: SimpleNamespace) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())), fixed.run_shown(fixed.run_state()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("J", "question_mark")
        assert isinstance(app.screen, Page)
        joined = fixed.join_shown(at=fixed.AT, job=fixed.job())
        app.feed.tell(joined)
        await pilot.pause()
        assert isinstance(app.screen, Page)
        await pilot.press("escape")
        assert isinstance(app.screen, JoinScreen)
        app.feed.tell(joined)
        await pilot.pause()
        assert [type(screen) for screen in app.screen_stack[1:]] == [HomeScreen, RunScreen]


async def test_a_run_whose_share_hangs_from_the_start_has_the_name_that_is_known(fixed: SimpleNamespace) -> None:
    hung = fixed.run_shown(fixed.lost(fixed.api.RunState(run=fixed.AT.run)))
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())), hung)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        await pilot.pause()
        assert app.screen.shown is not None
        assert fixed.NAME in str(app.screen.query_one("#head", Words).content)
