"""Everything that `swarm doctor` and the Network screen look at, all at once, each with a time limit of its own: what hangs is
named, and holds nobody up."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import stat
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

import msgspec

from swarm.core import bugreport, diagnosis
from swarm.core.diagnosis import FRAMEWORK, MACHINE, NETWORK, PEERS, SETTINGS, SHARE, TOPICS, Carrier, Passphrase
from swarm.core.diagnosis import clock_words as clock_words
from swarm.core.errors import PassphraseError, SwarmError, UsageError
from swarm.core.sightings import Sightings
from swarm.core.ticks import Tick, checking, failed
from swarm.host import children, identity, keyfile, machine, settings, trial
from swarm.learners.devices import installed_frameworks
from swarm.mailbox import trial as trial_of_share
from swarm.mailbox.probe import probe
from swarm.mailbox.threads import DaemonThreads
from swarm.neighbours import Neighbourhood
from swarm.network import multicast
from swarm.network.carriers import carriers
from swarm.watch import Home, HomeWatch

LIMIT_S = 10.0  # of all of it
QUICK_S = 4.0  # of what asks this machine alone; its home folder may be on a share, too
FRAMEWORK_S = 9.0  # PyTorch alone may take some seconds to load, and more the first time
INTERFACES_S = 6.0  # macOS names its ports by a program of its own
SHARE_S, ONE_CALL_S = 9.0, 5.0
TRIAL_S = 80.0  # of a share that is tried out; the trial has limits of its own, and ends long before
HEARD_S, SIGHT_S = 3.5, 8.0  # after which others have answered who are there; after which nobody is waited for
EXTENT = trial_of_share.Extent()
LOOK_S = 0.25
GOODBYE_S = 0.5
THREADS = 32  # each check that hangs keeps one

PACKAGES = ("torch", "mlx", "mlx-lm", "numpy", "ml-dtypes", "msgspec", "zeroconf", "textual", "psutil")

Sight = Callable[[], Awaitable[Sightings]]


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What is known so far."""

    ticks: tuple[Tick, ...]  # by topic, in the order of `diagnosis.TOPICS`
    sightings: Sightings = Sightings()
    now_s: float = 0.0  # when it was put together, in the monotonic time of the sightings
    took_s: float = 0.0
    done: bool = False

    def topics(self) -> list[tuple[str, list[Tick]]]:
        """Headings with their ticks; of several shares each has one."""
        found: dict[str, list[Tick]] = {}
        for tick in self.ticks:
            found.setdefault(tick.topic, []).append(tick)
        return list(found.items())


class _Check:
    """One thing to look at."""

    def __init__(self, topic: str, name: str, look: Callable[[], Awaitable[Iterable[Tick]]], *, limit_s: float) -> None:
        self.topic, self.name, self.look, self.limit_s = topic, name, look, limit_s
        self.ticks: tuple[Tick, ...] = (checking(name, topic=topic),)
        self.told: Callable[[], object] = lambda: None  # called when a part of it is known

    async def run(self) -> None:
        try:
            self.ticks = tuple(await asyncio.wait_for(self.look(), self.limit_s))
        except TimeoutError:
            words = f"no answer for {self.limit_s:g} s"
            self.ticks = (failed(self.name, words, "look again; if it stays so, restart this machine", topic=self.topic),)
        except SwarmError as error:
            self.ticks = (failed(self.name, str(error), topic=self.topic),)
        except Exception as error:  # a check that breaks must not hide the others
            self.ticks = (failed(self.name, f"{type(error).__name__}: {error}", topic=self.topic),)


