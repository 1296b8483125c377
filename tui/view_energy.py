"""What a run has drawn so far, and what that costs, for the screens: values in, words out. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarm.api import cost_words, drawn, drawn_words, money
from tui import text

if TYPE_CHECKING:
    from swarm.api import LearnerView, RunState


def learner_wh(view: LearnerView) -> float | None:
    return view.beat.energy_wh if view.beat is not None else None


def power_w(view: LearnerView) -> float | None:
    """What its machine draws for it now; None if nothing there tells, or if it is not live."""
    return view.beat.power_w if view.beat is not None and view.live else None


def cost(wh: float | None, price_per_kwh: float | None, currency: str = "") -> str:
    """What `wh` cost: '0.042 €'; '–' where either is not known."""
    return cost_words(money(wh, price_per_kwh), text.plain(currency, 8))


def summary(state: RunState, price_per_kwh: float | None = None, currency: str = "") -> str:
    """Of all learners whose machines tell, since their incarnations joined: '12.3 Wh, 0.004 €, of 2/4 learners'; '' if none
    does."""
    found = drawn(state)
    if found is None:
        return ""
    return drawn_words(found, price_per_kwh=price_per_kwh, currency=text.plain(currency, 8))
