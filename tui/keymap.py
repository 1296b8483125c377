"""Other keys than the table's, as the settings have them. Pure."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from textual.keys import Keys, _character_to_key

from tui import text
from tui.commands import KEYS, Place, key_name

if TYPE_CHECKING:
    from tui.commands import Key

Wanted = Mapping[str, str | tuple[str, ...]]
_MODIFIERS = ("ctrl", "shift", "alt", "meta", "super", "hyper")
_NAMED = {key.value for key in Keys}


@dataclass(frozen=True)
class Keymap:
    table: Mapping[Place, tuple[Key, ...]] = field(default_factory=lambda: KEYS)  # all keys as they are now
    changed: Mapping[str, str] = field(default_factory=dict)  # by id, as Textual takes them: 'j,down'
    faults: tuple[str, ...] = ()  # what was wrong with the wanted ones, whose defaults are used


def keymap(wanted: Wanted, together: Iterable[tuple[Place, ...]]) -> Keymap:
    """`together`: the places whose keys work on one screen; those of EVERYWHERE always do."""
    every = [key for keys in KEYS.values() for key in keys]
    known, free = {key.id for key in every}, {key.id for key in every if not key.fixed}
    faults: list[str] = []
    changed: dict[str, tuple[str, ...]] = {}
    for name, given in wanted.items():
        keys, bad = _keys(given)
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}?" if close else "the help page names them"
            faults.append(f"keymap: nothing is called {text.plain(name, 40)!r}: {hint}")
        elif name not in free:
            faults.append(f"keymap.{name}: this key cannot be changed")
        elif bad or not keys:
            what = f"{text.plain(bad, 20)!r} is no key" if bad else "no key is given"
            faults.append(f"keymap.{name}: {what}: the default is used")
        else:
            changed[name] = keys
    places = tuple(together)
    while (clash := next(_clashes(changed, places), None)) is not None:
        doubled, key, other = clash
        del changed[doubled]
        faults.append(f"keymap.{doubled}: {key_name(key)} is {other!r} already: the default is used")
    return Keymap(_table(changed), {name: ",".join(keys) for name, keys in changed.items()}, tuple(faults))


def key_of(words: str) -> str | None:
    """A key as Textual calls it: of '?', 'Q', 'f5', 'ctrl+s', 'question_mark'; None if it is none."""
    if words == "+":
        return "plus"
    *modifiers, last = words.strip(" ").split("+") if words != " " else ["space"]
    if any(each not in _MODIFIERS for each in modifiers):
        return None
    if len(last) == 1 and last.isprintable():
        last = _character_to_key(last)
    elif last not in _NAMED and not _character(last):
        return None
    return "+".join([*modifiers, last])


def _character(name: str) -> bool:
    try:
        return _character_to_key(unicodedata.lookup(name.replace("_", " "))) == name
    except KeyError:
        return False


def _keys(given: str | tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """(the keys, one that is none)."""
    words = ((given,) if given == "," else tuple(given.split(","))) if isinstance(given, str) else given
    found = [(each, key_of(each)) for each in words]
    bad = next((each for each, key in found if key is None), "")
    return tuple(dict.fromkeys(key for _, key in found if key is not None)), bad


def _clashes(changed: Mapping[str, tuple[str, ...]], together: tuple[tuple[Place, ...], ...]) -> Iterator[tuple[str, str, str]]:
    """(one that was changed, the key, what else it does on the same screen)."""
    table = _table(changed)
    for places in together:
        used: dict[str, str] = {}
        for key in (key for place in (*places, Place.EVERYWHERE) for key in table[place]):
            for each in key.keys.split(","):
                other = used.setdefault(each, key.id)
                if other != key.id:
                    # The later one of the file gives way, and a default to nobody.
                    order = [name for name in changed if name in (other, key.id)]
                    if order:
                        yield order[-1], each, other if order[-1] == key.id else key.id


def _table(changed: Mapping[str, tuple[str, ...]]) -> dict[Place, tuple[Key, ...]]:
    return {place: tuple(_with(key, changed.get(key.id)) for key in keys) for place, keys in KEYS.items()}


def _with(key: Key, keys: tuple[str, ...] | None) -> Key:
    return key if key.fixed or keys is None else replace(key, keys=",".join(keys))
