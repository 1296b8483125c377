"""The app: holds the newest snapshots, hands them to the screen in front, and asks before anything that matters."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult, SystemCommand
from textual.filter import LineFilter
from textual.screen import Screen

from swarm import api
from swarm.api import Settings
from tui import screens, text
from tui.commands import Place, bindings, key_names
from tui.filters import Styled
from tui.messages import (
    RUNNING_JOB,
    Alarmed,
    Answered,
    CommandEnded,
    HomePolled,
    JoinPolled,
    NetworkPolled,
    RunAt,
    RunPolled,
    SettingsRead,
)
from tui.preferences import Preferring
from tui.screens.live import LiveScreen
from tui.widgets.toned import Words

if TYPE_CHECKING:
    from swarm.api import RunState
    from tui.messages import HomeShown, JoinShown, NetworkShown, RunShown
    from tui.sources import FeedLike
    from tui.transitions import Note
    from tui.view_curves import PlotView
    from tui.view_new import Draft


class SwarmApp(Preferring):
    TITLE = "swarm"
    CSS_PATH = "swarm.tcss"
    BINDINGS: ClassVar = bindings(Place.EVERYWHERE)
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (100, "-wide"), (150, "-vast")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (28, "-tall")]  # noqa: RUF012

    def __init__(
        self,
        feed: FeedLike,
        *,
        ascii: bool = False,
        home_folder: str | None = None,
        pictures: Path | None = None,
        settings: Settings = Settings(),  # noqa: B008  # frozen
        faults: tuple[str, ...] = (),
        welcome: bool = False,
    ) -> None:
        """`ascii`: draw with plain ASCII only, whatever the settings say. `home_folder`: shown as `~`. `pictures`: where
        screenshots go; by default the current folder. `settings`, `faults`: as their file has them at the start. `welcome`:
        begin with the page of the first start."""
        super().__init__(settings, faults, ascii=ascii)
        self.feed, self._welcome = feed, welcome
        self.home_folder = str(Path.home()) if home_folder is None else home_folder
        self.pictures = pictures
        self.home: HomeShown | None = None
        self.run_shown: RunShown | None = None
        self.join_shown: JoinShown | None = None
        self.network: NetworkShown | None = None
        self._draft: Draft | None = None  # of a new run that was not made
        self._told = 0  # the newest note that had its toast
        self._leaving: set[str] = set()  # jobs that we wait for before we quit

    @cached_property
    def plot_view(self) -> PlotView:
        """How plots are drawn, whatever screen they are on."""
        from tui.view_curves import PlotView

        return PlotView()

    def compose(self) -> ComposeResult:
        """Home's first line as long as Home is loaded."""
        yield Words(id="head")

    def on_mount(self) -> None:
        self.animation_level = "none"
        self.query_one("#head", Words).show(text.OPENING)
        self.call_after_refresh(self._open_home)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Before Home is there, the only way is out: a page would lie beneath it."""
        return len(self.screen_stack) > 1 or action == "leave_app"

    def _open_home(self) -> None:
        home = screens.HomeScreen()
        self.push_screen(home)
        home.call_after_refresh(self.feed.start, self.post_message)
        if self._welcome:
            self.open_welcome()

    def on_unmount(self) -> None:
        self.feed.close()

    def action_command_palette(self) -> None:
        if not isinstance(self.screen, screens.Palette):
            self.push_screen(screens.Palette(id="--command-palette"))

    def _fatal_error(self) -> None:
        """One line in place of Textual's pages of a traceback with the values of all variables."""
        error = sys.exc_info()[1]
        words = f"swarm: {type(error).__name__}: {text.plain(str(error))} ({api.note_crash()})"
        self._exit_renderables.append(Text(words))
        self._close_messages_no_wait()

    def get_line_filters(self) -> list[LineFilter]:
        filters = super().get_line_filters()
        return [*([Styled()] if self.no_color else []), *filters, *([self.ascii] if self.ascii.enabled else [])]

    # What the feed tells

    @on(HomePolled)
    def _home_polled(self, message: HomePolled) -> None:
        self.home = replace(message.shown, faults=self.faults or message.shown.faults)
        self._tell(message.shown.notes)
        self._update()

    @on(RunPolled)
    def _run_polled(self, message: RunPolled) -> None:
        run = self._run_screen
        if run is None or message.shown.at != run.at:
            return
        self.run_shown = message.shown
        self._tell(message.shown.notes)
        self._update()

    @on(SettingsRead)
    def _settings_read(self, message: SettingsRead) -> None:
        self.prefer(message.settings, message.faults)
        if self.home is not None:
            self.home = replace(self.home, faults=self.faults)
        self._update()

    @on(Alarmed)
    def _alarmed(self, message: Alarmed) -> None:
        self.call(message.news)
        if message.toast and (self._run_screen is None or self._run_screen.at.run != message.run):
            self.toast(message.news, "warning")

    def watch_theme(self) -> None:
        """Chosen in the palette: it comes again at the next start."""
        if self.is_running and not self._wearing and self.chosen_theme != self.settings.theme:
            self.feed.save("theme", self.chosen_theme)

    @on(NetworkPolled)
    def _network_polled(self, message: NetworkPolled) -> None:
        self.network = message.shown
        self._update()

    @on(JoinPolled)
    def _join_polled(self, message: JoinPolled) -> None:
        join, job = self._join_screen, message.shown.job
        if join is None or message.shown.at != join.at:
            return
        self.join_shown = message.shown
        location = message.shown.joining.location
        # It takes part now. Under a dialog the next look, a second later, finds it so again.
        if job is not None and job.state == "running" and location is not None and join.is_active:
            self.close_join()
            self.open_run(RunAt(location, join.at.run))
            return
        self._update()

    @on(Answered)
    def _answered(self, message: Answered) -> None:
        # Whatever lies over the one who asked: it waits for its answer all the same.
        live = [screen for screen in self.screen_stack if isinstance(screen, LiveScreen)]
        does = message.question.DOES
        if message.problem and does and not any(screen.waits_for(message.question) for screen in live):
            self.toast(f"could not {does}: {message.problem}", "error")
        for screen in live:
            screen.answered(message)

    @on(CommandEnded)
    def _command_ended(self, message: CommandEnded) -> None:
        self._leaving.discard(message.what)
        if message.problem:
            self.toast(f"could not {message.command}: {message.problem}", "error")
            self._quitting = False
        elif message.command == "add the peer":
            self.toast(f"{message.what} is asked from now on")
        elif message.command in ("stop", "pause", "extend"):
            self.toast(f"{message.command} was asked for: it takes effect at the next round")
        elif message.command == "export":
            self.toast(f"wrote {message.what}")
        if self._quitting and not self._leaving:
            self.exit()

    _quitting = False

    def _update(self) -> None:
        """Nothing is painted behind a dialog: a screen takes the newest snapshot when it is in front again."""
        if isinstance(self.screen, LiveScreen):
            self.screen.update()

    def _tell(self, notes: tuple[Note, ...]) -> None:
        for note in notes:
            if note.n > self._told:
                self._told = note.n
                if note.toast:
                    self.toast(note.text, note.severity)

    def toast(self, words: str, severity: str = "information") -> None:
        kind = severity if severity in ("warning", "error") else "information"
        self.notify(text.plain(words, 300), severity=kind, timeout=10 if kind == "error" else 5, markup=False)  # type: ignore[arg-type]

    # Screens

    @property
    def _run_screen(self) -> screens.RunScreen | None:
        return next((s for s in self.screen_stack if isinstance(s, screens.RunScreen)), None)

    @property
    def _join_screen(self) -> screens.JoinScreen | None:
        return next((s for s in self.screen_stack if isinstance(s, screens.JoinScreen)), None)

    def open_join(self, at: RunAt, state: RunState | None = None, *, name: str = "") -> None:
        """What stands between this machine and a run, then one key."""
        from tui.view_run import program_words  # this app is painted before any run is known

        if state is not None and (program := program_words(state)):
            self.toast(program)
            return
        self.join_shown = None
        name = text.plain(state.name if state is not None else name, 64)
        self.push_screen(screens.JoinScreen(at, name))
        self.feed.check(at, name=name)

    def close_join(self) -> None:
        if isinstance(self.screen, screens.JoinScreen):
            self.feed.check(None)
            self.pop_screen()

    def begin_join(self, shown: JoinShown) -> None:
        """Start the worker; the Run screen follows when it takes part."""
        if shown.joining.location is not None:
            self.feed.join(RunAt(shown.joining.location, shown.at.run))
            self.toast(f"joining {text.plain(shown.joining.name, 40)}")

    def open_welcome(self) -> None:
        if not any(isinstance(screen, screens.WelcomeScreen) for screen in self.screen_stack):
            self.push_screen(screens.WelcomeScreen())

    def open_run(self, at: RunAt, *, name: str = "") -> None:
        if (run := self._run_screen) is not None:
            if run.at == at:
                return
            while run in self.screen_stack:  # with whatever was opened from it
                self.pop_screen()
        self.run_shown = None
        known = (s.name for v in (self.home.home.mailboxes if self.home else ()) for s in v.runs if s.run == at.run)
        self.push_screen(screens.RunScreen(at, name or next(known, at.run)))
        self.feed.show(at)

    def close_run(self) -> None:
        if isinstance(self.screen, screens.RunScreen):
            self.feed.show(None)
            self.pop_screen()

    def open_new(self) -> None:
        """The form of a new run, as it was left."""
        self.push_screen(screens.NewScreen(self._draft))

    def close_new(self, *, keep: bool) -> None:
        """`keep`: what stands in the form, for the next time."""
        if isinstance(self.screen, screens.NewScreen):
            self._draft = self.screen.draft if keep else None
            self.pop_screen()

    def open_network(self) -> None:
        self.push_screen(screens.NetworkScreen())
        self.feed.examine()

    def action_settings(self) -> None:
        if not any(isinstance(screen, screens.SettingsScreen) for screen in self.screen_stack):
            self.push_screen(screens.SettingsScreen())

    def action_help(self) -> None:
        from tui.screens.dialogs import Page
        from tui.screens.pages import help_lines

        self.push_screen(Page("Keys", help_lines(self.keys)))

    def action_facts(self) -> None:
        from tui.screens.dialogs import Page
        from tui.screens.pages import fact_lines, report_lines

        lines = fact_lines(self.home, self.run_shown, self.feed.facts, size=self.size, theme=self.theme, console=self.console)
        report = report_lines(self.network.report if self.network else "")
        self.push_screen(Page("Facts for a bug report", [*lines, *report], copy=self.copy))

    def simulate_key(self, key: str) -> None:
        """As a key press, but that it types nothing: a command from the palette or the footer is none for a text field."""
        self.post_message(events.Key(key, ""))

    def copy(self, words: str) -> None:
        """OSC 52 does nothing in macOS Terminal: on a Mac of one's own, pbcopy does it."""
        near = sys.platform == "darwin" and "SSH_TTY" not in os.environ and not self.is_web
        pbcopy = shutil.which("pbcopy") if near else None
        if pbcopy:
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                subprocess.run([pbcopy], input=words.encode(), check=True, timeout=2)
        else:
            self.copy_to_clipboard(words)
        self.toast("copied")

    def action_picture(self) -> None:
        if self.is_web:  # to where the browser is
            self.deliver_text(io.StringIO(self.export_screenshot()), save_filename="swarm.svg", mime_type="image/svg+xml")
            return
        try:
            path = self.save_screenshot(path=str(self.pictures) if self.pictures else None)
        except OSError as error:
            self.toast(f"could not save the picture: {error}", "error")
        else:
            self.toast(f"picture saved: {path}")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield SystemCommand("theme", "Choose other colours, light ones among them.", self.action_change_theme)
        yield SystemCommand("first start", "Name, mailbox, passphrase: the page of the first start.", self.open_welcome)
        places = [Place.EVERYWHERE]
        if isinstance(screen, LiveScreen):
            places = [*screen.PLACES, Place.EVERYWHERE]
            yield from screen.commands()
        for place in places:
            for key in self.keys[place]:
                if (
                    key.action != "command_palette"
                    and not key.priority
                    and screen.check_action(key.action.partition("(")[0], ())
                ):
                    press = partial(self.simulate_key, key.keys.split(",")[0])
                    yield SystemCommand(f"{key.label} ({key_names(key)})", key.help, press)

    # Leaving

    def action_leave_app(self) -> None:
        jobs = [job for job in self.home.home.jobs if job.state in RUNNING_JOB] if self.home else []
        asked = self.screen.id == "quit"
        if not jobs or asked or self._leaving:
            self.exit()
            return
        from tui.screens.dialogs import CANCEL, Choice, Option

        names = ", ".join(dict.fromkeys(text.plain(job.run_name, 40) for job in jobs[:3]))
        words = (
            ((f"This machine trains {names}.", "strong"),),
            (("Training can go on without the screen; swarm tui finds it again.", ""),),
        )
        options = (Option("keep", "Quit, and let it train on"), Option("leave", "Leave the run, then quit"), CANCEL)

        def answered(answer: str | None) -> None:
            if answer == "keep":
                self.exit()
            elif answer == "leave":
                self._quitting = True
                self._leaving = {job.id for job in jobs}
                for job in jobs:
                    self.feed.leave(job.id)

        dialog = Choice("Quit", words, options, focus="keep")
        dialog.id = "quit"
        self.push_screen(dialog, answered)
