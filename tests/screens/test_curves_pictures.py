"""Pictures of plots and of the Compare screen over fixed states.

Look at new ones (snapshot_report.html), then: pytest tests/screens/test_curves_pictures.py --snapshot-update
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import textual
from textual.pilot import Pilot

from tui.messages import Answered, RunAt
from tui.view_compare import Side

DRAWN_WITH = "8.2.8"
pytestmark = pytest.mark.skipif(
    textual.__version__ != DRAWN_WITH, reason=f"the pictures were drawn with Textual {DRAWN_WITH}: another one draws others"
)
SIZES = [(120, 36), (80, 24), (50, 20)]
IDS = ["120x36", "80x24", "50x20"]


@pytest.fixture(autouse=True)
def same_colours_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)


async def settle(pilot: Pilot[None]) -> None:
    await pilot.pause()


@pytest.mark.parametrize("size", SIZES[:2], ids=IDS[:2])
def test_each_learner(fixed: SimpleNamespace, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    shown = fixed.run_shown(fixed.run_state(learners=(*fixed.DEVICES, "mini", "nuc", "tower")))
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    assert snap_compare(app, press=["w", "o", "a", "t"], terminal_size=size, run_before=settle)


def test_a_job_by_time_on_a_logarithmic_axis(fixed: SimpleNamespace, snap_compare: Callable[..., bool]) -> None:
    shown = fixed.run_shown(fixed.job_state(), log=())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    assert snap_compare(app, press=["w", "a", "a", "y"], terminal_size=(120, 36), run_before=settle)


@pytest.mark.parametrize("look", ["light", "no-color", "ascii"])
def test_each_learner_otherwise(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    if look == "no-color":
        monkeypatch.setenv("NO_COLOR", "1")
    shown = fixed.run_shown(fixed.run_state())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown, ascii=look == "ascii")
    if look == "light":
        app.theme = "textual-light"
    assert snap_compare(app, press=["w", "o"], terminal_size=(120, 36), run_before=settle)


def compared(fixed: SimpleNamespace, *, ascii: bool = False) -> tuple[Any, Callable[[Pilot[None]], Any]]:
    """Home with two runs, and what opens Compare over both."""
    one = fixed.run_state()
    algorithm = fixed.DiLoCo(sync_every=50, quorum_size=2, start_learners=2, outer_lr=0.5)
    gone = ("studio", "mbp")
    other = fixed.run_state(
        run="bbbb3333", name="charlm-warm-owl", learners=gone, closed=30, rounds=30, left=gone, algorithm=algorithm
    )
    app = fixed.app_over(fixed.home_shown(fixed.home(one, other)), ascii=ascii)

    async def answered(pilot: Pilot[None]) -> None:
        await pilot.press("c", "j", "c")
        await pilot.pause()
        answer = tuple(Side(RunAt(fixed.SHARE, state.run), state) for state in (one, other))
        app.feed.tell(Answered(app.feed.asked[-1][1], answer))
        await pilot.pause()

    return app, answered


@pytest.mark.parametrize("size", SIZES, ids=IDS)
def test_compare(fixed: SimpleNamespace, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    app, answered = compared(fixed)
    assert snap_compare(app, terminal_size=size, run_before=answered)


@pytest.mark.parametrize("look", ["light", "no-color", "ascii"])
def test_compare_otherwise(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    if look == "no-color":
        monkeypatch.setenv("NO_COLOR", "1")
    app, answered = compared(fixed, ascii=look == "ascii")
    if look == "light":
        app.theme = "textual-light"
    assert snap_compare(app, terminal_size=(80, 24), run_before=answered)
