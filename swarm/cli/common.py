"""What several commands share: options, output, and running a coroutine."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypedDict, TypeVar, cast

import click

from swarm.cli import INTERRUPTS
from swarm.cli.aside import end_now
from swarm.cli.specoptions import job_option
from swarm.core.errors import INTERRUPTED, UsageError
from swarm.core.joboptions import LearnerOptions, OwnerOptions, RunOptions
from swarm.core.records import Role
from swarm.core.sentences import plain

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

mailbox_option = click.option(
    "--mailbox", metavar="DIR", help="The mailbox: a folder or s3:// URL; else SWARM_MAILBOX, else the last one."
)
share_option = job_option(RunOptions, "share")
peers_option = click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="HOST[:PORT]",
    help="A machine to ask for runs, too, where multicast does not get through; not with --mailbox.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object a line on stdout.")
workers_option = job_option(RunOptions, "workers")


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


_OWNER = tuple(OwnerChoice.__annotations__)
_LEARNER = ("learner_id", "framework", "device", "data", "model", "adapter_path", "interface", "role", "threads")


def owner_options(command: F) -> F:
    """Options that put a machine's owner first, which `command` gets as one `owner`."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        return command(owner={name: given.pop(name) for name in OwnerChoice.__annotations__}, **given)

    decorated: Any = gathered
    for name in reversed(_OWNER):
        decorated = job_option(OwnerOptions, name)(decorated)
    return cast(F, decorated)


def learner_options(command: F, *, but: tuple[str, ...] = ()) -> F:
    """Options of everything that starts a worker, which `command` gets as one `learner`; those in `but` are None there."""

    @functools.wraps(command)
    def gathered(**given: Any) -> Any:
        learner = {name: None if name in but else given.pop(name) for name in LearnerChoice.__annotations__}
        return command(learner=learner, **given)

    decorated: Any = gathered
    for name in reversed((*_LEARNER, *_OWNER)):
        if name not in but:
            decorated = job_option(LearnerOptions, name)(decorated)
    return cast(F, decorated)


def command_words(command: str) -> list[str]:
    """Of what `--notify` was given, as a shell would take it apart. Raises UsageError."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--notify: {error}") from None
    if not words:
        raise UsageError("--notify: no command is given")
    return words


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


def wait_for(work: Coroutine[Any, Any, T], *, asks: str = "") -> T:
    """Run a coroutine; Ctrl-C cancels it, and a second one ends the process there and then. Of a mailbox that does not answer
    it says once that it is waited for. `asks`: where the whole of it is one question, of which nothing else knows how old."""
    from swarm.mailbox.waiting import SILENT_S, on_silence

    told = False

    def tell(location: str) -> None:
        nonlocal told
        if not told:
            told = True
            say(f"waiting for {plain(location, 300)} to answer (Ctrl-C ends this)")

    async def telling() -> T:
        on_silence.set(tell)
        if asks:
            asyncio.get_running_loop().call_later(SILENT_S, tell, asks)
        return await work

    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(telling())
    with _Interrupts() as interrupts:
        return asyncio.run(interrupts.cancelling(telling()))


class _Interrupts:
    """What Ctrl-C does to a coroutine, and what ends a job from outside as Ctrl-C does. asyncio's own way, a KeyboardInterrupt
    out of wherever it is, leaves tasks that complain."""

    def __init__(self) -> None:
        self._came = False
        self._cancel: Callable[[], object] | None = None
        self._numbers: list[int] = []

    def __enter__(self) -> _Interrupts:
        for number in INTERRUPTS:
            if signal.getsignal(number) is signal.default_int_handler:
                signal.signal(number, self._interrupted)
                self._numbers.append(number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            signal.signal(number, signal.default_int_handler)

    def _interrupted(self, *_: object) -> None:
        if self._came:
            with contextlib.suppress(OSError):
                os.write(2, b"\nswarm: interrupted\n")
            end_now(INTERRUPTED)
        self._came = True
        if self._cancel is None:
            raise KeyboardInterrupt
        self._cancel()

    async def cancelling(self, work: Coroutine[Any, Any, T]) -> T:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        self._cancel = functools.partial(loop.call_soon_threadsafe, task.cancel)
        try:
            return await task
        except asyncio.CancelledError:
            if self._came:
                raise KeyboardInterrupt from None
            raise


def confirm(question: str, *, yes: bool) -> None:
    """Go on only if a person agrees, or `yes` says so. Raises UsageError where nobody can be asked."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can be asked here: --yes says so")
    if not click.confirm(question, err=True):
        raise click.exceptions.Exit(1)
