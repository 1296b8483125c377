"""The way to a run: which one it is, what has to be mounted first, and what else stands in between."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TypedDict

import click

from swarm import api, refusals
from swarm.advertising import discovers
from swarm.api.joining import Joining, JoinWatch, settled_joining
from swarm.api.offers import Offer, offered
from swarm.cli.common import LearnerChoice, check_peers, put, say, wait_for, where
from swarm.core.errors import MailboxAway, NotJoinable, UsageError
from swarm.core.joining import SEEN, kept_out
from swarm.core.sentences import plain
from swarm.core.ticks import Tick
from swarm.host.mounts import mount

MOUNTED_S = 900.0  # for which a share is waited for that somebody mounts
LOOK_S = 1.0

check_option = click.option(
    "--check",
    is_flag=True,
    help="Only say whether this machine can take part, and what keeps it from it; exit 1 if something does.",
)
mount_option = click.option(
    "--mount/--no-mount",
    "mounting",
    default=None,
    help="If the share that holds the run's mailbox is not mounted here: mount it, and wait until it is; by default a terminal "
    "is asked, and always if no passphrase vouches for where the share is.",
)
_MARKS = {"ok": "ok     ", "warning": "warn   ", "failed": "FAULT  ", "checking": "?      "}


class _How(TypedDict):
    role: api.Role
    framework: str
    device: str
    own_data: bool
    own_model: bool


def ready(
    run: str | None, *, mailbox: str | None, peers: Sequence[str], mounting: bool | None, learner: LearnerChoice
) -> tuple[str, api.Manifest]:
    """(where the mailbox is, the run), once this machine can take part in it. Raises RunNotFound, NothingToJoin, RunEnded,
    MailboxAway if its share is not mounted, NotJoinable."""
    known = _known(mailbox)
    offer = _offer(run, known, mailbox=mailbox, peers=peers, learner=learner)
    found = wait_for(_looked(offer, known, learner))
    if found.unmounted:
        found = _mounted(found, offer, known, learner, mounting=mounting)
    if found.location is not None and (why := kept_out(found.ticks)):
        device = refusals.device_words(learner["framework"], learner["device"])
        wait_for(refusals.tell(found.location, found.run, reason=why, role=learner["role"], device=device))
    if (
        found.manifest is not None
        and api.private(found.manifest.algorithm)
        and learner["data"] is None
        and learner["role"] != "syncer"
    ):
        raise UsageError("the clients of this run are private: pass this machine's own data with --data")
    faults = [tick for tick in found.ticks if tick.verdict == "failed"]
    if faults:
        raise NotJoinable(_refusal(plain(found.name), faults))
    for tick in found.ticks:
        if tick.verdict == "warning" and tick.name != SEEN:
            for line in _lines(tick):
                say(line)
    if found.location is None or found.manifest is None:
        unknown = ", ".join(tick.name for tick in found.ticks if tick.verdict == "checking")
        raise NotJoinable(f"{plain(found.name)} cannot be joined here: it could not be told in time: {unknown}")
    return found.location, found.manifest


def check(run: str | None, *, mailbox: str | None, peers: Sequence[str], learner: LearnerChoice, as_json: bool) -> int:
    """Print the ticks; the exit code."""
    known = _known(mailbox)
    offer = _offer(run, known, mailbox=mailbox, peers=peers, learner=learner, ended=True)
    found = wait_for(_looked(offer, known, learner))
    for tick in found.ticks:
        if as_json:
            put(
                {
                    "run": found.run,
                    "name": found.name,
                    "check": tick.name,
                    "verdict": tick.verdict,
                    "detail": tick.detail,
                    "remedy": tick.remedy,
                }
            )
        else:
            print("\n".join(_lines(tick, mark=True)))
    return 0 if found.passed else 1


def _offer(
    run: str | None,
    known: tuple[str, ...],
    *,
    mailbox: str | None,
    peers: Sequence[str],
    learner: LearnerChoice,
    ended: bool = False,
) -> Offer:
    check_peers(peers, mailbox)
    look = offered(
        run,
        known,
        network=mailbox is None,
        ended=ended,
        peers=peers,
        interfaces=() if learner["interface"] is None else (learner["interface"],),
        listening=_listening,
        unanswered=lambda why: say(plain(why, 300)),
    )
    return wait_for(look)


def _known(mailbox: str | None) -> tuple[str, ...]:
    """Where runs are looked for: in the mailbox that was named, else in all that are known."""
    if mailbox is not None:
        return (where(mailbox),)
    for fault in api.settings_faults():
        say(fault)
    return api.known_mailboxes()


def _listening() -> None:
    if discovers():
        say("listening to the network for a moment")


async def _looked(offer: Offer, known: tuple[str, ...], learner: LearnerChoice) -> Joining:
    return await settled_joining(_watch(offer, known, learner), offer.sightings)


def _watch(offer: Offer, known: tuple[str, ...], learner: LearnerChoice) -> JoinWatch:
    how: _How = {
        "role": learner["role"],
        "framework": learner["framework"],
        "device": learner["device"],
        "own_data": learner["data"] is not None,
        "own_model": learner["model"] is not None,
    }
    return JoinWatch(offer.run, name=offer.name, location=offer.location, mailbox=offer.mailbox, known=known, **how)


def _mounted(found: Joining, offer: Offer, known: tuple[str, ...], learner: LearnerChoice, *, mounting: bool | None) -> Joining:
    """The same once the share is mounted: by this command if it is told to, or a person agrees; else by the person."""
    missing = next(tick for tick in found.ticks if tick.verdict == "failed")
    words = [f"{plain(found.name)}: {missing.detail}", *missing.remedy.split("\n")]
    terminal = sys.stdin is not None and sys.stdin.isatty()
    command = found.way is not None and found.way.argv is not None
    asks = command and (not mounting or bool(found.unsure))
    if mounting is False or (not terminal and (mounting is None or asks)):
        hint = [f"--mount does it, {'once it has asked in a terminal' if found.unsure else 'and goes on'}"] if command else []
        raise MailboxAway("\n".join([*words, *hint]))
    for line in words:
        say(line)
    if asks and not click.confirm("Mount it now?", err=True):
        raise click.exceptions.Exit(1)
    if command and found.way is not None and (problem := mount(found.way, quiet=not terminal)):
        say(f"it could not be mounted: {plain(problem, 300)}")
    say("waiting until it is mounted (Ctrl-C ends)")
    found = wait_for(_appeared(offer, known, learner))
    if found.unmounted:
        raise MailboxAway(f"{plain(found.name)}: its share was not mounted within {MOUNTED_S / 60:.0f} minutes")
    return found


async def _appeared(offer: Offer, known: tuple[str, ...], learner: LearnerChoice) -> Joining:
    watch, until_s = _watch(offer, known, learner), time.monotonic() + MOUNTED_S
    while True:
        found = await settled_joining(watch, offer.sightings)
        if not found.unmounted or time.monotonic() >= until_s:
            return found
        await asyncio.sleep(LOOK_S)


def _refusal(name: str, faults: Sequence[Tick]) -> str:
    """One line if one thing is wrong."""
    if len(faults) == 1 and "\n" not in faults[0].remedy:
        [fault] = faults
        return f"{name} cannot be joined here: {fault.name}: {fault.detail}" + (f"; {fault.remedy}" if fault.remedy else "")
    return "\n".join([f"{name} cannot be joined here:", *(line for fault in faults for line in _lines(fault))])


def _lines(tick: Tick, *, mark: bool = False) -> Iterable[str]:
    yield f"{_MARKS[tick.verdict] if mark else ''}{tick.name}: {plain(tick.detail, 500)}"
    if tick.remedy:
        first, *more = tick.remedy.split("\n")
        yield f"       → {plain(first, 500)}"
        yield from (f"         {plain(line, 500)}" for line in more)
