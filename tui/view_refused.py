"""Which machines would train a run and cannot, as far as they tell: in its mailbox when they tried, or on the network while
they stand by. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING

from tui import text
from tui.states import STATES
from tui.widgets.table import Cell, Column, Row

if TYPE_CHECKING:
    from swarm.api import RunState, SeenPeer, Sightings
    from tui.messages import RunShown

_WOULD = ("idle", "waiting", "paused")  # what a machine that stands by tells of itself


def refused(state: RunState, sightings: Sightings, mailbox: str) -> tuple[tuple[str, str], ...]:
    """(machine, reason), each machine once. What it told in the mailbox comes before what its advert says, which may be
    anybody's. By advert: those that have the mailbox with this id open, stand by for runs, and cannot take part in this one."""
    if state.manifest is None or state.phase in ("done", "stopped"):
        return ()
    found = {text.plain(told.machine_name, 64): text.plain(told.reason, 300) for told in reversed(state.refused)}
    told = {each.machine for each in state.refused}
    here = {view.record.machine_name for view in state.live if view.record is not None}
    for peer in sightings.peers if mailbox else ():
        advert = peer.advert
        if peer.itself or advert.state not in _WOULD or mailbox not in advert.mailboxes:
            continue
        if advert.name not in here and advert.peer not in told and (reason := _reason(state, peer)):
            found.setdefault(text.plain(advert.name, 64), reason)
    return tuple(sorted(found.items()))


def _reason(state: RunState, peer: SeenPeer) -> str:
    assert state.manifest is not None
    theirs, needed, name = peer.advert.format, state.manifest.format, text.plain(peer.advert.name, 32)
    if theirs < needed:
        return f"format {theirs} ≠ {needed}: upgrade swarm on {name}"
    if theirs > needed:
        return f"format {theirs} ≠ {needed}: this run is older than swarm on {name}"
    if state.trust.signed and not peer.ours:
        return f"another passphrase, or none: swarm key import on {name}"
    return ""


def rows(shown: RunShown, columns: tuple[Column, ...], *, without: Container[str]) -> Iterator[Row]:
    """Of machines that would train this run and cannot. What does not fit a column stands in those after it."""
    mark, tone = STATES["refused"]
    for name, reason in shown.refused:
        if name not in without:
            cells = [Cell(name), Cell(f"{mark} refused", tone), Cell(reason, "warn")]
            yield Row(key=name, cells=(*cells, *(Cell(text.NONE) for _ in columns[3:])), spill=2)
