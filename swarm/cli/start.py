"""`swarm start METHOD`. The options of a method derive from its spec class."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, cast

import click

from swarm import api
from swarm.cli.common import (
    LearnerChoice,
    json_option,
    learner_options,
    mailbox_option,
    remember,
    share_option,
    wait_for,
    where,
    workers_option,
)
from swarm.cli.finetune import mlx_lm
from swarm.cli.jobfile import job_file_option, tables_of
from swarm.cli.specoptions import spec_options
from swarm.core.errors import UsageError
from swarm.core.options import options
from swarm.core.specs import Algorithm, DiLoCo, FedAvg

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def start() -> None:
    """Start a run, and train in it.

    The worker runs in the foreground; --detach leaves it in the background, --no-join only makes the run.
    """


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
                click.option(
                    "--rounds",
                    type=click.IntRange(1),
                    help="Rounds that the run has; by default it goes on until it is stopped.",
                ),
                click.option("--name", help="Name of the run; by default the task and two words."),
                click.option("--seed", type=click.IntRange(0), help="Seed of model and data; by default a random one."),
                click.option(
                    "--eval-every",
                    type=click.IntRange(0),
                    default=1,
                    show_default=True,
                    help=f"{turn} per evaluation; 0: none.",
                ),
                click.option(
                    "--checkpoint-every",
                    type=click.IntRange(0),
                    default=0,
                    show_default=True,
                    help=f"{turn} after which the parameters are kept for good; 0: never.",
                ),
                click.option(
                    "--keep-checkpoints",
                    type=click.IntRange(1),
                    default=3,
                    show_default=True,
                    help="How many of these are kept.",
                ),
                click.option(
                    "--attach/--no-attach",
                    default=None,
                    help="Put the file of --data into the mailbox, for those who join; by default if it is under 1 GiB.",
                ),
                click.option(
                    "--attach-model",
                    is_flag=True,
                    help="Put the model of --model into the mailbox, for those who join and do not have it.",
                ),
                click.option(
                    "--base-model",
                    metavar="FILE",
                    help="A Safetensors file with the parameters that the run begins with, as `swarm export` writes it; by "
                    "default they are freshly initialised.",
                ),
                share_option,
                click.option("--no-join", is_flag=True, help="Only make the run."),
                click.option("--detach", is_flag=True, help="Train in the background; `swarm jobs` shows it."),
                workers_option,
            ]
        ):
            decorated = option(decorated)
        return cast(F, decorated)

    return decorate


@start.command()
@job_options(task="charlm", tasks="charlm, mlp, lenet5, lora", turn="Turns through all fragments")
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
@job_options(task="lenet5", tasks="lenet5, lora", turn="Rounds")
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
    learner["threads"] = algorithm.threads
    if algorithm.model_seed is not None:
        if job["seed"] not in (None, algorithm.model_seed):
            raise UsageError("--seed and --model-seed both say how the fresh model is drawn: give one of them")
        job["seed"] = algorithm.model_seed
    return _start(algorithm, job=job, learner=learner, mailbox=mailbox, as_json=as_json)


A = TypeVar("A", DiLoCo, FedAvg)


def _spec(kind: type[A], fields: Mapping[str, Any]) -> A:
    try:
        return kind(**{key: value for key, value in fields.items() if value is not None})
    except ValueError as error:
        raise UsageError(str(error)) from None


start.add_command(mlx_lm)


def _start(algorithm: Algorithm, *, job: JobChoice, learner: LearnerChoice, mailbox: str | None, as_json: bool) -> int:
    from swarm.cli import narrate

    if job["attach"] and learner["data"] is None:
        raise UsageError("--attach needs a file: pass it with --data FILE")
    if job["attach_model"] and learner["model"] is None:
        raise UsageError("--attach-model needs a model: pass it with --model")
    if isinstance(algorithm, FedAvg) and algorithm.private and job["workers"] > 1:
        raise UsageError("private clients have data of their own, each learner its own: --workers would give all the same")
    location = where(mailbox)
    create = api.new_run(
        task=job["task"],
        options={**_strings(tables_of("options")), **parsed(job["task_options"])},
        algorithm=algorithm,
        rounds=job["rounds"],
        seed=job["seed"],
        name=job["name"],
        eval_every=job["eval_every"],
        checkpoint_every=job["checkpoint_every"],
        checkpoints_kept=job["keep_checkpoints"],
        base_model=job["base_model"],
        attach=job["attach"],
        attach_model=job["attach_model"],
        share=job["share"],
    )
    wait_for(api.check_new_name(location, create.name))
    remember(location)
    workers = 1 if job["no_join"] else job["workers"]
    orders = api.learn_orders(location, create.run, workers, create=create, join=not job["no_join"], **learner)
    if job["detach"] and not job["no_join"]:
        return narrate.detach(orders, name=create.name, as_json=as_json)
    return narrate.follow(orders, as_json=as_json)


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
