"""What a run has drawn so far, and what that costs: values in, words out. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui import text

if TYPE_CHECKING:
    from swarm.api import LearnerView, RunState

UNKNOWN = "–"


def drawn_wh(state: RunState) -> float | None:
    """Watt-hours of all learners whose machines can tell, since their incarnations joined; None if none can."""
    known = [wh for view in state.learners if (wh := learner_wh(view)) is not None]
    return sum(known) if known else None


def learner_wh(view: LearnerView) -> float | None:
    return view.beat.energy_wh if view.beat is not None else None


def power_w(view: LearnerView) -> float | None:
    """What its machine draws for it now; None if nothing there tells, or if it is not live."""
    return view.beat.power_w if view.beat is not None and view.live else None


def energy(wh: float | None) -> str:
    """'840 mWh', '12.3 Wh', '1.24 kWh'."""
    if wh is None:
        return UNKNOWN
    if wh < 0.9995:
        return f"{1000 * wh:.0f} mWh"
    return f"{wh:.1f} Wh" if wh < 999.5 else f"{wh / 1000:.2f} kWh"


def power(watts: float | None) -> str:
    return UNKNOWN if watts is None else f"{watts:.0f} W" if watts >= 9.95 else f"{watts:.1f} W"


def cost(wh: float | None, price_per_kwh: float | None, currency: str = "") -> str:
    """What `wh` cost: '0.042 €'; '–' where either is not known."""
    if wh is None or price_per_kwh is None:
        return UNKNOWN
    amount = wh / 1000 * price_per_kwh
    # Below a hundredth two digits would be nothing at all.
    number = f"{amount:.2f}" if amount >= 0.995 or amount == 0 else f"{amount:.3f}" if amount >= 0.0005 else "< 0.001"
    return f"{number} {text.plain(currency, 8)}".rstrip()


def summary(state: RunState, price_per_kwh: float | None = None, currency: str = "") -> str:
    """'12.3 Wh, 0.004 €', from as many learners as tell: '12.3 Wh of 2/4 learners'; '' if none does."""
    wh = drawn_wh(state)
    if wh is None:
        return ""
    trained = [view for view in state.learners if view.role != "syncer"]
    told = sum(learner_wh(view) is not None for view in trained)
    some = f" of {told}/{text.count(len(trained), 'learner')}" if 0 < told < len(trained) else ""
    paid = f", {cost(wh, price_per_kwh, currency)}" if price_per_kwh is not None else ""
    return f"{energy(wh)}{paid}{some}"
