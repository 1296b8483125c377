"""What was typed into the form of a new run the last time, by method: a small file in the state folder. A damaged one, or one
that cannot be written, is no failure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping

import msgspec

from swarm.core.lines import UNREADABLE
from swarm.host.paths import state_dir

FILE = "new-run.json"
MAX_BYTES = 64 << 10
MAX_FIELDS = 300  # of a method
MAX_TEXT = 4096  # characters of a value


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """As read: nobody has checked yet whether the form has such fields, and takes such values."""

    method: str = ""  # the last one
    values: dict[str, dict[str, str]] = {}  # by method, what stood in the fields by their keys


def load() -> Remembered:
    """Each field by itself: one that is no text takes no other along."""
    try:
        with (state_dir() / FILE).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        found = msgspec.json.decode(data) if len(data) <= MAX_BYTES else None
    except (OSError, *UNREADABLE):
        return Remembered()
    if not isinstance(found, dict):
        return Remembered()
    method, tables = found.get("method"), found.get("values")
    values = {}
    for name, table in (tables if isinstance(tables, dict) else {}).items():
        if isinstance(table, dict):
            values[name] = {key: text for key, text in [*table.items()][:MAX_FIELDS] if _fits(key, text)}
    return Remembered(method=method if isinstance(method, str) else "", values=values)


def save(method: str, fields: Mapping[str, str]) -> None:
    """`fields` take the place of what was remembered of the method. That they cannot be written ends nothing."""
    known = load()
    kept = {key: text for key, text in [*fields.items()][:MAX_FIELDS] if _fits(key, text)}
    data = msgspec.json.encode(Remembered(method=method, values={**known.values, method: kept}))
    if len(data) > MAX_BYTES:
        data = msgspec.json.encode(Remembered(method=method, values={method: kept}))
    if len(data) > MAX_BYTES:
        return
    path = state_dir() / FILE
    staged = path.with_name(f".{FILE}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        staged.write_bytes(data)
        staged.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            staged.unlink()


def _fits(key: object, text: object) -> bool:
    return isinstance(key, str) and isinstance(text, str) and len(key) <= 100 and 0 < len(text) <= MAX_TEXT
