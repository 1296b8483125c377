"""What the network tells, for a command that listens for a moment."""

from __future__ import annotations

from collections.abc import Callable

from swarm.core.sightings import Sightings

HEARD_S = 3.0  # within which machines that are there answer


async def listen(enough: Callable[[Sightings], bool], *, at_most_s: float = HEARD_S) -> Sightings:
    """What is seen once `enough` of it is, or after `at_most_s`."""
    return Sightings()
