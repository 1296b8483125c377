"""New run: a form, a preview of what comes of it, and the equal command line."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.containers import Container
from textual.timer import Timer

from swarm.api import Home, Sightings, planning, preview
from tui import view_new
from tui.asked import Question
from tui.background import in_thread
from tui.commands import Place, bindings
from tui.messages import RunAt
from tui.screens.live import LiveScreen
from tui.view_new import Draft
from tui.widgets.form import Form
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import Lines, Words

if TYPE_CHECKING:
    from tui.app import SwarmApp
    from tui.commands import Table
    from tui.messages import Answered
    from tui.sources import Api

PAUSE_S = 0.4  # without a key, before the preview is asked for
AGAIN_S = 5.0  # after which it is asked for anew: machines come and go


@dataclass(frozen=True)
class OpenForm(Question):
    """Tasks, defaults, and what was typed the last time."""

    async def answer(self, api: Api) -> object:
        return await in_thread(planning.opening)


@dataclass(frozen=True)
class LookAhead(Question):
    """What can be said of the draft by now. Off the feed's loop too: a path that is typed may lead to a share that hangs."""

    draft: Draft
    home: Home
    sightings: Sightings

    async def answer(self, api: Api) -> object:
        draft = self.draft
        return await in_thread(
            lambda: asyncio.run(
                preview.preview(
                    draft.method,
                    draft.task,
                    draft.texts,
                    mailbox=draft.mailbox,
                    home=self.home,
                    sightings=self.sightings,
                )
            )
        )


@dataclass(frozen=True)
class FindOut(Question):
    """More of it, which takes seconds: the model's size, the mailbox's speed. `anew`: what is known is forgotten first."""

    draft: Draft
    anew: bool = False

    async def answer(self, api: Api) -> object:
        draft = self.draft
        if self.anew:
            preview.forget()
        work = preview.measure
        return await in_thread(lambda: asyncio.run(work(draft.method, draft.task, draft.texts, mailbox=draft.mailbox)))


@dataclass(frozen=True)
class MakeRun(Question):
    DOES: ClassVar = "make the run"
    draft: Draft

    async def answer(self, api: Api) -> object:
        draft = self.draft
        return await in_thread(
            lambda: asyncio.run(planning.begin(draft.method, draft.task, draft.texts, mailbox=draft.mailbox))
        )


def _steps(keys: Table) -> dict[str, int]:
    """By how many rows each key moves."""
    return {
        name: int(key.action.removeprefix("move(").rstrip(")"))
        for key in keys[Place.NEW]
        if key.action.startswith("move(")
        for name in key.keys.split(",")
    }


