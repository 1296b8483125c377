"""What went wrong with this machine's part in a run, or with another's: a reason and a remedy each. Values in, words out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tui import text
from tui.commands import KEYS, Place, Table, pressed

if TYPE_CHECKING:
    from swarm.api import LearnerView, SeenPeer, Tick
    from tui.messages import RunShown
    from tui.widgets.toned import Line

SHOWN = 3  # of one kind, at most
ODD = 2  # the run goes on: the learners have the room


def worker_lines(shown: RunShown, *, again: bool, keys: Table = KEYS) -> Iterator[Line]:
    """How this machine's job in the run ended, if nobody here asked for it. `again`: it may join once more."""
    job = shown.job
    if job is None or job.state not in ("failed", "dropped"):
        return
    rejoin = f"{pressed(keys, Place.RUN, 'join')} joins again" if again else ""
    if job.state == "dropped":
        more = f"; {rejoin}" if again else ""
        yield ((f"○ this machine trains no more: {text.plain(job.message, 200)}{more}", "warn"),)
        return
    yield ((f"✗ the worker on this machine failed: {text.plain(job.message) or 'it left no message'}", "bad"),)
    yield ((f"  {rejoin}{'; ' if again else ''}whole log: ", ""), (text.plain(str(job.log), 300), "dim"))


def job_lines(shown: RunShown) -> Iterator[Line]:
    """What is in the way of this machine's workers, where the screen itself can still read the mailbox: a full one answers."""
    if shown.state.lost:
        return
    for job in shown.running[:SHOWN]:
        if job.trouble:
            yield ((f"✗ {text.plain(job.learner, 64)} on this machine: {text.plain(job.trouble, 400)}; tried again", "bad"),)


def silent_words(shown: RunShown, silent: list[LearnerView]) -> Iterator[Line]:
    """Of silent learners' machines, what the network knows of them. Nothing where it tells of nobody: then it says nothing."""
    others = [peer for peer in shown.sightings.peers if not peer.itself]
    told = [peer for peer in others if set(peer.how) & {"network", "address"}]
    if not told:
        return
    for view in silent[:SHOWN]:
        if view.record is None:
            continue
        who = text.plain(view.record.machine_name, 40)
        if any(same(peer, view) for peer in told):
            words = f"{who} is still seen on the network: its worker or its share is in trouble; there: swarm doctor"
        else:
            words = f"{who} is not seen on the network either: is it on, awake and connected?"
        yield ((f"  {words}", ""),)


def same(peer: SeenPeer, view: LearnerView) -> bool:
    """Whether the learner runs on that machine."""
    record = view.record
    return record is not None and (peer.advert.peer == record.machine or peer.advert.name == record.machine_name)


def oddity_lines(ticks: tuple[Tick, ...], keys: Table = KEYS) -> Iterator[Line]:
    """What is odd without being in the way yet: versions that differ, clocks that are off."""
    for tick in ticks[:ODD]:
        yield ((f"⚠ {text.plain(tick.detail, 300)}", "warn"),)
        if tick.remedy:
            yield ((f"  {text.plain(tick.remedy, 300)}", ""),)
    if len(ticks) > ODD:
        yield ((f"  and {len(ticks) - ODD} more: {pressed(keys, Place.HOME, 'network')} on Home shows the network", "dim"),)
