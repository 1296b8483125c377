"""`swarm join --wait`: this machine stands by, and takes part in runs as they appear."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast, get_args

import click
import msgspec

from swarm.cli.common import LearnerChoice, put, say
from swarm.core.errors import INTERRUPTED, SwarmError, UsageError
from swarm.core.events import WorkerEvent
from swarm.core.sentences import sentence
from swarm.core.specs import Algorithm
from swarm.core.standby import Rules, size
from swarm.core.standbywords import RunGivenUp, Told, WorkerLost, words

F = TypeVar("F", bound=Callable[..., Any])
METHODS = tuple(str(each.__struct_config__.tag) for each in get_args(Algorithm))
LAST_LINES = 8  # of a crashed worker's log, in the log of this
NICE = 10  # of what trains without anybody having asked for it at that moment


class RulesChoice(TypedDict):
    """What a person says of the runs that a machine which stands by is to join."""

    only: tuple[str, ...]
    methods: tuple[str, ...]
    max_memory: str | None


def rule_options(command: F) -> F:
    """Options that say which runs are joined, which `command` gets as one `rules`."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        return command(rules={name: given.pop(name) for name in RulesChoice.__annotations__}, **given)

    decorated: Any = gathered
    every = (
        click.option(
            "--only",
            metavar="NAME",
            multiple=True,
            help="With --wait: only runs of this name or id; * and ? match others.",
        ),
        click.option(
            "--method", "methods", type=click.Choice(METHODS), multiple=True, help="With --wait: only runs of this method."
        ),
        click.option(
            "--max-memory", metavar="SIZE", help="With --wait: only runs that need about so much memory at most, as in 8G."
        ),
    )
    for option in reversed(every):
        decorated = option(decorated)
    return cast(F, decorated)


def waiting_options(command: F) -> F:
    """`--wait`, and the rules that go with it."""
    wait = click.option(
        "--wait",
        is_flag=True,
        help="Stand by: join runs as they appear, one at a time, until told to end.",
    )
    return wait(rule_options(command))


def check_waiting(*, detach: bool, workers: int, check: bool, mounts: bool) -> None:
    """Raises UsageError for options that do not go with --wait."""
    if detach:
        raise UsageError("--wait and --detach do not go together: `swarm service install` stands by in the background")
    if check or mounts:
        raise UsageError(
            f"--wait and {'--check' if check else '--mount'} do not go together: what is not mounted is waited for"
        )
    if workers > 1:
        raise UsageError("--wait and --workers do not go together: a machine that stands by is one learner")


def check_no_rules(rules: RulesChoice) -> None:
    """Raises UsageError for rules without --wait."""
    given = {"--only": rules["only"], "--method": rules["methods"], "--max-memory": rules["max_memory"]}
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} goes with --wait")


def rules_of(choice: RulesChoice, run: str | None = None) -> Rules:
    """`run`: the one that is waited for, by its name or id. Raises UsageError."""
    try:
        most = None if choice["max_memory"] is None else size(choice["max_memory"])
    except ValueError as error:
        raise UsageError(f"--max-memory: {error}") from None
    only = (*choice["only"], *([] if run is None else [run]))
    return Rules(only=only, methods=choice["methods"], memory_bytes=most)


def standing(learner: LearnerChoice) -> LearnerChoice:
    """With the nice level of a machine that stands by, unless a person or the settings say another one."""
    from swarm.host import settings

    nice = settings.load()[0].nice if learner["nice"] is None else learner["nice"]
    return {**learner, "nice": NICE if nice is None else nice}


def stand_by(choice: RulesChoice, *, run: str | None, learner: LearnerChoice, mailbox: str | None, as_json: bool) -> int:
    """Until told to end; the exit code."""
    from swarm import api, launcher, standby
    from swarm.cli import narrate

    for fault in api.settings_faults():
        say(fault)
    rules = rules_of(choice, run)
    learner = standing(learner)
    location = None if mailbox is None else api.mailbox_location(mailbox)
    order = api.learn_order(location or "", "none", **learner)  # what is wrong with it is said before anything is waited for
    manners = api.manners(order.owner, order.nice)
    log = standby.Log()
    log.open()
    progress = narrate.Progress()

    def tell(event: Told) -> None:
        line = words(event)
        progress.clear()
        say(line)
        log(line)
        if isinstance(event, WorkerLost | RunGivenUp) and event.log:
            for last in launcher.log_tail(Path(event.log), LAST_LINES):
                log(f"  | {last}")
        if as_json:
            put(event)

    def heard(run: str, event: WorkerEvent) -> None:
        narrate.tell(event, progress)
        line = sentence(event)
        if line is not None:
            log(line)
        if as_json:
            put({"run": run, **msgspec.to_builtins(event)})

    owner = "" if manners is None else manners.words
    machine = standby.Standby(
        rules,
        learner,
        mailbox=location,
        owner=owner,
        held=api.held_by(order.owner) if order.owner else None,
        tell=tell,
        heard=heard,
    )
    with narrate.asked_to_leave(machine.workers) as asked:
        try:
            asyncio.run(machine.run(asked))
        except SwarmError as error:
            log(f"swarm: {error}")
            raise
    return INTERRUPTED
