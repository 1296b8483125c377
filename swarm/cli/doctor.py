"""`swarm doctor`."""

from __future__ import annotations

import sys

import click

from swarm.api import doctor as examining
from swarm.cli.common import json_option, mailbox_option, put, say, wait_for
from swarm.core.errors import UsageError
from swarm.core.sentences import counted, plain
from swarm.core.ticks import VERDICT, Tick, wrong
from swarm.host.settings import mailbox_location

_MARKS = {"ok": "ok", "warning": "warning", "failed": "FAILED", "checking": "?"}


@click.command()
@mailbox_option
@click.option("--report", is_flag=True, help="A page to paste into a bug report, without secrets.")
@json_option
def doctor(mailbox: str | None, report: bool, as_json: bool) -> int:
    """Check this machine, its network and the mailbox: what works, what does not, and what to do about it.

    Takes about ten seconds at most, whatever hangs. With --mailbox, that share is tried out as well, whether it is a mailbox
    already or an empty folder: eight processes race, names are listed, writing is timed, and at the end it says whether the
    share is fit for a swarm. That takes some twenty seconds on a disk, a minute and a half at most, and leaves nothing behind.
    Ends with 1 if something failed; warnings are no failures.
    """
    if report and as_json:
        raise UsageError("--report is a page of text, and --json one object a line: one of them")
    locations = None if mailbox is None else (mailbox_location(mailbox),)
    if sys.stderr.isatty():
        say("looking at this machine, its network and the mailbox …")
    told = _Told(quiet=report or as_json)
    thorough = locations is not None
    found = wait_for(examining.examine(locations, sight=examining.sight_for(locations), thorough=thorough, told=told))
    if report:
        sys.stdout.write(examining.report(found))
    elif as_json:
        for tick in found.ticks:
            put(_record(tick))
    elif locations is not None:
        for tick in found.ticks:
            if tick.name == VERDICT:
                print(f"\n{plain(locations[0], 300)} is {plain(tick.detail.replace('fit', 'fit for a swarm', 1), 1000)}")
    failures, warnings = wrong(found.ticks)
    say(f"{failures} failed, {counted(warnings, 'warning')}, in {found.took_s:.1f} s")
    return 1 if failures else 0


class _Told:
    """Prints what is known, in order, as soon as all that comes before it is known, too."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._printed, self._topic = quiet, 0, ""

    def __call__(self, found: examining.Examination) -> None:
        if self._quiet:
            return
        ticks = [tick for _, ticks in found.topics() for tick in ticks]
        for tick in ticks[self._printed :]:
            if tick.verdict == "checking":
                break
            if tick.topic != self._topic:
                print(("\n" if self._topic else "") + plain(tick.topic, 300))
                self._topic = tick.topic
            print(f"  {_MARKS[tick.verdict]:<8} {plain(tick.name, 80)}: {plain(tick.detail, 1000)}")
            if tick.remedy and tick.verdict != "ok":
                print(f"{'':11}→ {plain(tick.remedy, 500)}")
            self._printed += 1
        sys.stdout.flush()


def _record(tick: Tick) -> dict[str, object]:
    return {
        "topic": tick.topic,
        "check": tick.name,
        "ok": tick.verdict != "failed",
        "verdict": tick.verdict,
        "detail": tick.detail,
        "remedy": tick.remedy,
    }
