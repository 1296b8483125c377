"""The read model: what a screen or a command shows of a run, folded from what was read. `apply(state, event) -> state`.

Everything here is a value; time comes with the events, and is this observer's monotonic clock.
"""

from __future__ import annotations

import bisect
from functools import cached_property
from typing import Literal, TypeAlias, assert_never

import msgspec

from swarm.core import rankstate
from swarm.core.controls import Effect, effect
from swarm.core.finetune import FineTune
from swarm.core.keeping import kept_evals, kept_rounds
from swarm.core.lease import BeatId, Leases, leases
from swarm.core.manifest import Manifest
from swarm.core.participation import ClientView, Tally, tallied, views, wanted
from swarm.core.ranks import JobCheckpoint
from swarm.core.rankstate import Ranks
from swarm.core.records import (
    Beat,
    Claim,
    Control,
    EvalRecord,
    JoinRefusal,
    LearnerRecord,
    RankBeat,
    Rejected,
    Role,
    RoundRecord,
    Snapshot,
)
from swarm.core.rounds import starters
from swarm.core.series import Series, evaluated, mean_loss, told
from swarm.core.specs import FedAvg, private
from swarm.core.trust import Trust

RunPhase = Literal["waiting", "running", "paused", "idle", "done", "stopped", "unknown"]
SCREEN_GAP_S = 5.0  # between two polls of a screen, at most
HISTORY = 120  # throughput readings kept per learner


class LearnerView(msgspec.Struct, frozen=True, kw_only=True):
    """One learner as this observer sees it."""

    learner: str
    incarnation: int = 0
    record: LearnerRecord | None = None
    beat: Beat | None = None
    beat_age_s: float = 0.0  # for how long the newest beat has been the newest, as seen here
    live: bool = False
    rates: tuple[float, ...] = ()  # tokens/s of the last beats, oldest first
    rank: RankBeat | None = None  # of a data-parallel job: the newest that tells what a step takes, while a rank runs there

    @property
    def role(self) -> Role:
        if self.beat is not None:
            return self.beat.role
        return "both" if self.record is None else self.record.role

    @property
    def held(self) -> str:
        """Why its machine holds still for its owner, in that machine's words; '' if it does not."""
        return self.beat.held if self.beat is not None and self.live else ""

    @property
    def state(self) -> str:
        """A word: the beat's phase, 'silent' when the lease is stale, 'left' when it was released."""
        if self.beat is None:
            return "joining" if self.live else "silent"
        if self.beat.phase == "left":
            return "left"
        return str(self.beat.phase) if self.live else "silent"


