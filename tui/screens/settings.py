"""Settings: the file, one row a setting; what is changed is saved at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from swarm.api import described_settings, settings_path
from tui import view_settings
from tui.commands import TOGETHER, Place, bindings
from tui.screens.lists import ListScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.table import Table
from tui.widgets.toned import Words, bounded, content

if TYPE_CHECKING:
    from swarm.api import Described
    from tui.app import SwarmApp
    from tui.widgets.toned import Line


class Edit(ModalScreen[None]):
    """One line to type; what is wrong with it stands below while it is typed. enter hands over what is right."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "cancel")]

    def __init__(
        self, title: str, words: Iterable[Line], typed: str, *, parse: Callable[[str], object], done: Callable[[object], object]
    ) -> None:
        """`parse`: raises ValueError, in words."""
        super().__init__()
        self._title, self._words, self._typed = title, tuple(words), typed
        self._parse, self._done = parse, done

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(content(self._words), id="words")
            yield Input(self._typed, id="answer", compact=True)
            yield Static(id="fault")

    def on_mount(self) -> None:
        dialog = self.query_one("#dialog")
        dialog.border_title, dialog.border_subtitle = Content(self._title), Content("enter saves  esc leaves")
        self.query_one("#answer").focus()

    @on(Input.Changed)
    def _typed_on(self, event: Input.Changed) -> None:
        self._value(event.value)

    @on(Input.Submitted)
    def _hand_over(self, event: Input.Submitted) -> None:
        good, value = self._value(event.value)
        if good:
            self.dismiss(None)
            self._done(value)

    def _value(self, typed: str) -> tuple[bool, object]:
        fault, value = "", None
        try:
            value = self._parse(typed)
        except ValueError as error:
            fault = str(error)
        self.query_one("#fault", Static).update(content([((f"✗ {fault}", "bad"),) if fault else (("✓", "good"),)]))
        return not fault, value


class SettingsScreen(ListScreen):
    BINDINGS: ClassVar = [*bindings(Place.SETTINGS), *bindings(Place.LISTS)]
    PLACES = (Place.SETTINGS, Place.LISTS)
    PANES = ("#settings",)
    app: SwarmApp

    def __init__(self) -> None:
        super().__init__()
        self._every = tuple(described_settings())

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        yield Words(id="banner")
        yield Table(view_settings.COLUMNS, name="Settings", id="settings")
        yield Words(id="detail")
        yield KeyBar(Place.SETTINGS, Place.LISTS)

    def on_mount(self) -> None:
        self.query_one("#settings").focus()
        self.update()

    def update(self) -> None:
        if not self.ready:
            return
        app = self.app
        self.query_one("#head", Words).show(view_settings.headline(str(settings_path()), app.home_folder))
        faults = (((f"⚠ {fault}", "warn"),) for fault in app.faults)
        most = max(3, self.size.height - 14)  # the table and what is said of a setting have their room
        self.query_one("#banner", Words).show(*bounded(faults, most, "in a higher terminal, or once these are right"))
        rows = view_settings.rows(self._every, app.settings, theme=app.theme)
        self.query_one("#settings", Table).show(rows)
        self._moved()

    def on_resize(self) -> None:
        if self.ready:
            self.call_after_refresh(self.update)

    @on(Table.Moved)
    def _moved(self) -> None:
        self.query_one("#detail", Words).show(*view_settings.detail(self._setting))
        self.refresh_bindings()

    @property
    def _setting(self) -> Described | None:
        """The one under the cursor."""
        return next((each for each in self._every if each.name == self.table.cursor), None)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        setting = self._setting if self.ready else None
        match action:
            case "sort" | "settings":
                return False
            case "change":
                return setting is not None and not self._only_here(setting)
            case "default":
                return (
                    setting is not None
                    and not self._only_here(setting)
                    and getattr(self.app.settings, setting.name) != setting.default
                )
            case _:
                return True

    def _only_here(self, setting: Described) -> bool:
        """Whoever looks through a browser must not say what this machine runs."""
        return setting.name == "notify" and self.app.is_web

    @on(Table.Opened)
    def action_change(self) -> None:
        setting = self._setting
        if setting is None or self._only_here(setting):
            return
        value = getattr(self.app.settings, setting.name)
        if setting.type is bool:
            self.app.feed.save(setting.name, not value)
        elif setting.name == "theme":
            self.app.action_change_theme()
        else:
            self._edit(setting, value)

    def _edit(self, setting: Described, value: object) -> None:
        themes = tuple(self.app.available_themes)

        def parse(typed: str) -> Any:
            return view_settings.parse(setting, typed, together=TOGETHER, themes=themes)

        def done(parsed: object) -> None:
            if parsed != value:
                self.app.feed.save(setting.name, parsed)

        about = (((setting.help, ""),), ((view_settings.about(setting), "dim"),))
        self.app.push_screen(Edit(setting.name, about, view_settings.words(value), parse=parse, done=done))

    def action_default(self) -> None:
        if (setting := self._setting) is not None:
            self.app.feed.save(setting.name, setting.default)

    def action_back(self) -> None:
        self.app.pop_screen()
