"""Settings: read at the start and while the app runs, changed on their screen, saved by the feed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from swarm.api import Settings, described_settings, settings_path
from tui import view_settings
from tui.app import SwarmApp
from tui.commands import TOGETHER
from tui.messages import Alarmed, CommandEnded, SettingsRead
from tui.preferences import osc9
from tui.screens.settings import Edit, SettingsScreen
from tui.widgets.table import Table
from tui.widgets.toned import Words

BY_NAME = {each.name: each for each in described_settings()}


@pytest.mark.parametrize(
    ("name", "typed", "value"),
    [
        ("interval_s", " 2.5 ", 2.5),
        ("nice", "", None),
        ("nice", "10", 10),
        ("price_per_kwh", "0.31", 0.31),
        ("hours", "22-7,12-13", "22-7,12-13"),
        ("hours", "", ""),
        ("notify", "notify-send 'my swarm'", ("notify-send", "my swarm")),
        ("peers", "", ()),
        ("keymap", "freeze=p down=z,down settings=,", {"freeze": ("p",), "down": ("z", "down"), "settings": (",",)}),
        ("theme", "nord", "nord"),
        ("currency", "€", "€"),
    ],
)
def test_what_is_typed_is_understood_and_written_the_same(name: str, typed: str, value: object) -> None:
    found = view_settings.parse(BY_NAME[name], typed, together=TOGETHER, themes=("nord",))
    assert found == value
    again = view_settings.words(found)
    assert view_settings.parse(BY_NAME[name], again, together=TOGETHER, themes=("nord",)) == value


@pytest.mark.parametrize(
    ("name", "typed", "words"),
    [
        ("interval_s", "0.1", "a number of 0.5 to 10"),
        ("interval_s", "nan", "a number of 0.5 to 10"),
        ("interval_s", "fast", "a number of 0.5 to 10"),
        ("nice", "1.5", "a whole number of 0 to 19"),
        ("hours", "25-7", "25:00 is no time of the day"),
        ("notify", "'open", "no closing quotation"),
        ("keymap", "pause", "'pause' is not ACTION=KEY"),
        ("keymap", "pawse=p", "did you mean 'pause'?"),
        ("keymap", "freeze=S", "S is 'stop' already"),
        ("theme", "pink", "there are light, nord"),
        ("name", "a\u202eb", "one line of plain text"),
        ("currency", "very long money", "length <= 8"),
    ],
)
def test_what_is_wrong_is_said_while_it_is_typed(name: str, typed: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        view_settings.parse(BY_NAME[name], typed, together=TOGETHER, themes=("nord", "light"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def settings_app(fixed: SimpleNamespace, **settings: object) -> SwarmApp:
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())))
    return SwarmApp(app.feed, home_folder="/home/ann", settings=Settings(**settings))  # type: ignore[arg-type]


async def test_a_setting_is_typed_and_saved(fixed: SimpleNamespace) -> None:
    app = settings_app(fixed)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("comma")
        screen = app.screen
        assert isinstance(screen, SettingsScreen)
        await pilot.press("comma")
        assert app.screen is screen
        screen.query_one(Table).go("interval_s")
        await pilot.press("enter", "end", "backspace", "9", "9", "enter")
        assert isinstance(app.screen, Edit)  # 99 s are too many
        await pilot.press("backspace", "backspace", "4", "enter")
        assert app.screen is screen
        assert app.feed.asked[-1] == ("save", ("interval_s", 4.0))
        app.post_message(SettingsRead(Settings(interval_s=4.0)))
        await pilot.pause()
        assert ("4", "set") in [(row.cells[1].text, row.cells[2].text) for row in screen.query_one(Table).rows]
        await pilot.press("enter", "enter")  # nothing new
        await pilot.press("backspace")
        assert [each for each in app.feed.asked if each[0] == "save"] == [
            ("save", ("interval_s", 4.0)),
            ("save", ("interval_s", 1.0)),
        ]
        screen.query_one(Table).go("ascii")
        await pilot.press("enter")
        assert app.feed.asked[-1] == ("save", ("ascii", True))
        await pilot.press("escape")
        assert not isinstance(app.screen, SettingsScreen)


async def test_no_browser_says_what_this_machine_runs(fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SwarmApp, "is_web", True)
    app = settings_app(fixed, notify=("notify-send",))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("comma")
        screen = app.screen
        screen.query_one(Table).go("notify")
        await pilot.press("enter", "backspace")
        screen.post_message(Table.Opened(screen.query_one(Table), "notify"))
        await pilot.pause()
        assert app.screen is screen
        assert [each for each in app.feed.asked if each[0] == "save"] == []
        screen.query_one(Table).go("hours")
        await pilot.press("enter")
        assert isinstance(app.screen, Edit)


async def test_a_file_that_cannot_be_written_is_one_line(fixed: SimpleNamespace) -> None:
    app = settings_app(fixed)
    async with app.run_test(size=(120, 36)) as pilot:
        app.post_message(CommandEnded("save", "theme", "/etc/settings.toml cannot be written: Permission denied"))
        await pilot.pause()
        (toast,) = app._notifications
        assert toast.message == "could not save: /etc/settings.toml cannot be written: Permission denied"


async def test_changes_of_the_file_count_at_once(fixed: SimpleNamespace) -> None:
    app = settings_app(fixed, theme="nord")
    async with app.run_test(size=(120, 36)) as pilot:
        assert app.theme == "nord"
        app.post_message(SettingsRead(Settings(theme="textual-light", ascii=True), ("nice = 20: no",)))
        await pilot.pause()
        assert app.theme == "textual-light"
        assert app.ascii.enabled
        assert app.home.faults == ("nice = 20: no",)
        assert all(line.text.isascii() for line in app.screen._compositor.render_strips())
        app.post_message(SettingsRead(Settings(theme="pink")))
        await pilot.pause()
        assert app.theme == "textual-dark"
        assert app.faults[0].startswith("theme = 'pink': there are ")
        assert [each for each in app.feed.asked if each[0] == "save"] == []  # nobody chose these here


async def test_ascii_of_the_command_line_stays(fixed: SimpleNamespace) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home()), ascii=True)
    async with app.run_test(size=(80, 24)) as pilot:
        app.post_message(SettingsRead(Settings(theme="nord")))
        await pilot.pause()
        assert app.ascii.enabled


async def test_a_theme_chosen_in_the_palette_is_saved(fixed: SimpleNamespace) -> None:
    app = settings_app(fixed)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.pause()
        app.theme = "textual-light"
        await pilot.pause()
        assert app.feed.asked[-1] == ("save", ("theme", "textual-light"))
        app.post_message(SettingsRead(Settings(theme="textual-light")))
        await pilot.pause()
        app.theme = "textual-dark"
        await pilot.pause()
        assert app.feed.asked[-1] == ("save", ("theme", ""))


async def test_alarms_ring_and_go_to_the_terminal(fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = fixed.run_shown(fixed.run_state())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    async with app.run_test(size=(120, 36)) as pilot:
        written: list[str] = []
        monkeypatch.setattr(app._driver, "write", written.append)
        monkeypatch.setattr(type(app), "is_headless", False)
        app.post_message(Alarmed(fixed.AT.run, "run otter is done"))
        await pilot.pause()
        assert {"\07", "\x1b]9;swarm: run otter is done\x07"} <= set(written)
        assert len(app._notifications) == 1
        await pilot.press("w")
        app.post_message(Alarmed(fixed.AT.run, "run otter is done"))
        await pilot.pause()
        assert len(app._notifications) == 1  # its own screen says so


def test_nothing_of_a_peer_ends_the_terminals_sequence() -> None:
    assert osc9("a\x07\x1b\\b\x9c\x1b]52;c;x\x07") == "\x1b]9;swarm: ab\x07"


def test_the_readme_lists_every_setting() -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text()
    for each in described_settings():
        assert f"| `{each.name}` | " in text
        assert each.help in text


@pytest.mark.parametrize("size", [(80, 24), (50, 20)])
async def test_many_faults_leave_room_for_the_rest(fixed: SimpleNamespace, size: tuple[int, int]) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())))
    faults = tuple(f"{settings_path()}: setting_{n} = 1: the default is used" for n in range(15))
    async with app.run_test(size=size) as pilot:
        app.post_message(SettingsRead(Settings(), faults))
        await pilot.pause()
        said = str(app.screen.query_one("#banner", Words).content).splitlines()
        assert said == [
            "⚠ settings: setting_0 = 1: the default is used",
            "⚠ settings: setting_1 = 1: the default is used",
            "  and 13 more: the settings (,) show them",
        ]
        assert app.screen.query_one("#runs").size.height >= 4
        await pilot.press("comma")
        assert str(app.screen.query_one("#banner", Words).content).startswith("⚠ settings: setting_0")
        assert app.screen.query_one("#settings").size.height >= 3
        assert app.screen.max_scroll_y == 0
