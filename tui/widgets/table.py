"""A table with fixed column widths, drawn line by line; columns that find no room are left out, least important first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip

from tui import text
from tui.widgets.toned import Toned

if TYPE_CHECKING:
    from tui.widgets.toned import Line, Piece


@dataclass(frozen=True)
class Column:
    title: str
    width: int
    rank: int = 0  # 0 always stays; the highest goes first
    right: bool = False
    grow: bool = False  # takes what is left over
    sortable: bool = True
    descending: bool = False  # the order that the first `s` gives


class Cell(NamedTuple):
    text: str = ""
    tone: str = ""
    order: float | str = ""  # what it is sorted by; '' : its text


@dataclass(frozen=True)
class Row:
    key: str
    cells: tuple[Cell, ...]  # one for each column
    quiet: bool = False  # drawn dim
    spill: int | None = None  # the column whose text takes the room of all those after it


class Table(Toned):
    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--cursor"}

    class Opened(Message):
        """A row was clicked that had the cursor already."""

        def __init__(self, table: Table, key: str) -> None:
            super().__init__()
            self.table, self.key = table, key

        @property
        def control(self) -> Table:
            return self.table

    class Moved(Message):
        """Another row has the cursor."""

    def __init__(self, columns: tuple[Column, ...], *, name: str, id: str) -> None:
        super().__init__(id=id)
        self._columns, self._name = columns, name
        self._all: tuple[Row, ...] = ()
        self._rows: tuple[Row, ...] = ()
        self._cursor = ""
        self._sorted: int | None = None
        self.filter = ""
        self._layout: tuple[tuple[int, int], ...] = ()  # column, width

    # What is shown

    def show(self, rows: tuple[Row, ...]) -> None:
        if rows != self._all:
            self._all = rows
            self._arrange()

    def head(self, columns: tuple[Column, ...], *, name: str) -> None:
        """Show other columns, of rows that are shown next."""
        if columns != self._columns:
            self._columns, self._name, self._sorted = columns, name, None
            self._all = self._rows = ()
            self._layout = fit_columns(columns, self._inner_width - 2)
            self._retitle()
            self.refresh()

    def call(self, title: str, shown: str) -> None:
        """Head the column `title` with another word."""
        columns = tuple(replace(c, title=shown) if c.title == title else c for c in self._columns)
        if columns != self._columns:
            self._columns = columns
            self.refresh()

    def narrow(self, filter: str) -> None:
        """Show only rows that contain this text."""
        self.filter = text.plain(filter, 40)
        self._arrange()

    @property
    def rows(self) -> tuple[Row, ...]:
        """In the order shown."""
        return self._rows

    @property
    def cursor(self) -> str:
        """Key of the row under the cursor; '' if there is none."""
        return self._cursor

    def _arrange(self) -> None:
        needle = self.filter.casefold()
        rows = [r for r in self._all if not needle or any(needle in c.text.casefold() for c in r.cells)]
        if self._sorted is not None:
            n, column = self._sorted, self._columns[self._sorted]
            known = [r for r in rows if r.cells[n].order != "" or r.cells[n].text != text.NONE]
            unknown = [r for r in rows if r not in known]
            known.sort(key=lambda r: _order(r.cells[n]), reverse=column.descending)
            rows = known + unknown
        before, self._rows = self._rows, tuple(rows)
        keys = [r.key for r in self._rows]
        if self._cursor not in keys:
            place = next((i for i, r in enumerate(before) if r.key == self._cursor), 0)
            self._cursor = keys[min(place, len(keys) - 1)] if keys else ""
            self.post_message(self.Moved())
        self._retitle()
        self.virtual_size = Size(self._inner_width, len(self._rows) + 1)
        if [r.key for r in before] == keys and self._layout:
            for n, (old, new) in enumerate(zip(before, self._rows, strict=True)):
                if old != new:
                    self._refresh_row(n)
        else:
            self.refresh()

    def _retitle(self) -> None:
        shown = f"{len(self._rows)} of {len(self._all)}" if self.filter else f"{len(self._all)}"
        marks = [f"sort {self._columns[self._sorted].title}"] if self._sorted is not None else []
        marks += [f"/ {self.filter}"] if self.filter else []
        self.title(f"{self._name} {shown}", "  ".join(marks))

    # Drawing

    @property
    def _inner_width(self) -> int:
        return self.scrollable_content_region.width

    def on_resize(self) -> None:
        self._layout = fit_columns(self._columns, self._inner_width - 2)
        self.virtual_size = Size(self._inner_width, len(self._rows) + 1)
        self._reveal()

    def render_line(self, y: int) -> Strip:
        if y == 0:
            return self.strip(self._heading(), self._inner_width)
        n = y - 1 + self.scroll_offset.y
        if n >= len(self._rows):
            return self.strip((), self._inner_width)
        row = self._rows[n]
        here = row.key == self._cursor
        pieces: list[Piece] = [("▸ " if here else "  ", "accent")]
        for n, (c, width) in enumerate(self._layout):
            cell = row.cells[c]
            spills = c == row.spill
            room = sum(w + 2 for _, w in self._layout[n:]) - 2 if spills else width
            words = text.fit(cell.text, room, right=self._columns[c].right and not spills)
            pieces += [("  " if n else "", ""), (words, "dim" if row.quiet else cell.tone)]
            if spills:
                break
        style = self.get_component_rich_style("table--cursor", partial=True) if here and self.has_focus else None
        return self.strip(tuple(pieces), self._inner_width, style)

    def _heading(self) -> Line:
        pieces: list[Piece] = [("  ", "")]
        for n, (c, width) in enumerate(self._layout):
            column = self._columns[c]
            mark = "" if c != self._sorted else "▾" if column.descending else "▴"
            title = text.fit(column.title, min(width - len(mark), len(column.title))) + mark
            pieces += [("  " if n else "", ""), (text.fit(title, width, right=column.right), "accent" if mark else "dim")]
        return tuple(pieces)

    def _refresh_row(self, n: int) -> None:
        y = n - self.scroll_offset.y + 1
        if 0 < y < self.scrollable_content_region.height:
            self.refresh(Region(0, y, self._inner_width, 1))  # counted from inside the border

    # Moving

    def _at(self) -> int:
        return next((n for n, r in enumerate(self._rows) if r.key == self._cursor), 0)

    def _go(self, n: int) -> None:
        if not self._rows:
            return
        old = self._at()
        new = max(0, min(n, len(self._rows) - 1))
        self._cursor = self._rows[new].key
        self._reveal()
        if new != old:
            self._refresh_row(old)
            self._refresh_row(new)
            self.post_message(self.Moved())

    def _reveal(self) -> None:
        n, visible = self._at(), self.scrollable_content_region.height - 1
        top = self.scroll_offset.y
        if visible > 0 and not top <= n < top + visible:
            self.scroll_to(y=n if n < top else n - visible + 1, animate=False, force=True, immediate=True)

    def go(self, key: str) -> None:
        """Put the cursor on this row."""
        self._go(next((n for n, r in enumerate(self._rows) if r.key == key), self._at()))

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or offset.y == 0:
            return
        n = offset.y - 1 + self.scroll_offset.y
        if n < len(self._rows):
            if self._rows[n].key == self._cursor:
                self.post_message(self.Opened(self, self._cursor))
            else:
                self._go(n)

    def move(self, rows: int) -> None:
        self._go(self._at() + rows)

    def first(self) -> None:
        self._go(0)

    def last(self) -> None:
        self._go(len(self._rows) - 1)

    def sort_by_next(self) -> None:
        """The next sortable column that is on screen; after the last one the natural order."""
        shown = [c for c, _ in self._layout if self._columns[c].sortable]
        later = [c for c in shown if self._sorted is None or c > self._sorted]
        self._sorted = later[0] if later else None
        self._arrange()
        self.refresh()


def _order(cell: Cell) -> tuple[int, float, str]:
    value = cell.order if cell.order != "" else cell.text
    return (1, 0.0, value.casefold()) if isinstance(value, str) else (0, float(value), "")


def fit_columns(columns: tuple[Column, ...], width: int) -> tuple[tuple[int, int], ...]:
    """Which columns are drawn in `width` cells, two between them, and how wide each is."""
    kept = list(range(len(columns)))
    while sum(columns[c].width + 2 for c in kept) - 2 > width and any(columns[c].rank for c in kept):
        kept.remove(max((c for c in kept if columns[c].rank), key=lambda c: columns[c].rank))
    spare = max(0, width - (sum(columns[c].width + 2 for c in kept) - 2))
    growing = [c for c in kept if columns[c].grow]
    share = {c: spare // len(growing) + (i < spare % len(growing)) for i, c in enumerate(growing)}
    return tuple((c, columns[c].width + share.get(c, 0)) for c in kept)
