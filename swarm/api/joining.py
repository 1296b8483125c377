"""What stands between this machine and a run: looked at again with every poll, for the Join screen and `swarm join`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
import psutil

from swarm import __version__
from swarm.api.finding import ended, foreign_program
from swarm.api.fitness import TaskCheck, check_named, check_task, passphrase_of
from swarm.core.buckets import where_gone, where_lost, where_silent
from swarm.core.errors import (
    FormatMismatch,
    MailboxError,
    MailboxMoved,
    PassphraseError,
    RecordError,
    RecordForged,
    RunError,
    RunNotFound,
    SwarmError,
    UsageError,
)
from swarm.core.finetune import FineTune
from swarm.core.joining import PASSPHRASE, Fault, JoinFacts, join_ticks
from swarm.core.keys import RunKeys
from swarm.core.manifest import Manifest
from swarm.core.mounting import Desktop, Share, Way, objects_in_words, share_of, way, ways_in_words
from swarm.core.records import Role
from swarm.core.sentences import plain
from swarm.core.sightings import SeenRun, Sightings
from swarm.core.state import RunState
from swarm.core.ticks import Tick, failed, passed
from swarm.core.trust import SwarmKey
from swarm.host import settings
from swarm.host.keyfile import load_key
from swarm.host.mounts import Finder, desktop
from swarm.host.mounts import mount as run_mount
from swarm.mailbox import open_mailbox
from swarm.mailbox.probe import probe
from swarm.mailbox.threads import DaemonThreads
from swarm.mailbox.waiting import in_time
from swarm.manifests import manifest_in
from swarm.watch import RunWatch, known_mailboxes, now_s

AGAIN_S = 30.0  # after which a share that worked is tried out again
SOON_S = 0.5  # for which a poll waits for what may take long
_NEEDED = ("folder", "file system", "store", "mailbox", "writable", "exclusive creation", "seen at once")
_NETWORK = {"network", "address"}


class Joining(msgspec.Struct, frozen=True, kw_only=True):
    """How far a machine is on its way to a run."""

    run: str
    name: str
    ticks: tuple[Tick, ...] = ()
    location: str | None = None  # of the mailbox, here
    manifest: Manifest | None = None
    looked: bool = False  # whether the mailbox was looked for
    share: Share | None = None
    way: Way | None = None  # how that is mounted here
    unsure: str = ""  # why a person should look at it first: no passphrase vouches for who says so

    @property
    def passed(self) -> bool:
        """Whether it can be joined."""
        return bool(self.ticks) and self.location is not None and passed(self.ticks)

    @property
    def unmounted(self) -> bool:
        """Whether the mailbox is nowhere here: nothing more can be told before it is."""
        return self.looked and self.location is None

    @property
    def settled(self) -> bool:
        """Whether looking longer tells nothing more."""
        failed = {tick.name for tick in self.ticks if tick.verdict == "failed"}
        known = bool(self.ticks) and all(tick.verdict != "checking" for tick in self.ticks)
        return known or self.unmounted or PASSPHRASE in failed or (bool(failed) and self.manifest is None)


class JoinWatch:
    """Follows one run that this machine does not take part in. One poll at a time."""

    def __init__(
        self,
        run: str,
        *,
        name: str = "",
        location: str | None = None,
        mailbox: str = "",
        known: Sequence[str] | None = None,
        role: Role = "both",
        framework: str = "auto",
        device: str = "auto",
        own_data: bool = False,
        own_model: bool = False,
        finder: Finder | None = None,
        system: Desktop | None = None,
    ) -> None:
        """`run`: id; `location`: of its mailbox, if that is known; else `mailbox`, its id, is looked for among the folders
        `known` (None: those of the settings) and what is mounted. `system`: None: this machine's."""
        self._facts = JoinFacts(
            name=name or run, mailbox=mailbox, version=__version__, role=role, own_data=own_data, own_model=own_model
        )
        self._run, self._given, self._known = run, location, known
        self._framework, self._device = framework, device
        self._finder = finder or Finder()
        self._system = system
        self._seen: SeenRun | None = None
        self._location: str | None = None  # that the run was read from
        self._watch: RunWatch | None = None
        self._lost: Fault | None = None  # why the share does not answer just now
        self._unfit: Fault | None = None  # what is wrong with it as a mailbox
        self._probing: asyncio.Task[list[Tick]] | None = None
        self._probed_s: float | None = None
        self._tasks = DaemonThreads(1)
        self._checking: asyncio.Task[TaskCheck] | None = None

    async def poll(self, sightings: Sightings | None = None) -> Joining:
        """Never raises for what is wrong with the share or the run: a tick says so."""
        if sightings is not None:
            self._hear(sightings)
        location = await self._where()
        if location is not None:
            await self._read(location)
        if self._location is not None:
            await self._try_out(self._location)
        await self._check_task()
        memory = psutil.virtual_memory()
        self._set(share_fault=self._lost or self._unfit)
        self._set(free_bytes=memory.available, total_bytes=memory.total)
        share = self._share
        how, unsure = self._way(share), "" if share is None else self._unsure()
        if how is not None and unsure and not self._of_swarm:
            how = msgspec.structs.replace(how, argv=None, asks=False)
        words = objects_in_words(self._told_share, self._facts.name) or ways_in_words(self._facts.mailbox, share, how)
        self._set(mounting=(*words, unsure) if how is not None and unsure else words)
        facts = self._facts
        return Joining(
            run=self._run,
            name=facts.manifest.name if facts.manifest is not None else facts.name,
            ticks=join_ticks(facts),
            location=facts.location,
            manifest=facts.manifest,
            looked=facts.looked,
            share=share,
            way=how,
            unsure=unsure if how is not None else "",
        )

    def _set(self, **values: object) -> None:
        self._facts = msgspec.structs.replace(self._facts, **values)

    # The network

    def _hear(self, sightings: Sightings) -> None:
        found = [seen for seen in sightings.runs if seen.advert.run == self._run]
        seen = next((each for each in found if each.ours), None) or next(iter(found), None)
        told_by: tuple[str, ...] = ()
        if seen is not None:
            self._seen = seen
            told_by = seen.peers if _NETWORK & set(seen.how) else ()
            if not self._facts.mailbox and self._given is None:  # an advert is a hint: a folder that is known says it itself
                self._set(mailbox=seen.advert.mailbox)
            if self._facts.name == self._run:
                self._set(name=seen.advert.name)
            versions = tuple(p.advert.version for p in sightings.peers if p.advert.name in seen.peers and not p.itself)
            self._set(advert=seen.advert, their_versions=versions or self._facts.their_versions)
            if self._facts.manifest is None and seen.advert.signed:
                key = self._key()
                self._set(passphrase="missing" if key is None else "right" if seen.ours else "wrong")
        self._set(listened=True, told_by=told_by)

    def _key(self) -> SwarmKey | None:
        try:
            key = load_key()
        except PassphraseError as error:
            self._set(passphrase_fault=str(error))
            return None
        self._set(passphrase_fault="")
        return key

    @property
    def _told_share(self) -> str:
        """What is told of where the mailbox is."""
        manifest, advert = self._facts.manifest, self._facts.advert
        return manifest.share if manifest is not None else advert.share if advert is not None else ""

    @property
    def _share(self) -> Share | None:
        return share_of(self._told_share)

    def _way(self, share: Share | None) -> Way | None:
        if share is None or self._facts.location is not None:
            return None
        return way(share, self._system if self._system is not None else desktop())

    @property
    def _of_swarm(self) -> bool:
        """Whether who says where the share is passes for one of this machine's swarm: in an open one anybody does."""
        if self._facts.manifest is not None:
            return self._facts.passphrase in ("right", "open")
        return self._seen is not None and self._seen.ours

    def _unsure(self) -> str:
        """Whoever mounts a share may show a password to the machine that serves it: who says that this is the one, if that may
        be anybody."""
        if self._of_swarm and (self._facts.manifest is not None or (self._seen is not None and self._seen.advert.tag)):
            return ""
        who = plain(", ".join(self._facts.told_by[:3]), 200) or "somebody"
        why = "which no passphrase vouches for" if self._of_swarm else "and is not of this swarm: swarm does not mount it"
        return f"{who} says so on the network, {why}: mount it only if you know the machine that serves it"

    # The share

    async def _where(self) -> str | None:
        """The mailbox's folder; None: nowhere, or not found yet."""
        if self._location is not None:
            return self._location
        if self._given is not None:
            return self._given
        if not self._facts.mailbox:
            return None
        share = self._share
        known = known_mailboxes() if self._known is None else self._known
        found = await self._finder.find(self._facts.mailbox, known, below=share.below if share is not None else "")
        self._set(looked=True, location=found.location, hanging=found.hanging)
        return found.location

    async def _read(self, location: str) -> None:
        """The run as it stands there now."""
        try:
            if self._facts.manifest is None or location != self._location:
                await self._read_manifest(location)
            assert self._watch is not None
            state = await self._watch.poll()
        except MailboxMoved as error:
            self._away(location, error)
        except RecordForged:
            self._lost = None  # the passphrase has a tick of its own
        except PassphraseError as error:
            self._set(passphrase_fault=str(error))
        except MailboxError as error:
            self._set(location=location)
            self._lost = Fault(str(error), where_lost(location))
        except FormatMismatch as error:
            self._set(location=location, their_format=error.theirs, run_fault=Fault(str(error)))
        except RunNotFound as error:
            self._set(location=location, run_fault=Fault(str(error), "it was deleted, or never was there"))
        except (RunError, RecordError) as error:
            self._set(location=location, run_fault=Fault(str(error), "swarm doctor tells more"))
        else:
            self._fold(state)

    def _away(self, location: str, error: MailboxMoved) -> None:
        """The mailbox is not there (any more)."""
        self._location, self._watch = None, None
        self._stop_probing()
        if self._facts.mailbox:  # looked for from now on
            self._given = None
            self._set(location=None, share_words=None, share_warning=None)
            self._lost = self._unfit = None
        else:
            self._set(location=location)
            self._lost = Fault(str(error), where_gone(location, str(error)))

    async def _read_manifest(self, location: str) -> None:
        """As it stands there, whoever signed it: what that means is a tick of its own."""
        mailbox = open_mailbox(location)
        ident = await in_time(mailbox, mailbox.open())
        self._set(mailbox=self._facts.mailbox or ident)
        if ident != self._facts.mailbox:
            raise MailboxMoved(f"{location} is another mailbox ({ident[:8]}…, not {self._facts.mailbox[:8]}…)")
        data = await in_time(mailbox, mailbox.read(RunKeys(self._run).manifest))
        if data is None:
            raise RunNotFound(f"no run {self._run!r} in {location}")
        manifest = manifest_in(data, self._run)  # of the very bytes whose signature is checked
        state, fingerprint = passphrase_of(self._run, data, self._key())
        # Of a run that is not this swarm's the ticks tell all the same, as of one that is only watched.
        store = mailbox if state in ("wrong", "unasked") else None
        self._location, self._watch = location, RunWatch(location, self._run, history=False, store=store)
        self._checking = None
        self._set(
            location=location,
            looked=True,
            manifest=manifest,
            run_fault=None,
            their_format=manifest.format,
            passphrase=state,
            fingerprint=fingerprint,
        )

    def _fold(self, state: RunState) -> None:
        if state.halted:
            self._set(run_fault=Fault(state.lost or "", "swarm status tells more"))
            return
        self._set(run_fault=None)
        self._lost = Fault(state.lost, f"{where_silent(self._location or '')} It is tried again") if state.lost else None
        if state.lost:
            return
        over = state.phase in ("done", "stopped")
        program = foreign_program(state.manifest) if state.manifest is not None else ""
        versions = tuple(v.record.version for v in state.live if v.record is not None)
        words = ended(state) if over else program or _words(state)
        self._set(
            phase=state.phase if state.phase != "unknown" else None,
            phase_words=words,
            ended=over or bool(program),
            trains=bool(state.live),
            their_versions=versions or self._facts.their_versions,
        )

    async def _try_out(self, location: str) -> None:
        """Whether the share works, beside all else: it may take as long as the share likes."""
        if self._probing is None and (self._probed_s is None or now_s() - self._probed_s >= AGAIN_S):
            self._probing = asyncio.create_task(probe(location))
        if self._probing is None:
            return
        await asyncio.wait({self._probing}, timeout=SOON_S)
        if not self._probing.done():
            return
        done, self._probing = self._probing, None
        try:
            found = done.result()
        except (SwarmError, OSError) as error:
            found = [failed("writable", str(error))]
        wrong = next((tick for tick in found if tick.verdict == "failed" and tick.name in _NEEDED), None)
        others = (tick for tick in found if tick.verdict != "ok" and tick is not wrong)
        doubtful = min(others, key=lambda tick: tick.verdict != "failed", default=None)
        slow = next((tick.detail for tick in found if tick.name == "timings"), "")
        self._probed_s = now_s() if wrong is None else None  # what is wrong is tried again with every poll
        self._unfit = None if wrong is None else Fault(wrong.detail, wrong.remedy)
        self._set(
            share_warning=None if doubtful is None else Fault(doubtful.detail, doubtful.remedy),
            share_words=slow or "yes",
        )

    def _stop_probing(self) -> None:
        if self._probing is not None:
            self._probing.cancel()
        self._probing, self._probed_s = None, None

    # This machine

    async def _check_task(self) -> None:
        """On a thread: the packages of other people announce tasks, and data is hashed."""
        manifest, advert = self._facts.manifest, self._facts.advert
        if (manifest is None and advert is None) or self._facts.role == "syncer":
            return
        if self._checking is None:
            if manifest is not None:
                work = self._tasks.run(check_task, manifest, framework=self._framework, device=self._device)
            else:
                assert advert is not None
                work = self._tasks.run(check_named, advert.task, advert.method, framework=self._framework, device=self._device)
            self._checking = asyncio.create_task(work)
        await asyncio.wait({self._checking}, timeout=SOON_S)
        if self._checking.done():
            try:
                found = self._checking.result()
            except Exception as error:  # a task is other people's code
                found = TaskCheck(Fault(plain(f"it is broken here: {type(error).__name__}: {error}", 300), "install it anew"))
            if found.fault is not None:
                self._checking = None  # it may be installed meanwhile
            self._set(task_fault=found.fault, task_words=found.words, options_fault=found.options, data_fault=found.data)


