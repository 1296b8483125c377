"""Which machines and runs are seen just now, and what is known of them: what discovery hears, put together. Pure.

Adverts are hints: a beat in the mailbox says more about a run, and says it later than any advert.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from swarm.core.adverts import PeerAdvert, RunAdvert

How = Literal["network", "address", "mailbox"]
"""By multicast; by asking the machine at an address that a person gave; by what it wrote into a mailbox."""


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
    ignored: int = 0  # adverts that were none, or contradicted themselves
    trouble: tuple[str, ...] = ()  # what keeps this machine from seeing others, in words
