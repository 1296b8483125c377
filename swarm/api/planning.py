"""Runs before they are made: what is asked for, as orders for workers, and what can be said of them beforehand."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping

import msgspec

from swarm import launcher
from swarm.api.steering import check_new_name, learn_orders, new_finetuning, new_run
from swarm.core.errors import UsageError, WorkerFailed
from swarm.core.events import Created, Failed, Joined
from swarm.core.finetune import FineTune
from swarm.core.form import (
    JOIN,
    MAILBOX,
    METHOD,
    TASK,
    Field,
    TaskForm,
    command_line,
    command_words,
    default_words,
    fields,
    hint_words,
    kept,
    problems,
    range_words,
    request_of,
)
from swarm.core.joboptions import METHODS, TASKS, Method
from swarm.core.jobs import CreateRun, Learn
from swarm.core.mounting import told_of
from swarm.core.options import options
from swarm.core.request import RunRequest
from swarm.host import remembered, settings
from swarm.tasks import registry

__all__ = [
    "JOIN",
    "MAILBOX",
    "METHOD",
    "METHODS",
    "TASK",
    "TASKS",
    "Begun",
    "Field",
    "Method",
    "Opening",
    "TaskForm",
    "begin",
    "command_line",
    "command_words",
    "create_order",
    "default_words",
    "fields",
    "hint_words",
    "kept",
    "opening",
    "orders",
    "problems",
    "range_words",
    "request_of",
]

_OF_ONE_RUN = ("run.name", MAILBOX)  # fields that are not remembered: the next run has another name, and the mailbox is known
MAKING_S = 60.0  # that is waited for a run to be made; a large file may take longer to be attached
LOOK_S = 0.1


def create_order(request: RunRequest) -> CreateRun:
    """The run, to be made by a worker. Raises UsageError."""
    run = request.run
    if isinstance(request.algorithm, FineTune):
        return new_finetuning(request.algorithm, name=run.name, attach=run.attach, adapter=request.adapter, share=run.share)
    return new_run(
        task=request.task,
        options=request.options,
        algorithm=request.algorithm,
        rounds=run.rounds,
        seed=run.seed,
        name=run.name,
        eval_every=run.eval_every,
        checkpoint_every=run.checkpoint_every,
        checkpoints_kept=run.keep_checkpoints,
        base_model=run.base_model,
        attach=run.attach,
        attach_model=run.attach_model,
        share=run.share,
    )


def orders(request: RunRequest, location: str, create: CreateRun) -> list[Learn]:
    """One for each learner that this machine is to run; the first makes the run. Raises UsageError."""
    workers = request.run.workers if request.join else 1
    if not create.share:
        create = msgspec.structs.replace(create, share=told_of(location))
    return learn_orders(
        location, create.run, workers, create=create, join=request.join, **msgspec.structs.asdict(request.learner)
    )


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a form of a new run opens with."""

    tasks: tuple[TaskForm, ...]  # by name
    broken: dict[str, str] = {}  # tasks that cannot be used here, with the reason
    mailbox: str = ""  # that is used unless another one is named; "": none is known
    method: str = ""  # the last one
    values: dict[str, dict[str, str]] = {}  # what stood in the fields the last time, by method; not checked yet


def opening() -> Opening:
    """Reads files, and imports tasks of other packages."""
    tasks = []
    for name in registry.names():
        task = registry.get(name)
        tasks.append(
            TaskForm(
                name=name,
                summary=task.summary,
                frameworks=tuple(task.frameworks),
                options=tuple(options(task.spec)),
                takes_model=registry.takes_model(task),
                package=registry.package_of(name),
            )
        )
    try:
        mailbox = settings.mailbox_location(None)
    except UsageError:
        mailbox = ""
    known = remembered.load()
    return Opening(tasks=tuple(tasks), broken=registry.broken(), mailbox=mailbox, method=known.method, values=known.values)


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    location: str  # of the mailbox
    run: str
    name: str
    joins: bool
    made: bool = True  # False: the worker is at it still


async def begin(
    method: Method, task: TaskForm | None, values: Mapping[str, str], *, mailbox: str = "", making_s: float = MAKING_S
) -> Begun:
    """Make a run, and have this machine's workers train in it in the background, if that is asked for. Returns when the run is
    made. `mailbox`: that is used unless `values` name another. Raises UsageError, MailboxError, WorkerFailed."""
    request = request_of(method, task, values)
    location = settings.mailbox_location(values.get(MAILBOX, "").strip() or mailbox or None)
    create = create_order(request)
    await check_new_name(location, create.name)
    first, *others = orders(request, location, create)
    typed = kept(method, task, values)
    remembered.save(method, {key: text for key, text in typed.items() if key not in _OF_ONE_RUN})
    with contextlib.suppress(UsageError):  # that it cannot be remembered ends nothing
        settings.remember_mailbox(location)
    made = await _made(first, making_s)
    for order in others:
        launcher.start(order, foreground=False)
    return Begun(location=location, run=create.run, name=create.name, joins=request.join, made=made)


async def _made(order: Learn, limit_s: float) -> bool:
    """Start the worker that makes the run, and see it made. False: it is at it still. Raises WorkerFailed with its words."""
    worker = launcher.start(order, foreground=False)
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        ended = worker.process.poll() is not None
        for event in worker.events.read():
            if isinstance(event, Created | Joined):
                return True
            if isinstance(event, Failed):
                raise WorkerFailed(event.message)
        if ended:
            raise WorkerFailed(launcher.last_words(worker.job))
        await asyncio.sleep(LOOK_S)
    return False
