"""What a training takes of its machines: time, memory, energy, and what that costs. Values in, words out. Pure."""

from __future__ import annotations

from typing import Protocol

import msgspec

from swarm.core.sentences import amount
from swarm.core.state import LearnerView, RunState

UNKNOWN = "–"


class Spends(Protocol):
    """A Beat, or what a worker tells of itself in its events."""

    @property
    def alive_s(self) -> float: ...

    @property
    def trained_s(self) -> float: ...


class Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has drawn so far, as far as its machines tell."""

    energy_wh: float
    told: int  # learners whose machines tell
    learners: int


def goodput(spends: Spends | None) -> float | None:
    """The share of the time, pauses left out, that went into inner steps, 0 to 1; None before there is any."""
    if spends is None or spends.alive_s <= 0:
        return None
    return min(1.0, spends.trained_s / spends.alive_s)


def used_bytes(view: LearnerView) -> int | None:
    """Memory of the device that trains, in use for it; None if that is not known: of a card only a data-parallel job tells."""
    if view.beat is None:
        return None
    if view.beat.rank is not None:
        return view.beat.rank.memory_bytes or None
    on_card = view.record is not None and "cuda" in view.record.device
    return None if on_card else view.beat.rss_bytes or None


def drawn(state: RunState) -> Drawn | None:
    """None if no machine tells."""
    trained = [view for view in state.learners if view.role != "syncer"]
    known = [view.beat.energy_wh for view in trained if view.beat is not None and view.beat.energy_wh is not None]
    return Drawn(energy_wh=sum(known), told=len(known), learners=len(trained)) if known else None


def cost(energy_wh: float | None, price_per_kwh: float | None) -> float | None:
    return None if energy_wh is None or price_per_kwh is None else energy_wh / 1000 * price_per_kwh


def cosine(state: RunState, rounds: int) -> float | None:
    """The mean of the participants' cosines with what they came to, over the last rounds that tell of any."""
    told = state.series.cosine.values[-rounds:]
    return sum(told) / len(told) if told else None


# Words


def percent(part: float | None) -> str:
    return UNKNOWN if part is None else f"{100 * part:.0f}%"


def memory_words(used: int | None, total: int) -> str:
    """'1.2 GB/64 GB'; either may be missing."""
    if used is None and not total:
        return UNKNOWN
    return f"{UNKNOWN if used is None else amount(used)}/{amount(total) if total else UNKNOWN}"


def power_words(power_w: float | None) -> str:
    return UNKNOWN if power_w is None else f"{power_w:.0f} W" if power_w >= 9.95 else f"{power_w:.1f} W"


def energy_words(energy_wh: float | None) -> str:
    """'840 mWh', '12.3 Wh', '1.24 kWh'."""
    if energy_wh is None:
        return UNKNOWN
    if energy_wh < 0.9995:
        return f"{1000 * energy_wh:.0f} mWh"
    return f"{energy_wh:.1f} Wh" if energy_wh < 999.5 else f"{energy_wh / 1000:.2f} kWh"


def cost_words(money: float | None, currency: str = "") -> str:
    """'0.042 €'. Below a hundredth two digits would be nothing at all."""
    if money is None:
        return UNKNOWN
    number = f"{money:.2f}" if money >= 0.995 or money == 0 else f"{money:.3f}" if money >= 0.0005 else "< 0.001"
    return f"{number} {currency}".rstrip()


def drawn_words(found: Drawn, *, price_per_kwh: float | None = None, currency: str = "") -> str:
    """'12.3 Wh, 0.004 €, of 2/4 learners'."""
    words = [energy_words(found.energy_wh)]
    if price_per_kwh is not None:
        words.append(cost_words(cost(found.energy_wh, price_per_kwh), currency))
    if found.told < found.learners:
        words.append(f"of {found.told}/{found.learners} learners")
    return ", ".join(words)
