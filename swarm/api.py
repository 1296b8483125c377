"""Read model and commands for every front end: command line, screens, user scripts.

Nothing here imports numpy or a framework: whatever touches tensors runs in a worker process.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from swarm import __version__, launcher
from swarm.core.errors import (
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
from swarm.core.ids import is_learner_id, learner_id_from_host
from swarm.core.ids import learner_id as check_learner_id
from swarm.core.jobs import CreateRun, Learn
from swarm.core.naming import run_id, run_name
from swarm.core.records import (
    MAX_ROUND,
    MAX_SEED,
    Beat,
    Control,
    EvalRecord,
    LearnerRecord,
    Manifest,
    Participant,
    Rejected,
    Role,
    RoundRecord,
    Snapshot,
)
from swarm.core.sentences import norms, refusal
from swarm.core.sentences import settings as settings_words
from swarm.core.specs import DiLoCo
from swarm.core.state import LearnerView, RunPhase, RunState, participants, rejections, train_loss
from swarm.host import settings
from swarm.host.crash import note_crash
from swarm.host.identity import machine_name
from swarm.host.settings import mailbox_location
from swarm.launcher import Job, jobs
from swarm.learners.devices import installed_frameworks
from swarm.mailbox import open_mailbox
from swarm.mailbox.contract import Mailbox
from swarm.tape import Tape, read_manifest, run_ids
from swarm.tasks import registry
from swarm.watch import Home, HomeWatch, MailboxView, RunWatch, finished, known_mailboxes, now_s

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
    "RunState",
    "RunWatch",
    "Snapshot",
    "SwarmError",
    "UsageError",
    "__version__",
    "checkpoints",
    "drop_learner",
    "extend_run",
    "find_run",
    "foreign_program",
    "installed_frameworks",
    "jobs",
    "known_mailboxes",
    "leave",
    "log_tail",
    "mailbox_location",
    "new_run",
    "norms",
    "note_crash",
    "participants",
    "pause_run",
    "refusal",
    "rejections",
    "remove_run",
    "resume_run",
    "settings_faults",
    "settings_words",
    "start_join",
    "stop_run",
    "train_loss",
]

T = TypeVar("T")
PATIENCE_S = 20.0  # how long a command waits for an answer: a disk that sleeps takes some seconds
DELETED_AT_ONCE = 200


# Finding


def settings_faults() -> tuple[str, ...]:
    """What is wrong with the settings file, a line each."""
    return settings.load()[1]


async def opened(location: str) -> Mailbox:
    """The mailbox there. Raises MailboxUnavailable when it does not answer in time, MailboxMoved when there is none."""
    mailbox = open_mailbox(location)
    try:
        await _in_time(mailbox, mailbox.open())
    except MailboxMoved as error:
        raise MailboxMoved(f"{error} `swarm init {location}` makes one there") from None
    return mailbox


async def _in_time(mailbox: Mailbox, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. Raises MailboxUnavailable once a call has not been answered for PATIENCE_S."""
    task = asyncio.create_task(work)
    while not await finished(task, mailbox):
        if mailbox.outstanding_s() >= PATIENCE_S:
            task.cancel()
            raise MailboxUnavailable(f"{mailbox.location} has not answered for {PATIENCE_S:.0f} s: is the share reachable?")
    return task.result()


async def survey(location: str) -> tuple[list[Manifest], list[str]]:
    """(all runs in a mailbox that this version can read, what is wrong with the others)."""
    mailbox = await opened(location)
    found, faults = [], []
    for run in await _in_time(mailbox, run_ids(mailbox)):
        try:
            found.append(await _in_time(mailbox, read_manifest(mailbox, run)))
        except RunNotFound:
            continue  # being made, or being deleted
        except (RunError, MailboxCorrupt) as error:
            faults.append(str(error))
    return found, faults


async def find_run(location: str, text: str) -> Manifest:
    """By name, id or an unambiguous prefix of either. Raises RunNotFound."""
    every, faults = await survey(location)
    exact = [m for m in every if text in (m.run, m.name)]
    fitting = exact or [m for m in every if text and (m.run.startswith(text) or m.name.startswith(text))]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting:
        unreadable = f"; cannot be read: {'; '.join(faults[:3])}" if faults else ""
        raise RunNotFound(f"no run {text!r} in {location}; runs there: {_some(m.name for m in every)}{unreadable}")
    raise RunNotFound(f"{text!r} fits several runs: {_some(f'{m.name} ({m.run})' for m in fitting)}")


def _some(names: Iterable[str]) -> str:
    every = sorted(names)
    return ", ".join(every[:5]) + (", …" if len(every) > 5 else "") if every else "none"


