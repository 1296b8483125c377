"""What one learner sees of the others and of the open round, told by its own clock alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from swarm.core import rounds
from swarm.core.acceptance import sort_out
from swarm.core.clients import draw, in_turn, sampled, selection_seed
from swarm.core.controls import Effect
from swarm.core.keys import parse_snapshot
from swarm.core.lease import BeatId, leases
from swarm.core.records import Beat, Claim, Rejected, Role, RoundRecord, Sample, Snapshot
from swarm.core.specs import DiLoCo, FedAvg
from swarm.exchange import Exchange
from swarm.tape import NO_LOOK, Look

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
    since_s: float | None = None  # when it was first seen open, or its deadline counted anew
    stopped_at_s: float | None = None  # when a pending stop was first seen
    units: frozenset[str] = frozenset()  # FedAvg: the clients that were sampled; empty while nobody has said which
    training: dict[str, dict[int, Claim]] = field(default_factory=dict)  # FedAvg: claims on clients, by number
    tried: set[str] = field(default_factory=set)  # clients that were assigned here, or whose claim another one won


class Watch:
    def __init__(self, exchange: Exchange) -> None:
        spec = exchange.manifest.by_rounds
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
        self.open.since_s = None
        self.open.quorum_at_s = self.open.due_at_s = self.open.hurry_at_s = None

    def reported(self, snapshot: Snapshot) -> None:
        """This learner has published it: what everybody reads is known here already."""
        as_read = msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot)
        self.open.snapshots = {**self.open.snapshots, self.exchange.snapshot_key(snapshot): as_read}

    async def observe(self, round: int, before: RoundRecord | None = None, look: Look = NO_LOOK) -> None:
        """See who is alive, and who has reported for `round`, the open one. `before`: the record of the round before; FedAvg
        asks it for its clients. `look`: made just now, before whatever else was."""
        # A late listing may leave somebody out whose beats were seen.
        self._beats |= await self.exchange.beats(self._beats, look)
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
        if isinstance(self.spec, FedAvg):
            await self._observe_clients(self.spec, round, before, look)
        self.open.snapshots = await self.exchange.snapshots(round, self.open.snapshots, look)
        if self.open.since_s is None:
            self.open.since_s = now_s

    async def _observe_clients(self, spec: FedAvg, round: int, before: RoundRecord | None, look: Look) -> None:
        seen = self.open
        if not seen.units:
            seen.units = frozenset(await self._sampled(spec, round, before))
        seen.training = await self.exchange.client_claims(round, seen.training, look)

    async def _sampled(self, spec: FedAvg, round: int, before: RoundRecord | None) -> tuple[str, ...]:
        """The clients of `round`; () while private ones that nobody has named are too few."""
        if not spec.private:
            return sampled(spec, self.exchange.manifest.seed, round)
        if before is not None and before.clients:
            return before.clients
        named = await self.exchange.sample(round)
        if named is None and len(self.trainers) >= (rounds.starters(spec) if round == 0 else 1):
            named = await self.exchange.name_sample(Sample(round=round, clients=self.next_clients(round)))
        return () if named is None else named.clients

    def next_clients(self, round: int) -> tuple[str, ...]:
        """Private clients of FedAvg: those of the live ones that train in `round`."""
        spec = self.spec
        if not isinstance(spec, FedAvg) or not spec.private:
            return ()
        return draw(self.trainers, spec.per_round, seed=selection_seed(spec, self.exchange.manifest.seed), round=round)

    def bid(self, learner: str, incarnation: int) -> tuple[str, int, bool] | None:
        """The client that this incarnation is to train next, the number of its claim, and whether it has made that already.
        None: there is none for it, for now."""
        seen, spec = self.open, self.spec
        if not isinstance(spec, FedAvg) or self.effect.stopping or self.effect.paused:
            return None
        reported = _units(seen.snapshots)
        for unit in in_turn(sorted(seen.units - reported - seen.tried), learner):
            if spec.private and unit != learner:
                continue
            views = [
                rounds.ClaimView(n=n, learner=c.learner, incarnation=c.incarnation, holder_live=self._trains(c))
                for n, c in seen.training.get(unit, {}).items()
            ]
            if rounds.my_claim(views, learner=learner, incarnation=incarnation):
                return unit, max(view.n for view in views), True
            n = rounds.next_claim(views, learner=learner, incarnation=incarnation)
            if n is not None:
                return unit, n, False
        return None

    def _holds(self, claim: Claim) -> bool:
        """Whether the claimant is live, and not dropped from the run."""
        dropped = self.effect.is_dropped(claim.learner, claim.incarnation)
        return not dropped and self.leases.holds(claim.learner, claim.incarnation)

    def _trains(self, claim: Claim) -> bool:
        """Whether the claimant does, too, and does not hold still for its owner."""
        return self._holds(claim) and not self._beats[claim.learner][1].held

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
        """Live learners that are waited for: not syncers, nor those that still fetch what they start from, nor those that hold
        still for their owners, nor, while a pause is pending, those that know of nothing else."""
        quiet = ("join", "paused") if self.effect.ending else ("join",)
        return frozenset(
            k for k, beat in self.present.items() if beat.role != "syncer" and beat.phase not in quiet and not beat.held
        )

    def others(self, learner: str, *, held: bool = True) -> tuple[Role, ...]:
        """The roles of all that are live but `learner`; `held`: those that hold still for their owners, too."""
        return tuple(beat.role for k, beat in self.present.items() if k != learner and (held or not beat.held))

    @property
    def overdue(self) -> bool:
        """Whether the open round could have been closed a lease ago."""
        due_at_s = self.open.due_at_s
        return due_at_s is not None and asyncio.get_running_loop().time() - due_at_s >= self.spec.lease_s

    def decide(self, round: int, *, base_sha256: str) -> rounds.Decision:
        """Whether `round` may close, as it was last observed."""
        seen, now_s = self.open, asyncio.get_running_loop().time()
        accepted, _ = self.sort_out(round, base_sha256=base_sha256)
        if seen.snapshots and seen.first_at_s is None:
            seen.first_at_s = now_s
        match self.spec:
            case DiLoCo():
                decision = self._decide(self.spec, round, frozenset(s.learner for s in accepted), now_s)
            case FedAvg():
                decision = self._decide_clients(self.spec, round, frozenset(s.unit for s in accepted), now_s)
        if isinstance(decision, rounds.Wait):
            seen.due_at_s = None
        elif seen.due_at_s is None:
            seen.due_at_s = now_s
        return decision

    def sort_out(self, round: int, *, base_sha256: str) -> tuple[list[Snapshot], list[Rejected]]:
        """(the snapshots for `round` that may count, sorted by unit; the others), as far as their records tell."""
        return sort_out(
            self.open.snapshots,
            round=round,
            fragment=self.exchange.schedule.fragment(round),
            base_sha256=base_sha256,
            schema_sha256=self.exchange.schema.digest,
            dtype=self.spec.delta_dtype,
            clients=self.open.units if isinstance(self.spec, FedAvg) else None,
            replays=isinstance(self.spec, FedAvg) and self.spec.seeded,
        )

    def _decide_clients(self, spec: FedAvg, round: int, accepted: frozenset[str], now_s: float) -> rounds.Decision:
        seen, live = self.open, self.trainers
        if self.effect.stopping and seen.stopped_at_s is None:
            seen.stopped_at_s = now_s
        training = {
            unit
            for unit, claims in seen.training.items()
            if claims and self._trains(max(claims.items(), key=lambda c: c[0])[1])
        }
        view = rounds.ClientsView(
            wanted=seen.units,
            accepted=accepted,
            reported=_units(seen.snapshots) & seen.units,
            gone=seen.units - live if spec.private else frozenset(),
            working=frozenset(training),
            present=bool(live),
            open_s=0.0 if seen.since_s is None else now_s - seen.since_s,
            lacking=max(1, (rounds.starters(spec) if round == 0 else 1) - len(live)),
            stopping_s=None if seen.stopped_at_s is None else now_s - seen.stopped_at_s,
        )
        return rounds.decide_clients(view, spec, now_s=now_s)

    def _decide(self, spec: DiLoCo, round: int, accepted: frozenset[str], now_s: float) -> rounds.Decision:
        seen, stopping = self.open, self.effect.ending
        reported = _learners(seen.snapshots)
        live = self.trainers
        seen.opened = seen.opened or rounds.opened(spec=spec, live=live, reported=reported)
        if accepted != seen.accepted:
            seen.accepted, seen.last_at_s = accepted, now_s
        if len(accepted) >= rounds.quorum(spec, stopping=stopping) and seen.quorum_at_s is None:
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
        grace_s = rounds.grace_s(spec, self._quorum_waits_s, self._closes_s)
        if seen.shaken:  # else whoever is back first would close a round on its own
            grace_s = max(grace_s, self.spec.lease_s)
        decision = rounds.decide(view, spec, grace_s=grace_s, now_s=now_s)
        seen.hurry_at_s = rounds.hurry_at_s(decision, grace_s=grace_s) if isinstance(decision, rounds.Wait) else None
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
        if not self._holds(claim):
            return False
        now_s = asyncio.get_running_loop().time()
        since_s = self.open.claims.setdefault((n, claim.learner, claim.incarnation), now_s)
        _, moved_s = self._moved.get(claim.learner, (None, now_s))
        return now_s - max(since_s, moved_s) < max(self.spec.lease_s, 3 * close_s)


def _units(snapshots: Mapping[str, Snapshot | None]) -> frozenset[str]:
    return frozenset(named[1] for key in snapshots if (named := parse_snapshot(key)) is not None)


def _learners(snapshots: Mapping[str, Snapshot | None]) -> frozenset[str]:
    return frozenset(named[2] for key in snapshots if (named := parse_snapshot(key)) is not None)
