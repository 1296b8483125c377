"""The mailbox and the run that a program means: found, or made."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from swarm.core.buckets import NO_BUCKET, with_init
from swarm.core.errors import MailboxAway, MailboxCorrupt, RunConfigMismatch, RunError, RunNotFound, UsageError
from swarm.core.events import WorkerEvent
from swarm.core.fragments import fitted
from swarm.core.ids import is_learner_id
from swarm.core.manifest import Manifest, TaskRef
from swarm.core.naming import run_id_of
from swarm.core.options import differences
from swarm.core.specs import Algorithm
from swarm.exchange import create_run
from swarm.host.opening import mailbox_at
from swarm.host.settings import mailbox_location
from swarm.mailbox import init_mailbox
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.waiting import in_time
from swarm.manifests import manifest_sha256, read_manifest, read_to_write, run_ids
from swarm.runtime.patience import Patience
from swarm.tape import nonce
from swarm.tasks.registry import LIBRARY
from swarm.tensors.schema import Schema, check_equal

if TYPE_CHECKING:
    from swarm.exchange import Tensors

Place: TypeAlias = str | Path | Mailbox | None
"""A folder, a Mailbox, or None: SWARM_MAILBOX, else the one that was last used on this machine."""


class SeveralRuns(RunNotFound):
    """A name that several runs have."""


def check_name(name: str, what: str) -> str:
    """`name`. Raises UsageError if it is none for a run, a queue, a slice or a barrier."""
    if not is_learner_id(name):
        raise UsageError(f"{name!r} is no name for a {what}: 1 to 64 of a-z, 0-9 and '-', and no Windows device name")
    return name


async def opened(place: Place, *, create: bool = False) -> Mailbox:
    """The mailbox there; with `create` an empty or missing folder becomes one. Raises MailboxAway if there is none,
    MailboxUnavailable if it does not answer, UsageError."""
    if place is not None and not isinstance(place, (str, Path)):
        await in_time(place, place.open())
        return place
    location = mailbox_location(None if place is None else str(place))
    mailbox = mailbox_at(location)
    try:
        await in_time(mailbox, mailbox.open())
    except MailboxAway as error:
        if not create:
            make = "" if NO_BUCKET in str(error) else ", and so does create_mailbox=True"
            raise MailboxAway(f"{with_init(str(error), location)}{make}") from None
        await in_time(mailbox, init_mailbox(location))
        await in_time(mailbox, mailbox.open())
    return mailbox


async def found(mailbox: Mailbox, name: str) -> Manifest:
    """The run of that name or id. Raises RunNotFound, RunSigned."""
    try:
        manifest = await read_to_write(mailbox, run_id_of(name))
        if manifest.name == name:
            return manifest
    except RunNotFound:
        pass
    every: list[Manifest] = []
    for run in await run_ids(mailbox):
        try:
            every.append(await read_manifest(mailbox, run))
        except (RunError, MailboxCorrupt):  # of another version, damaged, or being made: not the one that is meant, as far as
            continue  # can be told
    fitting = [manifest for manifest in every if name in (manifest.run, manifest.name)]
    if len(fitting) == 1:
        return await read_to_write(mailbox, fitting[0].run)
    if fitting:
        raise SeveralRuns(f"{name!r} fits several runs: pass an id: {', '.join(sorted(m.run for m in fitting))}")
    names = ", ".join(sorted(m.name for m in every)[:5]) or "none"
    raise RunNotFound(f"no run {name!r} in {mailbox.location}; runs there: {names}")


async def looked_up(mailbox: Mailbox, name: str, emit: Callable[[WorkerEvent], None]) -> Manifest | RunNotFound:
    """The run of that name or id; what was wrong if there is none. Waits for a share that is away."""

    async def look() -> Manifest | RunNotFound:
        try:
            return await found(mailbox, name)
        except SeveralRuns:
            raise
        except RunNotFound as error:
            return error

    return await Patience(mailbox, emit).through(look)


async def mark_of(mailbox: Mailbox, run: str, emit: Callable[[WorkerEvent], None]) -> str:
    """The SHA-256 of the run's manifest. Waits for a share that is away."""
    return await Patience(mailbox, emit).through(functools.partial(manifest_sha256, mailbox, run))


async def made(mailbox: Mailbox, draft: Manifest, theta: Tensors, emit: Callable[[WorkerEvent], None]) -> tuple[Manifest, bool]:
    """(the run, whether it was made now): of several that start at once one makes it, with its `theta`, by name, as Θ⁰.
    Waits for a share that is away."""
    init = [{name: theta[name] for name in names} for names in draft.plan]

    make = functools.partial(create_run, mailbox, draft, init, nonce=nonce())
    return await Patience(mailbox, emit).through(make)


def draft(
    name: str,
    *,
    options: Mapping[str, int | str],
    schema: Schema,
    algorithm: Algorithm,
    rounds: int | None,
    seed: int,
    evaluates: bool,
    checkpoint_every: int,
    created_by: str,
) -> Manifest:
    """A run to be made. `options`: what else of the program's model and data is told. Raises UsageError."""
    try:
        return Manifest(
            run=run_id_of(name),
            name=name,
            algorithm=fitted(algorithm, schema),
            task=TaskRef(name=LIBRARY, options=dict(options)),
            tensors=tuple(schema),
            schema_sha256=schema.digest,
            init=(),
            rounds=rounds,
            seed=seed,
            eval_every=1 if evaluates else 0,
            checkpoint_every=checkpoint_every,
            created_by=created_by,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_fits(
    manifest: Manifest, *, schema: Schema, algorithm: Algorithm | None, rounds: int | None, others: Iterable[str] = ()
) -> None:
    """Raises SchemaMismatch naming every parameter, RunConfigMismatch naming every field in which the run is another one than
    is meant here; what is None here is as the run has it. `algorithm`: of the run's kind. `others`: differences that were found
    elsewhere."""
    check_equal(schema, Schema(manifest.tensors))
    differing = []
    if algorithm is not None:  # both as they are with these parameters: a run that another version made may say what was asked
        differing = differences(fitted(algorithm, schema), fitted(manifest.algorithm, schema))
    if rounds is not None and rounds != manifest.rounds:
        differing.append(f"rounds is {rounds} here, {manifest.rounds} in the run")
    if differing := [*differing, *others]:
        raise RunConfigMismatch(differing)