async def settled(watch: RunWatch, *, at_most_s: float | None = None) -> RunState:
    """A run's state once it is certain whether anybody is live, or the best known after `at_most_s` (default: two beats);
    with all its rounds, however long that takes."""
    started_s: float | None = None
    while True:
        now = await watch.poll()
        if now.manifest is None or now.lost:
            return now
        if watch.behind:
            continue
        started_s = now_s() if started_s is None else started_s  # while the history was read, nobody was listened for
        if now.phase_is_certain:
            return now
        algorithm = now.manifest.algorithm
        if now_s() - started_s > (2 * algorithm.beat_s + 1 if at_most_s is None else at_most_s):
            return now
        await asyncio.sleep(min(0.25, algorithm.beat_s / 4))


async def live_learners(location: str, run: str, *, told: Callable[[float], object] = lambda s: None) -> tuple[str, ...]:
    """Who trains in `run`: certain only once one of them was heard, or after a lease of silence. `told`: called with that
    time, in seconds, if it has to be waited for. Raises MailboxUnavailable."""
    watch = RunWatch(location, run, history=False)
    now = first = await watch.poll()
    waited = False
    while now.live and not now.lost:
        assert now.manifest is not None
        beats = {v.learner: v.beat for v in first.live}
        if any(v.beat is not beats.get(v.learner) for v in now.live):
            break
        if not waited and now.watched_s > 2 * now.manifest.algorithm.beat_s:
            waited = True
            told(now.manifest.algorithm.lease_s)
        await asyncio.sleep(min(0.25, now.manifest.algorithm.beat_s / 4))
        now = await watch.poll()
    if now.lost:
        raise MailboxUnavailable(now.lost)
    return tuple(v.learner for v in now.live)


async def check_joinable(location: str, manifest: Manifest) -> None:
    """Raises RunEnded if the run was stopped or has all its rounds."""
    now = await RunWatch(location, manifest.run, history=False).poll()
    if now.phase in ("done", "stopped"):
        raise RunEnded(f"run {manifest.name} {ended(now)}: `swarm export`, or `swarm start` another one")
    if program := foreign_program(manifest):
        raise UsageError(f"run {manifest.name} {program}")


async def joinable(location: str) -> list[Manifest]:
    """Runs that are neither done nor stopped."""
    found = []
    for manifest in (await survey(location))[0]:
        now = await RunWatch(location, manifest.run, history=False).poll()
        if now.phase not in ("done", "stopped", "unknown") and not foreign_program(manifest):
            found.append(manifest)
    return found


def foreign_program(manifest: Manifest) -> str:
    """How a run is joined that no worker can join, after its name; '' for all others."""
    if manifest.task.name != registry.LIBRARY:
        return ""
    return "trains a program's own model: it is joined by starting that program here (swarm.Session)"


async def checkpoints(location: str, run: str) -> list[int]:
    """Rounds whose parameters are kept, oldest first."""
    store = await opened(location)
    return await _in_time(store, Tape(store, await _in_time(store, read_manifest(store, run))).checkpoints())


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
    checkpoint_every: int = 0,
    checkpoints_kept: int = 3,
    attach: bool | None = None,
) -> CreateRun:
    """A run to be made by a worker; its options are checked here. `attach`: the data that its order gives; None: if that is
    under 1 GiB. Raises UsageError, TaskUnknown."""
    try:
        chosen = registry.get(task)
    except TaskUnknown as error:
        raise UsageError(str(error)) from None
    random = secrets.SystemRandom()
    if rounds is not None and not 1 <= rounds <= MAX_ROUND:
        raise UsageError(f"rounds must be 1 to {MAX_ROUND}, got {rounds}")
    if name is not None and not is_learner_id(name):  # the same grammar: safe to type, to show and to compare
        raise UsageError(f"{name!r} is no name for a run: 1 to 64 of a-z, 0-9 and '-', and no Windows device name")
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise UsageError(f"seed must be 0 to {MAX_SEED}, got {seed}")
    if not 0 <= eval_every <= MAX_ROUND:
        raise UsageError(f"eval_every must be 0 to {MAX_ROUND}, got {eval_every}")
    if not 0 <= checkpoint_every <= MAX_ROUND:
        raise UsageError(f"checkpoint_every must be 0 to {MAX_ROUND}, got {checkpoint_every}")
    if not 1 <= checkpoints_kept <= MAX_ROUND:
        raise UsageError(f"checkpoints_kept must be 1 to {MAX_ROUND}, got {checkpoints_kept}")
    return CreateRun(
        run=run_id(random),
        name=name or run_name(task, random),
        task=task,
        options=chosen.options(options),
        algorithm=algorithm,
        rounds=rounds,
        seed=random.randrange(2**32) if seed is None else seed,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        checkpoints_kept=checkpoints_kept,
        attach=attach,
    )


