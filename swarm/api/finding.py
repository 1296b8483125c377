"""Which runs there are, what is known of them, and whether they can be joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

from swarm.core.buckets import with_init
from swarm.core.errors import (
    FormatMismatch,
    MailboxCorrupt,
    MailboxMoved,
    MailboxUnavailable,
    RecordForged,
    RunEnded,
    RunError,
    RunNotFound,
    RunSigned,
    UsageError,
)
from swarm.core.manifest import Manifest
from swarm.core.rankview import spec_of
from swarm.core.sentences import plain
from swarm.core.state import RunState
from swarm.core.trust import Trust
from swarm.host import settings
from swarm.host.opening import mailbox_at
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.waiting import in_time
from swarm.manifests import check_may_write, read_manifest, run_ids
from swarm.tape import Tape
from swarm.tasks import registry
from swarm.watch import RunWatch, foreign, now_s


def settings_faults() -> tuple[str, ...]:
    """What is wrong with the settings file, a line each."""
    return settings.load()[1]


async def opened(location: str) -> Mailbox:
    """The mailbox there. Raises MailboxUnavailable when it does not answer in time, MailboxMoved when there is none."""
    mailbox = mailbox_at(location)
    try:
        await in_time(mailbox, mailbox.open())
    except MailboxMoved as error:
        raise MailboxMoved(with_init(str(error), location)) from None
    return mailbox


class Survey(NamedTuple):
    """The runs of a mailbox."""

    runs: list[Manifest]  # that this version can read
    faults: list[str]  # what is wrong with others
    ignored: dict[str, RecordForged]  # by id: those that this machine's passphrase did not sign
    foreign_formats: dict[str, FormatMismatch]  # by id: those of another version, which are among the faults

    @property
    def foreign(self) -> str:
        """'2 unsigned runs ignored'; '' if none is."""
        return foreign(self.ignored.values()).words


async def survey(location: str) -> tuple[list[Manifest], list[str]]:
    """(all runs in a mailbox that this version can read, what is wrong with the others)."""
    found = await surveyed(location)
    return found.runs, found.faults


async def surveyed(location: str) -> Survey:
    mailbox = await opened(location)
    found = Survey([], [], {}, {})
    for run in await in_time(mailbox, run_ids(mailbox)):
        try:
            found.runs.append(await in_time(mailbox, read_manifest(mailbox, run)))
        except RunNotFound:
            continue  # being made, or being deleted
        except RecordForged as error:
            found.ignored[run] = error
        except (RunError, MailboxCorrupt) as error:
            found.faults.append(str(error))
            if isinstance(error, FormatMismatch):
                error.run = run
                found.foreign_formats[run] = error
    return found


async def find_run(location: str, text: str) -> Manifest:
    """By name, id or an unambiguous prefix of either. Raises RunNotFound; for the id of a run that this machine's passphrase
    did not sign RunSigned; and for the name or the id of one of another version FormatMismatch."""
    found = await surveyed(location)
    every, faults, ignored = found.runs, found.faults, found.ignored
    exact = [m for m in every if text in (m.run, m.name)]
    fitting = exact or [m for m in every if text and (m.run.startswith(text) or m.name.startswith(text))]
    if len(fitting) == 1:
        return fitting[0]
    if not fitting and text in ignored:
        what = "is not signed" if ignored[text].unsigned else "is signed with another passphrase"
        raise RunSigned(f"run {text} {what}, and this machine has one: `swarm key show`; SWARM_KEY_FILE= leaves it out once")
    other = next((e for run, e in found.foreign_formats.items() if text in (run, e.name)), None)
    if not fitting and other is not None:
        raise other
    if not fitting:
        left_out = f"; {found.foreign}" if ignored else ""
        unreadable = f"; cannot be read: {'; '.join(faults[:3])}" if faults else ""
        raise RunNotFound(f"no run {text!r} in {location}; runs there: {_some(m.name for m in every)}{left_out}{unreadable}")
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


async def whole_run(location: str, text: str) -> RunState:
    """A run with all its rounds, found as `find_run` does. Raises RunNotFound, MailboxUnavailable if it cannot be read to its
    end."""
    manifest = await find_run(location, text)
    watch = RunWatch(location, manifest.run)
    state = await watch.poll()
    while watch.behind and not state.lost:
        await asyncio.sleep(0)
        state = await watch.poll()
    if state.manifest is None or state.lost:
        raise MailboxUnavailable(f"{manifest.name} could not be read to its end: {state.lost or 'no answer'}")
    return state


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
    """Raises RunEnded if the run was stopped or has all its rounds, RunSigned if this machine lacks its passphrase."""
    now = await RunWatch(location, manifest.run, history=False).poll()
    if now.phase in ("done", "stopped"):
        raise RunEnded(f"run {manifest.name} {ended(now)}: `swarm export`, or `swarm start` another one")
    if program := foreign_program(manifest):
        raise UsageError(f"run {manifest.name} {program}")
    check_may_write(manifest, now.trust)
    if now.halted:
        raise MailboxCorrupt(f"run {manifest.name} cannot go on: {now.lost}")


async def joinable(location: str) -> list[Manifest]:
    """Runs that are neither done nor stopped. Raises RunSigned if all of them need a passphrase that is not here."""
    found: list[Manifest] = []
    signed: list[tuple[Manifest, Trust]] = []
    for manifest in (await survey(location))[0]:
        now = await RunWatch(location, manifest.run, history=False).poll()
        if now.phase not in ("done", "stopped", "unknown") and not foreign_program(manifest):
            if now.trust.signed and not now.trust.fingerprint:
                signed.append((manifest, now.trust))
            else:
                found.append(manifest)
    if signed and not found:
        check_may_write(*signed[0])
    return found


def foreign_program(manifest: Manifest) -> str:
    """How a run is joined that no worker can join, after its name; '' for all others."""
    if manifest.task.name != registry.LIBRARY:
        return ""
    return "trains a program's own model: it is joined by starting that program here (swarm.Session)"


async def checkpoints(location: str, run: str) -> list[int]:
    """Rounds whose parameters are kept, oldest first."""
    store = await opened(location)
    return await in_time(store, Tape(store, await in_time(store, read_manifest(store, run))).checkpoints())


def ended(state: RunState) -> str:
    """How a run ended, after its name."""
    spec, end = spec_of(state), state.ranks.ending
    if state.phase == "stopped":
        return f"was stopped: {plain(end.reason, 200)}" if end is not None and end.reason else "was stopped"
    if spec is not None:
        return f"has made {'its one iteration' if spec.iters == 1 else f'all its {spec.iters} iterations'}"
    return f"has {'its one round' if state.open_round == 1 else f'all its {state.open_round} rounds'}"
