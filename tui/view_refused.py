"""Which machines would train a run and cannot, as far as what they tell of themselves says. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui import text

if TYPE_CHECKING:
    from swarm.api import RunState, SeenPeer, Sightings

_WOULD = ("idle", "waiting", "paused")  # what a machine that stands by tells of itself


def refused(state: RunState, sightings: Sightings, mailbox: str) -> tuple[tuple[str, str], ...]:
    """(machine, reason) of those that have the mailbox with this id open, stand by for runs, and cannot take part in this one.
    Hints: an advert may be anybody's."""
    if state.manifest is None or not mailbox or state.phase in ("done", "stopped"):
        return ()
    here = {view.record.machine_name for view in state.live if view.record is not None}
    found = []
    for peer in sightings.peers:
        advert = peer.advert
        if peer.itself or advert.state not in _WOULD or mailbox not in advert.mailboxes or advert.name in here:
            continue
        if reason := _reason(state, peer):
            found.append((text.plain(advert.name, 64), reason))
    return tuple(sorted(found))


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
