"""Follows runs and mailboxes: what a screen, a command or a script polls. What is read is folded by `swarm.core.state`."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from swarm import refusals
from swarm.core import state
from swarm.core.buckets import masked, where_gone, where_lost
from swarm.core.errors import (
    WAITED_OUT,
    FormatMismatch,
    MailboxAway,
    MailboxCorrupt,
    MailboxError,
    MailboxMoved,
    PassphraseError,
    RecordForged,
    RunNotFound,
    SwarmError,
    UsageError,
)
from swarm.core.finetune import FineTune
from swarm.core.keys import RunKeys
from swarm.core.lease import BeatId, Lease
from swarm.core.records import Beat, Claim, JoinRefusal, RoundRecord, Snapshot
from swarm.core.specs import FedAvg
from swarm.core.state import RunState
from swarm.core.trust import Foreign
from swarm.host import settings
from swarm.host.identity import Identity, holder, identity, process_gone
from swarm.host.keyfile import load_key
from swarm.host.opening import mailbox_at
from swarm.launcher import Job, jobs
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.signed import SignedMailbox
from swarm.manifests import read_with_trust, run_ids
from swarm.parallel.history import JobTape
from swarm.tape import Tape

HANG_S = 5.0  # a call under way for so long counts as a lost share
LOOK_S = 0.5  # how often a poll under way looks for one
ROUNDS_A_POLL = 2000  # of a long history, so that a screen shows something soon,
PARTICIPANTS_A_POLL = 30_000  # and no more rounds than have so many together: a record of 300 is read in a millisecond or two
EVALS_A_POLL = 2000
REFUSALS_EVERY = 10  # polls: what changes so rarely costs no list with each of them
EVALS_BACK = 64  # an evaluation may be written some rounds after its round


class MailboxView(msgspec.Struct, frozen=True, kw_only=True):
    location: str
    id: str = ""  # of the mailbox; "" while it was never opened
    problem: str = ""  # why it cannot be used now; '' when it can
    remedy: str = ""  # what to do about it
    runs: tuple[RunState, ...] = ()  # joinable ones first; `rounds` holds the newest record only
    foreign: Foreign = Foreign()  # runs that are left out, since this machine's passphrase did not sign them


class Home(msgspec.Struct, frozen=True, kw_only=True):
    mailboxes: tuple[MailboxView, ...] = ()
    jobs: tuple[Job, ...] = ()
    fingerprint: str | None = None  # of this machine's passphrase; '' without one; None: nobody has looked


class RunWatch:
    """Follows one run. One poll at a time."""

    def __init__(
        self, mailbox: str, run: str, *, history: bool = True, keep: int | None = None, store: Mailbox | None = None
    ) -> None:
        """`run`: id. `history`: read all round records; otherwise the newest only. `keep`: so many of the newest records stay
        whole, and of older ones what curves need; None: all do. `store`: the mailbox, if it is open."""
        if keep is not None and keep < EVALS_BACK:
            raise ValueError(f"keep must be >= {EVALS_BACK}, got {keep}")
        self._location, self._run, self._history = mailbox, run, history
        self._mailbox = store
        self._opened = store is not None
        self._tape: Tape | None = None
        self._job: JobTape | None = None  # of a data-parallel job
        self._me: Identity | None = None
        self._polling: asyncio.Task[None] | None = None
        self._snapshots: dict[str, Snapshot | None] = {}  # of the open round, by key
        self._claims: tuple[int, dict[str, dict[int, Claim]]] = (0, {})  # a round, and those on its clients
        self._refusals: dict[str, JoinRefusal | None] = {}  # by key
        self._polls = 0
        self._evaluated = 0  # the newest round whose evaluation was looked at
        self.behind = False  # whether something of the history is there that the last poll left for the next one
        self.state = RunState(run=run, keep=keep if history else 0)

    async def poll(self) -> RunState:
        """The run now, or, of a history that takes long to read, as far as it was read. A share that does not answer is
        `state.lost`, never an exception, and so is a forged round. Raises RunNotFound, also once the run was deleted,
        FormatMismatch, PassphraseError, and RecordForged for a run that is not of this machine's swarm."""
        if self._polling is None:
            if self._mailbox is None:
                self._mailbox = mailbox_at(self._location)
            self._polling = asyncio.create_task(self._read(self._mailbox))
        assert self._mailbox is not None
        if not await finished(self._polling, self._mailbox):  # it stays under way: a share that hangs gets one call at a time
            if self._mailbox.outstanding_s() >= HANG_S:
                self._apply(state.ShareLost(now_s=now_s(), reason="the share does not answer"))
            return self.state
        polling, self._polling = self._polling, None
        error = polling.exception()
        self._see_forged()
        if isinstance(error, RunNotFound | FormatMismatch) or (isinstance(error, RecordForged) and self._tape is None):
            raise error
        if isinstance(error, MailboxError):
            halted = isinstance(error, RecordForged)
            self._apply(state.ShareLost(now_s=now_s(), reason=str(error), halted=halted))
        elif error is not None:
            raise error
        return self.state

    def _apply(self, event: state.Event) -> None:
        self.state = state.apply(self.state, event)

    def _see_forged(self) -> None:
        if isinstance(self._mailbox, SignedMailbox):
            forged = self._mailbox.forged(self._run)
            if forged != self.state.trust.forged:
                self._apply(state.TrustRead(msgspec.structs.replace(self.state.trust, forged=forged)))

    async def _read(self, mailbox: Mailbox) -> None:
        if not self._opened:
            await mailbox.open()
            self._opened = True
        try:
            beats = await self._read_all(mailbox)
        except MailboxAway:
            raise
        except MailboxMoved:  # a record is gone
            await self._check_there(mailbox)
            raise
        # Of what has no round nothing else tells that it is gone.
        if not beats and self._history and self.state.open_round == 0:
            await self._check_there(mailbox)

    async def _check_there(self, mailbox: Mailbox) -> None:
        """Raise RunNotFound if the run was deleted."""
        if await mailbox.read(RunKeys(self._run).manifest) is None:
            raise RunNotFound(f"run {self.state.name} was deleted")

    async def _read_all(self, mailbox: Mailbox) -> Mapping[str, object]:
        """The beats."""
        if self._tape is None:
            manifest, trust = await read_with_trust(mailbox, self._run)
            self._apply(state.ManifestRead(manifest))
            self._apply(state.TrustRead(trust))
            self._tape = Tape(mailbox, manifest)
            if isinstance(manifest.algorithm, FineTune):
                self._job = JobTape(mailbox, self._tape.keys, history=self._history)
        tape = self._tape
        if self._job is not None:
            await self._read_job(self._job)
        else:
            await self._read_rounds(tape)
        known = {v.learner: v for v in self.state.learners}
        beats = await tape.beats(
            {k: (lease.newest, v.beat) for k, v in known.items() if v.beat and (lease := self._lease(k)) is not None}
        )
        for learner, (ident, _) in beats.items():
            view = known.get(learner)
            if view is None or view.record is None or view.record.incarnation < ident.incarnation:
                with contextlib.suppress(MailboxCorrupt):  # it is only shown: one bad record must not hide the run
                    record = await tape.learner(learner, ident.incarnation)
                    if record is not None:
                        self._apply(state.LearnerRead(record))
        controls = await tape.controls(self.state.controls)
        for n, control in enumerate(controls[len(self.state.controls) :], len(self.state.controls) + 1):
            self._apply(state.ControlRead(n, control))
        if self._job is None:
            await self._read_round(tape)
        if self._history and self._polls % REFUSALS_EVERY == 0:
            await self._read_refusals(mailbox)
        self._polls += 1
        self._apply(state.Polled(now_s=now_s(), beats=beats, gone=self._gone(beats)))
        return beats

    async def _read_refusals(self, mailbox: Mailbox) -> None:
        self._refusals = await refusals.read(mailbox, self._run, self._refusals)
        records = tuple(record for record in self._refusals.values() if record is not None)
        if records != self.state.refusals:
            self._apply(state.RefusalsRead(records))

    def _gone(self, beats: dict[str, tuple[BeatId, Beat]]) -> frozenset[str]:
        """Learners whose process ran on this machine and does no more."""
        if self._me is None:
            self._me = identity()
        records = {v.learner: v.record for v in self.state.learners}
        found = set()
        for learner, (ident, beat) in beats.items():
            record = records.get(learner)
            if record is None or record.incarnation != ident.incarnation or beat.phase == "left":
                continue
            if process_gone(self._me, holder(record)):
                found.add(learner)
        return frozenset(found)

    def _lease(self, learner: str) -> Lease | None:
        return self.state.leases.by_learner.get(learner) if self.state.leases else None

    async def _read_rounds(self, tape: Tape) -> None:
        last = self.state.open_round - 1
        newest = await (tape.newest_round() if last < 0 else tape.rounds_after(last))
        first = last + 1 if self._history else max(last + 1, newest)
        self.behind = first <= newest
        read: list[RoundRecord] = []
        participants, told_s = 0, now_s()
        try:
            for round in range(first, min(newest, first + ROUNDS_A_POLL) + 1):
                record = await tape.round(round)
                if record is None:  # listed, and not there to be read yet
                    newest = round - 1
                    break
                read.append(record)
                participants += len(record.participants)
                if participants >= PARTICIPANTS_A_POLL:
                    break
                if now_s() - told_s >= LOOK_S:  # a slow share: what was read of it so far is shown
                    self._apply(state.RoundsRead(tuple(read)))
                    read, told_s = [], now_s()
        finally:  # what was read before something went wrong was read
            if read:
                self._apply(state.RoundsRead(tuple(read)))
        self.behind = self.state.open_round <= newest

    async def _read_round(self, tape: Tape) -> None:
        """What there is of the open round; and evaluations, which come when they come."""
        self._snapshots = await tape.snapshots(self.state.open_round, self._snapshots)
        for snapshot in self._snapshots.values():
            if snapshot is not None:
                self._apply(state.SnapshotRead(snapshot))
        if self._history:
            await self._read_evals(tape)
            if isinstance(tape.manifest.algorithm, FedAvg):
                await self._read_clients(tape, tape.manifest.algorithm)

    async def _read_job(self, job: JobTape) -> None:
        for news in await job.poll():
            self._apply(news)
        self.behind = job.behind
        if self._history:
            checkpoints = await job.checkpoints()
            if checkpoints != self.state.ranks.checkpoints:
                self._apply(state.CheckpointsRead(checkpoints))

    async def _read_evals(self, tape: Tape) -> None:
        known = {e.round for e in self.state.evals}
        new = [round for round in await tape.evals_after(self._evaluated - EVALS_BACK) if round not in known]
        self.behind = self.behind or len(new) > EVALS_A_POLL
        for round in new[:EVALS_A_POLL]:
            with contextlib.suppress(MailboxCorrupt):
                record = await tape.eval(round)
                if record is not None:
                    self._apply(state.EvalRead(record))
            self._evaluated = max(self._evaluated, round)

    async def _read_clients(self, tape: Tape, spec: FedAvg) -> None:
        """Who trains which client of the open round."""
        round = self.state.open_round
        held, claims = self._claims
        claims = await tape.client_claims(round, claims if held == round else {})
        self._claims = (round, claims)
        named = self.state.sample
        if spec.private and not self.state.sampled:
            with contextlib.suppress(MailboxCorrupt):  # it is only shown
                sample = await tape.sample(round)
                named = sample.clients if sample is not None else ()
        self._apply(state.ClientsRead(round, claims, named))