class RunState(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything known of one run. What is concluded from it is concluded once: a screen asks for every learner."""

    run: str
    manifest: Manifest | None = None
    keep: int | None = None  # newest round records, evaluations and reports that stay whole; None: all; 0: a list of runs
    rounds: tuple[RoundRecord, ...] = ()  # contiguous, oldest first, and no more than `keep`; of a list of runs the newest
    evals: tuple[EvalRecord, ...] = ()  # by round; those older than the newest `keep` thinned, and without what is large
    learners: tuple[LearnerView, ...] = ()  # by learner id
    controls: tuple[Control, ...] = ()
    reported: tuple[Snapshot, ...] = ()  # snapshots seen for the open round
    series: Series = Series()  # curves of all rounds read, however many of their records are kept
    tallies: dict[str, Tally] = {}  # of FedAvg, by client: what `rounds` say of it
    sample: tuple[str, ...] = ()  # private clients of the open round, where no round record names them
    claims: dict[str, Claim] = {}  # by client of the open round: the newest on training it
    refusals: tuple[JoinRefusal, ...] = ()  # what machines told that could not take part, by machine
    ranks: Ranks = Ranks()  # of a data-parallel job: its generations
    leases: Leases | None = None
    polled_at_s: float | None = None
    lost: str | None = None  # why the share does not answer; None while it does
    lost_at_s: float | None = None
    halted: bool = False  # `lost` tells of a forged record, which keeps the run from going on until somebody removes it
    watched_s: float = 0.0  # for how long the beats have been watched without a gap
    trust: Trust = Trust()

    @property
    def name(self) -> str:
        return self.manifest.name if self.manifest else self.run

    @property
    def open_round(self) -> int:
        return self.rounds[-1].round + 1 if self.rounds else 0

    @cached_property
    def live(self) -> tuple[LearnerView, ...]:
        return tuple(v for v in self.learners if v.live)

    @cached_property
    def tokens_per_s(self) -> float:
        return sum(v.beat.tokens_per_s for v in self.live if v.beat)

    @cached_property
    def trainers(self) -> tuple[LearnerView, ...]:
        """Who is live, trains, was not dropped, and does not hold still for its owner."""
        return tuple(v for v in self.live if v.role != "syncer" and self.dropped_by(v) is None and not v.held)

    @cached_property
    def refused(self) -> tuple[JoinRefusal, ...]:
        """Those of the machines that would take part and still do not, by name."""
        if self.phase in ("done", "stopped"):
            return ()
        here = {v.record.machine for v in self.live if v.record is not None}
        return tuple(sorted((r for r in self.refusals if r.machine not in here), key=lambda r: (r.machine_name, r.machine)))

    @cached_property
    def sampled(self) -> tuple[str, ...]:
        """The clients of FedAvg that train in the open round, sorted."""
        if self.manifest is None:
            return ()
        return wanted(self.manifest, self.rounds[-1] if self.rounds else None, self.sample)

    @cached_property
    def clients(self) -> tuple[ClientView, ...]:
        """Those of FedAvg, by their ids."""
        if self.manifest is None:
            return ()
        return views(
            self.manifest.algorithm,
            self.tallies,
            sampled=() if self.phase in ("done", "stopped") else self.sampled,
            claims=self.claims,
            reported=[s for s in self.reported if s.round == self.open_round],
            live=frozenset(v.learner for v in self.live),
        )

    @cached_property
    def effect(self) -> Effect:
        """What the control records come to: those in effect are named by a round record, or nobody is live to write one."""
        # A run paused while nobody was live has no round record that says so: its learners do.
        free = [v for v in self.live if not v.held]  # the others beat so for a reason of their own
        quiet = all(v.beat is not None and v.beat.phase == "paused" for v in free) and (bool(free) or not self.live)
        return self._effect(len(self.controls) if quiet else self._named)

    def dropped_by(self, view: LearnerView) -> str | None:
        """The machine that had this incarnation dropped from the run, '' if that is not known; None if it was not."""
        now = self.effect
        return now.dropped[view.learner][1] if now.is_dropped(view.learner, view.incarnation) else None

    @cached_property
    def total_rounds(self) -> int | None:
        """How many rounds the run has, extensions included, and at least those that it has had; None: until it is stopped."""
        return self._at_least_had(self.effect.rounds)

    @cached_property
    def asked_rounds(self) -> int | None:
        """How many it will have once everything that was asked for is in effect."""
        return self._at_least_had(self._effect(len(self.controls)).rounds)

    def _at_least_had(self, rounds: int | None) -> int | None:
        # It may have been cut short: the round under way, or the one that was closed meanwhile, counts all the same.
        return None if rounds is None else max(rounds, self.open_round)

    @property
    def stopped(self) -> bool:
        """A stop is in effect: a round record names it, or nobody is live to write one."""
        return self.effect.stopped

    @property
    def _named(self) -> int:
        return self.rounds[-1].control if self.rounds else 0

    def _effect(self, named: int) -> Effect:
        rounds = None if self.manifest is None else self.manifest.rounds
        return effect(self.controls, rounds=rounds, committed=self.open_round, named=named)

    @cached_property
    def phase(self) -> RunPhase:
        if self.manifest is None:
            return "unknown"
        now = self.effect
        if (end := self.ranks.ending) is not None:
            return "done" if end.ending == "finished" else "stopped"
        if now.stopped:
            return "stopped"
        if now.rounds is not None and self.open_round >= now.rounds:
            return "done"
        if now.paused:
            return "paused"
        if not self.live:
            return "idle"
        return "waiting" if self.waits_for else "running"

    @cached_property
    def waits_for(self) -> str:
        """Whom the open round needs before it can close, or what keeps a data-parallel job from training, in words; '' while
        nothing does."""
        if self.manifest is None or not self.live:
            return ""
        if isinstance(self.manifest.algorithm, FineTune):
            return self.waiting.removeprefix(rankstate.WAITING).removeprefix("waiting: ")
        if not self.trainers:
            return "a learner"
        missing = 0 if self.rounds else starters(self.manifest.algorithm) - len(self.trainers)
        if missing > 0:
            return f"{missing} more learner{'s' if missing > 1 else ''}"
        return "a syncer" if all(v.role == "learner" for v in self.live) else ""

    @cached_property
    def waiting(self) -> str:
        """What the run waits for, in words of which some may be another machine's: 'waiting for …'; '' while it does not."""
        if self.manifest is not None and self.live and isinstance(self.manifest.algorithm, FineTune):
            return rankstate.waiting(self.ranks, self.manifest.algorithm, [v.beat for v in self.trainers if v.beat])
        return f"{rankstate.WAITING}{self.waits_for}" if self.waits_for else ""

    @cached_property
    def phase_is_certain(self) -> bool:
        """Whether watching longer cannot change whether somebody is live: a beat has moved, all were released, or a lease
        has passed."""
        if self.manifest is None or self.leases is None:
            return False
        certain = self._effect(self._named)
        if self.phase == "done" or certain.stopped or certain.paused:
            return True
        if self.leases.polled_at_s is None:
            return False
        if self.phase == "stopped":
            return True
        held = [lease for lease in self.leases.by_learner.values() if not lease.released]
        moved = any(self.watched_s > lease.unchanged_s + 1e-9 for lease in held)
        return moved or not held or self.watched_s >= self.manifest.algorithm.lease_s


class ManifestRead(msgspec.Struct, frozen=True):
    manifest: Manifest


class RoundRead(msgspec.Struct, frozen=True):
    record: RoundRecord


class RoundsRead(msgspec.Struct, frozen=True):
    """Many at a time of a long history, which costs less."""

    records: tuple[RoundRecord, ...]


class EvalRead(msgspec.Struct, frozen=True):
    record: EvalRecord


class LearnerRead(msgspec.Struct, frozen=True):
    record: LearnerRecord


class ControlRead(msgspec.Struct, frozen=True):
    n: int
    record: Control


class SnapshotRead(msgspec.Struct, frozen=True):
    record: Snapshot


class ClientsRead(msgspec.Struct, frozen=True):
    """Who trains the clients of the open round, by client and number of the claim; `sample` as in RunState."""

    round: int
    claims: dict[str, dict[int, Claim]]
    sample: tuple[str, ...] = ()


class RefusalsRead(msgspec.Struct, frozen=True):
    """What lies in the mailbox now of machines that could not take part: the newest of each."""

    records: tuple[JoinRefusal, ...]


class CheckpointsRead(msgspec.Struct, frozen=True):
    """Those of a data-parallel job that lie in the mailbox now."""

    records: tuple[JobCheckpoint, ...]


class Polled(msgspec.Struct, frozen=True):
    """A successful poll: the newest beat of every learner, and whose process provably runs no more."""

    now_s: float
    beats: dict[str, tuple[BeatId, Beat]]
    gone: frozenset[str] = frozenset()


class ShareLost(msgspec.Struct, frozen=True):
    now_s: float
    reason: str
    halted: bool = False


class TrustRead(msgspec.Struct, frozen=True):
    trust: Trust


Event: TypeAlias = (
    ManifestRead
    | RoundRead
    | RoundsRead
    | EvalRead
    | LearnerRead
    | ControlRead
    | SnapshotRead
    | ClientsRead
    | rankstate.Generation
    | rankstate.Log
    | CheckpointsRead
    | RefusalsRead
    | Polled
    | ShareLost
    | TrustRead
)


def apply(state: RunState, event: Event) -> RunState:
    """The state after `event`. Events that are already known, or older than what is known, change nothing."""
    match event:
        case ManifestRead(manifest):
            fold = state.leases or _watching(manifest)
            return _with(state, manifest=manifest, leases=fold)
        case RoundRead(record):
            return _closed(state, (record,))
        case RoundsRead(records):
            return _closed(state, records)
        case EvalRead(record):
            at = bisect.bisect_left(state.evals, record.round, key=lambda e: e.round)
            after = at + (at < len(state.evals) and state.evals[at].round == record.round)
            evals = kept_evals((*state.evals[:at], record, *state.evals[after:]), state.keep)
            return _with(state, evals=evals, series=evaluated(state.series, record))
        case LearnerRead(record):
            old = _learner(state, record.learner)
            if old.record and old.record.incarnation > record.incarnation:
                return state
            return _put(state, _changed(old, record=record, incarnation=max(old.incarnation, record.incarnation)))
        case ControlRead(n, control):
            if n != len(state.controls) + 1:
                return state
            return _with(state, controls=(*state.controls, control))
        case SnapshotRead(snapshot):
            if snapshot.round < state.open_round or snapshot in state.reported:
                return state
            return _with(state, reported=(*state.reported, snapshot))
        case ClientsRead(round, claims, sample):
            if round != state.open_round:
                return state
            newest = {client: by_number[max(by_number)] for client, by_number in claims.items() if by_number}
            return _with(state, claims=newest, sample=sample)
        case rankstate.Generation():
            return _with(state, ranks=rankstate.found(state.ranks, event, keep=state.keep))
        case rankstate.Log():
            return _with(state, ranks=rankstate.logged(state.ranks, event, keep=state.keep))
        case CheckpointsRead(records):
            return _with(state, ranks=rankstate.saved(state.ranks, records))
        case RefusalsRead(records):
            return _with(state, refusals=records)
        case Polled(now_s, beats, gone):
            return _polled(state, now_s, beats, gone)
        case ShareLost(now_s, reason, halted):
            since_s = now_s if state.lost is None else state.lost_at_s
            return _with(state, lost=reason, lost_at_s=since_s, halted=halted)
        case TrustRead(trust):
            return _with(state, trust=trust)
        case _:
            assert_never(event)


def participants(state: RunState, learner: str) -> int:
    """Rounds that `learner` took part in."""
    return state.series.took_part.get(learner, 0)


def _watching(manifest: Manifest) -> Leases:
    """Leases as a screen judges them: it polls more rarely than a learner with a short lease does, and decides nothing."""
    fold = leases(lease_s=manifest.algorithm.lease_s, beat_s=manifest.algorithm.beat_s)
    return msgspec.structs.replace(fold, gap_s=max(fold.gap_s, SCREEN_GAP_S))


def train_loss(record: RoundRecord) -> float | None:
    """The participants' mean training loss, by tokens; None if none was reported, or if it is not finite."""
    return mean_loss(record.participants)


def rejections(state: RunState) -> tuple[Rejected, ...]:
    return tuple(r for record in state.rounds for r in record.rejected)


def _polled(state: RunState, now_s: float, beats: dict[str, tuple[BeatId, Beat]], gone: frozenset[str]) -> RunState:
    if state.leases is None:
        return _with(state, polled_at_s=now_s, lost=None, lost_at_s=None, halted=False)
    before = state.leases
    released = gone.union(k for k, (_, beat) in beats.items() if beat.phase == "left")
    fold = before.observe(now_s, {k: ident for k, (ident, _) in beats.items()}, released)
    elapsed_s = 0.0 if before.polled_at_s is None else now_s - before.polled_at_s
    watched_s = state.watched_s + elapsed_s if 0.0 <= elapsed_s <= before.gap_s else 0.0
    live = fold.live()
    views = {view.learner: view for view in state.learners}
    for learner, lease in fold.by_learner.items():
        view = views.get(learner, LearnerView(learner=learner))
        ident, beat = beats.get(learner, (None, None))
        fresh = ident == lease.newest and beat is not None and (beat is not view.beat)
        rates = view.rates
        old = before.by_learner.get(learner)
        if fresh and beat is not None and (old is None or old.newest != lease.newest):
            rates = (*rates, beat.tokens_per_s)[-HISTORY:]
        views[learner] = _changed(
            view,
            beat=beat if fresh else view.beat,
            beat_age_s=lease.unchanged_s,
            live=learner in live,
            incarnation=max(view.incarnation, lease.newest.incarnation),
            rates=rates,
            rank=rankstate.newest_rank(view.rank, beat.rank) if fresh and beat is not None else view.rank,
        )
    learners = tuple(views[learner] for learner in sorted(views))
    answered = _with(state, polled_at_s=now_s, lost=None, lost_at_s=None, halted=False)
    return _with(answered, leases=fold, watched_s=watched_s, learners=learners)


def _closed(state: RunState, records: tuple[RoundRecord, ...]) -> RunState:
    new: list[RoundRecord] = []
    open_round = state.open_round
    for record in records:
        # A list of runs reads the newest record only, whichever it has read before.
        if not (state.rounds or new) or record.round == open_round or (state.keep == 0 and record.round > open_round):
            new.append(record)
            open_round = record.round + 1
    if not new:
        return state
    spec = state.manifest.algorithm if state.manifest is not None else None
    tallies = state.tallies
    for record in new if isinstance(spec, FedAvg) else ():
        tallies = tallied(tallies, record)
    return _with(
        state,
        rounds=kept_rounds((*state.rounds, *new), state.keep),
        series=state.series if state.keep == 0 else told(state.series, *new, hidden=spec is not None and private(spec)),
        reported=tuple(s for s in state.reported if s.round >= open_round),
        tallies=tallies,
        claims={},
        sample=(),
    )


def _learner(state: RunState, learner: str) -> LearnerView:
    return next((v for v in state.learners if v.learner == learner), LearnerView(learner=learner))


def _put(state: RunState, view: LearnerView) -> RunState:
    others = [v for v in state.learners if v.learner != view.learner]
    return _with(state, learners=tuple(sorted([*others, view], key=lambda v: v.learner)))


def _with(state: RunState, **changes: object) -> RunState:
    return msgspec.structs.replace(state, **changes)


def _changed(view: LearnerView, **changes: object) -> LearnerView:
    return msgspec.structs.replace(view, **changes)
