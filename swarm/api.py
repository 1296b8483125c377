"""Read model and commands for every front end: command line, screens, user scripts.

Nothing here imports numpy or a framework: whatever touches tensors runs in a worker process.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from swarm import __version__, launcher
from swarm.core import state
from swarm.core.errors import (
    WAITED_OUT,
    FormatMismatch,
    MailboxCorrupt,
    MailboxError,
    MailboxMoved,
    MailboxUnavailable,
    NothingToJoin,
    RunEnded,
    RunError,
    RunNotFound,
    SwarmError,
    TaskUnknown,
    UsageError,
)
from swarm.core.ids import learner_id as check_learner_id
from swarm.core.ids import learner_id_from_host
from swarm.core.jobs import CreateRun, Learn
from swarm.core.lease import Lease
from swarm.core.naming import run_id, run_name
from swarm.core.records import Beat, Control, EvalRecord, LearnerRecord, Manifest, Participant, Rejected, RoundRecord, Snapshot
from swarm.core.specs import DiLoCo
from swarm.core.state import LearnerView, RunPhase, RunState, participants, rejections, train_loss
from swarm.host import settings
from swarm.host.identity import machine_name
from swarm.host.settings import mailbox_location
from swarm.launcher import Job, jobs
from swarm.learners.devices import installed_frameworks
from swarm.mailbox import open_mailbox
from swarm.mailbox.contract import Mailbox
from swarm.tape import Tape, read_manifest, run_ids
from swarm.tasks import registry

__all__ = [
    "Beat",
    "DiLoCo",
    "EvalRecord",
    "Home",
    "HomeWatch",
    "Job",
    "LearnerRecord",
    "LearnerView",
    "MailboxError",
    "MailboxView",
    "Manifest",
    "NothingToJoin",
    "Participant",
    "Rejected",
    "RoundRecord",
    "RunNotFound",
    "RunPhase",
    "RunState",
    "RunWatch",
    "Snapshot",
    "SwarmError",
    "UsageError",
    "__version__",
    "find_run",
    "installed_frameworks",
    "jobs",
    "known_mailboxes",
    "leave",
    "log_tail",
    "mailbox_location",
    "new_run",
    "participants",
    "rejections",
    "remove_run",
    "settings_faults",
    "start_join",
    "stop_run",
    "train_loss",
]

HANG_S = 5.0  # a poll under way for so long counts as a lost share
ROUNDS_A_POLL = 2000  # of a long history, so that a screen shows something soon
EVALS_BACK = 64  # an evaluation may be written some rounds after its round


class MailboxView(msgspec.Struct, frozen=True, kw_only=True):
    location: str
    problem: str = ""  # why it cannot be used now; '' when it can
    remedy: str = ""  # what to do about it
    runs: tuple[RunState, ...] = ()  # joinable ones first; `rounds` holds the newest record only


class Home(msgspec.Struct, frozen=True, kw_only=True):
    mailboxes: tuple[MailboxView, ...] = ()
    jobs: tuple[Job, ...] = ()


class RunWatch:
    """Follows one run."""

    def __init__(self, mailbox: str, run: str, *, history: bool = True) -> None:
        """`run`: id. `history`: read all round records; otherwise the newest only."""
        self._location, self._run, self._history = mailbox, run, history
        self._mailbox: Mailbox | None = None
        self._tape: Tape | None = None
        self._polling: asyncio.Task[None] | None = None
        self._snapshots: dict[str, Snapshot | None] = {}  # of the open round, by key
        self.state = RunState(run=run)

    async def poll(self) -> RunState:
        """The run now. A share that does not answer is `state.lost`, never an exception. Raises RunNotFound."""
        if self._polling is None:
            self._polling = asyncio.create_task(self._read())
        done, _ = await asyncio.wait({self._polling}, timeout=HANG_S)
        if not done:  # it stays under way: a share that hangs gets one call at a time
            self._apply(state.ShareLost(now_s=_now_s(), reason="the share does not answer"))
            return self.state
        polling, self._polling = self._polling, None
        error = polling.exception()
        if isinstance(error, RunNotFound | FormatMismatch):
            raise error
        if isinstance(error, MailboxError):
            self._apply(state.ShareLost(now_s=_now_s(), reason=str(error)))
        elif error is not None:
            raise error
        return self.state

    def _apply(self, event: state.Event) -> None:
        self.state = state.apply(self.state, event)

    async def _read(self) -> None:
        if self._tape is None:
            self._mailbox = open_mailbox(self._location)
            await self._mailbox.open()
            manifest = await read_manifest(self._mailbox, self._run)
            self._apply(state.ManifestRead(manifest))
            self._tape = Tape(self._mailbox, manifest)
        tape = self._tape
        await self._read_rounds(tape)
        known = {v.learner: v for v in self.state.learners}
        beats = await tape.beats(
            {k: (lease.newest, v.beat) for k, v in known.items() if v.beat and (lease := self._lease(k)) is not None}
        )
        for learner, (ident, _) in beats.items():
            view = known.get(learner)
            if view is None or view.record is None or view.record.incarnation < ident.incarnation:
                record = await tape.learner(learner, ident.incarnation)
                if record is not None:
                    self._apply(state.LearnerRead(record))
        controls = await tape.controls(self.state.controls)
        for n, control in enumerate(controls[len(self.state.controls) :], len(self.state.controls) + 1):
            self._apply(state.ControlRead(n, control))
        self._snapshots = await tape.snapshots(self.state.open_round, self._snapshots)
        for snapshot in self._snapshots.values():
            if snapshot is not None:
                self._apply(state.SnapshotRead(snapshot))
        if self._history:
            await self._read_evals(tape)
        self._apply(state.Polled(now_s=_now_s(), beats=beats))

    def _lease(self, learner: str) -> Lease | None:
        return self.state.leases.by_learner.get(learner) if self.state.leases else None

    async def _read_rounds(self, tape: Tape) -> None:
        last = self.state.open_round - 1
        newest = await (tape.newest_round() if last < 0 else tape.rounds_after(last))
        first = last + 1 if self._history else max(last + 1, newest)
        for round in range(first, min(newest, first + ROUNDS_A_POLL) + 1):
            record = await tape.round(round)
            if record is None:
                return
            if not self._history and self.state.rounds:
                self.state = msgspec.structs.replace(self.state, rounds=())
            self._apply(state.RoundRead(record))

    async def _read_evals(self, tape: Tape) -> None:
        known = {e.round for e in self.state.evals}
        after = max(known, default=0) - EVALS_BACK
        for round in await tape.evals_after(after):
            if round not in known:
                record = await tape.eval(round)
                if record is not None:
                    self._apply(state.EvalRead(record))


class HomeWatch:
    """Follows the known mailboxes and this machine's jobs."""

    def __init__(self, mailboxes: tuple[str, ...] | None = None) -> None:
        """`mailboxes`: locations to follow; None: those of the settings, asked for at every poll."""
        self._given = mailboxes
        self._watches: dict[str, _MailboxWatch] = {}

    async def poll(self) -> Home:
        """What stands there now. Never raises for a mailbox that does not answer: its view says so."""
        locations = known_mailboxes() if self._given is None else self._given
        self._watches = {place: self._watches.get(place) or _MailboxWatch(place) for place in locations}
        views = await asyncio.gather(*(watch.poll() for watch in self._watches.values()))
        return Home(mailboxes=tuple(views), jobs=jobs())


