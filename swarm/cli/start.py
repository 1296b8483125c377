"""`swarm start METHOD`. The options of a method derive from its spec class."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, cast

import click

from swarm.cli.begin import begin
from swarm.cli.common import LearnerChoice, json_option, learner_options, mailbox_option, workers_option
from swarm.cli.finetune import mlx_lm
from swarm.cli.jobfile import job_file_option, tables_of
from swarm.cli.specoptions import job_option, spec_options
from swarm.core.errors import UsageError
from swarm.core.joboptions import TASKS, TURNS, LearnerOptions, RunOptions
from swarm.core.options import options
from swarm.core.request import in_rounds
from swarm.core.specs import ByRounds, DiLoCo, FedAvg

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def start() -> None:
    """Start a run, and train in it.

    The worker runs in the foreground; --detach leaves it in the background, --no-join only makes the run.
    """


RUN_OPTIONS = tuple(option.name for option in options(RunOptions) if option.name != "workers")


class JobChoice(TypedDict):
    """What a person says of a run, whatever its method."""

    task: str
    task_options: tuple[str, ...]
    rounds: int | None
    name: str | None
    seed: int | None
    eval_every: int
    checkpoint_every: int
    keep_checkpoints: int
    attach: bool | None
    attach_model: bool
    base_model: str | None
    share: str | None
    no_join: bool
    detach: bool
    workers: int


def job_options(*, task: str, tasks: str, turn: str) -> Callable[[F], F]:
    """Options of every method, which the command gets as one `job`. `task`: the default; `tasks`: those that swarm brings along
    for the method; `turn`: what evaluations and checkpoints are counted in."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def gathered(**given: Any) -> Any:
            job = {name: given.pop(name) for name in JobChoice.__annotations__}
            return command(job=job, **given)

        decorated: Any = gathered
        for option in reversed(
            [
                job_file_option,
                click.option(
                    "--task",
                    default=task,
                    show_default=True,
                    metavar="TASK",
                    help=f"What to train: {tasks}, or one installed.",
                ),
                click.option(
                    "-o",
                    "--option",
                    "task_options",
                    multiple=True,
                    metavar="KEY=VALUE",
                    help="An option of the task; may be repeated.",
                ),
                *(job_option(RunOptions, name, turn=turn) for name in RUN_OPTIONS),
                click.option("--no-join", is_flag=True, help="Only make the run."),
                click.option("--detach", is_flag=True, help="Train in the background; `swarm jobs` shows it."),
                workers_option,
            ]
        ):
            decorated = option(decorated)
        return cast(F, decorated)

    return decorate


@start.command()
@job_options(task=TASKS["diloco"], tasks="charlm, mlp, lenet5, lora", turn=TURNS["diloco"])
@spec_options(DiLoCo)
@functools.partial(learner_options, but=("adapter_path",))
@mailbox_option
@json_option
def diloco(*, job: JobChoice, learner: LearnerChoice, mailbox: str | None, as_json: bool, **fields: Any) -> int:
    """DiLoCo: learners train on their own and average what they learned every --sync-every steps (arXiv:2311.08105)."""
    return _start(_spec(DiLoCo, fields), job=job, learner=learner, mailbox=mailbox, as_json=as_json)


def _clients(value: Any) -> int | str:
    """How many logical clients, or 'private'."""
    if value == "private":
        return str(value)
    try:
        return int(value)
    except (TypeError, ValueError):
        raise click.BadParameter(f"{value!r} is neither a number nor 'private'") from None


# `threads` is a word about every learner, this machine's included; `private` is said by --clients.
@start.command()
@job_options(task=TASKS["fedavg"], tasks="lenet5, lora", turn=TURNS["fedavg"])
@click.option(
    "--clients",
    type=_clients,
    metavar="N|private",
    help=f"{next(o.help for o in options(FedAvg) if o.name == 'clients').partition(';')[0]}; private: "
    f"{next(o.help for o in options(FedAvg) if o.name == 'private')}  [default: {FedAvg().clients}]",
)
@spec_options(FedAvg, but=("clients", "private"))
@click.option(
    "--optimizer-option",
    "optimizer_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of the framework's own optimizer, under its own name; may be repeated.",
)
@functools.partial(learner_options, but=("threads", "adapter_path"))
@mailbox_option
@json_option
def fedavg(
    *,
    job: JobChoice,
    learner: LearnerChoice,
    mailbox: str | None,
    as_json: bool,
    clients: int | str | None,
    optimizer_options: tuple[str, ...],
    **fields: Any,
) -> int:
    """FedAvg: in every round some of the clients, each with data of its own, are trained by whoever takes part, and what they
    learned is averaged by their samples (arXiv:1602.05629)."""
    if clients is not None:
        fields |= {"private": True} if clients == "private" else {"clients": clients}
    native = {**tables_of("optimizer-options"), **{k: _value(v) for k, v in _pairs("--optimizer-option", optimizer_options)}}
    algorithm = _spec(FedAvg, fields | ({"native": native} if native else {}))
    return _start(algorithm, job=job, learner=learner, mailbox=mailbox, as_json=as_json)


A = TypeVar("A", DiLoCo, FedAvg)


def _spec(kind: type[A], fields: Mapping[str, Any]) -> A:
    try:
        return kind(**{key: value for key, value in fields.items() if value is not None})
    except ValueError as error:
        raise UsageError(str(error)) from None


start.add_command(mlx_lm)


def _start(algorithm: ByRounds, *, job: JobChoice, learner: LearnerChoice, mailbox: str | None, as_json: bool) -> int:
    request = in_rounds(
        algorithm,
        task=job["task"],
        options={**_strings(tables_of("options")), **parsed(job["task_options"])},
        run=RunOptions(**{name: job[name] for name in (*RUN_OPTIONS, "workers")}),  # type: ignore[literal-required]
        learner=LearnerOptions(**learner),  # type: ignore[arg-type]
        join=not job["no_join"],
    )
    return begin(request, mailbox=mailbox, detach=job["detach"], as_json=as_json)


def parsed(pairs: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE pairs. Raises UsageError."""
    return {key.replace("-", "_"): value for key, value in _pairs("-o", pairs)}


def _pairs(option: str, pairs: tuple[str, ...]) -> list[tuple[str, str]]:
    found = []
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"{option} {pair!r} is not KEY=VALUE")
        found.append((key, value))
    return found


def _strings(table: Mapping[str, Any]) -> dict[str, str]:
    """Task options of a file, as they would stand on a command line."""
    return {
        key.replace("-", "_"): str(value).lower() if isinstance(value, bool) else str(value) for key, value in table.items()
    }


def _value(text: str) -> int | float | str | bool:
    """A number or a truth value if it reads as one."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
