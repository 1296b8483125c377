"""What the network tells, for a command that listens for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from swarm.advertising import discovers
from swarm.core.sightings import Sightings
from swarm.neighbours import Neighbourhood
from swarm.watch import Home, now_s

HEARD_S = 3.0  # within which machines that are there answer
LOOK_S = 0.1


async def listen(
    enough: Callable[[Sightings], bool],
    *,
    peers: Sequence[str] = (),
    interfaces: Sequence[str] = (),
    at_most_s: float = HEARD_S,
) -> Sightings:
    """What is seen once `enough` of it is, or after `at_most_s`. Nothing, at once, where discovery is switched off. `peers`:
    addresses to ask, beside those of the settings; `interfaces`: names; none: those of the settings. Raises UsageError for an
    address that is none."""
    if not discovers():
        return Sightings()
    near, until_s = Neighbourhood(peers=peers, interfaces=interfaces), now_s() + at_most_s
    near.start()
    try:
        while True:
            seen = near.poll(Home())
            if enough(seen) or now_s() >= until_s:
                return seen
            await asyncio.sleep(LOOK_S)
    finally:
        near.close()
