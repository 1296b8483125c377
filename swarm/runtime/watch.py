"""What one learner sees of the others and of the open round, told by its own clock alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarm.core import rounds
from swarm.core.acceptance import sort_out
from swarm.core.controls import Effect
from swarm.core.keys import parse_snapshot
from swarm.core.lease import BeatId, leases
from swarm.core.records import Beat, Claim, Role, RoundRecord, Snapshot
from swarm.exchange import Exchange

WAITS_KEPT = 8


@dataclass
class OpenRound:
    snapshots: dict[str, Snapshot | None] = field(default_factory=dict)  # by key; None: cannot be used
    accepted: frozenset[str] = frozenset()  # learners
    first_at_s: float | None = None  # when a snapshot was first seen
    quorum_at_s: float | None = None  # when the quorum was first seen, or counted anew
    last_at_s: float | None = None  # when the last accepted snapshot was first seen
    hurry_at_s: float | None = None  # when those who have not reported should
    due_at_s: float | None = None  # since when it may close
    opened: bool = False
    shaken: bool = False  # the share was away, or this machine slept: the others come back to it one after the other
    claims: dict[tuple[int, str, int], float] = field(default_factory=dict)  # when each was first seen


class Watch:
    def __init__(self, exchange: Exchange) -> None:
        spec = exchange.manifest.algorithm
        self.exchange, self.spec = exchange, spec
        self.leases = leases(lease_s=spec.lease_s, beat_s=spec.beat_s)
        self.open = OpenRound()
        self.effect = Effect(rounds=exchange.manifest.rounds)  # of the controls, as the participant knows them
        self._beats: dict[str, tuple[BeatId, Beat]] = {}
        self._moved: dict[str, tuple[tuple[str, int], float]] = {}  # learner → (phase and bytes, since when)
        self._fetching: dict[str, float] = {}  # SHA-256 of a payload that a live learner fetches → since when
        self._quorum_waits_s: list[float] = []
        self._closes_s: list[float] = []

    def closed(self, record: RoundRecord | None = None) -> None:
        """Another round is open now. `record`: the one before it, if that was followed."""
        if record is not None and record.participants:
            self._quorum_waits_s = [*self._quorum_waits_s, record.quorum_waited_s][-WAITS_KEPT:]
            self._closes_s = [*self._closes_s, record.close_s][-WAITS_KEPT:]
        self.open = OpenRound()

    def anew(self) -> None:
        """Nothing that was waited for counts any more: this machine slept, or the share was away, or the run was paused; what
        others did meanwhile could not be seen, or not be done."""
        self._moved, self.open.claims = {}, {}
        self.open.quorum_at_s = self.open.due_at_s = self.open.hurry_at_s = None

    async def observe(self, round: int) -> None:
        """See who is alive, and who has reported for `round`, the open one."""
        # A late listing may leave somebody out whose beats were seen.
        self._beats |= await self.exchange.beats(self._beats)
        now_s = asyncio.get_running_loop().time()
        polled_at_s = self.leases.polled_at_s
        if polled_at_s is not None and not 0 <= now_s - polled_at_s <= self.leases.gap_s:
            self.anew()
            self.open.shaken = True
        released = frozenset(k for k, (_, beat) in self._beats.items() if beat.phase == "left")
        self.leases = self.leases.observe(now_s, {k: ident for k, (ident, _) in self._beats.items()}, released)
        for learner, (_, beat) in self._beats.items():
            what = (beat.phase, beat.progress_bytes)
            if learner not in self._moved or self._moved[learner][0] != what:
                self._moved[learner] = (what, now_s)
        live = self.leases.live()
        named = {sha256 for k, (_, beat) in self._beats.items() if k in live for sha256 in beat.fetching}
        self._fetching = {sha256: self._fetching.get(sha256, now_s) for sha256 in named}
        self.open.snapshots = await self.exchange.snapshots(round, self.open.snapshots)

    def incarnation(self, learner: str) -> int:
        """The highest seen; 0 if none was."""
        lease = self.leases.by_learner.get(learner)
        return 0 if lease is None else lease.newest.incarnation

    @property
    def fetching(self) -> frozenset[str]:
        """Payloads that must not be deleted yet. One that is named for longer than `keep_s` is no longer waited for."""
        now_s = asyncio.get_running_loop().time()
        return frozenset(sha256 for sha256, since_s in self._fetching.items() if now_s - since_s < self.spec.keep_s)

    @property
    def present(self) -> dict[str, Beat]:
        """The newest beats of all that are live and not dropped from the run."""
        live = self.leases.live()
        return {k: beat for k, (id, beat) in self._beats.items() if k in live and not self.effect.is_dropped(k, id.incarnation)}

    @property
    def trainers(self) -> frozenset[str]:
        """Live learners that are waited for: not syncers, nor those that still fetch what they start from, nor, while a pause
        is pending, those that know of nothing else."""
        quiet = ("join", "paused") if self.effect.ending else ("join",)
        return frozenset(k for k, beat in self.present.items() if beat.role != "syncer" and beat.phase not in quiet)

    def others(self, learner: str) -> tuple[Role, ...]:
        """The roles of all that are live but `learner`."""
        return tuple(beat.role for k, beat in self.present.items() if k != learner)

    @property
    def overdue(self) -> bool:
        """Whether the open round could have been closed a lease ago."""
        due_at_s = self.open.due_at_s
        return due_at_s is not None and asyncio.get_running_loop().time() - due_at_s >= self.spec.lease_s

    def decide(self, round: int, *, base_sha256: str) -> rounds.Decision:
        """Whether `round` may close, as it was last observed."""
        seen, now_s, stopping = self.open, asyncio.get_running_loop().time(), self.effect.ending
        sorted_out, _ = sort_out(
            seen.snapshots,
            round=round,
            fragment=self.exchange.schedule.fragment(round),
            base_sha256=base_sha256,
            schema_sha256=self.exchange.schema.digest,
            dtype=self.spec.delta_dtype,
        )
        accepted = frozenset(snapshot.learner for snapshot in sorted_out)
        reported = _learners(seen.snapshots)
        live = self.trainers
        seen.opened = seen.opened or rounds.opened(spec=self.spec, live=live, reported=reported)
        if seen.snapshots and seen.first_at_s is None:
            seen.first_at_s = now_s
        if accepted != seen.accepted:
            seen.accepted, seen.last_at_s = accepted, now_s
        if len(accepted) >= rounds.quorum(self.spec, stopping=stopping) and seen.quorum_at_s is None:
            seen.quorum_at_s = now_s
        view = rounds.RoundView(
            round=round,
            accepted=accepted,
            reported=reported,
            live=live,
            opened=seen.opened,
            quorum_at_s=seen.quorum_at_s,
            stopping=stopping,
        )
        grace_s = rounds.grace_s(self.spec, self._quorum_waits_s, self._closes_s)
        if seen.shaken:  # else whoever is back first would close a round on its own
            grace_s = max(grace_s, self.spec.lease_s)
        decision = rounds.decide(view, self.spec, grace_s=grace_s, now_s=now_s)
        if isinstance(decision, rounds.Wait):
            seen.hurry_at_s, seen.due_at_s = rounds.hurry_at_s(decision, grace_s=grace_s), None
        else:
            seen.hurry_at_s, seen.due_at_s = None, now_s if seen.due_at_s is None else seen.due_at_s
        return decision

    def hurries(self, learner: str) -> bool:
        """Whether `learner` should report now, with what it has."""
        hurry_at_s = self.open.hurry_at_s
        if hurry_at_s is None or asyncio.get_running_loop().time() < hurry_at_s:
            return False
        return learner not in _learners(self.open.snapshots)

    @property
    def waited_s(self) -> float:
        """Since the first snapshot."""
        first_at_s = self.open.first_at_s
        return 0.0 if first_at_s is None else asyncio.get_running_loop().time() - first_at_s

    @property
    def quorum_waited_s(self) -> float:
        """From the quorum to the last accepted snapshot: a grace that nobody used up says nothing about the next one."""
        quorum_at_s, last_at_s = self.open.quorum_at_s, self.open.last_at_s
        return 0.0 if quorum_at_s is None or last_at_s is None else max(0.0, last_at_s - quorum_at_s)

    def works(self, n: int, claim: Claim, *, close_s: float) -> bool:
        """Whether the holder of claim `n` on the open round is live and gets on with it. `close_s`: how long closing took.

        One whose phase and bytes stay the same for a lease, or three times `close_s` if that is longer, is overtaken.
        """
        dropped = self.effect.is_dropped(claim.learner, claim.incarnation)
        if dropped or not self.leases.holds(claim.learner, claim.incarnation):
            return False
        now_s = asyncio.get_running_loop().time()
        since_s = self.open.claims.setdefault((n, claim.learner, claim.incarnation), now_s)
        _, moved_s = self._moved.get(claim.learner, (None, now_s))
        return now_s - max(since_s, moved_s) < max(self.spec.lease_s, 3 * close_s)


def _learners(snapshots: Mapping[str, Snapshot | None]) -> frozenset[str]:
    return frozenset(named[2] for key in snapshots if (named := parse_snapshot(key)) is not None)
