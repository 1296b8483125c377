"""Every screen, over states whose every text is nasty: what is painted is plain, and fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swarm.core.adverts import checked_peer, checked_run
from swarm.core.joining import Fault
from tests.fuzz.poison import PRINTABLE, WORST, poisoned, unseemly
from tests.sampling import sampled
from tests.screens import surroundings
from tui import text
from tui.messages import Answered
from tui.screens.log import KEPT, LogOf
from tui.screens.round import RoundScreen
from tui.screens.samples import SamplesScreen

LARGE, SMALL = (120, 36), (60, 20)
NARROW = pytest.param(SMALL, marks=pytest.mark.slow)


@pytest.fixture
def hostile(fixed: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The makers of fixed states, which fold nothing but poisoned records."""
    fold = fixed.apply
    monkeypatch.setattr(fixed.handmade_job, "apply", lambda state, event: fold(state, poisoned(event)))
    for name in ("run_state", "lost"):
        maker: Any = getattr(fixed, name)
        monkeypatch.setitem(maker.__globals__, "apply", lambda state, event: fold(state, poisoned(event)))
    return fixed


def jobs(hostile: SimpleNamespace, state: Any) -> Iterator[Any]:
    for n, said in enumerate(("failed", "running", "dropped", "starting")):
        job = hostile.job(id=f"20250301-12000{n}-a1b2c3", state=said, run=state.run, message=WORST, name=WORST)
        yield msgspec.structs.replace(job, device=WORST)


def states(hostile: SimpleNamespace) -> dict[str, Callable[[], Any]]:
    pause = hostile.Control(action="pause", by="mbp")
    drop = hostile.Control(action="drop", by="mbp", learner="air", incarnation=1)
    few = {"closed": 6, "polls": 6}
    return {
        "running": lambda: hostile.run_state(**few, silent=("air",)),
        "waiting": lambda: hostile.run_state(learners=("studio",), closed=0, polls=3),
        "paused": lambda: hostile.run_state(**few, controls=(pause,)),
        "dropped": lambda: hostile.run_state(**few, controls=(drop,), syncers=("nas",)),
        "stopped": lambda: hostile.run_state(**few, stop=True),
        "lost": lambda: hostile.lost(hostile.run_state(**few), reason=WORST),
        "fedavg": lambda: hostile.fed_state(**few),
        "private": lambda: hostile.fed_state(**few, private=True),
        "job": hostile.job_state,
        "meeting": lambda: hostile.job_state(meeting=True),
        "finished": lambda: hostile.job_state(finished=True),
    }


def painted(app: Any) -> list[str]:
    return ["".join(segment.text for segment in line) for line in app.screen._compositor.render_strips()]


def check(app: Any, width: int) -> None:
    lines = painted(app)
    assert unseemly("\n".join(lines)) == set()
    assert max(map(len, lines)) <= width * 3  # two marks on each letter, at most


NAMES = ("running", "waiting", "paused", "dropped", "stopped", "lost", "fedavg", "private", "job", "meeting", "finished")


@pytest.mark.parametrize(
    ("name", "size"),
    sampled([*((name, LARGE) for name in NAMES), *((name, SMALL) for name in ("running", "fedavg", "job"))], most=8),
    ids=str,
)
async def test_a_run_is_shown_plain(hostile: SimpleNamespace, name: str, size: tuple[int, int]) -> None:
    state = states(hostile)[name]()
    job = next(jobs(hostile, state))
    shown = hostile.run_shown(state, job=job, problem=WORST if name == "waiting" else "")
    app = hostile.app_over(hostile.home_shown(hostile.home(state, jobs=(job,))), shown)
    async with app.run_test(size=size) as pilot:
        await pilot.press("enter")
        await pilot.pause()
        check(app, size[0])
        for key in ("d", "l", "escape", "f12", "escape", "S"):
            await pilot.press(key)
            check(app, size[0])


@pytest.mark.parametrize(
    ("name", "size"),
    [("running", LARGE), ("fedavg", LARGE), ("job", SMALL), pytest.param("running", SMALL, marks=pytest.mark.slow)],
    ids=str,
)
async def test_what_lies_behind_a_run_is_plain(hostile: SimpleNamespace, name: str, size: tuple[int, int]) -> None:
    state = states(hostile)[name]()
    job = next(jobs(hostile, state))
    notes = (hostile.Note(WORST, n=1, at="12:00:00"),)
    shown = hostile.run_shown(state, job=job, notes=notes, refused=(("air2", text.plain(WORST)),))
    app = hostile.app_over(hostile.home_shown(hostile.home(state, jobs=(job,))), shown)
    async with app.run_test(size=size) as pilot:
        await pilot.press("enter")
        for keys in (("enter",), ("G",), ("right",), ("escape", "G", "enter"), ("escape", "l")):
            await pilot.press(*keys)
            app.feed.tell(Answered(LogOf(job.id, KEPT), (WORST, f"12:00:00 WARN {WORST}"), text.plain(WORST)))
            await pilot.pause()
            check(app, size[0])
        await pilot.press("escape")
        app.push_screen(RoundScreen(shown.at, None))
        await pilot.pause()
        check(app, size[0])
        app.push_screen(SamplesScreen(shown.at))
        await pilot.pause()
        check(app, size[0])


