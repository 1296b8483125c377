"""What the Network screen says of this machine's surroundings: values in, words out. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from swarm.api.doctor import clock_words
from tui import text
from tui.widgets.table import Cell, Column, Row

if TYPE_CHECKING:
    from swarm.api import SeenPeer, Sightings
    from swarm.api.doctor import Examination
    from tui.messages import NetworkShown
    from tui.widgets.toned import Line, Piece

PEER_COLUMNS = (
    Column("peer", 16, grow=True),
    Column("does", 8, rank=4),
    Column("advert", 6, rank=1, right=True),
    Column("seen by", 16, rank=5),
    Column("sees us", 7, rank=2),
    Column("reached", 8, rank=3, right=True),
    Column("clock", 16, rank=6, right=True),
    Column("swarm", 8, rank=7),
    Column("accelerators", 12, rank=8, grow=True, sortable=False),
)
OLD_S = 20.0  # an advert is said again every ten seconds
_MARKS: dict[str, Piece] = {
    "ok": ("✓", "good"),
    "warning": ("!", "warn"),
    "failed": ("✗", "bad"),
    "checking": ("◌", "dim"),
}
_NAME = 18  # cells of a check's name
_INDENT = 4  # of it, with its mark


def headline(shown: NetworkShown | None) -> Line:
    start: Line = ((" swarm ", "strong"), ("▸ ", "dim"), ("network", "strong"))
    if shown is None or not shown.found.ticks:
        return (*start, ("  looking …", "dim"))
    found = shown.found
    counts = {verdict: sum(tick.verdict == verdict for tick in found.ticks) for verdict in _MARKS}
    pieces: list[Piece] = []
    if counts["checking"]:
        pieces.append((f"  looking … {text.count(counts['checking'], 'check')} left", "accent"))
    if counts["failed"]:
        pieces.append((f"  ✗ {counts['failed']} failed", "bad"))
    if counts["warning"]:
        pieces.append((f"  ! {text.count(counts['warning'], 'warning')}", "warn"))
    if found.done:
        if not counts["failed"] and not counts["warning"]:
            pieces.append(("  ✓ all is well", "good"))
        pieces.append((f"  looked at {text.span(shown.now_s - found.now_s)} ago", "dim"))
    return (*start, *pieces)


def peer_rows(sightings: Sightings, now_s: float) -> tuple[Row, ...]:
    """This machine last: what it tells of itself is seldom what is looked for."""
    peers = sorted(sightings.peers, key=lambda peer: peer.itself)
    return tuple(_peer_row(peer, now_s) for peer in peers)


def row_key(peer: SeenPeer) -> str:
    return f"{peer.advert.peer} {peer.advert.boot} {peer.ours}"


def _peer_row(peer: SeenPeer, now_s: float) -> Row:
    advert, age_s = peer.advert, max(0.0, now_s - peer.heard_s)
    return Row(
        key=row_key(peer),
        quiet=peer.itself or not peer.ours,
        cells=(
            Cell(text.plain(advert.name, 60) + ("*" if peer.itself else ""), "strong"),
            Cell(text.plain(advert.state, 10)),
            Cell(text.span(age_s), "warn" if age_s > OLD_S else "", order=age_s),
            Cell(", ".join(peer.how) or text.NONE),
            _sees(peer),
            _reached(peer),
            Cell(text.NONE if peer.clock_off_s is None else clock_words(peer.clock_off_s), order=peer.clock_off_s or 0.0),
            Cell(text.plain(advert.version, 20) or text.NONE),
            Cell(text.plain(", ".join(advert.accelerators), 60) or "CPU", "dim"),
        ),
    )


def _sees(peer: SeenPeer) -> Cell:
    if peer.itself:
        return Cell(text.NONE)
    if not peer.ours:
        return Cell("✗ other", "warn")
    if peer.sees_us is None:
        return Cell("◌ wait", "dim")
    return Cell("✓ yes", "good") if peer.sees_us else Cell("! no", "warn")


def _reached(peer: SeenPeer) -> Cell:
    if peer.reached_ms is not None:
        return Cell(f"{peer.reached_ms:.1f} ms", order=peer.reached_ms)
    return Cell("✗ no", "bad", order=1e9) if peer.unreachable else Cell(text.NONE)


def peer_detail(peer: SeenPeer | None) -> Iterator[Line]:
    """More of the machine under the cursor than the table has room for."""
    if peer is None:
        return
    where = ", ".join(text.plain(each, 45) for each in peer.addresses[:4]) or "no address"
    port = f", port {peer.advert.port}" if peer.advert.port else ""
    yield ((f" {text.plain(peer.advert.name, 40)}: ", "strong"), (f"{where}{port}", ""))
    if peer.unreachable and peer.reached_ms is None:
        yield ((f"   not reached: {text.plain(peer.unreachable, 200)}", "warn"),)


def no_peers(sightings: Sightings) -> Iterator[Line]:
    """What stands in the place of the peers while there are none."""
    if any(not peer.itself for peer in sightings.peers):
        return
    yield (("No other machine is seen.", "strong"), (" Start swarm tui on one.", ""))


def check_lines(found: Examination, width: int, *, short: bool = False) -> tuple[Line, ...]:
    """All checks by topic, in lines of `width` cells, with what to do about each that is not well. `short`: a topic that is
    well has one line."""
    lines: list[Line] = []
    for topic, ticks in found.topics():
        if short and all(tick.verdict == "ok" for tick in ticks):
            names = text.plain(", ".join(tick.name for tick in ticks), 400)
            lines.append((("✓ ", "good"), (text.plain(topic, width), "strong"), (f": {names}", "dim")))
            continue
        if lines and not short:
            lines.append(())
        lines.append(((text.plain(topic, width), "strong"),))
        for tick in ticks:
            mark, tone = _MARKS[tick.verdict]
            name = text.plain(tick.name, 60)
            room = max(20, width - _INDENT - _NAME - 2)
            detail = _wrapped(tick.detail or ("…" if tick.verdict == "checking" else ""), room)
            word = tone if tick.verdict in ("failed", "warning") else ""
            lines.append((("  ", ""), (mark, tone), (" ", ""), (text.fit(name, _NAME), "dim"), ("  ", ""), (detail[0], word)))
            lines += [((" " * (_INDENT + _NAME + 2), ""), (each, word)) for each in detail[1:]]
            if tick.remedy and tick.verdict != "ok":
                remedy = _wrapped(tick.remedy, max(20, width - _INDENT - 2))
                lines.append(((" " * _INDENT, ""), ("→ ", "accent"), (remedy[0], "accent")))
                lines += [((" " * (_INDENT + 2), ""), (each, "accent")) for each in remedy[1:]]
    return tuple(lines)


def _wrapped(words: str, width: int) -> list[str]:
    return textwrap.wrap(text.plain(words, 1000), width, break_on_hyphens=False) or [""]
