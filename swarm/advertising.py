"""What a process tells the network of this machine and of the runs that it takes part in, and what it hears of others."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from swarm import __version__
from swarm.core.adverts import PeerAdvert, PeerState, RunAdvert, tagged
from swarm.core.errors import PassphraseError, UsageError
from swarm.core.events import WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.sightings import Sighted, Sightings
from swarm.core.telling import after, boot_digits, part_in
from swarm.core.trust import SwarmKey
from swarm.host import settings
from swarm.host.accelerators import accelerators
from swarm.host.identity import Identity, identity, machine_name, renew_machine_id
from swarm.host.keyfile import load_key
from swarm.network.discovery import USUAL, Discovery, Pace, Told
from swarm.network.hello import parse_target
from swarm.network.links import Links


def discovers() -> bool:
    """Whether this machine is to tell of itself and to listen: not with SWARM_DISCOVERY=0, nor `discovery = false` in the
    settings."""
    return os.environ.get("SWARM_DISCOVERY", "1") != "0" and settings.load()[0].discovery


class Advertising:
    """May be used from any thread. Nothing that goes wrong on the network is raised here: it stands in `seen().trouble`."""

    def __init__(
        self,
        state: PeerState | None,
        *,
        peers: Iterable[str] = (),
        interfaces: Iterable[str] = (),
        key: SwarmKey | Literal["own"] | None = "own",
        network: bool = True,
        probes: bool = True,
        pace: Pace = USUAL,
    ) -> None:
        """`state`: what this process does; None: it tells nothing, and only listens. `peers`: addresses to ask, beside those of
        the settings. `interfaces`: names; none: those of the settings. `key`: own: of the machine's passphrase. `network`:
        False: tell nothing and hear nothing. `probes`: connect to others, to see whether they can be reached."""
        self._state = state
        self._given, self._interfaces = tuple(peers), tuple(interfaces)
        self._own_key, self._key = key == "own", None if key == "own" else key
        self._network, self._probes, self._pace = network, probes, pace
        self._lock = threading.RLock()
        self._runs: tuple[RunAdvert, ...] = ()
        self._mailboxes: tuple[str, ...] = ()
        self._discovery: Discovery | None = None
        self._sighted: Sighted | None = None
        self._me: PeerAdvert | None = None
        self._renewed = False  # whether this process has given this machine another id
        self._notes: list[str] = []

    def start(self) -> None:
        """Find out who this machine is, and begin. Raises UsageError for an address that is none."""
        for target in self._given:
            parse_target(target)
        known = settings.load()[0]
        try:
            here = identity()
        except UsageError as error:  # it has no id, and can keep none: others are seen all the same
            self._note(str(error))
            here, self._state = Identity(machine="0" * 32, machine_name=machine_name(), boot="", pid=0, process=""), None
        self._load_key()
        self._me = PeerAdvert(peer=here.machine, name=here.machine_name, boot=boot_digits(here.boot), version=__version__)
        self._sighted = Sighted(peer=self._me.peer, boot=self._me.boot, key=self._key, lives_s=self._pace.lives_s)
        threading.Thread(target=self._look_at_hardware, name="swarm-hardware", daemon=True).start()
        asked = list(self._given)
        for target in known.peers:
            try:
                parse_target(target)
            except UsageError as error:
                self._note(f"peers in the settings: {error}")
            else:
                asked.append(target)
        if self._network:
            links = Links(self._interfaces or known.interfaces)
            self._discovery = Discovery(
                self._sighted, lock=self._lock, told=self._told, links=links, probes=self._probes, pace=self._pace
            )
            self._given = tuple(asked)
            self._discovery.ask(self._given)
            self._discovery.start()

    def close(self) -> None:
        """Say goodbye: a moment at most."""
        if self._discovery is not None:
            self._discovery.close()

    def ask(self, target: str) -> None:
        """Ask the machine at this address from now on, too. Raises UsageError."""
        parse_target(target)
        self._given = tuple(dict.fromkeys((*self._given, target)))
        if self._discovery is not None:
            self._discovery.ask(self._given)

    def tell(self, state: PeerState) -> None:
        if self._state is not None:
            self._state = state

    def tell_runs(self, runs: Iterable[RunAdvert]) -> None:
        """All that this machine takes part in, or offers, by this process."""
        self._runs = tuple(runs)

    def use_passphrase(self, fingerprint: str) -> None:
        """This machine's has this fingerprint now: look again, if it is another one than at the start."""
        if self._own_key and fingerprint != ("" if self._key is None else self._key.fingerprint):
            with self.sighted() as sighted:
                self._load_key()
                sighted.keyed(self._key)

    def open_mailboxes(self, ids: Iterable[str]) -> None:
        self._mailboxes = tuple(ids)

    @contextlib.contextmanager
    def sighted(self) -> Iterator[Sighted]:
        """For as long as nothing else may be heard."""
        assert self._sighted is not None, "start() comes first"
        with self._lock:
            yield self._sighted

    def seen(self) -> Sightings:
        """What is seen just now."""
        now_s = time.monotonic()
        with self.sighted() as sighted:
            self._mind_doubles(sighted)
            told = self._told("", 0)
            discovery = self._discovery
            return sighted.seen(
                now_s,
                here=told.peer or self._me,
                told_since_s=discovery.told_since_s if discovery else None,
                trouble=(*self._notes, *(discovery.trouble if discovery else ())),
            )

    @property
    def signs(self) -> bool:
        """Whether this machine has a passphrase."""
        return self._key is not None

    @property
    def peer(self) -> str:
        """This machine's id."""
        assert self._me is not None, "start() comes first"
        return self._me.peer

    @property
    def unheard(self) -> str:
        """Why others may not hear this machine, in words; "" while nothing speaks for it."""
        discovery = self._discovery
        return "" if discovery is None else discovery.unheard

    @property
    def discovery(self) -> Discovery | None:
        return self._discovery

    # ----

    def _load_key(self) -> None:
        if not self._own_key:
            return
        try:
            self._key = load_key()
        except PassphraseError as error:
            self._note(str(error))

    def _note(self, line: str) -> None:
        if line not in self._notes:
            self._notes.append(line)

    def _told(self, address: str, port: int) -> Told:
        """Called under the lock."""
        me, sighted = self._me, self._sighted
        if me is None or sighted is None or self._state is None:
            return Told()
        self._mind_doubles(sighted)
        advert = msgspec.structs.replace(
            self._me or me,
            state=self._state,
            mailboxes=self._mailboxes,
            address=address,
            port=port,
            sees=sighted.sees(time.monotonic()),
        )
        runs = (msgspec.structs.replace(run, peer=advert.peer) for run in self._runs)
        return Told(tagged(advert, self._key), tuple(tagged(run, self._key) for run in runs))

    def _mind_doubles(self, sighted: Sighted) -> None:
        """Two machines with one id: a home folder or a virtual machine was copied. The one whose boot is the lower takes
        another id, once; a learner that runs here keeps the old one until it ends."""
        assert self._me is not None
        other = sighted.double
        if not other or self._me.boot > other:
            return
        if self._renewed:  # a copy would not know the new id: somebody takes it on purpose, and would take the next one
            self._note("another machine uses this one's new id, too: this one keeps it")
            return
        try:
            renewed = renew_machine_id(self._me.peer)
        except UsageError as error:
            self._note(f"another machine has this one's id, and a new one cannot be kept: {error}")
            return
        self._note("another machine had this one's id (a copied home folder or virtual machine): this one has a new id")
        self._renewed = True
        self._me = msgspec.structs.replace(self._me, peer=renewed)
        sighted.renamed(renewed)

    def _look_at_hardware(self) -> None:
        names, memory_bytes = accelerators()
        with self._lock:
            assert self._me is not None
            self._me = msgspec.structs.replace(self._me, accelerators=names, memory_bytes=memory_bytes)