class _MailboxWatch:
    def __init__(self, location: str) -> None:
        self._location = location
        self._mailbox: Mailbox | None = None
        self._runs: dict[str, RunWatch] = {}
        self._listing: asyncio.Task[list[str]] | None = None

    async def poll(self) -> MailboxView:
        if self._listing is None:
            self._listing = asyncio.create_task(self._list())
        done, _ = await asyncio.wait({self._listing}, timeout=HANG_S)
        if not done:
            return self._view("the share does not answer", "is it reachable?")
        listing, self._listing = self._listing, None
        try:
            found = listing.result()
        except SwarmError as error:
            return self._view(str(error), _remedy(error, self._location))
        watches = {run: self._runs.get(run) or RunWatch(self._location, run, history=False) for run in found}
        self._runs = {}
        results = await asyncio.gather(*(watch.poll() for watch in watches.values()), return_exceptions=True)
        for (run, watch), result in zip(watches.items(), results, strict=True):
            if isinstance(result, SwarmError):
                continue  # not a run (yet), or one of another format
            if isinstance(result, BaseException):
                raise result
            self._runs[run] = watch
        return self._view("", "")

    def _view(self, problem: str, remedy: str) -> MailboxView:
        states = sorted((watch.state for watch in self._runs.values()), key=_interest)
        return MailboxView(location=self._location, problem=problem, remedy=remedy, runs=tuple(states))

    async def _list(self) -> list[str]:
        if self._mailbox is None:
            mailbox = open_mailbox(self._location)
            await mailbox.open()
            self._mailbox = mailbox
        return await run_ids(self._mailbox)


