"""`swarm start METHOD`. The options of a method derive from its spec class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from swarm import api
from swarm.cli.common import LearnerChoice, json_option, learner_options, mailbox_option, remember, wait_for, where
from swarm.core.errors import UsageError
from swarm.core.options import options
from swarm.core.specs import DiLoCo

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def start() -> None:
    """Start a run, and train in it.

    The worker runs in the foreground; --detach leaves it in the background, --no-join only makes the run.
    """


def spec_options(spec: type[DiLoCo]) -> Callable[[F], F]:
    """A click option for every field of a spec class."""

    def decorate(command: F) -> F:
        for option in reversed(list(options(spec))):
            kind: Any = click.Choice(option.choices, case_sensitive=False) if option.choices else option.type
            flag, default = f"--{option.name.replace('_', '-')}", option.default
            if option.type is bool:
                flag, default = f"{flag}/--no-{flag[2:]}", flag[2:] if default else f"no-{flag[2:]}"
            command = click.option(
                flag,
                option.name,
                type=kind,
                default=None,
                help=option.help + ("" if default is None else f"  [default: {default}]"),
            )(command)
        return command

    return decorate


@start.command()
@click.option(
    "--task", default="charlm", show_default=True, metavar="TASK", help="What to train: charlm, mlp, or one installed."
)
@click.option(
    "-o", "--option", "task_options", multiple=True, metavar="KEY=VALUE", help="An option of the task; may be repeated."
)
@click.option("--rounds", type=click.IntRange(1), help="Rounds that the run has; by default it goes on until it is stopped.")
@click.option("--name", help="Name of the run; by default the task and two words.")
@click.option("--seed", type=click.IntRange(0), help="Seed of model and data; by default a random one.")
@click.option(
    "--eval-every",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Turns through all fragments per evaluation; 0: none.",
)
@click.option(
    "--checkpoint-every",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Turns through all fragments after which the parameters are kept for good; 0: never.",
)
@click.option("--keep-checkpoints", type=click.IntRange(1), default=3, show_default=True, help="How many of these are kept.")
@click.option(
    "--attach/--no-attach",
    default=None,
    help="Put the file of --data into the mailbox, for those who join; by default if it is under 1 GiB.",
)
@click.option(
    "--base-model",
    metavar="FILE",
    help="A Safetensors file with the parameters that the run begins with, as `swarm export` writes it; by default they are "
    "freshly initialised.",
)
@click.option("--no-join", is_flag=True, help="Only make the run.")
@click.option("--detach", is_flag=True, help="Train in the background; `swarm jobs` shows it.")
@spec_options(DiLoCo)
@learner_options
@mailbox_option
@json_option
def diloco(
    task: str,
    task_options: tuple[str, ...],
    rounds: int | None,
    name: str | None,
    seed: int | None,
    eval_every: int,
    checkpoint_every: int,
    keep_checkpoints: int,
    attach: bool | None,
    base_model: str | None,
    no_join: bool,
    detach: bool,
    learner: LearnerChoice,
    mailbox: str | None,
    as_json: bool,
    **fields: Any,
) -> int:
    """DiLoCo: learners train on their own and average what they learned every --sync-every steps (arXiv:2311.08105)."""
    from swarm.cli import narrate

    given = {key: value for key, value in fields.items() if value is not None}
    try:
        algorithm = DiLoCo(**given)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if attach and learner["data"] is None:
        raise UsageError("--attach needs a file: pass it with --data FILE")
    location = where(mailbox)
    create = api.new_run(
        task=task,
        options=parsed(task_options),
        algorithm=algorithm,
        rounds=rounds,
        seed=seed,
        name=name,
        eval_every=eval_every,
        checkpoint_every=checkpoint_every,
        checkpoints_kept=keep_checkpoints,
        base_model=base_model,
        attach=attach,
    )
    wait_for(api.check_new_name(location, create.name))
    remember(location)
    order = api.learn_order(
        location,
        create.run,
        create=create,
        join=not no_join,
        **learner,
    )
    if detach and not no_join:
        return narrate.detach(order, name=create.name, as_json=as_json)
    return narrate.follow(order, as_json=as_json)


def parsed(pairs: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE pairs. Raises UsageError."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"-o {pair!r} is not KEY=VALUE")
        found[key.replace("-", "_")] = value
    return found
