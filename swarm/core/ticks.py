"""Things that were looked at, a line each, with what to do about it: before one joins a run, and in `swarm doctor`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

Verdict = Literal["ok", "warning", "failed", "checking"]
"""As it should be; works, but not well, or cannot be told; does not work; not known yet."""

VERDICT = "verdict"
"""Name of a tick that sums up others of its topic."""


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    name: str  # what was looked at: 'share writable'
    verdict: Verdict
    detail: str = ""  # what was found, for people
    remedy: str = ""  # what to do next; of one that is not ok
    topic: str = ""  # heading under which a longer list shows it: 'network', 'share', 'framework'


def ok(name: str, detail: str = "", *, topic: str = "") -> Tick:
    return Tick(name=name, verdict="ok", detail=detail, topic=topic)


def warning(name: str, detail: str, remedy: str = "", *, topic: str = "") -> Tick:
    return Tick(name=name, verdict="warning", detail=detail, remedy=remedy, topic=topic)


def failed(name: str, detail: str, remedy: str = "", *, topic: str = "") -> Tick:
    return Tick(name=name, verdict="failed", detail=detail, remedy=remedy, topic=topic)


def checking(name: str, detail: str = "", *, topic: str = "") -> Tick:
    return Tick(name=name, verdict="checking", detail=detail, topic=topic)


def passed(ticks: Iterable[Tick]) -> bool:
    """Whether nothing failed, and nothing is still being looked at."""
    return all(tick.verdict in ("ok", "warning") for tick in ticks)


def wrong(ticks: Iterable[Tick]) -> tuple[int, int]:
    """(how many failed, how many are warnings); what only sums up others does not count once more."""
    verdicts = [tick.verdict for tick in ticks if tick.name != VERDICT]
    return verdicts.count("failed"), verdicts.count("warning")