# Finding


def known_mailboxes() -> tuple[str, ...]:
    """SWARM_MAILBOX, then those of the settings, each once."""
    given = os.environ.get("SWARM_MAILBOX")
    found = [mailbox_location(given)] if given else []
    found += [mailbox_location(place) for place in settings.load()[0].mailboxes]
    return tuple(dict.fromkeys(found))


def settings_faults() -> tuple[str, ...]:
    """What is wrong with the settings file, a line each."""
    return settings.load()[1]


async def opened(location: str) -> Mailbox:
    """The mailbox there. Raises MailboxUnavailable when it does not answer in time, MailboxMoved when there is none."""
    mailbox = open_mailbox(location)
    try:
        await asyncio.wait_for(mailbox.open(), 2 * HANG_S)
    except TimeoutError:
        raise MailboxUnavailable(f"{location} does not answer") from None
    return mailbox


async def manifests(location: str) -> list[Manifest]:
    """Of all runs in a mailbox that this version can read."""
    mailbox = await opened(location)
    found = []
    for run in await run_ids(mailbox):
        try:
            found.append(await read_manifest(mailbox, run))
        except (RunError, MailboxCorrupt):
            continue
    return found


async def find_run(location: str, text: str) -> Manifest:
    """By name, id or an unambiguous prefix of either. Raises RunNotFound."""
    every = await manifests(location)
    exact = [m for m in every if text in (m.run, m.name)]
    fitting = exact or [m for m in every if m.run.startswith(text) or m.name.startswith(text)]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        names = ", ".join(sorted(m.name for m in every)[:5]) or "none"
        raise RunNotFound(f"no run {text!r} in {location}; runs there: {names}")
    raise RunNotFound(f"{text!r} fits several runs: {', '.join(sorted(f'{m.name} ({m.run})' for m in fitting)[:5])}")


async def settled(watch: RunWatch, *, at_most_s: float | None = None) -> RunState:
    """A run's state once it is certain whether anybody is live, or the best known after `at_most_s` (default: two beats)."""
    started_s = _now_s()
    while True:
        now = await watch.poll()
        if now.manifest is None or now.phase_is_certain or now.lost:
            return now
        algorithm = now.manifest.algorithm
        if _now_s() - started_s > (2 * algorithm.beat_s + 1 if at_most_s is None else at_most_s):
            return now
        await asyncio.sleep(min(0.25, algorithm.beat_s / 4))


async def check_joinable(location: str, manifest: Manifest) -> None:
    """Raises RunEnded if the run was stopped or has all its rounds."""
    now = await RunWatch(location, manifest.run, history=False).poll()
    if now.phase in ("done", "stopped"):
        how = "was stopped" if now.phase == "stopped" else f"has all its {now.open_round} rounds"
        raise RunEnded(f"run {manifest.name} {how}: `swarm export`, or `swarm start` another one")


async def joinable(location: str) -> list[Manifest]:
    """Runs that are neither done nor stopped."""
    found = []
    for manifest in await manifests(location):
        now = await RunWatch(location, manifest.run, history=False).poll()
        if now.phase not in ("done", "stopped", "unknown"):
            found.append(manifest)
    return found


# Doing


