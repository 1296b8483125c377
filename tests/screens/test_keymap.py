"""Other keys: what the settings may change, and that screen, footer, palette and help follow."""

from types import SimpleNamespace

import msgspec
import pytest

from tui import view_compare, view_home, view_rounds, view_run
from tui.commands import KEYS, TOGETHER, Place, key_name
from tui.keymap import key_of, keymap
from tui.messages import SettingsRead
from tui.screens.dialogs import FilterBar, Page
from tui.screens.run import RunScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import content


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("Q", "Q"),
        ("?", "question_mark"),
        (",", "comma"),
        ("+", "plus"),
        (" ", "space"),
        ("f5", "f5"),
        ("ctrl+s", "ctrl+s"),
        ("ctrl+shift+left", "ctrl+shift+left"),
        ("left_square_bracket", "left_square_bracket"),
        ("fn+s", None),
        ("sideways", None),
        ("", None),
        ("\x1b", None),
    ],
)
def test_keys_are_written_as_people_do(words: str, key: str | None) -> None:
    assert key_of(words) == key


def test_a_changed_key_changes_wherever_it_means_the_same() -> None:
    found = keymap({"pause": "p", "down": ("z", "down"), "peer": "o"}, TOGETHER)
    assert found.faults == ()
    for place in (Place.HOME, Place.RUN):
        assert [key.keys for key in found.table[place] if key.action == "pause"] == ["p"]
    assert [key.keys for key in found.table[Place.JOIN] if key.label == "down"] == ["z,down"]
    assert found.changed == {"pause": "p", "down": "z,down", "peer": "o"}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"pawse": "p"}, "keymap: nothing is called 'pawse': did you mean 'pause'?"),
        ({"zzzz": "p"}, "keymap: nothing is called 'zzzz': the help page names them"),
        ({"command_palette": "c"}, "keymap.command_palette: this key cannot be changed"),
        ({"pause": "sideways"}, "keymap.pause: 'sideways' is no key: the default is used"),
        ({"pause": ()}, "keymap.pause: no key is given: the default is used"),
        ({"freeze": "S"}, "keymap.freeze: S is 'stop' already: the default is used"),
        ({"freeze": "ctrl+c"}, "keymap.freeze: ctrl+c is 'leave_app' already: the default is used"),
        ({"freeze": "?"}, "keymap.freeze: ? is 'help' already: the default is used"),
        ({"stop": "z", "freeze": "z"}, "keymap.freeze: z is 'stop' already: the default is used"),
    ],
)
def test_what_cannot_be_is_named_and_its_default_used(wanted: dict[str, str], words: str) -> None:
    found = keymap(wanted, TOGETHER)
    assert found.faults == (words,)
    assert [k.keys for k in found.table[Place.RUN] if k.id in ("pause", "freeze")] == ["space", "P"]


def test_two_keys_may_change_places() -> None:
    found = keymap({"stop": "P", "pause": "S"}, TOGETHER)
    assert found.faults == ()


def test_every_key_has_a_name_of_its_own_on_its_screen() -> None:
    for places in TOGETHER:
        names: dict[str, str] = {}
        for key in (key for place in (*places, Place.EVERYWHERE) for key in KEYS[place]):
            assert names.setdefault(key.id, key.action) == key.action


async def test_screen_footer_palette_and_help_have_the_changed_keys(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    async with app.run_test(size=(150, 36)) as pilot:
        await pilot.press("w")
        run = app.screen
        assert isinstance(run, RunScreen)
        wanted = msgspec.structs.replace(app.settings, keymap={"freeze": ("Q", "f5"), "help": "ctrl+g", "what": "x"})
        app.post_message(SettingsRead(wanted, ()))
        await pilot.pause()
        await pilot.press("space")
        assert not run.frozen
        await pilot.press("Q")
        assert run.frozen
        await pilot.press("f5")
        assert not run.frozen
        assert "Q freeze" in run.query_one(KeyBar).render_line(0).text
        assert "freeze (Q, f5)" in {command.title for command in app.get_system_commands(run)}
        await pilot.press("slash", "Q", "x")  # a letter that somebody types is a letter
        assert isinstance(app.screen, FilterBar)
        assert not run.frozen
        await pilot.press("escape", "ctrl+g")
        assert isinstance(app.screen, Page)
        assert "Q, f5" in app.screen.text
        await pilot.press("escape")
        assert app.faults == ("keymap: nothing is called 'what': did you mean 'watch'?",)
        app.post_message(SettingsRead(fixed.api.Settings(), ()))
        await pilot.pause()
        await pilot.press("space")
        assert run.frozen


def test_banners_name_the_keys_as_they_are(fixed: SimpleNamespace) -> None:
    keys = keymap({"join": "i", "pause": "z", "new": "f7", "mount": "u", "compare": "f6", "older": "f3"}, TOGETHER).table

    def said(lines: object) -> str:
        return content(lines).plain  # type: ignore[arg-type]

    idle = fixed.run_state(learners=("air", "mbp"), left=("air", "mbp"), closed=7)
    assert "join it here: i" in said(view_run.banner(fixed.run_shown(idle), keys))
    assert said(view_home.empty(fixed.home_shown(fixed.home()), "", keys)).count("    f7 opens") == 1
    assert said([view_compare.mark_line("x", keys)]) == "◆ x is marked: f6 on another run compares the two, f6 on it unmarks it"
    assert said(view_rounds.before_line(3, keys)) == "and 3 before: open one, then f3 or r"


def test_signs_are_shown_as_signs() -> None:
    assert [key_name(key) for key in ("left_square_bracket", "comma", "f5", "ctrl+p")] == ["[", ",", "f5", "^p"]
