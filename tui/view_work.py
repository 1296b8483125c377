"""What a learner's beats say of its work, in figures: memory, goodput, traffic. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm import api
from tui import text

if TYPE_CHECKING:
    from swarm.api import Beat, LearnerView, RunState


def memory_text(view: LearnerView) -> str:
    """'38/64G': what its training takes, of what its device has. Of a card the first is not known."""
    used_bytes, total_bytes = api.used_bytes(view), view.record.memory_bytes if view.record is not None else 0
    if not total_bytes:
        return text.size(used_bytes) if used_bytes else text.NONE
    used, total = (used_bytes or 0) / 2**30, total_bytes / 2**30
    known = text.NONE if used_bytes is None else f"{used:.0f}" if used >= 9.95 else f"{used:.1f}"
    return f"{known}/{total:.0f}G"


def goodput_text(beat: Beat | None) -> str:
    part = api.goodput(beat)
    return text.NONE if part is None else f"{100 * part:.0f}%"


def traffic(beat: Beat) -> str:
    """'↑12M ↓340k': what its incarnation has sent and received."""
    return f"↑{brief(beat.sent_bytes)} ↓{brief(beat.received_bytes)}"


def brief(count_bytes: int) -> str:
    """Bytes in four characters at most."""
    words = text.size(count_bytes)
    number, suffix = words.rstrip("kMGT"), words[len(words.rstrip("kMGT")) :]
    return f"{float(number):.2g}{suffix}" if len(number) > 3 and float(number) < 99.5 else words


def totals(state: RunState) -> tuple[str, ...]:
    """For the first line, of the learners that are live: the part of their time that went into training, and their traffic."""
    beats = [v.beat for v in state.live if v.beat is not None]
    if not beats:
        return ()
    sent, received = sum(b.sent_bytes for b in beats), sum(b.received_bytes for b in beats)
    trainers = [b for b in beats if b.role != "syncer"]
    alive_s, trained_s = sum(b.alive_s for b in trainers), sum(b.trained_s for b in trainers)
    good = (f"  goodput {100 * min(1.0, trained_s / alive_s):.0f}%",) if alive_s else ()
    return (*good, f"  ↑{brief(sent)} ↓{brief(received)}")