def new_run(
    *,
    task: str,
    options: Mapping[str, str],
    algorithm: DiLoCo,
    rounds: int | None,
    seed: int | None = None,
    name: str | None = None,
    eval_every: int = 1,
) -> CreateRun:
    """A run to be made by a worker; its options are checked here. Raises UsageError, TaskUnknown."""
    try:
        chosen = registry.get(task)
    except TaskUnknown as error:
        raise UsageError(str(error)) from None
    random = secrets.SystemRandom()
    if rounds is not None and rounds < 1:
        raise UsageError(f"rounds must be >= 1, got {rounds}")
    if name is not None:
        check_learner_id(name)  # the same grammar: safe to type, to show and to compare
    return CreateRun(
        run=run_id(random),
        name=name or run_name(task, random),
        task=task,
        options=chosen.options(options),
        algorithm=algorithm,
        rounds=rounds,
        seed=random.randrange(2**32) if seed is None else seed,
        eval_every=eval_every,
    )


async def check_new_name(location: str, name: str) -> None:
    """Raises UsageError if a run of that name exists, since commands could not tell the two apart."""
    if any(manifest.name == name for manifest in await manifests(location)):
        raise UsageError(f"a run {name!r} exists in {location}: choose another name, or `swarm join {name}`")


def learn_order(
    mailbox: str,
    run: str,
    *,
    run_name: str = "",
    create: CreateRun | None = None,
    join: bool = True,
    learner_id: str | None = None,
    framework: str = "auto",
    device: str = "auto",
    data: str | None = None,
    threads: int | None = None,
) -> Learn:
    """What a worker needs to take part in a run. Raises UsageError for a wrong learner id."""
    return Learn(
        mailbox=mailbox,
        run=run,
        run_name=create.name if create else run_name,
        create=create,
        join=join,
        learner=check_learner_id(learner_id) if learner_id else learner_id_from_host(machine_name()),
        may_rename=not learner_id,
        framework=framework,
        device=device,
        data=str(Path(data).expanduser().absolute()) if data else None,
        threads=threads,
    )


def start_join(
    mailbox: str,
    run: str,
    *,
    run_name: str = "",
    learner_id: str | None = None,
    framework: str = "auto",
    device: str = "auto",
    data: str | None = None,
) -> Job:
    """Start a detached worker that joins `run` and return at once; the job's state tells how it goes on."""
    order = learn_order(
        mailbox, run, run_name=run_name, learner_id=learner_id, framework=framework, device=device, data=data
    )
    return launcher.job(launcher.start(order, foreground=False).job.name)


def leave(job: str) -> bool:
    """Ask the worker of `job` to leave its run cleanly; returns at once, False if it runs no more."""
    return launcher.interrupt(launcher.job(job))


async def stop_run(mailbox: str, run: str) -> None:
    """End the run for everybody: its learners report what they have, and the round that this closes is the last."""
    store = await opened(mailbox)
    tape = Tape(store, await read_manifest(store, run))
    await tape.control(Control(action="stop", by=machine_name()))


async def remove_run(mailbox: str, run: str) -> int:
    """Delete everything of a run; returns how many objects. The manifest goes first, so that it is a run no more at once."""
    store = await opened(mailbox)
    manifest = await read_manifest(store, run)
    place = Tape(store, manifest).keys
    await store.delete([place.manifest])
    doomed = await store.list(f"{place.root}/")
    await store.delete(doomed)
    return len(doomed) + 1


def log_tail(job: str, lines: int = 200) -> tuple[str, ...]:
    """The last lines of a job's log."""
    return launcher.log_tail(launcher.job(job).log, lines)


def _interest(run: RunState) -> tuple[int, str]:
    order = {"waiting": 0, "running": 1, "idle": 2, "done": 3, "stopped": 4, "unknown": 5}
    return order[run.phase], run.name


def _remedy(error: SwarmError, location: str) -> str:
    if isinstance(error, MailboxMoved):
        return f"is the share mounted? `swarm init {location}` makes a mailbox there"
    if isinstance(error, WAITED_OUT):
        return "is the share mounted and reachable? It is tried again"
    return ""


def _now_s() -> float:
    return asyncio.get_running_loop().time()
