"""Which of the machines that are seen can take part in a run that is not made yet, and which cannot and why. Pure.

An advert tells little of a machine: what is installed on it, and whether it has the data, shows when it joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from swarm.core.adverts import MAILBOXES
from swarm.core.joboptions import Method
from swarm.core.manifest import FORMAT
from swarm.core.plaintext import plain
from swarm.core.sentences import amount
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.ticks import Tick, failed, ok, warning

MAX_SHOWN = 20  # machines


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asks of a machine."""

    method: Method
    task: str
    frameworks: tuple[str, ...] = ()  # that the task has a model for
    package: str = ""  # that the task comes in; "": swarm's own
    memory_bytes: int | None = None  # that a learner needs, about; None: not known
    mailbox: str = ""  # id; "": not known
    share: str = ""  # URL that the run tells others


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and what speaks for and against its taking part."""

    name: str
    itself: bool
    ticks: tuple[Tick, ...]

    @property
    def verdict(self) -> Literal["ok", "warning", "failed"]:
        verdicts = {tick.verdict for tick in self.ticks}
        return "failed" if "failed" in verdicts else "ok" if verdicts <= {"ok"} else "warning"


def fits(sightings: Sightings, needs: Needs, *, version: str, here: tuple[Tick, ...] = ()) -> tuple[Fit, ...]:
    """This machine first, then those that can, then the others. `version`: of swarm here; `here`: what was found on this
    machine itself, which knows more of itself than its advert tells."""
    found = []
    for peer in sightings.peers:
        if peer.itself:
            continue
        found.append(Fit(name=plain(peer.advert.name, 40), itself=False, ticks=tuple(_of(peer, needs, version=version))))
    own = next((peer for peer in sightings.peers if peer.itself), None)
    first = Fit(name=plain(own.advert.name, 40) if own is not None else "this machine", itself=True, ticks=here)
    rank = {"ok": 0, "warning": 1, "failed": 2}
    return (first, *sorted(found, key=lambda fit: (rank[fit.verdict], fit.name)))[: MAX_SHOWN + 1]


def _of(peer: SeenPeer, needs: Needs, *, version: str) -> Iterator[Tick]:
    advert, name = peer.advert, plain(peer.advert.name, 40)
    if not peer.ours:
        yield failed("passphrase", "it has another passphrase than this machine, or none", "swarm key import there")
        return
    if advert.format != FORMAT:
        older = name if advert.format < FORMAT else "this machine"
        words = f"its swarm writes format {advert.format}, this one {FORMAT}"
        yield failed("version", words, f"upgrade swarm on {older}: pip install --upgrade homeswarm")
        return
    if advert.version and advert.version != version:
        yield warning("version", f"swarm {plain(advert.version, 20)} there, {version} here; the format is the same")
    yield from _memory(peer, needs)
    yield from _framework(peer, needs)
    yield from _share(peer, needs)
    if needs.package:
        yield warning("task", f"the task {needs.task} comes in a package of its own", f"pip install {needs.package} there")
    if needs.method == "mlx-lm" and peer.unreachable:
        yield failed("network", f"it cannot be connected to: {plain(peer.unreachable, 120)}", "swarm doctor tells more")
    if advert.state in ("training", "paused", "waiting"):
        yield warning("busy", "it trains another run just now")


def _memory(peer: SeenPeer, needs: Needs) -> Iterator[Tick]:
    there, needed = peer.advert.memory_bytes, needs.memory_bytes
    if not there:
        return
    if needed is not None and needed > there:
        remedy = "it can close rounds: swarm join --role syncer there" if needs.method != "mlx-lm" else "a smaller model"
        yield failed("memory", f"{amount(there)}, and about {amount(needed)} are needed", remedy)
    else:
        yield ok("memory", amount(there))


def _framework(peer: SeenPeer, needs: Needs) -> Iterator[Tick]:
    devices = tuple(plain(each, 40) for each in peer.advert.accelerators)
    words = ", ".join(devices) or "CPU alone"
    if needs.frameworks == ("mlx",) and not any(each.startswith("mps") for each in devices):
        extra = "mlx-lm" if needs.method == "mlx-lm" or needs.task == "lora" else "mlx"
        yield warning("device", f"{words}: MLX is at home on Apple silicon", f"pip install 'homeswarm[{extra}]' there")
    else:
        yield ok("device", words)


def _share(peer: SeenPeer, needs: Needs) -> Iterator[Tick]:
    known = peer.advert.mailboxes
    if not needs.mailbox:
        return
    if needs.mailbox in known:
        yield ok("share", "has this mailbox open")
    elif len(known) < MAILBOXES:
        remedy = "it is told where: its Join screen mounts it" if needs.share else "say where it is mounted: the field share"
        yield warning("share", "has not opened this mailbox", remedy)
