"""Text for the screens: what peers wrote made harmless, figures made short. Pure functions."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size

NONE = "—"  # a figure that is not known
OPENING = (("swarm ▸ ", "dim"), ("home", "strong"), ("  looking at the mailboxes …", "dim"))  # a line, before anything is known
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\|$)|[ -/]*[0-~])|\x9b[0-?]*[ -/]*[@-~]", re.DOTALL)
_MARKS = 2  # combining marks kept on one letter: enough for every script, too few to climb over other lines
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"  # letters that show nothing
_ENDLESS = 1e300  # what a peer may write, too: above it sums and differences are infinite
_BARS = "▁▂▃▄▅▆▇█"


def plain(text: str, limit: int = 200) -> str:
    """What a peer wrote, as one harmless line of at most `limit` characters.

    Terminal escapes, control and format characters (a right-to-left override among them), private and unassigned ones go;
    line breaks and tabs become blanks. Markup stays what it is, text: the widgets never parse it.
    """
    text = unicodedata.normalize("NFC", _ESCAPE.sub("", text[: 4 * limit + 1000]))
    out: list[str] = []
    marks = 0
    for char in text:
        kind = unicodedata.category(char)
        marks = marks + 1 if kind[0] == "M" else 0
        if char in "\t\n\v\f\r" or kind[0] == "Z" or char in _BLANK:
            out.append(" ")
        elif kind[0] != "C" and marks <= _MARKS and not "\ufe00" <= char <= "\ufe0f":
            out.append(char)
    line = re.sub(" {2,}", " ", "".join(out)).strip()
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells: cut with an ellipsis, or padded."""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…" if width > 0 else ""
    pad = " " * (width - length)
    return pad + text if right else text + pad


def span(seconds_s: float) -> str:
    """A duration, at most five characters up to 99 days."""
    if not math.isfinite(seconds_s):
        return NONE
    seconds_s = max(seconds_s, 0.0)
    if seconds_s < 9.95:
        return f"{seconds_s:.1f} s"
    whole = round(seconds_s)
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours < 1:
        return f"{minutes}m{whole % 60:02d}"
    return f"{hours}h{minutes % 60:02d}" if days < 1 else f"{days}d{hours % 24:02d}"


def short(number: float, *, step: float = 1000.0) -> str:
    """Three digits and a suffix."""
    if not math.isfinite(number):
        return NONE
    for suffix in ("", "k", "M", "G", "T"):
        if abs(number) < 0.9995 * step or suffix == "T":
            break
        number /= step
    digits = 0 if not suffix or abs(number) >= 99.95 else 1 if abs(number) >= 9.995 else 2
    return f"{number:.{digits}f}{suffix}"


def rate(tokens_per_s: float) -> str:
    return f"{short(tokens_per_s)} tok/s"


def size(count_bytes: int) -> str:
    """Bytes, in powers of 1024."""
    return short(float(count_bytes), step=1024.0)


def loss(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.3f}" if abs(value) < 9.9995 else f"{value:.2f}" if abs(value) < 999.995 else f"{value:.1e}"


def count(n: int, noun: str) -> str:
    """'1 run', '2 runs'."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def thin(values: Sequence[float], width: int) -> tuple[float, ...]:
    """At most `width` values: the means of equal stretches."""
    if len(values) <= width or width < 1:
        return tuple(values)
    edges = [i * len(values) // width for i in range(width + 1)]
    return tuple(math.fsum(v / (b - a) for v in values[a:b]) for a, b in itertools.pairwise(edges))


def bars(values: Sequence[float], width: int, *, rows: int = 1, low: float | None = None) -> tuple[str, ...]:
    """A bar chart of the values, `rows` lines of `width` cells, top first, the newest value at the right end.

    `low`: where the scale starts; by default at the lowest value. Each value shows at least a trace.
    """
    known = [min(max(v, -_ENDLESS), _ENDLESS) for v in values if math.isfinite(v)]
    shown = thin(known, width)
    if not shown or width < 1:
        return (" " * max(width, 0),) * rows
    low = min(shown) if low is None else low
    reach = max(shown) - low
    levels = 8 * rows - 1
    if reach > 0:
        heights = [1 + round((v - low) / reach * levels) for v in shown]
    else:
        heights = [1 + levels // 2] * len(shown)
    lines = []
    for row in reversed(range(rows)):
        line = "".join(" " if h <= 8 * row else _BARS[min(h - 8 * row, 8) - 1] for h in heights)
        lines.append(line.rjust(width))
    return tuple(lines)


def short_path(location: str, home: str) -> str:
    """A path as people write it: the home folder as `~`."""
    return f"~{location[len(home) :]}" if home and (location == home or location.startswith(home + "/")) else location


def after_place(place: str, words: str) -> str:
    """`words` without the place that they begin with, which is named before them already."""
    return plain(words).removeprefix(f"{plain(place)}: ")