async def check_new_name(location: str, name: str) -> None:
    """Raises UsageError if a run of that name exists, since commands could not tell the two apart."""
    if any(manifest.name == name for manifest in (await survey(location))[0]):
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
    role: Role = "both",
) -> Learn:
    """What a worker needs to take part in a run. Raises UsageError for a wrong learner id."""
    return Learn(
        mailbox=mailbox,
        run=run,
        run_name=create.name if create else run_name,
        create=create,
        join=join,
        learner=check_learner_id(learner_id) if learner_id is not None else learner_id_from_host(machine_name()),
        may_rename=learner_id is None,
        framework=framework,
        device=device,
        data=None if data is None else settings.absolute(data),
        threads=threads,
        role=role,
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
    role: Role = "both",
) -> Job:
    """Start a detached worker that joins `run` and return at once; the job's state tells how it goes on."""
    order = learn_order(
        mailbox, run, run_name=run_name, learner_id=learner_id, framework=framework, device=device, data=data, role=role
    )
    return launcher.job(launcher.start(order, foreground=False).job.name)


def leave(job: str) -> bool:
    """Ask the worker of `job` to leave its run cleanly; returns at once, False if it runs no more."""
    return launcher.interrupt(launcher.job(job))


async def stop_run(mailbox: str, run: str) -> None:
    """End the run for everybody: its learners report what they have, and the round that this closes is the last."""
    await _command(mailbox, run, Control(action="stop", by=machine_name()))


async def pause_run(mailbox: str, run: str) -> None:
    """Let the learners report what they have, and then wait until the run is resumed. Raises RunEnded."""
    await _command(mailbox, run, Control(action="pause", by=machine_name()), unless=("done", "stopped"))


async def resume_run(mailbox: str, run: str) -> None:
    """Let a paused run go on, at once. Raises RunEnded."""
    await _command(mailbox, run, Control(action="resume", by=machine_name()), unless=("done", "stopped"))


async def extend_run(mailbox: str, run: str, rounds: int | None) -> None:
    """Give the run another number of rounds, in all; None: until it is stopped. One that has all its rounds goes on with
    whoever joins. Fewer than it has already end it with the round under way. Raises RunEnded if it was stopped, UsageError."""
    if rounds is not None and not 1 <= rounds <= MAX_ROUND:
        raise UsageError(f"rounds must be 1 to {MAX_ROUND}, got {rounds}")
    await _command(mailbox, run, Control(action="extend", by=machine_name(), rounds=rounds), unless=("stopped",))


async def drop_learner(mailbox: str, run: str, learner: str) -> int:
    """Make a learner leave, with all its incarnations so far, and wait for it no more; returns the newest of these. A later
    one may join. Raises RunEnded, UsageError if there is no such learner."""
    store = await opened(mailbox)
    manifest = await _in_time(store, read_manifest(store, run))
    incarnations = await _in_time(store, Tape(store, manifest).incarnations(check_learner_id(learner)))
    if not incarnations:
        raise UsageError(f"run {manifest.name} has no learner {learner!r}")
    control = Control(action="drop", by=machine_name(), learner=learner, incarnation=incarnations[-1])
    await _command(mailbox, run, control, unless=("done", "stopped"))
    return incarnations[-1]


async def _command(mailbox: str, run: str, control: Control, *, unless: tuple[RunPhase, ...] = ()) -> None:
    """Append to the run's control records. Raises RunEnded if the run's phase is one of `unless`."""
    store = await opened(mailbox)
    manifest = await _in_time(store, read_manifest(store, run))
    if unless:
        now = await RunWatch(mailbox, run, history=False, store=store).poll()
        if now.lost:
            raise MailboxUnavailable(now.lost)
        if now.phase in unless:
            raise RunEnded(f"run {manifest.name} {ended(now)}")
    await _in_time(store, Tape(store, manifest).control(control))


def ended(state: RunState) -> str:
    """How a run ended, after its name."""
    return "was stopped" if state.phase == "stopped" else f"has all its {state.open_round} rounds"


async def remove_run(mailbox: str, run: str) -> int:
    """Delete everything of a run; returns how many objects. The manifest goes first, so that it is a run no more at once."""
    store = await opened(mailbox)
    manifest = await _in_time(store, read_manifest(store, run))
    place = Tape(store, manifest).keys
    await _in_time(store, store.delete([place.manifest]))
    doomed = await _in_time(store, store.list(f"{place.root}/"))
    for first in range(0, len(doomed), DELETED_AT_ONCE):  # each batch is answered, however long the history is
        await _in_time(store, store.delete(doomed[first : first + DELETED_AT_ONCE]))
    return len(doomed) + 1


def log_tail(job: str, lines: int = 200) -> tuple[str, ...]:
    """The last lines of a job's log."""
    return launcher.log_tail(launcher.job(job).log, lines)
