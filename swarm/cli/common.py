"""What several commands share: options, output, and running a coroutine."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypedDict, TypeVar, cast, get_args

import click

from swarm.core.errors import UsageError
from swarm.core.records import Role
from swarm.core.sentences import plain

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

mailbox_option = click.option("--mailbox", metavar="DIR", help="The mailbox; else SWARM_MAILBOX, else the one last used.")
share_option = click.option(
    "--share",
    metavar="URL",
    help="Where other machines mount the folder that holds the mailbox, as smb://nas/swarm: those that have not yet are told.",
)
peers_option = click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="HOST[:PORT]",
    help="A machine to ask for runs, too, where multicast does not get through; not with --mailbox.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
workers_option = click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Learners on this machine, each a process of its own: ID, ID-2, ….",
)


class OwnerChoice(TypedDict):
    """What a person says of how a worker treats whoever owns its machine: arguments of `api.learn_order`."""

    idle_only: bool | None
    on_ac_only: bool | None
    hours: str | None
    nice: int | None


class LearnerChoice(OwnerChoice):
    """What a person says of the learner that a worker is to be: arguments of `api.learn_order`."""

    learner_id: str | None
    framework: str
    device: str
    data: str | None
    model: str | None
    adapter_path: str | None
    interface: str | None
    role: Role
    threads: int | None


def _owner_options() -> dict[str, Callable[[F], F]]:
    return {
        "idle_only": click.option(
            "--idle-only/--no-idle-only",
            default=None,
            help="Train only while nobody is at this machine's keyboard: hold still within seconds, go on by itself. By "
            "default as the settings have it, like the three that follow.",
        ),
        "on_ac_only": click.option(
            "--on-ac-only/--no-on-ac-only", default=None, help="Train only on mains power, not on battery."
        ),
        "hours": click.option(
            "--hours", metavar="FROM-TO", help="Train only at this time of the day, as in 22-7 or 22:30-7,12-13; local time."
        ),
        "nice": click.option(
            "--nice",
            type=click.IntRange(0, 19),
            help="The higher, the more other programs come first; by default 0, and 10 with --wait.",
        ),
    }


def owner_options(command: F) -> F:
    """Options that put a machine's owner first, which `command` gets as one `owner`."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        return command(owner={name: given.pop(name) for name in OwnerChoice.__annotations__}, **given)

    decorated: Any = gathered
    for option in reversed(_owner_options().values()):
        decorated = option(decorated)
    return cast(F, decorated)


def learner_options(command: F, *, but: tuple[str, ...] = ()) -> F:
    """Options of everything that starts a worker, which `command` gets as one `learner`; those in `but` are None there."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        learner = {name: None if name in but else given.pop(name) for name in LearnerChoice.__annotations__}
        return command(learner=learner, **given)

    decorated: Any = gathered
    every = {
        "learner_id": click.option(
            "--learner-id", metavar="ID", help="Name of this learner in the run; by default the host's name."
        ),
        "framework": click.option(
            "--framework",
            type=click.Choice(["auto", "torch", "mlx"]),
            default="auto",
            show_default=True,
            help="What to train with.",
        ),
        "device": click.option(
            "--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, mps, metal, cuda or cuda:N."
        ),
        "data": click.option("--data", metavar="FILE", help="The task's data, if it is not the shipped one: a file or folder."),
        "model": click.option(
            "--model",
            metavar="DIR|REPO",
            help="Of a run that fine-tunes a model: where it is on this machine, a folder or a Hugging Face repository.",
        ),
        "adapter_path": click.option(
            "--adapter-path", metavar="DIR", help="Of an MLX-LM fine-tuning: where this machine is to write the adapter."
        ),
        "interface": click.option(
            "--interface",
            metavar="NAME",
            help="The network interface over which machines find each other, as en0, and an MLX-LM fine-tuning exchanges; by "
            "default the best.",
        ),
        "role": click.option(
            "--role",
            type=click.Choice(get_args(Role)),
            default="both",
            show_default=True,
            help="both: train and close rounds; learner: train only; syncer: close rounds only, which needs no framework; "
            "either: train, and close rounds while no syncer is live.",
        ),
        "threads": click.option(
            "--threads", type=click.IntRange(1), help="CPU threads of the framework; by default as it likes."
        ),
        **_owner_options(),
    }
    for name, option in reversed(every.items()):
        if name not in but:
            decorated = option(decorated)
    return cast(F, decorated)


def check_peers(peers: Sequence[str], mailbox: str | None) -> None:
    """Raises UsageError for addresses that are none, and where none would be asked."""
    from swarm.advertising import discovers
    from swarm.network.hello import parse_target

    for each in peers:
        parse_target(each)
    if peers and mailbox is not None:
        raise UsageError("--peer asks the network, and --mailbox names the only place to look: give one of them")
    if peers and not discovers():
        raise UsageError("--peer asks nobody while discovery is off (SWARM_DISCOVERY, or the settings)")


def where(mailbox: str | None) -> str:
    """The mailbox's location. What is wrong with the settings, which may name it, is said first."""
    from swarm import api

    for fault in api.settings_faults():
        say(fault)
    return api.mailbox_location(mailbox)


def remember(location: str) -> None:
    """For the next command. That it cannot be remembered ends nothing."""
    from swarm.host.settings import remember_mailbox

    try:
        remember_mailbox(location)
    except UsageError as error:
        say(f"the mailbox is not remembered: {error}")


def say(text: str) -> None:
    """Narration: to stderr."""
    print(text, file=sys.stderr, flush=True)


def put(record: Any) -> None:
    """Data: one JSON object a line, to stdout. Infinities and NaN, which JSON has not, become null."""
    import msgspec

    text = msgspec.json.encode(record, enc_hook=str).decode()
    # JSON leaves C1 controls, directions and the like as they are, which a terminal would obey: all but ASCII is escaped.
    sys.stdout.write("".join(c if " " <= c <= "~" else json.dumps(c)[1:-1] for c in text) + "\n")
    sys.stdout.flush()


def asked_by(machine: str) -> str:
    """' by studio'; '' if it is not known who."""
    return f" by {plain(machine, 64)}" if machine else ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart."""
    lines = [list(headings), *[[plain(cell) for cell in row] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; Ctrl-C ends it at once, whatever the share does."""
    return asyncio.run(work)


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if a person agrees, or `yes` says so. Raises UsageError where nobody can be asked."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked here: --yes says so")
    if not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)
