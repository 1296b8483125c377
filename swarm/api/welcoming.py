"""The first start: what this machine has, whether a folder would do as a mailbox, and all of it set up once a person agrees."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec

from swarm import launcher
from swarm.api.steering import learn_order, new_run
from swarm.core.errors import MailboxError, RunNotFound, UsageError, WorkerFailed
from swarm.core.mounts import is_share
from swarm.core.sentences import plain
from swarm.core.specs import DiLoCo
from swarm.core.ticks import Tick, failed
from swarm.host import keyfile, settings
from swarm.host.identity import machine_name
from swarm.host.opening import mailbox_at
from swarm.learners.devices import installed_frameworks
from swarm.mailbox import init_mailbox
from swarm.mailbox.mounted import this_systems
from swarm.mailbox.probe import look, probe
from swarm.mailbox.threads import DaemonThreads
from swarm.mailbox.waiting import in_time
from swarm.manifests import read_manifest

TRIAL = DiLoCo(sync_every=20)
TRIAL_ROUNDS = 20  # some minutes on two cores
MADE_S = 180.0  # within which a worker makes its run, however slowly its framework loads
_SLOW_OR_FULL = ("free space", "timings")  # a mailbox can be there all the same
LOOK_S = 0.2
CHECK_S = 5.0  # that one look at a folder may take


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a first start needs to know of this machine."""

    name: str
    frameworks: tuple[str, ...] = ()
    remedy: str = ""  # what to install, where there is none
    fingerprint: str = ""  # of its passphrase; '' without one
    shares: tuple[str, ...] = ()  # where shares are mounted
    folder: str = ""  # that may become a mailbox


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a folder would do as a mailbox."""

    path: str
    ticks: tuple[Tick, ...] = ()
    is_mailbox: bool = False

    @property
    def fault(self) -> Tick | None:
        """The first thing that speaks against it."""
        return next((tick for tick in self.ticks if tick.verdict == "failed"), None)


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What was set up. `run`: '' without one."""

    mailbox: str
    run: str = ""
    name: str = ""
    passphrase: str = ""  # a new one, to be typed at the other machines


async def look_at_machine() -> Machine:
    return await DaemonThreads(1).run(_machine)


def _machine() -> Machine:
    frameworks = installed_frameworks()
    key = keyfile.load_key()
    shares = tuple(mount.point for mount in this_systems() if is_share(mount.kind))
    home = Path.home()
    return Machine(
        name=machine_name(),
        frameworks=frameworks,
        remedy="" if frameworks else "pip install 'homeswarm[train]'",
        fingerprint=key.fingerprint if key is not None else "",
        shares=shares,
        folder=str(Path(shares[0]) / "swarm") if len(shares) == 1 else str(home / "swarm"),
    )


async def look_at_folder(path: str) -> Folder:
    """Writes nothing."""
    try:
        location = settings.mailbox_location(path)
    except UsageError as error:
        return Folder(path=path, ticks=(failed("folder", str(error), "give another one"),))
    ticks, is_mailbox = await look(location, timeout_s=CHECK_S)
    return Folder(path=location, ticks=tuple(ticks), is_mailbox=is_mailbox)


async def set_up(*, name: str, folder: str, signed: bool, train: bool) -> Begun:
    """Call this machine `name`, make `folder` a mailbox and remember it, make a passphrase if it is to be `signed` and there is
    none, and, to `train`, start a small run here, in a worker that goes on without us: returns once that is made. Raises
    SwarmError; what was done until then stays."""
    location, threads = settings.mailbox_location(folder), DaemonThreads(1)
    looked = await look_at_folder(folder)
    if looked.fault is not None:
        raise UsageError(f"{looked.fault.detail}: {looked.fault.remedy}")
    passphrase = ""
    if signed and await threads.run(keyfile.kept) is None:
        passphrase = keyfile.fresh()
        await threads.run(keyfile.keep, passphrase)
    await init_mailbox(location)
    found = await probe(location, timeout_s=CHECK_S)
    faults = [tick for tick in found if tick.verdict == "failed" and tick.name not in _SLOW_OR_FULL]
    if faults:
        raise UsageError(f"{faults[0].detail}: {faults[0].remedy}")
    if name and name != await threads.run(machine_name):
        await threads.run(settings.save, "name", name)
    await threads.run(settings.remember_mailbox, location)
    if not train:
        return Begun(mailbox=location, passphrase=passphrase)
    create = new_run(task="charlm", options={}, algorithm=TRIAL, rounds=TRIAL_ROUNDS)
    order = await threads.run(lambda: learn_order(location, create.run, create=create))
    worker = await threads.run(lambda: launcher.start(order, foreground=False))
    await _made(location, create.run, worker.job.name)
    return Begun(mailbox=location, run=create.run, name=create.name, passphrase=passphrase)


async def _made(location: str, run: str, job: str) -> None:
    """Until others can read the run. Raises WorkerFailed."""
    store, threads = mailbox_at(location), DaemonThreads(1)
    await in_time(store, store.open())
    clock = asyncio.get_running_loop().time
    until_s = clock() + MADE_S
    while True:
        try:
            await in_time(store, read_manifest(store, run))
            return
        except (RunNotFound, MailboxError):
            state = await threads.run(launcher.job, job)
            if state.state in ("failed", "left", "dropped"):
                raise WorkerFailed(f"the worker failed: {plain(state.message, 300)}; log: {state.log}") from None
            if clock() >= until_s:
                raise WorkerFailed(f"the worker has made no run for {MADE_S:.0f} s; log: {state.log}") from None
        await asyncio.sleep(LOOK_S)
