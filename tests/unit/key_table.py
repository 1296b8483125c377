"""The README's table of screens and keys, made from the key table; `python -m tests.unit.key_table` writes it there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from tui.commands import KEYS, Key, Place, key_name

ROOT = Path(__file__).parents[2]
BEGIN, END = "| where | keys |\n|---|---|\n", "\n\n"
_MARKS = {"`": "`` ` ``", "|": r"`\|`"}  # keys that mean something in a table


def _shown(key: Key) -> str:
    name = key_name(key.keys.split(",")[0])
    return _MARKS.get(name, f"`{name}`")


def _keys(place: Place) -> Iterator[str]:
    """In the order of the footer; neighbours of one group stand together, as they do there."""
    for group, keys in itertools.groupby(KEYS[place], lambda key: key.group):
        if group in ("panes", "go"):  # what each of them does is plain
            yield f"{' '.join(map(_shown, keys))} {group}"
        else:
            yield from (f"{_shown(key)} {key.label}" for key in keys)


def table(places: tuple[Place, ...] = tuple(Place)) -> str:
    return BEGIN + "\n".join(f"| {place.value} | {' · '.join(_keys(place))} |" for place in places)


def written(readme: str) -> str:
    """The table that stands in the README."""
    _, begin, rest = readme.partition(BEGIN)
    return begin + rest.partition(END)[0]


if __name__ == "__main__":
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(written(text), table()), encoding="utf-8")
