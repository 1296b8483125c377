"""What a run has drawn, and what that costs."""

from types import SimpleNamespace

import msgspec
import pytest

from swarm import api
from swarm.api import RunState, Settings
from tui import view_energy
from tui.app import SwarmApp
from tui.widgets.toned import Words


def powered(state: RunState, **drawn_wh: float) -> RunState:
    """`state`, in which these learners tell what they have drawn."""
    views = tuple(
        msgspec.structs.replace(view, beat=msgspec.structs.replace(view.beat, energy_wh=drawn_wh[view.learner], power_w=41.5))
        if view.learner in drawn_wh and view.beat is not None
        else view
        for view in state.learners
    )
    return msgspec.structs.replace(state, learners=views)


def test_nothing_is_said_where_nothing_tells(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    assert view_energy.summary(state, 0.3, "€") == ""
    assert {api.energy_words(None), api.power_words(None), view_energy.cost(None, 0.3), view_energy.cost(1.0, None)} == {"–"}


def test_those_who_tell_are_added_and_the_others_said_to_miss(fixed: SimpleNamespace) -> None:
    some = powered(fixed.run_state(), studio=10.0, mbp=2.5)
    assert view_energy.summary(some, 0.4, "€") == "12.5 Wh, 0.005 €, of 2/4 learners"
    assert view_energy.summary(some) == "12.5 Wh, of 2/4 learners"
    every = powered(fixed.run_state(), studio=10.0, mbp=2.5, air=1.0, **{"linux-3090": 986.5})
    assert view_energy.summary(every, 0.4, "€") == "1.00 kWh, 0.400 €"
    assert [view_energy.power_w(view) for view in every.learners] == [41.5] * 4


@pytest.mark.parametrize(("wh", "words"), [(0.0, "0 mWh"), (0.84, "840 mWh"), (12.34, "12.3 Wh"), (1240.0, "1.24 kWh")])
def test_energy_is_short(wh: float, words: str) -> None:
    assert api.energy_words(wh) == words


@pytest.mark.parametrize(
    ("wh", "price", "words"), [(0.0, 0.3, "0.00"), (1.0, 0.3, "< 0.001"), (100.0, 0.3, "0.030"), (9000.0, 0.3, "2.70")]
)
def test_cost_keeps_digits_that_say_something(wh: float, price: float, words: str) -> None:
    assert view_energy.cost(wh, price) == words
    assert view_energy.cost(wh, price, "\x1b[31m€") == f"{words} €"


async def test_the_run_screen_tells_it_where_there_is_room(fixed: SimpleNamespace) -> None:
    state = powered(fixed.run_state(), studio=10.0, mbp=2.5, air=1.0, **{"linux-3090": 986.5})
    base = fixed.app_over(fixed.home_shown(fixed.home(state)), fixed.run_shown(state))
    app = SwarmApp(base.feed, settings=Settings(price_per_kwh=0.4, currency="€"))
    async with app.run_test(size=(160, 36)) as pilot:
        await pilot.press("w")
        await pilot.pause()
        assert "1.00 kWh, 0.400 €" in str(app.screen.query_one("#head", Words).render())
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "kWh" not in str(app.screen.query_one("#head", Words).render())
