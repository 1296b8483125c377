"""`swarm doctor`."""

from __future__ import annotations

import sys

import click

from swarm.api import doctor as examining
from swarm.cli.common import json_option, mailbox_option, put, say, wait_for
from swarm.core.errors import UsageError
from swarm.core.sentences import counted, plain
from swarm.core.ticks import Tick
from swarm.host.settings import mailbox_location

_MARKS = {"ok": "ok", "warning": "warning", "failed": "FAILED", "checking": "?"}


@click.command()
@mailbox_option
@click.option("--report", is_flag=True, help="A page to paste into a bug report, without secrets.")
@json_option
def doctor(mailbox: str | None, report: bool, as_json: bool) -> int:
    """Check this machine, its network and the mailbox: what works, what does not, and what to do about it.

    Takes about ten seconds at most, whatever hangs. Ends with 1 if something failed; warnings are no failures.
    """
    if report and as_json:
        raise UsageError("--report is a page of text, and --json one object a line: one of them")
    locations = None if mailbox is None else (mailbox_location(mailbox),)
    if sys.stderr.isatty():
        say("looking at this machine, its network and the mailbox …")
    told = _Told(quiet=report or as_json)
    found = wait_for(examining.examine(locations, sight=examining.sight_for(locations), told=told))
    if report:
        sys.stdout.write(examining.report(found))
    elif as_json:
        for tick in found.ticks:
            put(_record(tick))
    wrong = [sum(tick.verdict == verdict for tick in found.ticks) for verdict in ("failed", "warning")]
    say(f"{wrong[0]} failed, {counted(wrong[1], 'warning')}, in {found.took_s:.1f} s")
    return 1 if wrong[0] else 0


class _Told:
    """Prints each topic once all of it is known, in their order."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet, self._printed = quiet, 0

    def __call__(self, found: examining.Examination) -> None:
        if self._quiet:
            return
        topics = found.topics()
        for topic, ticks in topics[self._printed :]:
            if any(tick.verdict == "checking" for tick in ticks):
                return
            print(("\n" if self._printed else "") + plain(topic, 300))
            for tick in ticks:
                print(f"  {_MARKS[tick.verdict]:<8} {plain(tick.name, 80)}: {plain(tick.detail, 1000)}")
                if tick.remedy and tick.verdict != "ok":
                    print(f"{'':11}→ {plain(tick.remedy, 500)}")
            sys.stdout.flush()
            self._printed += 1


def _record(tick: Tick) -> dict[str, object]:
    return {
        "topic": tick.topic,
        "check": tick.name,
        "ok": tick.verdict != "failed",
        "verdict": tick.verdict,
        "detail": tick.detail,
        "remedy": tick.remedy,
    }
