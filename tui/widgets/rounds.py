"""The rounds: the open one, then a list of the closed ones, newest first; all in one line where there is only one. Of a
data-parallel job its generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from tui import view_ranks, view_rounds
from tui.widgets.toned import Toned

if TYPE_CHECKING:
    from tui.messages import RunShown
    from tui.preferences import Preferring
    from tui.widgets.toned import Line


class RoundsPane(Toned):
    """`at` is the number of the round or generation under the cursor, which stays on it as others come; on the newest one it
    goes along."""

    COMPONENT_CLASSES = {"table--cursor"}  # noqa: RUF012

    class Opened(Message):
        """A line was clicked that had the cursor already."""

    app: Preferring

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._value: RunShown | None = None
        self._head: tuple[Line, ...] = ()  # above the list, and out of its scrolling
        self._rows: tuple[tuple[int | None, Line], ...] = ()  # each with the number that it belongs to
        self._numbers: tuple[int, ...] = ()
        self._chosen: int | None = None  # None: the newest one
        self._listed: tuple[object, ...] = ()  # what the list was made of

    def on_mount(self) -> None:
        self.title("Rounds")

    def show_run(self, shown: RunShown) -> None:
        self._value = shown
        self._fill()

    @property
    def at(self) -> int | None:
        """None: there is none yet."""
        if self._chosen in self._numbers:
            return self._chosen
        return self._numbers[0] if self._numbers else None

    def on_resize(self) -> None:
        self._fill()

    def _fill(self) -> None:
        if self._value is None:
            return
        state, region = self._value.state, self.scrollable_content_region
        job, brief = view_ranks.parallel(state), region.height <= 1
        head = self._heading(self._value, job=job, brief=brief)
        made_of = (state.manifest, state.rounds, state.evals, state.ranks, region.width, brief)
        rows = self._rows
        if len(made_of) != len(self._listed) or any(a is not b for a, b in zip(made_of, self._listed, strict=True)):
            self._listed = made_of
            entries = view_ranks.generation_entries(state) if job else view_rounds.closed_rounds(state, width=region.width)
            self._numbers, keys = tuple(number for number, _ in entries), self.app.keys
            older = view_ranks.older_line(state, keys) if job else view_rounds.older_line(state, len(entries), keys)
            every = (*((number, line) for number, lines in entries for line in lines), *((None, line) for line in older))
            rows = () if brief else every
            self.title("Generations" if job else "Rounds")
        if (rows, head) != (self._rows, self._head):
            self._rows, self._head = rows, head
            self.virtual_size = Size(region.width, len(rows) + len(head))
            self._reveal()
            self.refresh()

    def _heading(self, shown: RunShown, *, job: bool, brief: bool) -> tuple[Line, ...]:
        if job:
            return view_ranks.generation_heading(shown, brief=brief)
        if brief:
            return (view_rounds.rounds_summary(shown),)
        more = (view_rounds.closing_line(shown), view_rounds.in_flight_line(shown.state))
        return (view_rounds.open_round_line(shown), *(line for line in more if line))

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y < len(self._head):
            return self.strip(self._head[y], width)
        n = y - len(self._head) + self.scroll_offset.y
        if n >= len(self._rows):
            return self.strip((), width)
        number, line = self._rows[n]
        first = number is not None and (n == 0 or self._rows[n - 1][0] != number)
        here = first and number == self.at and self.has_focus
        return self.strip(line, width, self.get_component_rich_style("table--cursor", partial=True) if here else None)

    # Moving

    @property
    def page_rows(self) -> int:
        return max(1, self.scrollable_content_region.height - len(self._head) - 1)

    def move(self, rows: int) -> None:
        self._go((self._numbers.index(at) if (at := self.at) is not None else 0) + rows)

    def first(self) -> None:
        self._go(0)

    def last(self) -> None:
        self._go(len(self._numbers) - 1)

    def go(self, number: int) -> None:
        """Put the cursor on this round, if it is listed."""
        if number in self._numbers:
            self._go(self._numbers.index(number))

    def _go(self, n: int) -> None:
        if self._numbers:
            n = max(0, min(n, len(self._numbers) - 1))
            self._chosen = None if n == 0 else self._numbers[n]
            self._reveal()
            self.refresh()

    def _reveal(self) -> None:
        at, visible, top = self.at, self.scrollable_content_region.height - len(self._head), self.scroll_offset.y
        n = next((n for n, (number, _) in enumerate(self._rows) if number == at), 0)
        if visible > 0 and not top <= n < top + visible:
            self.scroll_to(y=n if n < top else n - visible + 1, animate=False, force=True, immediate=True)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None:
            return
        n = offset.y - len(self._head) + self.scroll_offset.y
        number = self._rows[n][0] if offset.y >= len(self._head) and n < len(self._rows) else None
        if not self._rows or (number is not None and number == self.at):
            self.post_message(self.Opened())
        elif number is not None:
            self.go(number)
