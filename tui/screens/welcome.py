"""First start: a name, a mailbox, what is installed, a passphrase; then a run on this machine alone, or Home."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.timer import Timer
from textual.widgets import Button, Input

from swarm.api.welcoming import Begun, Folder, Machine
from tui import text, view_welcome
from tui.asked import Question
from tui.commands import Place, bindings
from tui.messages import RunAt
from tui.screens.dialogs import Page
from tui.screens.live import LiveScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import Words

if TYPE_CHECKING:
    from tui.app import SwarmApp
    from tui.messages import Answered
    from tui.sources import Api

_UNSIGNED, _SIGNED = "○ no passphrase", "● a passphrase"
_PAUSE_S = 0.3  # in typing, after which the folder is looked at


@dataclass(frozen=True)
class AskMachine(Question):
    async def answer(self, api: Api) -> Machine:
        return await api.look_at_machine()


@dataclass(frozen=True)
class AskFolder(Question):
    path: str

    async def answer(self, api: Api) -> Folder:
        return await api.look_at_folder(self.path)


@dataclass(frozen=True)
class SetUp(Question):
    DOES: ClassVar = "set up"
    name: str
    folder: str
    signed: bool
    train: bool

    async def answer(self, api: Api) -> Begun:
        return await api.set_up(name=self.name, folder=self.folder, signed=self.signed, train=self.train)


class WelcomeScreen(LiveScreen):
    BINDINGS: ClassVar = bindings(Place.WELCOME)
    PLACES = (Place.WELCOME,)
    app: SwarmApp

    def __init__(self) -> None:
        super().__init__()
        self._machine: Machine | None = None
        self._folder: Folder | None = None  # None: it is looked at
        self._own: set[str] = set()  # fields that somebody typed into
        self._timer: Timer | None = None
        self._at_work: SetUp | None = None
        self._begun: Begun | None = None  # what was set up, until it is shown
        self._signed = False

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        with VerticalScroll(id="steps", can_focus=False):
            yield Words(id="name-title")
            yield Input(id="name", compact=True, select_on_focus=False)
            yield Words(id="name-words")
            yield Words(id="folder-title")
            yield Input(id="folder", compact=True, select_on_focus=False)
            yield Words(id="folder-words")
            yield Words(id="framework-title")
            yield Words(id="framework-words")
            yield Words(id="passphrase-title")
            yield Button(Content(_UNSIGNED), id="signed", compact=True)
            yield Words(id="passphrase-words")
            yield Words(id="go-title")
            yield Button(Content("Set up, and train a small model here"), id="train", compact=True)
            yield Button(Content("Set up, and no more"), id="only", compact=True)
            yield Button(Content("Leave all as it is, and go to Home"), id="home", compact=True)
            yield Words(id="go-words")
        yield KeyBar(Place.WELCOME)

    def on_mount(self) -> None:
        self.query_one("#name").focus()
        titles = (
            "1  The name of this machine",
            "2  The mailbox: a folder that all your machines can reach",
            "3  What it trains with",
            "4  Who may take part",
            "5  Begin",
        )
        for step, title in zip(("name", "folder", "framework", "passphrase", "go"), titles, strict=True):
            self.query_one(f"#{step}-title", Words).show(((title, "strong"),))
        self.query_one("#head", Words).show(view_welcome.headline())
        self._ask_folder("")
        self.app.feed.ask(AskMachine())
        self._paint()

    def update(self) -> None:
        """Nothing here comes with the snapshots, but answers may have come behind a dialog."""
        if self._begun is not None:
            self.app.call_later(self._leave)  # once whatever lay over it is gone
        else:
            self._paint()

    def answered(self, message: Answered) -> None:
        match message.question, message.value:
            case AskMachine(), Machine() as machine:
                self._take(machine)
            case AskFolder(path), Folder() as folder if path == self._typed("folder"):
                self._folder = folder
            case SetUp() as asked, found if asked is self._at_work:
                self._at_work = None
                if isinstance(found, Begun):
                    self._begun = found
                    if self.is_active:
                        self._leave()
                    return
                self.app.toast(f"could not set up: {message.problem}", "error")
                self._ask_folder(self._typed("folder"))
            case AskMachine() | AskFolder(), None:
                self.app.toast(message.problem, "error")
            case _:
                return
        self._paint()

    def waits_for(self, question: Question) -> bool:
        return question is self._at_work

    def _take(self, machine: Machine) -> None:
        self._machine = machine
        for field, first in (("name", machine.name), ("folder", machine.folder)):
            if field not in self._own:
                self.query_one(f"#{field}", Input).value = first
        self.query_one("#signed").disabled = bool(machine.fingerprint)

    def _typed(self, field: str) -> str:
        return self.query_one(f"#{field}", Input).value.strip()

    def _paint(self) -> None:
        if not self.ready or not self.is_active:
            return
        machine, folder, home = self._machine, self._folder, self.app.home_folder
        name = self._typed("name")
        self.query_one("#name-words", Words).show(*view_welcome.name_lines(name, machine))
        self.query_one("#folder-words", Words).show(*view_welcome.folder_lines(folder, machine, home))
        self.query_one("#framework-words", Words).show(*view_welcome.framework_lines(machine))
        signed = self._signed or bool(machine is not None and machine.fingerprint)
        self.query_one("#signed", Button).label = Content(_SIGNED if signed else _UNSIGNED)
        self.query_one("#passphrase-words", Words).show(*view_welcome.passphrase_lines(machine, signed=self._signed))
        idle = self._at_work is None
        self.query_one("#train").disabled = not (idle and view_welcome.may_train(folder, machine, name))
        self.query_one("#only").disabled = not (idle and view_welcome.may_set_up(folder, name))
        words = "" if idle else "◌ setting up; a framework takes a while to load …"
        self.query_one("#go-words", Words).show(*([((words, "accent"),)] if words else []))

    # What is typed

    @on(Input.Changed)
    def _changed(self, event: Input.Changed) -> None:
        field = event.input.id or ""
        first = "" if self._machine is None else self._machine.name if field == "name" else self._machine.folder
        if event.value != first:
            self._own.add(field)
        if field == "folder":
            self._folder = None
            if self._timer is not None:
                self._timer.stop()
            self._timer = self.set_timer(_PAUSE_S, lambda: self._ask_folder(self._typed("folder")))
        self._paint()

    def _ask_folder(self, path: str) -> None:
        if path:
            self._folder = None
            self.app.feed.ask(AskFolder(path))
        else:
            self._folder = Folder(path="")
            self._paint()

    # Going on

    @on(Input.Submitted)
    def action_next(self) -> None:
        self.focus_next()

    def action_go(self, steps: int) -> None:
        (self.focus_next if steps > 0 else self.focus_previous)()

    def action_skip(self) -> None:
        """A field that is left out is as it was at first; the last step leaves the page."""
        focused, machine = self.focused, self._machine
        if isinstance(focused, Input):
            focused.value = "" if machine is None or focused.id != "name" else machine.name
        elif focused is not None and focused.id == "signed":
            self._signed = False
            self._paint()
        else:
            if self._at_work is not None:
                self.app.toast("it is set up all the same: Home shows it when it is there")
            self.app.pop_screen()
            return
        self.focus_next()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._at_work is None or action not in ("next", "go")

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        if event.button.id == "home":
            self.app.pop_screen()
            return
        if event.button.id == "signed":
            self._signed = not self._signed
            self._paint()
            return
        self._at_work = SetUp(
            name=self._typed("name"),
            folder=self._typed("folder"),
            signed=self._signed,
            train=event.button.id == "train",
        )
        self.app.feed.ask(self._at_work)
        self._paint()

    def _leave(self) -> None:
        begun = self._begun
        if begun is None or not self.is_active:
            return
        self._begun = None
        self.app.feed.rescan()
        self.app.pop_screen()
        if begun.run:
            self.app.open_run(RunAt(begun.mailbox, begun.run), name=begun.name)
        else:
            self.app.toast(f"{text.plain(begun.mailbox, 100)} is a mailbox now")
        if begun.passphrase:
            self.app.push_screen(Page("Set up", view_welcome.begun_lines(begun, self.app.home_folder), copy=self.app.copy))