class _Doctor:
    def __init__(self, locations: Sequence[str] | None, *, sight: Sight | None, thorough: bool, threads: DaemonThreads) -> None:
        self._locations, self._sight, self._thorough, self._threads = locations, sight, thorough, threads
        self.sightings = Sightings()
        self._carriers: asyncio.Future[tuple[Carrier, ...]] = asyncio.get_running_loop().create_future()

    def checks(self) -> list[_Check]:
        return [
            _Check(MACHINE, "this machine", self._machine, limit_s=QUICK_S),
            *self._frameworks(),
            _Check(NETWORK, "interfaces", self._interfaces, limit_s=INTERFACES_S),
            _Check(NETWORK, "multicast", self._multicast, limit_s=LIMIT_S),
            _Check(PEERS, "peers", self._peers, limit_s=LIMIT_S),
            *self._shares(),
            _Check(SETTINGS, "settings", self._settings, limit_s=QUICK_S),
            _Check(SETTINGS, "passphrase", self._passphrase, limit_s=QUICK_S),
        ]

    async def _machine(self) -> Iterable[Tick]:
        return diagnosis.machine_ticks(await self._threads.run(machine.machine))

    def _frameworks(self) -> list[_Check]:
        """A check for each that is installed, and one that says so if none is."""
        nvidia = machine.has_nvidia()

        async def look(framework: str) -> Iterable[Tick]:
            found = await self._threads.run(partial(trial.tried, framework, limit_s=FRAMEWORK_S))
            return diagnosis.framework_ticks([found], nvidia=nvidia)

        async def none() -> Iterable[Tick]:
            return diagnosis.framework_ticks([])

        installed = installed_frameworks()
        if not installed:
            return [_Check(FRAMEWORK, "framework", none, limit_s=QUICK_S)]
        return [_Check(FRAMEWORK, name, partial(look, name), limit_s=FRAMEWORK_S + 1.5) for name in installed]

    async def _interfaces(self) -> Iterable[Tick]:
        try:
            names = (await self._threads.run(settings.load))[0].interfaces
            found = await self._threads.run(carriers, names)
        except BaseException:
            if not self._carriers.done():
                self._carriers.set_result(())
            raise
        self._carriers.set_result(found)
        return diagnosis.interface_ticks(found)

    async def _multicast(self) -> Iterable[Tick]:
        found = await self._carriers
        used = [(each.name, each.v4[0] if each.v4 else each.address) for each in found if not each.why_not and each.multicast]
        own = {address for each in found for address in (each.address, *each.v4, *each.v6)}
        heard = await self._threads.run(partial(multicast.listen, used, own=own))
        return diagnosis.multicast_ticks(heard, platform=sys.platform)

    async def _peers(self) -> Iterable[Tick]:
        if self._sight is not None:
            self.sightings = await self._sight()
        platform = sys.platform
        return (
            *diagnosis.sighting_ticks(self.sightings, platform=platform),
            *diagnosis.peer_ticks(self.sightings, now_s=time.monotonic(), platform=platform),
        )

    def _shares(self) -> list[_Check]:
        def at(location: str, topic: str) -> _Check:
            if not self._thorough:
                return _Check(topic, "mailbox", partial(look, location, topic), limit_s=SHARE_S + 0.5)
            check = _Check(topic, "mailbox", partial(look, location, topic), limit_s=TRIAL_S)
            check.look = partial(self._trial, location, check)
            return check

        async def look(location: str, topic: str) -> Iterable[Tick]:
            found = await probe(location, timeout_s=ONE_CALL_S, total_s=SHARE_S, threads=self._threads)
            return [msgspec.structs.replace(tick, topic=topic) for tick in found]

        async def default() -> Iterable[Tick]:
            try:
                location = await self._threads.run(settings.mailbox_location, None)
            except UsageError as error:
                return [failed("mailbox", str(error), "`swarm init DIR` makes a folder on a share one", topic=SHARE)]
            return await look(location, SHARE)

        if self._locations is None or not self._locations:
            return [_Check(SHARE, "mailbox", default, limit_s=SHARE_S + 0.5)]
        many = len(self._locations) > 1
        return [at(each, f"{SHARE} {each}" if many else SHARE) for each in self._locations]

    async def _trial(self, location: str, check: _Check) -> Iterable[Tick]:
        def under_topic(ticks: Iterable[Tick]) -> tuple[Tick, ...]:
            return tuple(msgspec.structs.replace(tick, topic=check.topic) for tick in ticks)

        def told(ticks: Iterable[Tick]) -> None:
            check.ticks = under_topic(ticks)
            check.told()

        mine: identity.Identity | None = None
        with contextlib.suppress(TimeoutError, SwarmError):  # its own files may be in trouble, too
            mine = await asyncio.wait_for(self._threads.run(identity.identity), QUICK_S)
        found = await trial_of_share.trial(
            location,
            command=children.python("swarm.mailbox.racing"),
            owner=_words_of(mine) if mine else "",
            gone=lambda words: mine is not None and _gone(mine, words),
            told=told,
            extent=EXTENT,
            threads=self._threads,
        )
        return under_topic(found)

    async def _settings(self) -> Iterable[Tick]:
        return diagnosis.settings_ticks((await self._threads.run(settings.load))[1])

    async def _passphrase(self) -> Iterable[Tick]:
        return diagnosis.passphrase_ticks(await self._threads.run(passphrase))


def _words_of(process: identity.Identity) -> str:
    return " ".join((process.machine, process.boot, str(process.pid), process.process))


def _gone(mine: identity.Identity, words: str) -> bool:
    """Whether the process of these words, which another trial left, is provably none any more."""
    parts = words.split(" ")
    if len(parts) != 4 or not parts[2].isdecimal():
        return False
    machine, boot, pid, process = parts
    return identity.process_gone(
        mine, identity.Identity(machine=machine, machine_name="", boot=boot, pid=int(pid), process=process)
    )


