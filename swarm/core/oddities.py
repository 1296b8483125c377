"""What is odd about the machines of a run, though it goes on: their versions differ, a clock is off, two learners are in each
other's way, two machines have one id. Only what is certain, each with its reason and its remedy. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from swarm.core.diagnosis import clock_words
from swarm.core.plaintext import plain
from swarm.core.records import LearnerRecord
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.state import RunState
from swarm.core.telling import boot_digits
from swarm.core.ticks import Tick, warning

CLOCK_S = 120.0  # that a clock may be off
ALIKE_S = 60.0  # that clocks may be apart which are off by the same
SET_CLOCK = "have it set by the network: `timedatectl set-ntp true` on Linux, System Settings ▸ General ▸ Date & Time on a Mac"
HARMLESS = (
    "the run does not mind: no machine's clock is compared with another's. Times in logs are off, and what `hours` allows"
)
SHARED = ("cpu", "mps", "metal")
"""Devices of which a machine has one, whoever asks. Which card a `cuda:0` is may differ from process to process."""


def oddities(state: RunState, sightings: Sightings) -> tuple[Tick, ...]:
    """Of the machines whose learners are live, as far as their records and adverts tell. `sightings`: this machine's."""
    records = [view.record for view in state.live if view.record is not None]
    machines = {(record.machine, boot_digits(record.boot)) for record in records}
    peers = [peer for peer in sightings.peers if peer.ours and (peer.advert.peer, peer.advert.boot) in machines]
    here = next((peer for peer in sightings.peers if peer.itself), None)
    return (*_versions(records, here), *_clocks(peers), *_devices(state), *_ids(peers))


def _versions(records: list[LearnerRecord], here: SeenPeer | None) -> Iterator[Tick]:
    found: dict[str, set[str]] = {}
    for record in records:
        found.setdefault(plain(record.version, 20), set()).add(plain(record.machine_name, 40))
    if records and here is not None and here.advert.version:
        found.setdefault(plain(here.advert.version, 20), set()).add(plain(here.advert.name, 40))
    found.pop("", None)
    if len(found) < 2:
        return
    ordered = sorted(found, key=lambda version: (_number(version), version), reverse=True)
    words = "; ".join(f"swarm {version} on {_listed(found[version])}" for version in ordered)
    behind = set().union(*(found[version] for version in ordered[1:]))
    remedy = f"pip install --upgrade homeswarm on {_listed(behind)}, so that all do the same"
    yield warning("versions differ", words, remedy)


def _clocks(peers: list[SeenPeer]) -> Iterator[Tick]:
    known = [(peer, peer.clock_off_s) for peer in peers if peer.clock_off_s is not None and not peer.itself]
    off = [(peer, off_s) for peer, off_s in known if abs(off_s) > CLOCK_S]
    apart_s = max((off_s for _, off_s in off), default=0.0) - min((off_s for _, off_s in off), default=0.0)
    if len(off) > 1 and len(off) == len(known) and apart_s <= ALIKE_S:  # they agree with each other
        names = _listed({plain(peer.advert.name, 40) for peer, _ in off})
        words = f"this machine's clock is {_beside(-off[0][1])} those of {names}; {HARMLESS}"
        yield warning("clock odd", words, f"here, {SET_CLOCK}")
        return
    for peer, off_s in off:
        name = plain(peer.advert.name, 40)
        words = f"{name}'s clock is {_beside(off_s)} this machine's; {HARMLESS}"
        yield warning("clock odd", words, f"on the one that is wrong, {SET_CLOCK}")


def _beside(off_s: float) -> str:
    return f"{clock_words(off_s)}{' of' if off_s > 0 else ''}"


def _devices(state: RunState) -> Iterator[Tick]:
    trains = [view.record for view in state.trainers if view.record is not None]
    sharing: dict[tuple[str, str, str], list[LearnerRecord]] = {}
    for record in trains:
        kind = record.device.rpartition(" ")[2]
        if kind in SHARED:
            device = "its processor" if kind == "cpu" else "its GPU"
            sharing.setdefault((record.machine, record.boot, device), []).append(record)
    for (_, _, device), found in sharing.items():
        if len(found) > 1:
            names, machine = _listed({record.learner for record in found}), plain(found[0].machine_name, 40)
            words = f"{names} train on {machine} and share {device}: each is slower than it would be alone"
            yield warning("one device, several learners", words, f"`swarm leave` on {machine} ends them, unless that is meant")


def _ids(peers: list[SeenPeer]) -> Iterator[Tick]:
    for peer in peers:
        if peer.doubled:
            words = (
                f"another machine has the id of {plain(peer.advert.name, 40)}: each may take the other's learners for its own"
            )
            yield warning("two machines, one id", words, "one has a copied home folder: delete the file machine-id there")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


def _listed(names: set[str]) -> str:
    *most, last = sorted(names)
    return f"{', '.join(most)} and {last}" if most else last