class NewScreen(LiveScreen):
    BINDINGS: ClassVar = bindings(Place.NEW)
    PLACES = (Place.NEW,)
    app: SwarmApp

    def __init__(self, draft: Draft | None = None) -> None:
        super().__init__()
        self.draft = draft or Draft()
        self._preview: preview.Preview | None = None
        self._looked: Draft | None = None  # the draft that the preview is of
        self._problems: dict[str, str] = {}
        self._starting = self._finding = False
        self._begun: planning.Begun | None = None  # the run that was made, until it is shown
        self._failed = ""  # why the last try to make it came to nothing
        self._pause: Timer | None = None
        self._waited: Draft | None = None  # that a look was asked for, and not answered
        self._tried: Draft | None = None  # that was last measured

    def compose(self) -> ComposeResult:
        yield Words(id="head")
        with Container(id="panes"):
            yield Form(id="form", steps=_steps(self.app.keys))
            yield Lines(id="preview")
        yield Words(id="help")
        yield Words(id="command")
        yield Words(id="outlook")
        yield KeyBar(Place.NEW)

    def on_mount(self) -> None:
        self.query_one("#form", Form).title("New run")
        self.query_one("#preview", Lines).title("Preview")
        self.query_one("#form").focus()
        self.set_interval(AGAIN_S, self._look_again)
        self.app.feed.ask(OpenForm())
        self._paint()

    def update(self) -> None:
        if self._begun is not None:
            self.app.call_later(self._show_run)  # once whatever lay over it is gone
        elif self.ready:
            self._paint()

    def on_resize(self) -> None:
        if self.ready:
            self.call_after_refresh(self._paint)

    # What comes of it

    def answered(self, message: Answered) -> None:
        question = message.question
        match question:
            case OpenForm():
                self._opened(message)
            case LookAhead() if question.draft == self.draft:
                self._waited = None
                found = message.value
                self._preview = found if isinstance(found, preview.Preview) else preview.Preview(problems={"": message.problem})
                self._looked = self.draft
                if not self._preview.measured:
                    self._find_out()
            case FindOut():
                self._finding = False
                self._look()
            case MakeRun():
                self._made(message)
            case _:
                return
        if self.ready and self.is_active:
            self._paint()

    def waits_for(self, question: Question) -> bool:
        return self._starting and isinstance(question, MakeRun)

    def _opened(self, message: Answered) -> None:
        if isinstance(message.value, planning.Opening):
            if self.draft.opening is None:
                self.draft = self.draft.opened(message.value)
            else:  # it was typed in this sitting
                self.draft = replace(self.draft, opening=message.value)
        else:
            self._failed = message.problem
        self._look()

    def _made(self, message: Answered) -> None:
        self._starting = False
        if isinstance(message.value, planning.Begun):
            self._begun = message.value
            if self.is_active:
                self._show_run()
        else:
            self._failed = message.problem or "nobody says why"

    def _show_run(self) -> None:
        begun = self._begun
        if begun is None or not self.is_active:
            return
        self._begun = None
        self.app.close_new(keep=False)
        self.app.feed.rescan()
        if begun.made:
            self.app.open_run(RunAt(begun.location, begun.run), name=begun.name)
        else:
            self.app.toast(f"{begun.name} is being made still: it shows among the runs when it is there")

    def _changed(self, draft: Draft) -> None:
        self.draft, self._failed = draft, ""
        self._problems = draft.problems
        if self._pause is not None:
            self._pause.stop()
        self._pause = self.set_timer(PAUSE_S, self._look)
        self._paint()

    def _look(self) -> None:
        if self.draft.opening is None or self._waited == self.draft:
            return
        self._waited = self.draft
        home = self.app.home
        self.app.feed.ask(
            LookAhead(
                self.draft,
                home.home if home is not None else Home(),
                home.sightings if home is not None else Sightings(),
            )
        )

    def _look_again(self) -> None:
        if self.is_active and not self._starting:
            self._tried = None
            self._look()

    def _find_out(self, *, anew: bool = False) -> None:
        """One at a time: whatever is typed meanwhile is looked at when it is done. What could not be measured is tried again
        after a while."""
        if not self._finding and not self.draft.problems and (anew or self._tried != self.draft):
            self._finding, self._tried = True, self.draft
            self.app.feed.ask(FindOut(self.draft, anew))

    # What it shows

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with the draft as it stands."""
        said = self._preview.problems if self._preview is not None and self._looked == self.draft else {}
        return {**said, **self._problems} if self.draft.opening is not None else {}

    @property
    def reason(self) -> str:
        """Why it cannot be started; '': it can."""
        looked = self._looked == self.draft
        return view_new.blocked(self.draft, self.problems, looked=looked, starting=self._starting)

    def _paint(self) -> None:
        self._problems = self.draft.problems
        self.query_one("#head", Words).show(view_new.headline(self.draft, starting=self._starting))
        self.query_one("#form", Form).show(view_new.rows(self.draft, self.problems, reason=self.reason))
        pane = self.query_one("#preview", Lines)
        width = pane.scrollable_content_region.width or max(20, self.size.width - 4)
        pane.show(view_new.preview_lines(self._preview, width=width))
        pane.title("Preview", "" if self._looked == self.draft else "of what stood here before" if self._preview else "")
        self._bottom()
        self.refresh_bindings()

    @on(Form.Moved)
    def _bottom(self) -> None:
        draft, problems = self.draft, self.problems
        cursor = self.query_one("#form", Form).cursor
        self.query_one("#help", Words).show(*view_new.help_lines(draft, cursor, problems, self.app.keys))
        width = max(20, self.size.width - 2)
        self.query_one("#command", Words).show(*view_new.command_lines(draft, width=width, most=2))
        home = self.app.home
        self.query_one("#outlook").set_class(bool(self._failed), "-failed")
        self.query_one("#outlook", Words).show(
            *view_new.outlook(
                draft,
                reason=self.reason,
                starting=self._starting,
                failed=self._failed,
                jobs=home.home.jobs if home is not None else (),
                keys=self.app.keys,
            )
        )

    # Keys

    @on(Form.Changed)
    def _field(self, event: Form.Changed) -> None:
        value = self.query_one("#form", Form).take(event.key)
        if value is not None:  # else it came with a change before this one
            self._changed(self.draft.put(event.key, value))

    @on(Form.Pressed)
    def _pressed(self, event: Form.Pressed) -> None:
        if event.key == view_new.START:
            self.action_start()
        else:
            self.draft = self.draft.folded(event.key.removeprefix(view_new.FOLD))
            self._paint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return not self.reason if action == "start" else True

    def action_start(self) -> None:
        if self.reason:
            return
        self._starting, self._failed = True, ""
        self.app.feed.ask(MakeRun(self.draft))
        self._paint()

    def action_advanced(self) -> None:
        self.draft = self.draft.folded(None)
        self._paint()

    def action_copy(self) -> None:
        self.app.copy(self.draft.command)

    def action_reset(self) -> None:
        self._changed(self.draft.cleared())

    def action_measure(self) -> None:
        self._find_out(anew=True)

    def action_pane(self) -> None:
        target = self.query_one("#form" if self.query_one("#preview").has_focus else "#preview")
        if target.focusable:
            target.focus()

    @property
    def _list(self) -> Form | Lines:
        pane = self.query_one("#preview", Lines)
        return pane if pane.has_focus else self.query_one("#form", Form)

    def action_move(self, rows: int) -> None:
        self._list.move(rows)

    def action_page(self, pages: int) -> None:
        self._list.move(pages * self._list.page_rows)

    def action_back(self) -> None:
        if self._starting:
            self.app.toast("the run is made all the same: it shows among the runs when it is there")
        self.app.close_new(keep=not self._starting)
