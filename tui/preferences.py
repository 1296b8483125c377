"""The app as a person wants it: colours, ASCII, keys, and how it calls them, as the settings have it; also when their file
changes while the app runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from textual.app import App
from textual.binding import BindingsMap
from textual.color import Color

from swarm.api import settings_path
from tui import text
from tui.commands import TOGETHER
from tui.filters import Ascii
from tui.keymap import Keymap, keymap
from tui.screens.live import LiveScreen

if TYPE_CHECKING:
    from swarm.api import Settings
    from tui.commands import Key, Place

_BLACK = Color(0, 0, 0)


class Preferring(App[None]):
    """`settings` as they are at the start, with what is wrong with their file."""

    def __init__(self, settings: Settings, faults: tuple[str, ...] = (), *, ascii: bool = False) -> None:
        super().__init__()
        self.settings, self.file_faults = settings, faults
        self.ascii = Ascii(enabled=ascii or settings.ascii)
        self._ascii_anyhow = ascii
        self._first_theme = self.theme
        self._own_bindings = self._bindings.copy()
        self._keymap_now = Keymap()
        self._theme_fault = ""
        self._wearing = False  # whether the theme changes because the settings have it so
        self._wear()
        self._take_keys()

    @property
    def keys(self) -> Mapping[Place, tuple[Key, ...]]:
        """The key table as it is now."""
        return self._keymap_now.table

    @property
    def faults(self) -> tuple[str, ...]:
        """All that is wrong with the settings, a line each."""
        said = (fault.replace(f"{settings_path()}: ", "settings: ", 1) for fault in self.file_faults)
        return (*said, *([self._theme_fault] if self._theme_fault else []), *self._keymap_now.faults)

    def prefer(self, settings: Settings, faults: tuple[str, ...]) -> None:
        """Be as they have it from now on."""
        before, self.settings, self.file_faults = self.settings, settings, faults
        if settings.theme != before.theme:
            self._wear()
        if (on := self._ascii_anyhow or settings.ascii) != self.ascii.enabled:
            self.ascii.enabled = on
            for screen in self.screen_stack:
                screen.refresh(layout=True)
                for widget in screen.query("*"):
                    widget.refresh()
        if settings.keymap != before.keymap:
            self._take_keys()
            for screen in self.screen_stack:
                if isinstance(screen, LiveScreen):
                    self.rebind(screen)
                screen.refresh_bindings()

    def rebind(self, screen: LiveScreen) -> None:
        """Give it the keys as they are now."""
        first = type(screen)._merged_bindings
        if first is not None:
            screen._bindings = _rebound(first, self._keymap_now)

    def _take_keys(self) -> None:
        self._keymap_now = keymap(self.settings.keymap, TOGETHER)
        self._bindings = _rebound(self._own_bindings, self._keymap_now)

    def _wear(self) -> None:
        wanted, self._theme_fault = self.settings.theme or self._first_theme, ""
        if wanted not in self.available_themes:
            close = ", ".join(sorted(self.available_themes))
            self._theme_fault = f"theme = {text.plain(wanted, 40)!r}: there are {close}: the default is used"
            wanted = self._first_theme
        self._wearing = True
        self.theme = wanted
        self._wearing = False

    @property
    def chosen_theme(self) -> str:
        """What the file has to say for this theme to come again; '' for the default one."""
        return "" if self.theme == self._first_theme else self.theme

    def get_css_variables(self) -> dict[str, str]:
        """On a light ground Textual's green and amber words have a contrast of 3.3 to 3.8; these have one of at least 4.5."""
        variables = super().get_css_variables()
        if not self.current_theme.dark:
            for name in ("text-success", "text-warning"):
                variables[name] = Color.parse(variables[name]).blend(_BLACK, 0.3).hex
        return variables

    # Calling a person

    def call(self, news: str) -> None:
        """Ring the terminal's bell, and show the news as its notification where it can (OSC 9, of iTerm2, Windows Terminal,
        Ghostty, WezTerm and others; the rest ignore it)."""
        self.bell()
        if self._driver is not None:
            self._driver.write(osc9(news))


def osc9(news: str) -> str:
    """`news` is made harmless once more, since it goes to the terminal as it is."""
    return f"\x1b]9;swarm: {text.plain(news, 300)}\x07"


def _rebound(first: BindingsMap, keys: Keymap) -> BindingsMap:
    """Textual's own way (App.set_keymap) lets a changed key fire while somebody types it into a field."""
    bindings = first.copy()
    if keys.changed:
        bindings.apply_keymap(dict(keys.changed))
    return bindings