class HomeWatch:
    """Follows the known mailboxes and this machine's jobs."""

    def __init__(self, mailboxes: tuple[str, ...] | None = None) -> None:
        """`mailboxes`: locations to follow; None: those of the settings, asked for at every poll."""
        self._given = mailboxes
        self.also: tuple[str, ...] = ()  # more locations, which come to be known
        self._watches: dict[str, _MailboxWatch] = {}
        self._fingerprint = ""

    async def poll(self) -> Home:
        """What stands there now. Never raises for a mailbox that does not answer: its view says so."""
        with contextlib.suppress(PassphraseError):  # the mailboxes say so that are opened from now on
            key = load_key()
            fingerprint = "" if key is None else key.fingerprint
            if fingerprint != self._fingerprint:  # made, or taken over, while this watches: look with other eyes
                self._watches, self._fingerprint = {}, fingerprint
        locations = dict.fromkeys((*(known_mailboxes() if self._given is None else self._given), *self.also))
        self._watches = {place: self._watches.get(place) or _MailboxWatch(place) for place in locations}
        views = await asyncio.gather(*(watch.poll() for watch in self._watches.values()))
        return Home(mailboxes=tuple(views), jobs=jobs(), fingerprint=self._fingerprint)


class _MailboxWatch:
    """One mailbox. All its runs are read through one handle, so that a share that hangs holds a few threads, not some for
    every run."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._mailbox: Mailbox | None = None
        self._opened: Mailbox | None = None
        self._id = ""
        self._runs: dict[str, RunWatch] = {}
        self._foreign = Foreign()
        self._listing: asyncio.Task[list[str]] | None = None

    async def poll(self) -> MailboxView:
        try:
            if self._mailbox is None:
                self._mailbox = mailbox_at(self._location)
            if self._listing is None:
                self._listing = asyncio.create_task(self._list(self._mailbox))
            if not await finished(self._listing, self._mailbox):
                return self._view("the share does not answer", "is it reachable?")
            listing, self._listing = self._listing, None
            found = listing.result()
        except SwarmError as error:
            if isinstance(error, MailboxMoved):  # the next poll looks with fresh eyes: another one may have been made there
                self._mailbox = None
            return self._view(str(error), _remedy(error, self._location))
        watches = {
            run: self._runs.get(run) or RunWatch(self._location, run, history=False, store=self._mailbox) for run in found
        }
        self._runs = {}
        results = await asyncio.gather(*(watch.poll() for watch in watches.values()), return_exceptions=True)
        forged = [result for result in results if isinstance(result, RecordForged)]
        self._foreign = foreign(forged)
        for (run, watch), result in zip(watches.items(), results, strict=True):
            if isinstance(result, SwarmError):
                continue  # not a run (yet), or one of another format
            if isinstance(result, BaseException):
                raise result
            self._runs[run] = watch
        return self._view("", "")

    def _view(self, problem: str, remedy: str) -> MailboxView:
        states = sorted((watch.state for watch in self._runs.values()), key=_interest)
        return MailboxView(
            location=self._location,
            id=self._id,
            problem=problem,
            remedy=remedy,
            runs=tuple(states),
            foreign=self._foreign,
        )

    async def _list(self, mailbox: Mailbox) -> list[str]:
        if mailbox is not self._opened:
            ident = await mailbox.open()
            if ident != self._id:
                self._id, self._runs = ident, {}
            self._opened = mailbox
        return await run_ids(mailbox)


def foreign(manifests: Iterable[RecordForged]) -> Foreign:
    """How many runs have such manifests."""
    unsigned = [error.unsigned for error in manifests]
    return Foreign(unsigned=unsigned.count(True), otherwise=unsigned.count(False))


async def finished(work: asyncio.Task[Any], mailbox: Mailbox) -> bool:
    """Wait for `work` on `mailbox`. False, with the work still under way, as soon as a call hangs, or when it takes long."""
    until_s = now_s() + HANG_S + 2 * LOOK_S
    while True:
        done, _ = await asyncio.wait({work}, timeout=LOOK_S)
        if done:
            return True
        if mailbox.outstanding_s() >= HANG_S or now_s() >= until_s:
            return False


def _interest(run: RunState) -> tuple[int, str]:
    order = {"waiting": 0, "running": 1, "paused": 2, "idle": 3, "done": 4, "stopped": 5, "unknown": 6}
    return order[run.phase], run.name


def _remedy(error: SwarmError, location: str) -> str:
    if isinstance(error, MailboxMoved):
        return where_gone(location, str(error))
    if isinstance(error, WAITED_OUT):
        return where_lost(location)
    return ""


def known_mailboxes() -> tuple[str, ...]:
    """SWARM_MAILBOX, then those of the settings, each once."""
    given = os.environ.get("SWARM_MAILBOX")
    places = [given, *settings.load()[0].mailboxes]
    return tuple(dict.fromkeys(_location(place) for place in places if place))


def _location(place: str) -> str:
    try:
        return settings.mailbox_location(place)
    except UsageError:
        return masked(place)  # its view will say what is wrong with it


def now_s() -> float:
    return asyncio.get_running_loop().time()