@contextlib.contextmanager
def advertised(
    manifest: Manifest,
    *,
    mailbox: str,
    trouble: Callable[[str], object],
    interfaces: Iterable[str] = (),
    pace: Pace = USUAL,
) -> Iterator[Callable[[WorkerEvent], None]]:
    """Tell the network that this machine takes part in a run, for as long as the context lasts. What is yielded is called with
    all that the worker tells, from any thread, and never blocks. `mailbox`: its id. `trouble`: called once, with why others may
    not hear of it. `interfaces`: names; none: those of the settings. Nothing is told where discovery is off."""
    if not discovers():
        yield lambda event: None
        return
    telling = Advertising("waiting", interfaces=interfaces, network=True, probes=False, pace=pace)
    part, told, lock = None, False, threading.RLock()  # a signal's handler may come in between

    def on(event: WorkerEvent) -> None:
        nonlocal part, told
        with lock:  # else what another thread tells meanwhile would be lost
            if part is None:
                return
            part = after(part, event)
            telling.tell(part.state)
            telling.tell_runs([part.run])
            why = "" if told else telling.unheard
            told = told or bool(why)
        if why:
            trouble(f"other machines may not see this one: {why}")

    try:
        telling.start()
        telling.open_mailboxes([mailbox])
        part = part_in(manifest, mailbox=mailbox, peer=telling.peer, signed=telling.signs)
        telling.tell_runs([part.run])
    except Exception as error:  # training is what this process is for
        told = True
        trouble(f"other machines are not told of this one: {type(error).__name__}: {error}")
    try:
        yield on
    finally:
        telling.close()
