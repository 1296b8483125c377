"""Pages to read: all keys, and the facts that a bug report needs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import textual
from rich.console import Console
from textual.geometry import Size

from swarm.api import __version__
from tui import text
from tui.commands import key_names

if TYPE_CHECKING:
    from swarm.api import Job
    from tui.commands import Key, Place
    from tui.messages import Facts, HomeShown, RunShown
    from tui.widgets.toned import Line

_TERMINAL = ("TERM", "TERM_PROGRAM", "COLORTERM", "NO_COLOR", "LANG", "LC_ALL", "TMUX", "SSH_TTY")


def help_lines(table: Mapping[Place, tuple[Key, ...]]) -> Iterator[Line]:
    """The key table."""
    wide = max(len(key_names(key)) for keys in table.values() for key in keys)
    for n, (place, keys) in enumerate(table.items()):
        if n:
            yield ()
        yield ((place.value, "strong"),)
        for key in keys:
            yield ((f"  {key_names(key):<{wide}}  ", "accent"), (key.help, ""))
    yield ()
    yield (("What the settings' keymap calls them", "strong"),)
    for place, keys in table.items():
        names = dict.fromkeys(key.id for key in keys if not key.fixed)
        yield ((f"  {place.value}: ", "dim"), (" ".join(names), ""))


def fact_lines(
    home: HomeShown | None, run: RunShown | None, facts: Facts, *, size: Size, theme: str, console: Console
) -> Iterator[Line]:
    yield _fact("swarm", __version__)
    yield _fact("textual", textual.__version__)
    yield _fact("python", f"{platform.python_implementation()} {platform.python_version()}")
    yield _fact("system", platform.platform())
    yield _fact(
        "screen", f"{size.width}×{size.height}, theme {theme}, {console.color_system or 'no'} colour, {console.encoding}"
    )
    for name in _TERMINAL:
        if name in os.environ:
            yield _fact(name, os.environ[name])
    yield _fact("home polls", f"{facts.home_polls}, the last took {text.span(facts.home_poll_s)}")
    if home is not None:
        for view in home.home.mailboxes:
            yield _fact("mailbox", f"{view.location}: {view.problem or text.count(len(view.runs), 'run')}")
        for job in home.home.jobs[:10]:
            yield _fact("job", _job(job))
    if run is not None:
        state = run.state
        yield _fact("run polls", f"{facts.run_polls}, the last took {text.span(facts.run_poll_s)}")
        yield _fact("run", f"{state.run} {state.phase}, certain: {state.phase_is_certain}, open round {state.open_round}")
        if state.manifest is not None and state.manifest.base is not None:
            yield _fact("base model", f"{state.manifest.base.name}, SHA-256 {state.manifest.base.sha256}")
        yield _fact("rounds read", f"{state.open_round}, of which {len(state.rounds)} are kept")
        if state.ranks.generations:
            ranks = state.ranks
            read = f"{text.count(len(ranks.points), 'report')}, {text.count(len(ranks.evals), 'evaluation')} read"
            yield _fact("generations", f"{len(ranks.generations)}, {read}")
        yield _fact("watched", f"{text.span(state.watched_s)}, lost: {state.lost or 'no'}")
        for learner in state.learners[:20]:
            beat = f"beat {text.span(learner.beat_age_s)} old"
            yield _fact("learner", f"{learner.learner}/{learner.incarnation} {learner.state}, live: {learner.live}, {beat}")
    for error in facts.errors:
        yield _fact("error", error)


def report_lines(report: str) -> Iterator[Line]:
    """What the doctor found, if it was asked in this sitting."""
    if report:
        yield ()
        for line in report.splitlines():
            yield ((line, ""),)


def _job(job: Job) -> str:
    return f"{job.id} {job.state} pid {job.pid} run {job.run} learner {job.learner} log {job.log} {job.message}"


def _fact(name: str, value: str) -> Line:
    return ((f"{name:<12} ", "dim"), (text.plain(value, 400), ""))
