"""Which machines and runs are seen just now, and what is known of them: what discovery hears, put together. Pure.

Adverts are hints: a beat in the mailbox says more about a run, and says it later than any advert.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeVar

import msgspec

from swarm.core.adverts import MAILBOXES, SEEN, Hello, PeerAdvert, RunAdvert, ours
from swarm.core.trust import SwarmKey

How = Literal["network", "address", "mailbox"]
"""By multicast; by asking the machine at an address that a person gave; by what it wrote into a mailbox."""

MAX_SOURCES = 256  # of peers, and as many of runs: whatever else is told is not taken in
LIVES_S = 35.0  # that an advert counts after it was heard: it is said again every ten seconds
SETTLES_S = 15.0  # that a machine takes to hear the others, and to say so
_BUSY = {"training": 4, "paused": 3, "waiting": 2, "idle": 1, "watching": 0}


class SeenPeer(msgspec.Struct, frozen=True, kw_only=True):
    advert: PeerAdvert
    how: tuple[How, ...]
    addresses: tuple[str, ...] = ()  # at which it may be reached, the best first
    heard_s: float = 0.0  # when it was last heard of, in this process's monotonic time
    ours: bool = True  # of the swarm whose passphrase this machine has (none: an open one)
    itself: bool = False  # this machine
    doubled: bool = False  # another machine has the same id
    sees_us: bool | None = None  # whether it hears this machine; None: it does not say
    reached_ms: float | None = None  # how long a connection to it took; None: not tried, or it failed
    unreachable: str = ""  # why no connection to it came about; "": it did, or was not tried
    clock_off_s: float | None = None  # how far its clock is ahead of ours; for people


class SeenRun(msgspec.Struct, frozen=True, kw_only=True):
    advert: RunAdvert  # the newest
    how: tuple[How, ...]
    peers: tuple[str, ...] = ()  # names of the machines that tell of it
    heard_s: float = 0.0
    ours: bool = True
    location: str | None = None  # where its mailbox is mounted on this machine; None: nowhere that is known


class Sightings(msgspec.Struct, frozen=True, kw_only=True):
    peers: tuple[SeenPeer, ...] = ()  # sorted by name
    runs: tuple[SeenRun, ...] = ()  # sorted by name
    ignored: int = 0  # adverts that were none, or contradicted themselves, or were too many
    trouble: tuple[str, ...] = ()  # what keeps this machine from seeing others, in words


class Source(msgspec.Struct, kw_only=True):
    """One process that tells of a machine or of a run: a service on the network, an address, or a mailbox."""

    advert: PeerAdvert | RunAdvert
    how: How
    ours: bool
    first_s: float
    heard_s: float
    changed_s: float  # when it first said what it says now
    addresses: tuple[str, ...] = ()


class _Reach(msgspec.Struct, kw_only=True):
    """What came of the last try to connect to a machine."""

    tried_s: float
    address: str = ""
    ms: float | None = None
    why: str = ""
    clock_off_s: float | None = None


Group = tuple[bool, str, str]  # ours, peer id, boot: one machine
A = TypeVar("A", PeerAdvert, RunAdvert)


class Sighted:
    """What this process has heard. It is fed with what happens, at its time, and asked for what is seen.

    Times are of one monotonic clock, in seconds. Nothing here grows beyond MAX_SOURCES, however much is told.
    """

    def __init__(self, *, peer: str, boot: str, key: SwarmKey | None = None, lives_s: float = LIVES_S) -> None:
        """`peer`, `boot`: of this machine, as its own adverts have them."""
        self.peer, self.boot, self.lives_s = peer, boot, lives_s
        self._key = key
        self._peers: dict[str, Source] = {}
        self._runs: dict[str, Source] = {}
        self._reach: dict[Group, _Reach] = {}
        self._mounted: dict[str, str] = {}  # location, by mailbox id
        self._silent: dict[str, str] = {}  # why, by the address that a person gave
        self._expired_s = -math.inf
        self.ignored = 0

    # ---- what happens

    def heard(
        self, advert: PeerAdvert | RunAdvert, *, source: str, how: How, now_s: float, addresses: tuple[str, ...] = ()
    ) -> None:
        """`source`: which service, address or mailbox says so: one says one thing at a time. `addresses`: its, if known."""
        sources = self._peers if isinstance(advert, PeerAdvert) else self._runs
        known = sources.get(source)
        fits = how == "mailbox" or ours(advert, self._key)
        if known is not None and known.advert == advert:
            known.heard_s, known.ours, known.addresses = now_s, fits, addresses or known.addresses
            return
        if known is None and not self._room(sources, how, fits=fits, now_s=now_s):
            self.ignored += 1
            return
        first_s = now_s if known is None or not _same(known.advert, advert) else known.first_s
        sources[source] = Source(
            advert=advert, how=how, ours=fits, first_s=first_s, heard_s=now_s, changed_s=now_s, addresses=addresses
        )

    def departed(self, source: str) -> None:
        """It said goodbye, or is known to be gone."""
        self._peers.pop(source, None)
        self._runs.pop(source, None)

    def answered(self, hello: Hello, *, given: str, address: str, now_s: float) -> None:
        """Who listens at `address`, which a person gave as `given`, told all this."""
        self._silent.pop(given, None)
        source = f"address {address}"
        self.heard(hello.peer, source=source, how="address", now_s=now_s, addresses=(address.rpartition(":")[0].strip("[]"),))
        told = {f"{source} {run.run}": run for run in hello.runs}
        for gone in [each for each in self._runs if each.startswith(f"{source} ") and each not in told]:
            del self._runs[gone]
        for each, run in told.items():
            self.heard(run, source=each, how="address", now_s=now_s)

    def silent(self, given: str, why: str) -> None:
        """Nobody answers at an address that a person gave."""
        if given in self._silent or len(self._silent) < MAX_SOURCES:
            self._silent[given] = why

    def forget(self, given: Iterable[str]) -> None:
        """These addresses are not asked any more."""
        for each in given:
            self._silent.pop(each, None)

    def reached(self, peer: SeenPeer, *, now_s: float, address: str, ms: float, clock_off_s: float | None) -> None:
        self._try(peer, _Reach(tried_s=now_s, address=address, ms=ms, clock_off_s=clock_off_s))

    def unreached(self, peer: SeenPeer, why: str, *, now_s: float) -> None:
        self._try(peer, _Reach(tried_s=now_s, why=why))

    def tried_s(self, peer: SeenPeer) -> float | None:
        """When a connection to it was last tried; None: never."""
        reach = self._reach.get((peer.ours, peer.advert.peer, peer.advert.boot))
        return None if reach is None else reach.tried_s

    def in_mailbox(
        self, location: str, mailbox: str, *, peers: Iterable[PeerAdvert], runs: Iterable[RunAdvert], now_s: float
    ) -> None:
        """All that is seen in a mailbox (its id) that is mounted at `location`; what it told before no longer counts."""
        prefix = f"mailbox {mailbox} "
        told: dict[str, PeerAdvert | RunAdvert] = {f"{prefix}{each.peer} {each.boot}": each for each in peers}
        told |= {f"{prefix}{each.run}": each for each in runs}
        self._drop_mailbox(prefix, told)
        self._mounted[mailbox] = location
        for source, advert in told.items():
            self.heard(advert, source=source, how="mailbox", now_s=now_s)

    def unmounted(self, mailboxes: Collection[str]) -> None:
        """Only these mailboxes (ids) are seen by now."""
        for gone in [each for each in self._mounted if each not in mailboxes]:
            del self._mounted[gone]
            self._drop_mailbox(f"mailbox {gone} ", ())

    def keyed(self, key: SwarmKey | None) -> None:
        """This machine has this passphrase from now on: what was heard is judged by it."""
        self._key = key
        for sources in (self._peers, self._runs):
            for source in sources.values():
                source.ours = source.how == "mailbox" or ours(source.advert, key)

    def renamed(self, peer: str) -> None:
        """This machine goes by another id from now on."""
        self.peer = peer

    # ---- what is seen

    @property
    def double(self) -> str:
        """The boot of another machine that goes by the id of this one; "" if none is heard."""
        found = [
            source.advert.boot
            for source in self._peers.values()
            if isinstance(source.advert, PeerAdvert)
            and source.advert.peer == self.peer
            and source.advert.boot != self.boot
            and source.how != "mailbox"
            and source.ours
        ]
        return min(found, default="")

    def sees(self, now_s: float) -> tuple[str, ...]:
        """First digits of the ids of the machines that are heard, other than this one: what its advert tells."""
        self._expire(now_s)
        every = {s.advert.peer for s in self._peers.values() if s.ours and s.how != "mailbox" and s.advert.peer != self.peer}
        return tuple(sorted(peer[:8] for peer in every))[:SEEN]

    def seen(
        self,
        now_s: float,
        *,
        here: PeerAdvert | None = None,
        told_since_s: float | None = None,
        trouble: Iterable[str] = (),
    ) -> Sightings:
        """`here`: what this process knows of its own machine, which is seen even if it is not heard. `told_since_s`: since when
        it advertises itself; None: it does not."""
        self._expire(now_s)
        told_long = told_since_s is not None and now_s - told_since_s >= SETTLES_S
        peers = [self._peer(group, sources, told_long=told_long) for group, sources in self._machines().items()]
        if here is not None and not any(peer.itself for peer in peers):
            peers.append(SeenPeer(advert=here, how=(), heard_s=now_s, itself=True))
        doubled = self._doubled()
        peers = [msgspec.structs.replace(p, doubled=True) if _group(p) in doubled else p for p in peers]
        names = {_group(p): p.advert.name for p in peers}
        silent = tuple(f"{given}: {why}" for given, why in self._silent.items())
        return Sightings(
            peers=tuple(sorted(peers, key=lambda p: (p.advert.name, p.advert.peer, p.advert.boot, p.ours))),
            runs=tuple(sorted(self._seen_runs(names), key=lambda r: (r.advert.name, r.advert.run, r.ours))),
            ignored=self.ignored,
            trouble=(*trouble, *silent),
        )

    # ----

    def _try(self, peer: SeenPeer, reach: _Reach) -> None:
        if any(source.advert.peer == peer.advert.peer for source in self._peers.values()):
            self._reach[_group(peer)] = reach

    def _room(self, sources: dict[str, Source], how: How, *, fits: bool, now_s: float) -> bool:
        """Whether one more may be taken in. Strangers give way to machines of this swarm, and whoever is heard by multicast,
        which anybody may send, to what stands in a mailbox or was asked for."""
        if len(sources) < MAX_SOURCES:
            return True
        if now_s - self._expired_s >= 1.0:  # in a flood, not for each advert
            self._expire(now_s)
        if len(sources) < MAX_SOURCES:
            return True
        lesser = [name for name, source in sources.items() if not source.ours] if fits else []
        if not lesser and how != "network":
            lesser = [name for name, source in sources.items() if source.how == "network"]
        if lesser:
            del sources[min(lesser, key=lambda name: sources[name].heard_s)]
        return bool(lesser)

    def _expire(self, now_s: float) -> None:
        self._expired_s = now_s
        for sources in (self._peers, self._runs):
            for name in [n for n, s in sources.items() if s.how != "mailbox" and now_s - s.heard_s > self.lives_s]:
                del sources[name]
        if len(self._reach) > len(self._peers):
            known = {s.advert.peer for s in self._peers.values()}
            self._reach = {group: reach for group, reach in self._reach.items() if group[1] in known}

    def _drop_mailbox(self, prefix: str, told: Collection[str]) -> None:
        for sources in (self._peers, self._runs):
            for gone in [each for each in sources if each.startswith(prefix) and each not in told]:
                del sources[gone]

    def _machines(self) -> dict[Group, list[Source]]:
        found: dict[Group, list[Source]] = {}
        written = []
        for source in self._peers.values():
            assert isinstance(source.advert, PeerAdvert)
            if source.how == "mailbox":
                written.append(source)
            else:
                found.setdefault((source.ours, source.advert.peer, source.advert.boot), []).append(source)
        for source in written:  # to the machine that is heard, if it is: a record may be of its boot before this one
            assert isinstance(source.advert, PeerAdvert)
            own = (True, source.advert.peer, source.advert.boot)
            other = next((group for group in found if group[:2] == own[:2]), own)
            found.setdefault(own if own in found else other, []).append(source)
        return found

    def _doubled(self) -> set[Group]:
        """Machines that speak at the same time as another one with their id. One that was started again has another boot,
        too, but the boot before has fallen silent by then."""
        lives: dict[Group, tuple[float, float]] = {}
        for source in self._peers.values():
            if source.how != "mailbox" and isinstance(source.advert, PeerAdvert):
                group = (source.ours, source.advert.peer, source.advert.boot)
                first_s, heard_s = lives.get(group, (source.first_s, source.heard_s))
                lives[group] = min(first_s, source.first_s), max(heard_s, source.heard_s)
        found: set[Group] = set()
        by_id: dict[tuple[bool, str], list[Group]] = {}
        for group in lives:
            by_id.setdefault(group[:2], []).append(group)
        for groups in by_id.values():
            for group in groups:
                others = [lives[other] for other in groups if other != group]
                if any(first < lives[group][1] and lives[group][0] < last for first, last in others):
                    found.add(group)
        own = (True, self.peer, self.boot)
        strangers = {g for g in by_id.get(own[:2], ()) if g != own}
        return found | strangers | ({own} if strangers else set())

    def _peer(self, group: Group, sources: list[Source], *, told_long: bool) -> SeenPeer:
        said = sorted(sources, key=lambda s: (s.how != "mailbox", _busy(s), s.changed_s), reverse=True)
        adverts = [s.advert for s in said if isinstance(s.advert, PeerAdvert)]
        first = adverts[0]
        sees = {each for advert in adverts for each in advert.sees}
        advert = msgspec.structs.replace(
            first,
            state=max((a.state for a in adverts), key=lambda state: _BUSY[state]),
            accelerators=next((a.accelerators for a in adverts if a.accelerators), ()),
            memory_bytes=max(a.memory_bytes for a in adverts),
            mailboxes=tuple(dict.fromkeys(m for a in adverts for m in a.mailboxes))[:MAILBOXES],
            address=next((a.address for a in adverts if a.address), ""),
            port=next((a.port for a in adverts if a.port), 0),
            sees=tuple(sorted(sees))[:SEEN],
        )
        itself = group == (True, self.peer, self.boot)
        reach = self._reach.get(group)
        addresses = list(dict.fromkeys(a for s in said for a in s.addresses))
        for best in (advert.address, reach.address if reach else ""):
            if best in addresses:
                addresses.remove(best)
                addresses.insert(0, best)
        sees_us: bool | None = None
        if not itself and any(s.how != "mailbox" for s in said):
            full = len(sees) >= SEEN
            sees_us = True if self.peer[:8] in sees else False if told_long and not full else None
            if sees_us is False and max(s.heard_s - s.first_s for s in said) < SETTLES_S:
                sees_us = None
        return SeenPeer(
            advert=advert,
            how=_how(said),
            addresses=tuple(addresses),
            heard_s=max(s.heard_s for s in said),
            ours=group[0],
            itself=itself,
            sees_us=sees_us,
            reached_ms=reach.ms if reach else None,
            unreachable=reach.why if reach else "",
            clock_off_s=reach.clock_off_s if reach else None,
        )

    def _seen_runs(self, names: Mapping[Group, str]) -> list[SeenRun]:
        by_run: dict[tuple[bool, str], list[Source]] = {}
        for source in self._runs.values():
            assert isinstance(source.advert, RunAdvert)
            by_run.setdefault((source.ours, source.advert.run), []).append(source)
        called = {(group[0], group[1]): name for group, name in names.items()}
        found = []
        for (fits, _), sources in by_run.items():
            best = max(sources, key=_newest)
            assert isinstance(best.advert, RunAdvert)
            advert = best.advert
            if not advert.share:  # a mailbox does not know how it is shared; who tells of it may
                told = (s.advert for s in sorted(sources, key=_newest, reverse=True))
                share = next(
                    (a.share for a in told if isinstance(a, RunAdvert) and a.mailbox == advert.mailbox and a.share), ""
                )
                advert = msgspec.structs.replace(advert, share=share)
            tellers = {(fits, s.advert.peer) for s in sources if s.how != "mailbox"}
            found.append(
                SeenRun(
                    advert=advert,
                    how=_how(sources),
                    peers=tuple(sorted({called[each] for each in tellers if each in called})),
                    heard_s=max(s.heard_s for s in sources),
                    ours=fits,
                    location=self._mounted.get(advert.mailbox),
                )
            )
        return found


def _same(advert: PeerAdvert | RunAdvert, other: PeerAdvert | RunAdvert) -> bool:
    """Whether both are of the same machine."""
    if isinstance(advert, PeerAdvert) and isinstance(other, PeerAdvert):
        return (advert.peer, advert.boot) == (other.peer, other.boot)
    return advert.peer == other.peer


def _group(peer: SeenPeer) -> Group:
    return peer.ours, peer.advert.peer, peer.advert.boot


def _busy(source: Source) -> int:
    return _BUSY[source.advert.state] if isinstance(source.advert, PeerAdvert) else 0


def _newest(source: Source) -> tuple[bool, int, float]:
    """What is known of a run from here on back: a mailbox knows best, then whoever is furthest on."""
    round = source.advert.round if isinstance(source.advert, RunAdvert) else 0
    return source.how == "mailbox", round, source.changed_s


def _how(sources: Iterable[Source]) -> tuple[How, ...]:
    found = {source.how for source in sources}
    every: tuple[How, ...] = ("network", "address", "mailbox")
    return tuple(how for how in every if how in found)
