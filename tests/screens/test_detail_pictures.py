"""Pictures of the screens behind Run: a round, a generation, a learner, its log and samples.

Look at new ones, then: pytest tests/screens/test_detail_pictures.py --snapshot-update
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import textual
from textual.pilot import Pilot

from swarm.core.manifest import PayloadRef
from swarm.core.state import EvalRead, RoundRead, apply
from tui.messages import Answered
from tui.screens.log import KEPT, LogOf

DRAWN_WITH = "8.2.8"
pytestmark = pytest.mark.skipif(
    textual.__version__ != DRAWN_WITH, reason=f"the pictures were drawn with Textual {DRAWN_WITH}: another one draws others"
)
SIZES = [(120, 36), (80, 24), (50, 20)]
IDS = [f"{width}x{height}" for width, height in SIZES]
SAMPLE = "GONZALO: I would be quiet,\nAnd so the sea that is not made to hold\nthe wind.\n"
KEYS = {
    "round": ("3", "enter"),
    "round-fedavg": ("3", "enter"),
    "generation": ("3", "j", "enter"),
    "learner": ("enter", "left"),
    "log": ("l",),
    "samples": ("v",),
}


@pytest.fixture(autouse=True)
def same_colours_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)


def run_of(fixed: SimpleNamespace, name: str) -> Any:
    if name == "round-fedavg":
        return fixed.run_shown(fixed.fed_state())
    if name == "generation":
        return fixed.run_shown(fixed.job_state())
    state = fixed.run_state(algorithm=fixed.DiLoCo(fragments=4, in_flight=2, quorum_size=2))
    norm = fixed.api.Rejected(learner="mbp", unit="mbp", reason="norm", round=12)
    record = fixed.round_record(12, ("studio", "linux-3090", "air"), (norm,), norm=0.25)
    parts = [
        msgspec.structs.replace(p, weight=w, cosine=c)
        for p, w, c in zip(record.participants, (3, 4, 1), (0.71, 0.8, 0.92), strict=True)
    ]
    refs = [PayloadRef(round=12, sha256=str(n) * 64, size_bytes=n << 20) for n in (3, 1)]
    record = msgspec.structs.replace(
        record,
        participants=tuple(parts),
        outer=refs[0],
        update=refs[1],
        waited_s=6.2,
        quorum_waited_s=2.5,
        reason="the grace is over",
    )
    state = apply(state, RoundRead(record))
    for round in (11, 12):
        metrics = {"bits_per_byte": 3.2}
        found = fixed.api.EvalRecord(round=round, learner="studio", loss=2.2, metrics=metrics, sample=SAMPLE, seconds_s=1.5)
        state = apply(state, EvalRead(found))
    learners = tuple(
        msgspec.structs.replace(
            view,
            record=msgspec.structs.replace(view.record, memory_bytes=64 << 30),
            beat=msgspec.structs.replace(view.beat, alive_s=7200.0, trained_s=6700.0, power_w=38.4, energy_wh=76.8),
        )
        for view in state.learners
    )
    return fixed.run_shown(msgspec.structs.replace(state, learners=learners), job=fixed.job())


def pictured(fixed: SimpleNamespace, name: str, *, ascii: bool = False) -> Any:
    shown = run_of(fixed, name)
    return fixed.app_over(fixed.home_shown(fixed.home(shown.state, jobs=shown.jobs)), shown, ascii=ascii)


def drawn(name: str, size: tuple[int, int] | None = None, *, theme: str = "") -> Callable[[Pilot[None]], Any]:
    """Presses the keys that lead there, and has the log answered."""

    async def draw(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await pilot.press("w", *KEYS[name])
        if size is not None:  # a tiny terminal shows the learners alone: a round is opened before
            await pilot.resize_terminal(*size)
        if theme:
            app.theme = theme
        lines = tuple(f"12:0{n % 10}:00 {'WARN ' if n % 7 == 3 else ''}round {n} closed with studio, mbp" for n in range(40))
        for count in (KEPT, 200):
            app.feed.tell(Answered(LogOf("20250301-120000-a1b2c3", count), lines))
        await pilot.pause()

    return draw


@pytest.mark.parametrize("size", SIZES, ids=IDS)
@pytest.mark.parametrize("name", ["round", "learner"])
def test_detail(fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]) -> None:
    assert snap_compare(pictured(fixed, name), terminal_size=(120, 36), run_before=drawn(name, size))


@pytest.mark.parametrize("size", SIZES[::2], ids=IDS[::2])
@pytest.mark.parametrize("name", ["round-fedavg", "generation", "log", "samples"])
def test_other(fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]) -> None:
    assert snap_compare(pictured(fixed, name), terminal_size=(120, 36), run_before=drawn(name, size))


@pytest.mark.parametrize("how", ["light", "grey", "ascii"])
@pytest.mark.parametrize("name", ["learner", "round"])
def test_in_other_colours(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    if how == "grey":
        monkeypatch.setenv("NO_COLOR", "1")
    app = pictured(fixed, name, ascii=how == "ascii")
    run_before = drawn(name, theme="textual-light" if how == "light" else "")
    assert snap_compare(app, terminal_size=(120, 36), run_before=run_before)
