"""`swarm peers`, and what `swarm runs` says of runs that the network tells of."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

import click
import msgspec

from swarm import api
from swarm.cli.common import json_option, mailbox_option, put, say, table, wait_for, where
from swarm.core.sentences import amount, plain

CLOCK_OFF_S = 60.0  # from here on it is worth a line
WATCH_S = 1.0


@click.command()
@click.option("--watch", is_flag=True, help="Go on, a line for each change; other machines see this one meanwhile.")
@click.option("--peer", "given", multiple=True, metavar="HOST[:PORT]", help="A machine to ask, too: where multicast ends.")
@click.option(
    "--interface", "interfaces", multiple=True, metavar="NAME", help="Look here, as en0; by default where it is best."
)
@mailbox_option
@json_option
def peers(watch: bool, given: tuple[str, ...], interfaces: tuple[str, ...], mailbox: str | None, as_json: bool) -> None:
    """List the machines around: on the network, at addresses, and in the known mailboxes. One look takes some seconds."""
    home = api.HomeWatch(None if mailbox is None else (where(mailbox),))
    for fault in api.settings_faults():
        say(fault)
    if not api.discovers():
        say("discovery is off (SWARM_DISCOVERY, or the settings): mailboxes alone tell of machines")
    near = api.Neighbourhood(advertises="watching" if watch else None, peers=given, interfaces=interfaces)
    with _started(near):
        wait_for(_follow(near, home, watch=watch, as_json=as_json))


@contextlib.contextmanager
def _started(near: api.Neighbourhood) -> Iterator[None]:
    near.start()
    try:
        yield
    finally:
        near.close()


async def _follow(near: api.Neighbourhood, home: api.HomeWatch, *, watch: bool, as_json: bool) -> None:
    seen = await api.look_around(near, home)
    show(seen, as_json=as_json)
    told = seen.trouble
    while watch:
        before, seen = seen, await api.look_around(near, home, WATCH_S)
        for line in seen.trouble:
            if line not in told:
                say(plain(line, 300))
        told = seen.trouble
        for peer, change in changes(before, seen):
            if as_json:
                put({**peer_object(peer), "gone": change == "gone"})
            else:
                print(f"{time.strftime('%H:%M:%S')} {plain(peer.advert.name)}: {change}", flush=True)


def show(seen: api.Sightings, *, as_json: bool) -> None:
    """On stdout; what is wrong goes to stderr."""
    if as_json:
        for peer in seen.peers:
            put(peer_object(peer))
    else:
        print(table(("NAME", "STATE", "TRAINS ON", "MEMORY", "ADDRESS", "SEEN BY", "SEES US"), map(_row, seen.peers)))
        for peer in seen.peers:
            for line in remarks(peer):
                say(f"{plain(peer.advert.name)} {line}")
        if not any(not peer.itself for peer in seen.peers):
            say("no other machine is seen: does swarm run there (`swarm peers --watch`, `swarm tui`)? --peer HOST asks one")
    for line in seen.trouble:
        say(plain(line, 300))


def _row(peer: api.SeenPeer) -> tuple[str, ...]:
    advert = peer.advert
    return (
        f"{advert.name}{'*' if peer.itself else ''}",
        state_words(peer),
        ", ".join(advert.accelerators) or "CPU",
        amount(advert.memory_bytes) if advert.memory_bytes else "",
        peer.addresses[0] if peer.addresses else "",
        "this machine" if peer.itself and not peer.how else ", ".join(peer.how),
        {True: "yes", False: "no", None: "–"}[peer.sees_us],
    )


def state_words(peer: api.SeenPeer) -> str:
    if not peer.ours:
        return "another swarm"
    return "same id as another" if peer.doubled else peer.advert.state


def remarks(peer: api.SeenPeer) -> list[str]:
    """What is odd about a machine, after its name."""
    found = []
    if peer.doubled:
        found.append("has the id of another machine (a copied home folder or virtual machine): one of them takes a new one")
    if peer.unreachable:
        found.append(f"cannot be reached: {plain(peer.unreachable, 300)}")
    if peer.sees_us is False and peer.ours:
        found.append("is seen, and does not see this machine: does a firewall here keep UDP port 5353 from going out?")
    if peer.clock_off_s is not None and abs(peer.clock_off_s) >= CLOCK_OFF_S:
        found.append(f"has a clock that is {abs(peer.clock_off_s):.0f} s {'ahead' if peer.clock_off_s > 0 else 'behind'}")
    return found


def peer_object(peer: api.SeenPeer) -> dict[str, Any]:
    """For --json. Times are of this process, and mean nothing to others."""
    advert: dict[str, Any] = msgspec.to_builtins(peer.advert)
    del advert["tag"]
    rest = {name: value for name, value in msgspec.to_builtins(peer).items() if name not in ("advert", "heard_s")}
    return advert | rest


def changes(before: api.Sightings, seen: api.Sightings) -> list[tuple[api.SeenPeer, str]]:
    """(machine, what is new of it, in words)."""

    def by_key(sightings: api.Sightings) -> dict[tuple[object, ...], api.SeenPeer]:
        return {(p.ours, p.advert.peer, p.advert.boot): p for p in sightings.peers}

    old, new = by_key(before), by_key(seen)
    found = [(peer, "gone") for key, peer in old.items() if key not in new]
    for key, peer in new.items():
        was = old.get(key)
        if was is None:
            found.append((peer, f"here, {', '.join(filter(None, (state_words(peer), *peer.addresses[:1])))}"))
        elif state_words(was) != state_words(peer):
            found.append((peer, state_words(peer)))
        elif was.unreachable != peer.unreachable:
            found.append((peer, f"cannot be reached: {plain(peer.unreachable, 300)}" if peer.unreachable else "can be reached"))
        elif was.sees_us != peer.sees_us and peer.sees_us is not None:
            found.append((peer, "sees this machine" if peer.sees_us else "does not see this machine"))
    return found


# ---- of `swarm runs`


async def runs_around(home: api.HomeWatch, peers: Sequence[str] = ()) -> api.Sightings:
    """What the network and the known mailboxes tell, after a look; nothing where discovery is off."""
    if not api.discovers():
        return api.Sightings()
    near = api.Neighbourhood(peers=peers)
    with _started(near):
        return await api.look_around(near, home)


def where_words(run: api.SeenRun) -> str:
    """Where its mailbox is, and whether this machine can join."""
    if not run.ours:
        return "another swarm"
    if run.location is not None:
        return run.location
    return f"{run.advert.share} is not mounted here" if run.advert.share else "mailbox not mounted here"


def others_table(runs: Sequence[api.SeenRun]) -> str:
    """Runs that stand in no mailbox that was looked into for `swarm runs`."""
    rows = []
    for run in runs:
        advert = run.advert
        done = str(advert.round) if advert.rounds is None else f"{advert.round}/{advert.rounds}"
        learners = f"{advert.learners}{f', {advert.wanted} more wanted' if advert.wanted else ''}"
        rows.append(
            (advert.name, advert.run, advert.method, advert.task, done, advert.phase, learners, where_words(run), _told_by(run))
        )
    return table(("NAME", "RUN", "METHOD", "TASK", "ROUND", "STATE", "LEARNERS", "WHERE", "SEEN BY"), rows)


def _told_by(run: api.SeenRun) -> str:
    by = ", ".join(run.peers)
    return f"{', '.join(run.how)} ({by})" if by else ", ".join(run.how)


def run_row(run: api.SeenRun) -> dict[str, Any]:
    """For --json, as far as an advert tells what `swarm runs` tells of the runs in a mailbox."""
    advert = run.advert
    return {
        "run": advert.run,
        "name": advert.name,
        "method": advert.method,
        "task": advert.task,
        "round": advert.round,
        "rounds": advert.rounds,
        "state": advert.phase,
        "learners": None,
        "learner_count": advert.learners,
        "wanted": advert.wanted,
        "mailbox": advert.mailbox,
        "location": run.location,
        "share": advert.share,
        "signed": advert.signed,
        "ours": run.ours,
        "peers": run.peers,
        "how": run.how,
    }