@pytest.mark.parametrize("size", [LARGE, NARROW], ids=str)
async def test_home_is_plain(hostile: SimpleNamespace, size: tuple[int, int]) -> None:
    made = [make() for name, make in states(hostile).items() if name in ("running", "waiting", "fedavg", "job")]
    every = [msgspec.structs.replace(state, run=f"run{n}aaaa") for n, state in enumerate(made)]
    found = itertools.chain.from_iterable(jobs(hostile, state) for state in every[:2])
    home = hostile.home(*every, jobs=tuple(found), problem=WORST, remedy=WORST)
    app = hostile.app_over(hostile.home_shown(home))
    async with app.run_test(size=size) as pilot:
        check(app, size[0])
        for key in ("j", "j", "f12", "escape", "ctrl+p", "escape", "q"):
            await pilot.press(key)
            check(app, size[0])


async def test_notes_are_plain(hostile: SimpleNamespace) -> None:
    """What a toast says when a run changes."""
    from tui.transitions import run_notes

    made = [make() for name, make in states(hostile).items() if name not in ("job", "meeting", "finished")]
    every = [run_notes(before, after) for before, after in itertools.permutations(made, 2)]
    said = [note.text for notes in every for note in notes]
    assert said
    assert all(unseemly(text) == set() and "\n" not in text and len(text) < 1000 for text in said)


def heard(hostile: SimpleNamespace) -> Any:
    """What a machine that lies tells the network, as far as adverts let it."""
    peers = []
    for seen in hostile.sightings().peers:
        advert = msgspec.structs.replace(seen.advert, name=WORST, version=WORST, accelerators=(WORST, WORST), tag=WORST)
        peers.append(msgspec.structs.replace(seen, advert=checked_peer(advert), unreachable=WORST))
    lies = {"name": WORST, "task": WORST, "method": WORST, "phase": WORST, "share": f"smb://{PRINTABLE}"}
    run = hostile.seen_run(**lies)
    told = msgspec.structs.replace(run, advert=checked_run(run.advert), peers=(checked_run(run.advert).name,))
    return msgspec.structs.replace(hostile.sightings(told, peers=tuple(peers)), trouble=(WORST,))


@pytest.mark.parametrize("size", [LARGE, NARROW], ids=str)
async def test_the_networks_runs_and_machines_are_plain(hostile: SimpleNamespace, size: tuple[int, int]) -> None:
    app = hostile.app_over(hostile.home_shown(hostile.home(), sightings=heard(hostile)))
    async with app.run_test(size=size) as pilot:
        check(app, size[0])
        for key in ("j", "3", "j", "k", "f12", "escape"):
            await pilot.press(key)
            check(app, size[0])


@pytest.mark.parametrize("size", [LARGE, NARROW], ids=str)
async def test_joining_is_plain(hostile: SimpleNamespace, size: tuple[int, int]) -> None:
    app = hostile.app_over(hostile.home_shown(hostile.home(), sightings=heard(hostile)))
    made = poisoned(hostile.manifest(run=hostile.FAR.run, task="lenet5"))
    nasty = {"told_by": (WORST,), "phase_words": WORST, "share_words": WORST, "task_words": WORST, "manifest": made}
    faults = {"options_fault": WORST, "data_fault": WORST, "task_fault": Fault(WORST, WORST)}
    async with app.run_test(size=size) as pilot:
        await pilot.press("enter")
        for shown in (hostile.join_shown(**nasty), hostile.join_shown(**nasty, **faults), hostile.not_mounted(**faults)):
            app.feed.tell(shown)
            await pilot.pause()
            check(app, size[0])
            await pilot.press("j")
            check(app, size[0])


@pytest.mark.parametrize("size", [LARGE, NARROW], ids=str)
async def test_the_network_is_plain(hostile: SimpleNamespace, size: tuple[int, int]) -> None:
    seen = heard(hostile)
    found = surroundings.examination(seen)
    ticks = tuple(msgspec.structs.replace(tick, detail=WORST, remedy=WORST if tick.remedy else "") for tick in found.ticks)
    shown = surroundings.network_shown(found=msgspec.structs.replace(found, ticks=ticks), seen=seen)
    app = hostile.app_over(hostile.home_shown(hostile.home(hostile.run_state(closed=2, polls=2))), network=shown)
    async with app.run_test(size=size) as pilot:
        for key in ("d", "j", "j", "2", "j", "escape"):
            await pilot.press(key)
            check(app, size[0])
