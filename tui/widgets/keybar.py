"""The keys that work here, in one line, each of them clickable.

Drawn by hand: Textual's own footer is a widget per key, made anew whenever the focus moves (0.4 s of CPU for 25 keys).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from tui.commands import Place, key_name

if TYPE_CHECKING:
    from tui.commands import Key
    from tui.preferences import Preferring


class Item(NamedTuple):
    """What is drawn of a key, and what a click on it presses."""

    key: str
    shown: str
    label: str

    @property
    def width(self) -> int:
        return cell_len(self.shown) + (1 + cell_len(self.label) if self.label else 0)


class KeyBar(Widget):
    COMPONENT_CLASSES: ClassVar[set[str]] = {"keybar--key", "keybar--label"}
    ALLOW_SELECT = False
    app: Preferring

    def __init__(self, *places: Place) -> None:
        super().__init__()
        self._places = places
        self._left: tuple[Item, ...] = ()
        self._right: tuple[Item, ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._changed)
        self._changed(self.screen)

    def _changed(self, screen: Screen[object]) -> None:
        keys = [key for place in self._places for key in self.app.keys[place]]
        keys = sorted(keys, key=lambda key: key.late)
        possible = [
            key
            for key in (*keys, *self.app.keys[Place.EVERYWHERE])
            if key.footer and screen.check_action(key.action.partition("(")[0], ())
        ]
        left = tuple(_item(key, possible) for key in possible if not key.pinned)
        right = tuple(_item(key, possible) for key in possible if key.pinned)
        if (left, right) != (self._left, self._right):
            self._left, self._right = left, right
            self.refresh()

    @property
    def items(self) -> tuple[tuple[int, Item], ...]:
        """What finds room, with the column where it begins; the pinned ones always stand at the right end."""
        end = self.size.width - 1
        start_right = max(1, end - sum(item.width for item in self._right) - 2 * (len(self._right) - 1))
        placed: list[tuple[int, Item]] = []
        group: list[tuple[int, Item]] = []
        x = 1
        for item in self._left:
            group.append((x, item))  # shown whole or not at all
            x += item.width
            if item.label:
                if x + 2 > start_right:
                    x = group[0][0]
                else:
                    placed += group
                    x += 2
                group = []
        x = start_right
        for item in self._right:
            placed.append((x, item))
            x += item.width + 2
        return tuple(placed)

    def render_line(self, y: int) -> Strip:
        key, label = self.get_component_rich_style("keybar--key"), self.get_component_rich_style("keybar--label")
        segments: list[Segment] = []
        x = 0
        for start, item in self.items:
            segments.append(Segment(" " * (start - x), label))
            segments.append(Segment(item.shown, key))
            if item.label:
                segments.append(Segment(f" {item.label}", label))
            x = start + item.width
        return Strip(segments).adjust_cell_length(self.size.width, label)

    def on_click(self, event: events.Click) -> None:
        for start, item in self.items:
            if start <= event.x < start + item.width:
                self.app.simulate_key(item.key)


def _item(key: Key, shown: list[Key]) -> Item:
    """Keys of a group are run together, and the last one carries the group's word."""
    first = key.keys.split(",")[0]
    last = key.group is None or [k for k in shown if k.group == key.group][-1] is key
    return Item(first, key_name(first), (key.group or key.label) if last else "")