async def examine(
    locations: Sequence[str] | None = None,
    *,
    sight: Sight | None = None,
    thorough: bool = False,
    told: Callable[[Examination], object] = lambda examination: None,
) -> Examination:
    """Look at this machine, its network and its mailboxes. Takes about LIMIT_S at most, whatever hangs.

    `locations`: of mailboxes; None: the one that commands use. `sight`: what discovery sees, once it had time to listen.
    `thorough`: the mailboxes of `locations` are tried out (mailbox/trial.py), for TRIAL_S at most.
    `told`: called with what is known whenever that is more.
    """
    began_s = time.monotonic()
    doctor = _Doctor(locations, sight=sight, thorough=thorough, threads=DaemonThreads(THREADS))
    checks = doctor.checks()
    checks.sort(key=lambda check: next(n for n, topic in enumerate(TOPICS) if check.topic.startswith(topic)))

    def known(*, done: bool = False) -> Examination:
        now_s = time.monotonic()
        return Examination(
            ticks=tuple(tick for check in checks for tick in check.ticks),
            sightings=doctor.sightings,
            now_s=now_s,
            took_s=now_s - began_s,
            done=done,
        )

    for check in checks:
        check.told = lambda: told(known())
    told(known())
    tasks = {asyncio.create_task(check.run()) for check in checks}
    try:
        while tasks:
            _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks:
                told(known())
    finally:
        for task in tasks:
            task.cancel()
    found = known(done=True)
    told(found)
    return found


def sight_for(locations: Sequence[str] | None = None) -> Sight:
    """What is seen around this machine, after some seconds of listening. It tells others of this machine meanwhile: else they
    could not say whether they see it."""

    async def sight() -> Sightings:
        threads = DaemonThreads(2)
        near = Neighbourhood(advertises="watching")
        clock = asyncio.get_running_loop().time
        try:
            await threads.run(near.start)
            watch = asyncio.create_task(HomeWatch(None if locations is None else tuple(locations)).poll())
            began_s = clock()
            while True:
                await asyncio.sleep(LOOK_S)
                home = watch.result() if watch.done() and not watch.exception() else Home()
                seen = near.poll(home)
                passed_s = clock() - began_s
                if passed_s >= SIGHT_S or (passed_s >= HEARD_S and watch.done() and _settled(seen)):
                    watch.cancel()
                    return seen
        finally:
            await asyncio.wait({asyncio.ensure_future(threads.run(near.close))}, timeout=GOODBYE_S)

    return sight


def _settled(seen: Sightings) -> bool:
    """Whether of each machine all is known that can be: whether it can be reached, and whether it sees this one."""
    others = [peer for peer in seen.peers if not peer.itself and peer.ours and "mailbox" not in peer.how[:1]]
    return all((peer.reached_ms is not None or peer.unreachable) and peer.sees_us is not None for peer in others)


def passphrase() -> Passphrase:
    """What is so with this machine's."""
    path = keyfile.key_file()
    if path is None:
        return Passphrase(path="", there=False)
    found = Passphrase(path=str(path), there=path.exists())
    if found.there:
        found = msgspec.structs.replace(found, mode=stat.S_IMODE(path.stat().st_mode))
    try:
        key = keyfile.load_key()
    except PassphraseError as error:
        return msgspec.structs.replace(found, problem=str(error))
    return found if key is None else msgspec.structs.replace(found, fingerprint=key.fingerprint)


def refreshed(found: Examination, seen: Sightings, now_s: float) -> Examination:
    """With the machines as they are seen by now; the rest as it was found."""
    of_peers = [n for n, tick in enumerate(found.ticks) if tick.topic == PEERS]
    if not of_peers or any(found.ticks[n].verdict == "checking" for n in of_peers):
        return found
    first, last = of_peers[0], of_peers[-1]
    now = diagnosis.peer_ticks(seen, now_s=now_s, platform=sys.platform)
    return msgspec.structs.replace(found, ticks=(*found.ticks[:first], *now, *found.ticks[last + 1 :]))


def report(found: Examination) -> str:
    """A page to paste into a bug report: bounded, and without secrets."""
    return bugreport.page(
        found.ticks,
        sightings=found.sightings,
        now_s=found.now_s,
        packages={name: trial.version(name) for name in PACKAGES},
        variables=[name for name in os.environ if name.startswith("SWARM_")],
        hide=_hidden(found.sightings),
    )


def _hidden(sightings: Sightings) -> bugreport.Hide:
    whole = [identity.machine_name(), identity.host_name(), *(peer.advert.name for peer in sightings.peers)]
    names = [name.partition(".")[0] for name in whole]  # what follows is the network's
    users = [os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")]
    with contextlib.suppress(KeyError, OSError):
        users.append(getpass.getuser())
    home = os.path.expanduser("~")
    users.append(os.path.basename(home))
    secrets: tuple[str, ...] = ()
    with contextlib.suppress(PassphraseError):
        if (kept := keyfile.kept()) is not None:
            secrets = (kept.passphrase, kept.key.fingerprint)  # of a weak one, whoever has this can try out guesses
    return bugreport.Hide(home=home, users=tuple(users), machines=tuple(names), secrets=secrets)
