"""Which incarnations of a run's learners are live, judged on this observer's own clock alone, from their beats."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from swarm.core.errors import Superseded
from swarm.core.keys import RunKeys
from swarm.core.lease import BeatId, leases
from swarm.core.records import Beat
from swarm.mailbox.contract import Mailbox
from swarm.tape import newest_beats


class Company:
    """Keeps the beats that it has seen. This learner never judges itself."""

    def __init__(
        self, mailbox: Mailbox, place: RunKeys, *, learner: str, incarnation: int, beat_s: float, lease_s: float
    ) -> None:
        self.mailbox, self.keys, self.learner, self.incarnation = mailbox, place, learner, incarnation
        self.leases = leases(lease_s=lease_s, beat_s=beat_s)
        self._beats: dict[str, tuple[BeatId, Beat]] = {}

    async def observe(self, listed: Sequence[str], named: Iterable[tuple[str, int]] = ()) -> None:
        """Look once, at the beats that are `listed`. `named`: (learner, incarnation) that records tell of, whose beats may not
        be seen yet, or be gone with them. Raises Superseded."""
        self._beats |= await newest_beats(self.mailbox, listed, self._beats)
        newest = {learner: ident for learner, (ident, _) in self._beats.items()}
        for learner, incarnation in named:
            newest[learner] = max(newest.get(learner, BeatId(incarnation, -1)), BeatId(incarnation, -1))
        released = frozenset(
            learner for learner, (ident, beat) in self._beats.items() if beat.phase == "left" and newest[learner] == ident
        )
        self.leases = self.leases.observe(asyncio.get_running_loop().time(), newest, released)
        mine = newest.get(self.learner)
        if mine is not None and mine.incarnation > self.incarnation:
            raise Superseded(self.learner, mine.incarnation)

    def holds(self, learner: str, incarnation: int) -> bool:
        """Whether this very incarnation is live."""
        return (learner, incarnation) == (self.learner, self.incarnation) or self.leases.holds(learner, incarnation)

    @property
    def missing(self) -> frozenset[str]:
        """Learners that were heard of and are not live."""
        return frozenset(self.leases.by_learner) - self.leases.live() - {self.learner}
