"""What the Settings screen says: values in, words out, and back. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from swarm.api import checked_setting
from tui import text
from tui.keymap import keymap
from tui.widgets.table import Cell, Column, Row

if TYPE_CHECKING:
    from swarm.api import Described, Settings
    from tui.commands import Place
    from tui.widgets.toned import Line

COLUMNS = (
    Column("setting", 13, sortable=False),
    Column("value", 20, grow=True, sortable=False),
    Column("", 3, rank=1, sortable=False),
    Column("what it is", 52, rank=2, grow=True, sortable=False),
)
_LATER = {"name": "counts from the next start of the screen, and for jobs that start later"} | dict.fromkeys(
    ("powermetrics", "idle_only", "on_ac_only", "hours", "nice"), "counts for jobs that start later"
)


def words(value: object) -> str:
    """A setting's value as one types it."""
    match value:
        case None:
            return ""
        case bool():
            return "on" if value else "off"
        case float():
            return f"{value:g}"
        case Mapping():
            return shlex.join(f"{name}={_keys(keys)}" for name, keys in value.items())
        case tuple() | list():
            return shlex.join(map(str, value))
        case _:
            return str(value)


def _keys(keys: str | Sequence[str]) -> str:
    return keys if isinstance(keys, str) else ",".join(keys)


def parse(setting: Described, typed: str, *, together: tuple[tuple[Place, ...], ...] = (), themes: Sequence[str] = ()) -> Any:
    """The value that somebody typed. Raises ValueError, in words, for what is none. `together` as of `keymap`."""
    typed = typed.strip()
    value: Any
    if setting.optional and not typed:
        value = None
    elif setting.type is bool:
        value = {"on": True, "off": False, "yes": True, "no": False, "true": True, "false": False}.get(typed.casefold())
        if value is None:
            raise ValueError("on or off")
    elif setting.type in (float, int):
        value = _number(setting, typed)
    elif setting.type in (tuple, dict):
        try:
            value = tuple(shlex.split(typed))
        except ValueError as error:
            raise ValueError(f"{str(error).lower()}: words are separated by blanks, 'one with blanks' in quotes") from None
        if setting.type is dict:
            value = _pairs(value)
            if faults := keymap(value, together).faults:
                raise ValueError(faults[0].removeprefix("keymap: ").removesuffix(": the default is used"))
    else:
        value = typed
        if setting.name == "theme" and typed and typed not in themes:
            raise ValueError(f"there are {', '.join(sorted(themes))}")
    try:
        return checked_setting(setting.name, value)
    except ValueError as error:
        raise ValueError(text.plain(str(error), 200)) from None


def _number(setting: Described, typed: str) -> float:
    kind = "a whole number" if setting.type is int else "a number"
    try:
        value = int(typed) if setting.type is int else float(typed)
    except ValueError:
        raise ValueError(f"{kind}{_range(setting)}") from None
    low, high = setting.minimum, setting.maximum
    if not (low is None or value >= low) or not (high is None or value <= high):
        raise ValueError(f"{kind}{_range(setting)}")
    return value


def _range(setting: Described) -> str:
    """' of 0.5 to 10'."""
    if setting.minimum is None:
        return ""
    if setting.maximum is None:
        return f" of at least {setting.minimum:g}"
    return f" of {setting.minimum:g} to {setting.maximum:g}"


def _pairs(given: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found = {}
    for each in given:
        name, equals, keys = each.partition("=")
        if not equals or not name:
            raise ValueError(f"{text.plain(each, 40)!r} is not ACTION=KEY or ACTION=KEY,KEY")
        found[name] = (keys,) if keys == "," else tuple(keys.split(","))
    return found


def rows(every: Sequence[Described], settings: Settings, *, theme: str) -> tuple[Row, ...]:
    """`theme`: the one that is worn now."""
    found = []
    for setting in every:
        value = getattr(settings, setting.name)
        shown = words(value)
        own = value != setting.default
        if not shown:
            shown = theme if setting.name == "theme" else text.NONE
        found.append(
            Row(
                key=setting.name,
                cells=(
                    Cell(setting.name, "strong" if own else ""),
                    Cell(text.plain(shown, 200), "accent" if own else "dim"),
                    Cell("set" if own else "", "dim"),
                    Cell(setting.help, "dim"),
                ),
            )
        )
    return tuple(found)


def detail(setting: Described | None) -> Iterator[Line]:
    """More of the setting under the cursor."""
    if setting is None:
        return
    yield ((setting.help, ""),)
    yield ((said, "dim"),) if (said := about(setting)) else ()


def about(setting: Described) -> str:
    """Its default, its range, and when a change of it counts."""
    default = words(setting.default)
    parts = [f"default {default}"] if default else []
    if within := _range(setting):
        parts.append(within.removeprefix(" of "))
    if setting.type is tuple:
        parts.append("several, separated by blanks; 'one with blanks' in quotes")
    if setting.type is dict:
        parts.append("ACTION=KEY or ACTION=KEY,KEY, separated by blanks")
    if setting.name in _LATER:
        parts.append(_LATER[setting.name])
    return "; ".join(parts)


def headline(path: str, home: str) -> Line:
    return (("swarm ▸ ", "dim"), ("settings", "strong"), (f"  {text.short_path(text.plain(path, 300), home)}", "dim"))
