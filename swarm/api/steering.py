"""Making runs, taking part in them, and what is asked of them."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from swarm import launcher
from swarm.api.finding import ended, opened, survey
from swarm.core.checks import MAX_ROUND
from swarm.core.errors import (
    MailboxUnavailable,
    RunEnded,
    RunNotFound,
    TaskUnknown,
    UsageError,
)
from swarm.core.finetune import FineTune
from swarm.core.ids import learner_id as check_learner_id
from swarm.core.ids import learner_id_from_host
from swarm.core.joboptions import RunOptions
from swarm.core.jobs import CreateRun, Learn
from swarm.core.keys import RunKeys
from swarm.core.mounting import told_place
from swarm.core.naming import run_id, run_name
from swarm.core.owner import OwnerRules, parse_hours
from swarm.core.records import Control, Role
from swarm.core.request import check_run
from swarm.core.specs import Algorithm
from swarm.core.state import RunPhase
from swarm.host import settings
from swarm.host.identity import machine_name
from swarm.launcher import Job
from swarm.mailbox.waiting import in_time
from swarm.manifests import read_to_write, run_ids
from swarm.tape import Tape
from swarm.tasks import registry
from swarm.watch import RunWatch

DELETED_AT_ONCE = 200


def new_run(
    *,
    task: str,
    options: Mapping[str, str],
    algorithm: Algorithm,
    rounds: int | None,
    seed: int | None = None,
    name: str | None = None,
    eval_every: int = 1,
    checkpoint_every: int = 0,
    checkpoints_kept: int = 3,
    base_model: str | None = None,
    attach: bool | None = None,
    attach_model: bool = False,
    share: str | None = None,
) -> CreateRun:
    """A run to be made by a worker; its options are checked here. `base_model`: a Safetensors file with the parameters that it
    begins with; None: freshly initialised ones. `attach`: the data that its order gives; None: if that is under 1 GiB.
    `attach_model`: the model that it gives, too. `share`: URL of the share that holds the mailbox, for machines that have not
    mounted it. Raises UsageError, TaskUnknown."""
    try:
        chosen = registry.get(task)
    except TaskUnknown as error:
        raise UsageError(str(error)) from None
    random = secrets.SystemRandom()
    check_run(
        RunOptions(
            rounds=rounds,
            name=name,
            seed=seed,
            eval_every=eval_every,
            checkpoint_every=checkpoint_every,
            keep_checkpoints=checkpoints_kept,
        )
    )
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
        base_model=None if base_model is None else settings.absolute(base_model),
        attach=attach,
        attach_model=attach_model,
        share="" if share is None else told_place(share),
    )


def new_finetuning(
    algorithm: FineTune,
    *,
    name: str | None = None,
    attach: bool | None = None,
    adapter: str | None = None,
    share: str | None = None,
) -> CreateRun:
    """An MLX-LM fine-tuning to be made by a worker, whose order gives the base model and the data. `attach`: the data; None: if
    it is under 1 GiB. `adapter`: a Safetensors file that it begins with. `share`: as of `new_run`. Raises UsageError."""
    random = secrets.SystemRandom()
    check_run(RunOptions(name=name))
    return CreateRun(
        run=run_id(random),
        name=name or run_name(algorithm.fine_tune_type, random),
        task="mlx-lm",
        options={},
        algorithm=algorithm,
        rounds=None,
        seed=algorithm.seed,
        attach=attach,
        attach_model=algorithm.attach_model,
        adapter=None if adapter is None else settings.absolute(adapter),
        share="" if share is None else told_place(share),
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
    model: str | None = None,
    adapter_path: str | None = None,
    interface: str | None = None,
    threads: int | None = None,
    role: Role = "both",
    idle_only: bool | None = None,
    on_ac_only: bool | None = None,
    hours: str | None = None,
    nice: int | None = None,
) -> Learn:
    """What a worker needs to take part in a run. `idle_only`, `on_ac_only`, `hours`, `nice`: None: as the settings have them.
    Raises UsageError for a wrong learner id, and for hours that are none."""
    chosen = settings.load()[0]
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
        data=None if data is None else _data_place(data),
        model=None if model is None else _model_place(model),
        adapter_path=None if adapter_path is None else settings.absolute(adapter_path),
        interface=interface,
        threads=threads,
        role=role,
        owner=_owner_rules(chosen, idle_only=idle_only, on_ac_only=on_ac_only, hours=hours),
        nice=(chosen.nice or 0) if nice is None else nice,
    )


def _owner_rules(
    chosen: settings.Settings, *, idle_only: bool | None, on_ac_only: bool | None, hours: str | None
) -> OwnerRules:
    try:
        ranges = parse_hours(chosen.hours if hours is None else hours)
    except ValueError as error:
        raise UsageError(f"--hours: {error}") from None
    return OwnerRules(
        idle_only=chosen.idle_only if idle_only is None else idle_only,
        on_ac_only=chosen.on_ac_only if on_ac_only is None else on_ac_only,
        hours=ranges,
    )


def _data_place(text: str) -> str:
    """A path as an absolute one, for a worker may run elsewhere. What a task knows by a word (`digits`), and what the word
    before a colon says of a path (`mnist:DIR`), stays, unless a file is called so. Raises UsageError."""
    path = settings.absolute(text)
    if os.path.exists(path):
        return path
    word, colon, rest = text.partition(":")
    if not re.fullmatch(r"[a-z][a-z0-9-]*", word) or (colon and not rest):
        return path
    return f"{word}:{settings.absolute(rest)}" if colon else text


def _model_place(text: str) -> str:
    """A folder as an absolute path; the name of a Hugging Face repository stays."""
    path = settings.absolute(text)
    return path if os.path.isdir(path) else text


def learn_orders(mailbox: str, run: str, workers: int, *, create: CreateRun | None = None, **learner: Any) -> list[Learn]:
    """As `learn_order`, for several learners on this machine: ID, ID-2, …. The first makes the run, if there is one to make.
    Raises UsageError."""
    first = learn_order(mailbox, run, create=create, **learner)
    others = [f"{first.learner[: 64 - len(f'-{n}')]}-{n}" for n in range(2, workers + 1)]
    name = create.name if create else first.run_name
    return [first, *(msgspec.structs.replace(first, create=None, run_name=name, learner=each) for each in others)]


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
    manifest = await in_time(store, read_to_write(store, run))
    incarnations = await in_time(store, Tape(store, manifest).incarnations(check_learner_id(learner)))
    if not incarnations:
        raise UsageError(f"run {manifest.name} has no learner {learner!r}")
    control = Control(action="drop", by=machine_name(), learner=learner, incarnation=incarnations[-1])
    await _command(mailbox, run, control, unless=("done", "stopped"))
    return incarnations[-1]


async def _command(mailbox: str, run: str, control: Control, *, unless: tuple[RunPhase, ...] = ()) -> None:
    """Append to the run's control records. Raises RunEnded if the run's phase is one of `unless`."""
    store = await opened(mailbox)
    manifest = await in_time(store, read_to_write(store, run))
    if control.action == "extend" and isinstance(manifest.algorithm, FineTune):
        raise UsageError(
            f"run {manifest.name} is an MLX-LM fine-tuning of {manifest.algorithm.iters} iterations: it has no rounds"
        )
    if unless:
        now = await RunWatch(mailbox, run, history=False, store=store).poll()
        if now.lost:
            raise MailboxUnavailable(now.lost)
        if now.phase in unless:
            raise RunEnded(f"run {manifest.name} {ended(now)}")
    await in_time(store, Tape(store, manifest).control(control))


async def remove_run(mailbox: str, run: str) -> int:
    """Delete everything of a run, by its id; returns how many objects. The manifest, which may be damaged or missing, goes
    first, so that it is a run no more at once. Raises RunNotFound if nothing of it is there."""
    store = await opened(mailbox)
    if run not in await in_time(store, run_ids(store)):
        raise RunNotFound(f"no run {run!r} in {mailbox}")
    place = RunKeys(run)
    await in_time(store, store.delete([place.manifest]))
    doomed = await in_time(store, store.list(f"{place.root}/"))
    for first in range(0, len(doomed), DELETED_AT_ONCE):  # each batch is answered, however long the history is
        await in_time(store, store.delete(doomed[first : first + DELETED_AT_ONCE]))
    return len(doomed) + 1


def log_tail(job: str, lines: int = 200) -> tuple[str, ...]:
    """The last lines of a job's log."""
    return launcher.log_tail(launcher.job(job).log, lines)
