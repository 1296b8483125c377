"""What other machines and files say, as plain text: for error messages, terminals and screens."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

_MARKS = 2  # combining marks kept on one letter: enough for every script, too few to climb over other lines
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")  # letters that show nothing: a name of them would seem to be none


def plain(text: str, limit: int = 80) -> str:
    """Text that may come from another machine: printable characters only, bounded. What cannot be shown is a '·'."""
    if len(text) <= limit and text.isascii() and text.isprintable():
        return text
    out: list[str] = []
    marks = 0
    for char in text[: 4 * limit]:  # so many, for marks are left out; whatever the text's length
        if char.isascii():
            out.append(char if char.isprintable() else "·")
            marks = 0
        elif unicodedata.category(char)[0] == "M":  # variation selectors and the like are of these, too
            marks += 1
            if marks <= _MARKS and out:
                out.append(char)
        else:
            out.append(char if char.isprintable() and char not in _BLANK else "·")
            marks = 0
    cleaned = "".join(out)
    return cleaned if len(cleaned) <= limit and len(text) <= 4 * limit else cleaned[: limit - 1] + "…"


def shown(value: object, limit: int = 60) -> str:
    """A value that a file or a machine gave, for the words of an error: a line that never takes long to make."""
    match value:
        case str():
            return plain(repr(value[:limit]), limit)
        case bool() | float() | None:
            return repr(value)
        case int():  # Python refuses to write one of very many digits
            return str(value) if value.bit_length() < 200 else f"a number of {value.bit_length()} bits"
        case Mapping():
            return f"a table of {len(value)}" if value else "{}"
        case list() | tuple():
            plainly = [shown(each, limit) for each in value[:4] if not isinstance(each, list | tuple | Mapping)]
            return plain(f"[{', '.join(plainly)}]", limit) if len(plainly) == len(value) else f"a list of {len(value)}"
        case _:
            return plain(str(value)[: 4 * limit], limit)
