"""First start: nothing is written before somebody says so, and every step can be left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input

from swarm.api.welcoming import Begun, Folder, Machine
from swarm.core.ticks import failed, ok, warning
from tui import view_welcome
from tui.app import SwarmApp
from tui.messages import Answered
from tui.screens.dialogs import Page
from tui.screens.home import HomeScreen
from tui.screens.run import RunScreen
from tui.screens.settings import SettingsScreen
from tui.screens.welcome import AskFolder, AskMachine, SetUp, WelcomeScreen
from tui.widgets.toned import content

MACHINE = Machine(name="studio", frameworks=("torch",), folder="/home/ann/swarm")
GOOD = (ok("folder", "a new folder"), ok("file system", "ext4 at /"))
CLOUD = failed("file system", "/home/ann/Dropbox is in a folder of Dropbox", "use a folder that the machines mount")


def welcoming(fixed: SimpleNamespace) -> SwarmApp:
    base = fixed.app_over(fixed.home_shown(fixed.api.Home()), fixed.run_shown(fixed.run_state()))
    return SwarmApp(base.feed, home_folder="/home/ann", welcome=True)


def asked(app: SwarmApp, kind: type) -> list[Any]:
    return [question for what, question in app.feed.asked if what == "ask" and isinstance(question, kind)]  # type: ignore[attr-defined]


async def answer(pilot: Pilot[None], question: object, value: object = None, problem: str = "") -> None:
    pilot.app.post_message(Answered(question, value, problem))
    await pilot.pause()


async def looked_at(pilot: Pilot[None], path: str) -> AskFolder:
    """The question about a folder, which comes when somebody pauses in typing."""
    for _ in range(100):
        questions = asked(pilot.app, AskFolder)  # type: ignore[arg-type]
        if questions and questions[-1].path == path:
            return questions[-1]  # type: ignore[no-any-return]
        await pilot.pause(0.05)
    pytest.fail(f"{path} is not looked at")


async def ready(pilot: Pilot[None], machine: Machine = MACHINE) -> WelcomeScreen:
    await pilot.pause()
    screen = pilot.app.screen
    assert isinstance(screen, WelcomeScreen)
    await answer(pilot, asked(pilot.app, AskMachine)[-1], machine)  # type: ignore[arg-type]
    await answer(pilot, await looked_at(pilot, machine.folder), Folder(path=machine.folder, ticks=GOOD))
    return screen


async def test_enter_goes_through_the_steps_and_begins_a_run(fixed: SimpleNamespace) -> None:
    app = welcoming(fixed)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        assert [screen.query_one(f"#{each}", Input).value for each in ("name", "folder")] == ["studio", "/home/ann/swarm"]
        await pilot.press("enter", "enter", "down")  # past the passphrase
        assert asked(app, SetUp) == []
        await pilot.press("enter", "enter")  # twice is once
        (question,) = asked(app, SetUp)
        assert question == SetUp(name="studio", folder="/home/ann/swarm", signed=False, train=True)
        await answer(pilot, question, Begun(mailbox=fixed.SHARE, run=fixed.AT.run, name=fixed.NAME))
        assert isinstance(app.screen, RunScreen)
        assert ("show", fixed.AT) in app.feed.asked  # type: ignore[attr-defined]
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_what_is_typed_counts_and_a_passphrase_is_shown(fixed: SimpleNamespace) -> None:
    app = welcoming(fixed)
    async with app.run_test(size=(120, 36)) as pilot:
        screen = await ready(pilot)
        await pilot.press(*"-2", "down", *"/x")
        await answer(pilot, await looked_at(pilot, "/home/ann/swarm/x"), Folder(path="/home/ann/swarm/x", ticks=GOOD))
        await pilot.press("down", "enter", "down", "down", "enter")
        (question,) = asked(app, SetUp)
        assert question == SetUp(name="studio-2", folder="/home/ann/swarm/x", signed=True, train=False)
        await answer(pilot, question, problem="the disk is full")
        assert app.screen is screen
        assert [toast.message for toast in app._notifications] == ["could not set up: the disk is full"]
        await answer(pilot, await looked_at(pilot, "/home/ann/swarm/x"), Folder(path="/home/ann/swarm/x", ticks=GOOD))
        only = screen.query_one("#only", Button)
        while only.has_class("-active"):  # Textual takes a second press in so short a time for the same
            await pilot.pause(0.05)
        only.focus()
        await pilot.press("enter")
        question = asked(app, SetUp)[-1]
        await answer(pilot, question, Begun(mailbox="/home/ann/swarm/x", passphrase="abcde-fghjk"))
        assert isinstance(app.screen, Page)
        assert "abcde-fghjk" in app.screen.text
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_what_is_set_up_under_another_screen_is_shown_when_that_is_gone(fixed: SimpleNamespace) -> None:
    app = welcoming(fixed)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        screen.query_one("#train", Button).focus()
        await pilot.pause()
        await pilot.press("enter")
        app.action_settings()  # whose key is typed into a field here
        await pilot.pause()
        assert isinstance(app.screen, SettingsScreen)
        await answer(pilot, asked(app, SetUp)[-1], Begun(mailbox=fixed.SHARE, run=fixed.AT.run, name=fixed.NAME))
        assert isinstance(app.screen, SettingsScreen)
        await pilot.press("escape")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)


async def test_every_step_can_be_left_out(fixed: SimpleNamespace) -> None:
    app = welcoming(fixed)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot)
        await pilot.press(*"xyz", "escape")
        assert screen.query_one("#name", Input).value == "studio"
        await pilot.press("escape")
        assert screen.query_one("#folder", Input).value == ""
        await pilot.pause(0.4)
        assert screen.query_one("#train").disabled
        assert screen.query_one("#only").disabled
        await pilot.press("enter", "escape")
        assert str(screen.query_one("#signed", Button).label) == "○ no passphrase"
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)
        assert asked(app, SetUp) == []


async def test_a_folder_that_will_not_do_and_a_machine_without_a_framework_are_told(fixed: SimpleNamespace) -> None:
    app = welcoming(fixed)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await ready(pilot, Machine(name="nas", remedy="pip install 'homeswarm[train]'", folder="/home/ann/swarm"))
        assert screen.query_one("#train").disabled
        assert not screen.query_one("#only").disabled
        question = asked(app, AskFolder)[-1]
        await answer(pilot, AskFolder("/elsewhere"), Folder(path="/elsewhere", ticks=(CLOUD,)))  # of what was typed before
        assert not screen.query_one("#only").disabled
        await answer(pilot, question, Folder(path=question.path, ticks=(CLOUD,)))
        assert screen.query_one("#only").disabled


async def test_the_page_comes_again_by_its_command(fixed: SimpleNamespace) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.api.Home()))
    async with app.run_test(size=(80, 24)) as pilot:
        command = next(each for each in app.get_system_commands(app.screen) if each.title == "first start")
        command.callback()
        await pilot.pause()
        assert isinstance(app.screen, WelcomeScreen)


def said(lines: Any) -> str:
    return content(lines).plain


def test_words() -> None:
    assert said(view_welcome.folder_lines(None, None, "")) == "◌ looking at the folder …"
    assert said(view_welcome.folder_lines(Folder(path=""), None, "")).startswith("○ without a mailbox")
    told = said(view_welcome.folder_lines(Folder(path="/x", ticks=(CLOUD,)), None, ""))
    assert told == "✗ /home/ann/Dropbox is in a folder of Dropbox\n  use a folder that the machines mount"
    unsure = Folder(path="/x", ticks=(ok("folder", "a new folder"), warning("file system", "a plain folder", "mounted?")))
    shares = Machine(name="studio", shares=("/home/ann/nas",))
    assert said(view_welcome.folder_lines(unsure, shares, "/home/ann")).splitlines() == [
        "⚠ a new folder; a plain folder",
        "  mounted?",
        "  shares mounted here: ~/nas",
    ]
    assert said(view_welcome.framework_lines(MACHINE)) == "✓ PyTorch is installed"
    both = Machine(name="studio", frameworks=("torch", "mlx"), fingerprint="1a2b3c4d")
    assert said(view_welcome.framework_lines(both)) == "✓ PyTorch and MLX are installed"
    assert "1a2b3c4d" in said(view_welcome.passphrase_lines(both, signed=False))
    assert view_welcome.name_fault("x" * 65) == "at most 64 characters"
    assert said(view_welcome.name_lines("desk", MACHINE)) == "✓ other machines see it under this name, in place of studio"
