"""Who is alive, judged on the observer's own clock alone."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class BeatId(msgspec.Struct, frozen=True, order=True):
    """Names a beat: incarnation k, then its number n."""

    incarnation: int
    n: int


class Lease(msgspec.Struct, frozen=True):
    """One learner's newest beat, and for how long this observer has seen it unchanged."""

    newest: BeatId
    unchanged_s: float = 0.0
    released: bool = False


class Leases(msgspec.Struct, frozen=True):
    """Fold over polls. Counts only time between successful polls that are at most `gap_s` apart: an observer that slept or
    lost the share starts all its counts anew, since it cannot tell who beat meanwhile."""

    lease_s: float
    gap_s: float
    polled_at_s: float | None = None
    by_learner: dict[str, Lease] = {}

    def observe(self, now_s: float, newest: Mapping[str, BeatId], released: frozenset[str] = frozenset()) -> Leases:
        """The fold after a successful poll at `now_s` (monotonic) that saw these newest beats."""
        elapsed_s = 0.0 if self.polled_at_s is None else now_s - self.polled_at_s
        anew = not 0.0 <= elapsed_s <= self.gap_s
        leases: dict[str, Lease] = {}
        for learner, beat in newest.items():
            old = self.by_learner.get(learner)
            if old is None or beat > old.newest:
                leases[learner] = Lease(newest=beat, released=learner in released)
            else:
                # A late listing may show an older beat than the one already seen: it proves nothing new, and what it says
                # about a release was said before the newest one.
                gone = learner in released if beat == old.newest else old.released
                unchanged_s = 0.0 if anew else old.unchanged_s + elapsed_s
                leases[learner] = Lease(newest=old.newest, unchanged_s=unchanged_s, released=gone)
        for learner, old in self.by_learner.items():
            if learner not in leases:  # its beats were swept, or the listing is late
                unchanged_s = 0.0 if anew else old.unchanged_s + elapsed_s
                leases[learner] = Lease(newest=old.newest, unchanged_s=unchanged_s, released=old.released)
        return Leases(lease_s=self.lease_s, gap_s=self.gap_s, polled_at_s=now_s, by_learner=leases)

    def live(self) -> frozenset[str]:
        """Learners whose lease is neither stale nor released."""
        return frozenset(k for k, v in self.by_learner.items() if not v.released and v.unchanged_s < self.lease_s)

    def holds(self, learner: str, incarnation: int) -> bool:
        """Whether this very incarnation is live."""
        lease = self.by_learner.get(learner)
        return lease is not None and lease.newest.incarnation == incarnation and learner in self.live()


def leases(*, lease_s: float, beat_s: float) -> Leases:
    """Empty. The gap rule: polls further apart than one beat or a third of a lease, whichever is longer, start anew."""
    return Leases(lease_s=lease_s, gap_s=max(beat_s, lease_s / 3))
