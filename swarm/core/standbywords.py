"""What a machine that stands by tells (`swarm join --wait`), beside what its workers do: as JSON, or in words."""

from __future__ import annotations

from typing import TypeAlias, assert_never

import msgspec

from swarm.core.sentences import counted, plain
from swarm.core.standby import BARRED_WORDS, Why


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base: the tag is the class name."""


class StandsBy(_Event, frozen=True, kw_only=True, tag=True):
    """From here on."""

    mailboxes: tuple[str, ...]
    rules: str  # in words; "": none
    owner: str  # when it holds still for its owner, in words; "": never
    log: str  # path of the file with all that is told


class NothingToDo(_Event, frozen=True, kw_only=True, tag=True):
    """No run is to be joined now; told when the reasons change."""

    refused: tuple[str, ...]  # "run: why not"


class Joins(_Event, frozen=True, kw_only=True, tag=True):
    """A worker is started for a run."""

    run: str
    name: str
    mailbox: str
    job: str
    failures: int = 0  # of the workers before it, in a row


class JoinedNoMore(_Event, frozen=True, kw_only=True, tag=True):
    """The run is not joined again."""

    run: str
    name: str
    why: Why


class WorkerLost(_Event, frozen=True, kw_only=True, tag=True):
    """The worker ended, and the run is joined again."""

    run: str
    name: str
    message: str
    log: str  # path of the worker's own log
    again_s: float


class RunGivenUp(_Event, frozen=True, kw_only=True, tag=True):
    """The worker ended, and the run is left alone for long."""

    run: str
    name: str
    message: str
    log: str
    failures: int  # in a row
    for_s: float


class MailboxLost(_Event, frozen=True, kw_only=True, tag=True):
    mailbox: str
    reason: str
    remedy: str = ""


class MailboxBack(_Event, frozen=True, kw_only=True, tag=True):
    mailbox: str


class Busy(_Event, frozen=True, kw_only=True, tag=True):
    """This machine trains already, as somebody asked it to."""

    job: str
    name: str


class HoldsStill(_Event, frozen=True, kw_only=True, tag=True):
    """There is a run to join, and this machine's owner comes first."""

    reason: str


class GivesBack(_Event, frozen=True, kw_only=True, tag=True):
    """The worker leaves, after it has held still for long: its memory is the owner's."""

    run: str
    name: str
    after_s: float


class StandsDown(_Event, frozen=True, kw_only=True, tag=True):
    """It was told to end."""


Told: TypeAlias = (
    StandsBy
    | NothingToDo
    | Joins
    | JoinedNoMore
    | WorkerLost
    | RunGivenUp
    | MailboxLost
    | MailboxBack
    | Busy
    | HoldsStill
    | GivesBack
    | StandsDown
)


def words(event: Told) -> str:
    """In a line."""
    match event:
        case StandsBy():
            where = plain(", ".join(event.mailboxes), 500) or "mailboxes as the settings come to know them"
            rules = f"; {event.rules}" if event.rules else ""
            owner = f"; {event.owner}" if event.owner else ""
            return f"stands by for runs in {where}{rules}{owner}; the log is {plain(event.log, 300)}"
        case NothingToDo():
            why = plain("; ".join(event.refused), 500)
            return f"no run to join now: {why}" if why else "no run to join now"
        case Joins():
            again = f", after {counted(event.failures, 'failure')}" if event.failures else ""
            return f"joins {plain(event.name)} ({event.run}) in {plain(event.mailbox, 300)}{again}"
        case JoinedNoMore():
            return f"{plain(event.name)} is not joined again: {BARRED_WORDS[event.why]}"
        case WorkerLost():
            return f"{plain(event.name)} is joined again in {span(event.again_s)}: {plain(event.message, 300)}"
        case RunGivenUp():
            tries = f" after {counted(event.failures, 'failure')} in a row" if event.failures > 1 else ""
            words = f"{plain(event.name)} is given up for {span(event.for_s)}{tries}: {plain(event.message, 300)}"
            return f"{words}; the worker's log: {plain(event.log, 300)}"
        case MailboxLost():
            remedy = f": {plain(event.remedy, 300)}" if event.remedy else ""
            return f"{plain(event.mailbox, 300)} is waited for: {plain(event.reason, 300)}{remedy}"
        case MailboxBack():
            return f"{plain(event.mailbox, 300)} is there"
        case Busy():
            return f"waits: this machine trains {plain(event.name)} already (job {event.job})"
        case HoldsStill():
            return f"joins nothing for now: {plain(event.reason, 200)}"
        case GivesBack():
            return (
                f"leaves {plain(event.name)} for now, after it held still for {span(event.after_s)}: its memory is free again"
            )
        case StandsDown():
            return "stands by no more"
        case _:
            assert_never(event)


def span(seconds_s: float) -> str:
    """A time for people: '2 s', '10 min', '6 h'."""
    if seconds_s < 99.5:
        return f"{seconds_s:.0f} s"
    minutes = seconds_s / 60
    return f"{minutes:.0f} min" if minutes < 99.5 else f"{minutes / 60:.0f} h"
