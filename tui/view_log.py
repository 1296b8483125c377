"""What the Log screen shows of a worker's log, and of this sitting's notes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tui import text

if TYPE_CHECKING:
    from swarm.api import Job
    from tui.transitions import Note
    from tui.widgets.toned import Line

LEVELS = ("INFO+", "WARN+", "ERROR")
_LEVEL = re.compile(r"\d\d:\d\d:\d\d (?:(WARN|ERROR) )?")
_TONES = ("", "warn", "bad")
_NOTED = {"information": 0, "warning": 1, "error": 2}
WIDE = 1000  # characters of a line


def level(line: str) -> int:
    """0: said in passing; 1: a warning; 2: an error. What a worker did not tell itself but something in it printed, a traceback
    or a framework's complaint, is a warning."""
    told = _LEVEL.match(line)
    if told is None:
        return 1 if line.strip() else 0
    return {None: 0, "WARN": 1, "ERROR": 2}[told[1]]


def tone(line: str) -> str:
    return _TONES[level(line)]


def lines(told: Iterable[str], *, least: int = 0, filter: str = "") -> tuple[Line, ...]:
    """Those of at least this level that contain `filter`, harmless."""
    needle = filter.casefold()
    found = []
    for each in told:
        at = level(each)
        words = text.plain(each, WIDE)
        if at >= least and (not needle or needle in words.casefold()):
            found.append(((words, _TONES[at]),))
    return tuple(found)


def note_lines(notes: Iterable[Note], *, least: int = 0, filter: str = "") -> tuple[Line, ...]:
    """As `lines`, of what this screen has seen happen."""
    needle = filter.casefold()
    found = []
    for note in notes:
        at, words = _NOTED[note.severity], f"{note.at} {note.text}"
        if at >= least and (not needle or needle in words.casefold()):
            found.append(((words, _TONES[at]),))
    return tuple(found)


def heading(job: Job, read: int) -> Line:
    """Which log it is."""
    return (
        (f"log of {text.plain(job.learner, 64)} in {text.plain(job.run_name, 64)}", "strong"),
        (f"  {job.state}  its last {text.count(read, 'line')}", "dim"),
    )


def banner(job: Job, home: str) -> tuple[Line, ...]:
    """What a worker that failed said last, and where the whole log lies. `home`: folder that is written as `~`."""
    whole: Line = ((f"the whole file: {text.plain(text.short_path(str(job.log), home), 300)}", "dim"),)
    if job.state != "failed":
        return (whole,)
    return (((f"✗ it failed: {text.plain(job.message, 300) or 'it left no message'}", "bad"),), whole)
