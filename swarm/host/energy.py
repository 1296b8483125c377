"""What this machine draws for a training, as far as something here tells: an NVIDIA card (NVML), the processors of a Linux
machine (RAPL), a Mac (powermetrics). Never a guess: where nothing tells, nothing is told.

What is read is the whole card's, processor's or Mac's. Where several workers of this machine draw on it, each counts an equal
part of it: they tell each other so by files in the state folder (Sharing). Workers of another user, and programs that have
nothing to do with training, cannot be seen there: what they draw is counted, too. What is drawn while a training rests is not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from swarm.host.accelerators import Card
from swarm.host.identity import Identity, identity, started
from swarm.host.paths import state_dir
from swarm.host.wattmeters import Powermetrics, Rapl, Read, nvidia_cards

LOOK_S = 5.0  # between two looks
WH = 3600.0  # joules


class Drawn(NamedTuple):
    power_w: float | None  # now; None: nothing here tells
    energy_wh: float | None  # so far


Draws: TypeAlias = Callable[[bool], Drawn]
"""Asked again and again, with whether the training rests: what the machine draws then is not drawn for it."""


def untold(resting: bool) -> Drawn:
    """Nothing here tells."""
    return Drawn(None, None)


class Source(Protocol):
    """Something that tells what it draws. Used by one thread."""

    @property
    def what(self) -> str:
        """The same in every process that draws on it."""

    def look(self, now_s: float) -> Read:
        """At `now_s` on a monotonic clock. Never raises."""

    def close(self) -> None: ...


class Sharing:
    """Which workers of this machine and user draw on what: a file of each, in one folder."""

    def __init__(self, folder: Path, me: Identity) -> None:
        # Named by the boot, too: a home folder may be several machines'.
        self._folder, self._boot = folder, me.boot[:8]
        self._file = folder / f"{self._boot}_{me.pid}_{me.process}"

    def join(self, what: Iterable[str]) -> None:
        with contextlib.suppress(OSError):  # then the others count more than their part: better than to stop training
            self._folder.mkdir(parents=True, exist_ok=True)
            self._file.write_text("\n".join(what))

    def leave(self) -> None:
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def count(self, what: str) -> int:
        """Those that draw on `what`, this one included. Files of processes that are no more are removed."""
        found = 1
        try:
            others = [path for path in self._folder.iterdir() if path != self._file]
        except OSError:
            return found
        for path in others:
            boot, _, rest = path.name.partition("_")
            pid, _, process = rest.partition("_")
            if boot != self._boot or not pid.isdecimal():
                continue
            with contextlib.suppress(OSError):
                if started(int(pid)) != process:
                    path.unlink()
                elif what in path.read_text(errors="replace").splitlines():
                    found += 1
        return found


class Meter:
    """What a worker's part of some sources comes to. `drawn` may be asked on any thread."""

    def __init__(self, find: Callable[[], Sequence[Source]], sharing: Sharing) -> None:
        """`find`: asked once, on the thread that looks: a driver may take its time."""
        self._find, self._sharing = find, sharing
        self._sources: Sequence[Source] = ()
        self._drawn = Drawn(None, None)
        self._resting = self._counts = False  # as was asked; whether this worker's part is counted
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="swarm-energy", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def drawn(self, resting: bool) -> Drawn:
        """As of the last look."""
        self._resting = resting
        return self._drawn

    def begin(self, now_s: float) -> bool:
        """Whether there is anything to look at."""
        self._sources = self._find()
        if self._sources:
            self._share(now_counts=not self._resting)
        for source in self._sources:
            source.look(now_s)
        return bool(self._sources)

    def look(self, now_s: float) -> None:
        """Count what was drawn since the look before."""
        counted = self._counts and not self._resting  # where a rest begins or ends in between, that part is left out
        if self._counts == self._resting:
            self._share(now_counts=not self._resting)
        reads = [(source.look(now_s), self._sharing.count(source.what)) for source in self._sources]
        powers = [read.power_w / count for read, count in reads if read.power_w is not None]
        joules = [read.joules / count for read, count in reads if read.joules is not None]
        power_w = None if len(powers) < len(reads) or not powers else sum(powers)
        energy_wh = self._drawn.energy_wh
        if joules:
            energy_wh = (energy_wh or 0.0) + (sum(joules) / WH if counted else 0.0)
        if not self._counts and power_w is not None:
            power_w = 0.0
        self._drawn = Drawn(None if power_w is None else round(power_w, 3), None if energy_wh is None else round(energy_wh, 6))

    def _share(self, *, now_counts: bool) -> None:
        self._counts = now_counts
        if now_counts:
            self._sharing.join(source.what for source in self._sources)
        else:
            self._sharing.leave()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def _look_on(self) -> None:
        try:
            found = self.begin(time.monotonic())
            while found and not self._closed.wait(LOOK_S):
                self.look(time.monotonic())
        except Exception:  # whatever a driver has to say: nothing is told from here on
            self._drawn = Drawn(None, self._drawn.energy_wh)
        finally:
            self._sharing.leave()
            for source in self._sources:
                source.close()


def sources(cards: Sequence[Card], *, powermetrics: bool, platform: str = sys.platform) -> list[Source]:
    """Of a training on these cards, or on none. There are none where a card trains that cannot be asked: the rest of its
    machine is the smaller part."""
    found: list[Source] = []
    if cards:
        told = nvidia_cards([card.uuid for card in cards])
        if len(told) < len(cards):
            return []
        found += told
    if platform == "linux" and (processors := Rapl.here()) is not None:
        found.append(processors)
    if platform == "darwin" and powermetrics and (mac := Powermetrics.here(root=os.geteuid() == 0)) is not None:
        found.append(mac)
    return found


@contextlib.contextmanager
def metered(cards: Sequence[Card], *, powermetrics: bool) -> Iterator[Draws]:
    """What tells of a training on these cards, or on none, from here on to the end of the block. `powermetrics`: whether it may
    be run, on a Mac."""
    meter = Meter(functools.partial(sources, cards, powermetrics=powermetrics), Sharing(state_dir() / "drawing", identity()))
    meter.start()
    try:
        yield meter.drawn
    finally:
        meter.close()
