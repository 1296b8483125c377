"""One key table: bindings, footer, palette and help all come from it."""

import importlib
import pkgutil
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from textual.binding import Binding
from textual.widgets import OptionList

from tui import screens
from tui.app import SwarmApp
from tui.commands import KEYS, TOGETHER, Key, Place, bindings, key_names
from tui.screens.dialogs import Page
from tui.screens.home import HomeScreen
from tui.screens.join import JoinScreen
from tui.screens.live import LiveScreen
from tui.screens.run import RunScreen
from tui.widgets.keybar import KeyBar

# In a DiLoCo run that this machine does not train, and whose evaluations have no sample.
ABSENT = ("leave", "clients", "details", "samples", "log")
ALL = [(place, key) for place, keys in KEYS.items() for key in keys]


for module in pkgutil.iter_modules(screens.__path__, f"{screens.__name__}."):
    importlib.import_module(module.name)


def live_screens(base: type[LiveScreen] = LiveScreen) -> Iterator[type[LiveScreen]]:
    for screen in base.__subclasses__():
        yield screen
        yield from live_screens(screen)


@pytest.mark.parametrize(("place", "key"), ALL, ids=lambda value: value.action if isinstance(value, Key) else value.name)
def test_every_key_has_an_action_where_it_works(place: Place, key: Key) -> None:
    owners = [SwarmApp] if place is Place.EVERYWHERE else [screen for screen in live_screens() if place in screen.PLACES]
    assert owners
    for owner in owners:
        assert hasattr(owner, f"action_{key.action.partition('(')[0]}"), owner


def test_bindings_are_the_table_and_nothing_else() -> None:
    for place, keys in KEYS.items():
        made = [(b.key, b.action) for b in bindings(place) if isinstance(b, Binding)]
        assert made == [(k.keys, k.action) for k in keys if k.action != "command_palette"]
    assert set(map(id, SwarmApp.BINDINGS)).isdisjoint(map(id, HomeScreen.BINDINGS))


def test_no_key_means_two_things_in_one_place() -> None:
    for screen in live_screens():
        keys = [k for p in (*screen.PLACES, Place.EVERYWHERE) for key in KEYS[p] for k in key.keys.split(",")]
        assert len(keys) == len(set(keys)), screen


def test_clashes_are_looked_for_on_every_screen() -> None:
    assert {screen.PLACES for screen in live_screens() if screen.PLACES} == set(TOGETHER) - {()}


async def test_help_lists_every_key(fixed: SimpleNamespace) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home()))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("question_mark")
        assert isinstance(app.screen, Page)
        lines = app.screen.text.splitlines()
        for _, key in ALL:
            rows = [line for line in lines if line.endswith(key.help)]
            assert key_names(key) in [line.removesuffix(key.help).strip() for line in rows]
            assert all(line.removesuffix(key.help).endswith("  ") for line in rows), "a gap after the longest, too"
        await pilot.press("q")
        assert isinstance(app.screen, HomeScreen)


async def test_every_possible_key_is_in_the_palette_and_most_in_the_footer(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    async with app.run_test(size=(240, 36)) as pilot:
        for _ in (Place.HOME, Place.RUN):
            await pilot.pause()
            titles = {command.title for command in app.get_system_commands(app.screen)}
            footer = {item.key for _, item in app.screen.query_one(KeyBar).items}
            for key in (key for p in (*app.screen.PLACES, Place.EVERYWHERE) for key in KEYS[p]):
                if key.action not in (*ABSENT, "command_palette") and not key.priority:
                    assert f"{key.label} ({key_names(key)})" in titles
                if key.footer and key.action not in ABSENT:
                    assert key.keys.split(",")[0] in footer
            await pilot.press("w")


async def test_the_join_screens_keys_are_in_its_palette_and_footer(fixed: SimpleNamespace) -> None:
    joining = fixed.join_shown(at=fixed.AT)
    app = fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())), joining=joining)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, JoinScreen)
        titles = {command.title for command in app.get_system_commands(app.screen)}
        footer = {item.key for _, item in app.screen.query_one(KeyBar).items}
        for key in KEYS[Place.JOIN]:
            if key.action != "mount":  # it is mounted
                assert f"{key.label} ({key_names(key)})" in titles
                assert not key.footer or key.keys.split(",")[0] in footer


async def test_the_palette_runs_a_command(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("w", "ctrl+p", *"freeze")
        found = app.screen.query_one(OptionList)
        for _ in range(1000):  # the palette searches in a task of its own
            if found.option_count == 1:
                break
            await pilot.pause()
        await pilot.press("enter")
        await pilot.pause()
        run = app.screen
        assert isinstance(run, RunScreen)
        assert run.frozen


async def test_a_click_in_the_footer_presses_the_key(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    async with app.run_test(size=(120, 36)) as pilot:
        x = next(x for x, item in app.screen.query_one(KeyBar).items if item.key == "w")
        await pilot.click(KeyBar, offset=(x + 2, 0))
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)


async def test_help_and_commands_stay_in_a_narrow_footer(fixed: SimpleNamespace) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home()))
    async with app.run_test(size=(30, 20)):
        bar = app.screen.query_one(KeyBar)
        assert [item.key for _, item in bar.items][-3:] == ["question_mark", "q", "ctrl+p"]
        assert "? help  q quit  ^p commands" in bar.render_line(0).text