def _words(state: RunState) -> str:
    learners = [v for v in state.live if v.role != "syncer"]
    people = f", {len(learners)} learner{'' if len(learners) == 1 else 's'}" if learners else ""
    if state.phase == "waiting":
        return plain(f"waiting: {state.waiting}", 200)
    if state.manifest is not None and isinstance(state.manifest.algorithm, FineTune):
        return f"{state.phase}{people}"
    total = f" of {state.total_rounds}" if state.total_rounds is not None else ""
    return f"{state.phase}, round {state.open_round}{total}{people}"


def mount(way: Way, *, quiet: bool = True) -> str:
    """Run what mounts a share, to its end; what it said if it failed, else ''. Not quiet: it may ask in the terminal."""
    return run_mount(way, quiet=quiet)


def remember(mailbox: str) -> None:
    """Among the known ones, for the next time. That it cannot be remembered ends nothing."""
    with contextlib.suppress(UsageError):
        settings.remember_mailbox(mailbox)


def remember_peer(address: str) -> None:
    """Among the machines that are asked at their addresses, for the next time. Raises UsageError."""
    settings.remember_peer(address)


async def settled_joining(watch: JoinWatch, sightings: Sightings | None = None, *, at_most_s: float = 15.0) -> Joining:
    """Once nothing more is told by looking longer, or after `at_most_s`."""
    until_s = now_s() + at_most_s
    while True:
        found = await watch.poll(sightings)
        if found.settled or now_s() >= until_s:
            return found
        await asyncio.sleep(0.1)
