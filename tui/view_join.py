"""What the Join screen says: values in, words out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tui import text
from tui.commands import KEYS, Place, Table, pressed
from tui.messages import RUNNING_JOB
from tui.states import VERDICTS
from tui.view_run import METHODS

if TYPE_CHECKING:
    from swarm.api import Tick
    from tui.messages import JoinShown
    from tui.widgets.toned import Line, Piece

_NAME = 20  # cells of a tick's name
_NARROW = 70  # columns below which a detail stands under its name


def under_way(shown: JoinShown | None) -> bool:
    """Whether a worker has begun to join."""
    return shown is not None and shown.job is not None and shown.job.state in RUNNING_JOB


def can_join(shown: JoinShown | None) -> bool:
    return shown is not None and shown.joining.passed and not under_way(shown)


def can_mount(shown: JoinShown | None) -> bool:
    """Whether one key mounts what is missing."""
    if shown is None or shown.mounting or not shown.joining.unmounted:
        return False
    return shown.joining.way is not None and shown.joining.way.argv is not None


def headline(name: str, shown: JoinShown | None) -> Line:
    pieces: list[Piece] = [("swarm ▸ join ▸ ", "dim"), (name, "strong")]
    manifest = shown.joining.manifest if shown is not None else None
    if manifest is not None:
        method = str(type(manifest.algorithm).__struct_config__.tag)
        pieces.append((f"  {METHODS.get(method, method)}  {text.plain(manifest.task.name, 40)}", ""))
    return tuple(pieces)


def tick_lines(shown: JoinShown | None, *, width: int) -> tuple[Line, ...]:
    if shown is None:
        return ((("◌ looking …", "dim"),),)
    return tuple(line for tick in shown.joining.ticks for line in _tick(tick, width))


def _tick(tick: Tick, width: int) -> Iterator[Line]:
    mark, tone = VERDICTS[tick.verdict]
    dim = "dim" if tick.verdict == "checking" else ""
    narrow = width < _NARROW
    indent = 4 if narrow else _NAME + 3
    details = _wrapped(text.plain(tick.detail, 600), width - indent)
    if narrow:
        yield ((f"{mark} ", tone), (tick.name, "strong"))
        yield from (((" " * indent, ""), (line, dim)) for line in details)
    else:
        first, *more = details or ("",)
        yield ((f"{mark} ", tone), (f"{tick.name:<{_NAME}} ", "strong" if tick.verdict == "failed" else dim), (first, dim))
        yield from (((" " * indent, ""), (line, dim)) for line in more)
    for n, line in enumerate(tick.remedy.split("\n") if tick.remedy else ()):
        command = line.startswith("  ")
        for m, part in enumerate(_wrapped(text.plain(line, 600), width - indent - 4)):
            lead = "→ " if n == m == 0 else "    " if command else "  "
            yield ((" " * indent + lead, "dim"), (part, "accent" if command else ""))


def _wrapped(words: str, width: int) -> list[str]:
    """At blanks; a word that is longer than a line is cut."""
    lines: list[str] = []
    line = ""
    for word in words.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
        while len(line) > max(8, width):
            lines.append(line[: max(8, width)])
            line = line[max(8, width) :]
    return [*lines, line] if line else lines


def outlook(shown: JoinShown | None, keys: Table = KEYS) -> Iterator[Line]:
    """What is next, in a line or two."""
    if shown is None:
        return
    job, joining = shown.job, shown.joining
    name = text.plain(joining.name, 40)
    if job is not None and job.state in RUNNING_JOB:
        yield ((f"◌ joining {name}: ", "accent"), (text.plain(job.doing, 200) or "the worker starts", ""))
        return
    if job is not None and job.state == "failed":
        yield ((f"✗ it could not join {name}: ", "bad"), (text.plain(job.message, 400) or "it left no message", ""))
        yield ((f"  whole log: {text.plain(str(job.log), 300)}", "dim"),)
        return
    if shown.mounting:
        yield (("◌ mounting: ", "accent"), (text.plain(" ".join(joining.way.argv or ()) if joining.way else "", 200), ""))
    elif joining.unmounted:
        if can_mount(shown) and joining.way is not None:
            yield (
                (pressed(keys, Place.JOIN, "mount"), "accent"),
                (f" runs {text.plain(' '.join(joining.way.argv or ()), 200)}; this goes on when it appears", ""),
            )
        else:
            yield (("This goes on by itself when the share is mounted.", ""),)
    elif can_join(shown):
        key = pressed(keys, Place.JOIN, "join")
        yield ((key, "accent"), (f" trains {name} on this machine, in a worker process that goes on when you quit.", ""))
    elif any(tick.verdict == "failed" for tick in joining.ticks):
        yield (("What failed is looked at again all the time.", "dim"),)
    else:
        yield (("Looking …", "dim"),)
