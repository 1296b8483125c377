"""Runs that this machine could take part in: of the mailboxes that are known here, and of the network."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import msgspec

from swarm.api.finding import check_joinable, find_run, joinable
from swarm.api.listening import listen
from swarm.core.errors import FormatMismatch, NothingToJoin, RunNotFound, SwarmError, UsageError
from swarm.core.manifest import Manifest
from swarm.core.sentences import plain
from swarm.core.sightings import SeenRun, Sightings
from swarm.watch import now_s

SHOWN = 20
PATIENCE_S = 3.0  # with other mailboxes, once one has what was looked for
Look = Callable[[str], Coroutine[Any, Any, "list[Offer]"]]
Hear = Callable[[Callable[[Sightings], bool]], Coroutine[Any, Any, Sightings]]


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A run, and where it was found."""

    run: str
    name: str
    location: str | None = None  # of its mailbox; None: the network alone tells of it
    manifest: Manifest | None = None
    sightings: Sightings = Sightings()
    mailbox: str = ""  # id of its mailbox, as the network tells it


async def offered(
    text: str | None,
    locations: Sequence[str],
    *,
    network: bool = True,
    ended: bool = False,
    peers: Sequence[str] = (),
    interfaces: Sequence[str] = (),
    listening: Callable[[], object] = lambda: None,
    unanswered: Callable[[str], object] = lambda why: None,
) -> Offer:
    """The run that `text` names (a name, an id, or the start of one), in the mailboxes at `locations`, else on the network;
    without `text` the only one that can be joined. `ended`: also one that has ended. `peers`: addresses of machines to ask,
    too; `interfaces`: names of those to listen at; none: as the settings have it. `listening`: called before the network is
    listened to for some seconds; `unanswered`: with why one of `peers` told nothing. Raises RunNotFound, RunEnded,
    NothingToJoin, UsageError for an address that is none, and what a mailbox raises that cannot be read."""

    async def heard(enough: Callable[[Sightings], bool]) -> Sightings:
        listening()
        sightings = await listen(enough, peers=peers, interfaces=interfaces)
        for line in sightings.trouble:
            if line.startswith(tuple(f"{peer}: " for peer in peers)):
                unanswered(line)
        return sightings

    if text is None:
        return await _only(locations, heard=heard if network else None)
    found, errors = await _in_all(locations, lambda place: _named(place, text))
    if found:
        unique = {offer.run: offer for offer in reversed(found)}  # one mailbox may be mounted twice: the first counts
        if len(unique) > 1:
            raise RunNotFound(f"{plain(text)!r} fits several runs: {_listed(unique.values())}")
        [offer] = unique.values()
        if not ended and offer.manifest is not None:
            assert offer.location is not None
            await check_joinable(offer.location, offer.manifest)
        return offer
    if network:
        sightings = await heard(lambda seen: bool(_fitting(text, seen.runs)))
        fitting = _fitting(text, sightings.runs)
        if len({seen.advert.run for seen in fitting}) == 1:
            return _heard(fitting[0], sightings)
        if fitting:
            raise RunNotFound(f"{plain(text)!r} fits several runs: {_listed(_heard(seen, sightings) for seen in fitting)}")
    if errors:
        raise next((error for error in errors if not isinstance(error, RunNotFound)), errors[0])
    raise UsageError(
        f"no run {plain(text)!r} on the network, and no mailbox is known here: --mailbox DIR, SWARM_MAILBOX, or "
        "`swarm init DIR` to make one and remember it"
    )


async def _only(locations: Sequence[str], *, heard: Hear | None) -> Offer:
    found, errors = await _in_all(locations, _joinable)
    sightings = Sightings()
    if heard is not None:
        sightings = await heard(lambda seen: False)
    told = [
        _heard(seen, sightings)
        for seen in sightings.runs
        if seen.ours and seen.location not in locations and not seen.advert.over
    ]
    unique = {offer.run: offer for offer in (*reversed(told), *reversed(found))}  # a mailbox says more than the network
    if len(unique) == 1:
        return next(iter(unique.values()))
    if not unique:
        if errors:
            raise errors[0]
        where = (
            f"in {', '.join(locations)}"
            if locations
            else "on the network, and no mailbox is known here (--mailbox, `swarm init`)"
        )
        raise NothingToJoin(f"no run to join {where}: `swarm start diloco` starts one{_foreign(sightings)}")
    every = sorted(unique.values(), key=lambda offer: offer.name)
    names = "\n".join(
        f"  {plain(offer.name)}  {offer.run}{'' if offer.location else '  (on the network)'}" for offer in every[:SHOWN]
    )
    raise NothingToJoin(f"several runs can be joined: say which, as in `swarm join {plain(every[0].name)}`\n{names}")


async def _named(location: str, text: str) -> list[Offer]:
    try:
        manifest = await find_run(location, text)
    except FormatMismatch as error:  # told with all else that stands in between, and what to do about it
        return [Offer(run=error.run, name=error.name or text, location=location)]
    return [Offer(run=manifest.run, name=manifest.name, location=location, manifest=manifest)]


async def _joinable(location: str) -> list[Offer]:
    return [Offer(run=m.run, name=m.name, location=location, manifest=m) for m in await joinable(location)]


async def _in_all(locations: Sequence[str], look: Look) -> tuple[list[Offer], list[SwarmError]]:
    """(what they offer, in their order, what is wrong with the others). Once one of them offers something, those that hang are
    not waited for any longer."""
    tasks = [asyncio.ensure_future(look(place)) for place in locations]
    waiting, until_s = set(tasks), None
    while waiting:
        left_s = None if until_s is None else max(0.0, until_s - now_s())
        done, waiting = await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            break
        if until_s is None and any(task.exception() is None and task.result() for task in done):
            until_s = now_s() + PATIENCE_S
    offers: list[Offer] = []
    errors: list[SwarmError] = []
    for task in tasks:
        if not task.done():
            task.cancel()
        elif isinstance(error := task.exception(), SwarmError):
            errors.append(error)
        else:
            offers += task.result()
    return offers, errors


def _fitting(text: str, runs: Iterable[SeenRun]) -> list[SeenRun]:
    """Those of this swarm first."""
    every = sorted(runs, key=lambda seen: not seen.ours)
    exact = [seen for seen in every if text in (seen.advert.run, seen.advert.name)]
    return exact or [seen for seen in every if text and (seen.advert.run.startswith(text) or seen.advert.name.startswith(text))]


def _heard(seen: SeenRun, sightings: Sightings) -> Offer:
    return Offer(run=seen.advert.run, name=seen.advert.name, sightings=sightings, mailbox=seen.advert.mailbox)


def _foreign(sightings: Sightings) -> str:
    """What there is of other swarms: whoever has just set up a machine may lack the passphrase only."""
    runs = sorted({plain(seen.advert.name) for seen in sightings.runs if not seen.ours and not seen.advert.over})
    if not runs:
        return ""
    shown = ", ".join(runs[:5]) + (", …" if len(runs) > 5 else "")
    return f"; of another swarm, with another passphrase or none: {shown} (`swarm key --help`)"


def _listed(offers: Iterable[Offer]) -> str:
    every = sorted({f"{plain(offer.name)} ({offer.run})" for offer in offers})
    return ", ".join(every[:5]) + (", …" if len(every) > 5 else "")
