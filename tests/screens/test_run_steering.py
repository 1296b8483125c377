"""Run: more rounds, exporting, samples, and what the footer leaves out."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from textual.widgets import Button, Input

from swarm.core.records import Control
from swarm.core.state import EvalRead, apply
from tui import view_samples
from tui.background import in_thread
from tui.messages import Answered, CommandEnded
from tui.screens.dialogs import Ask, Choice
from tui.screens.run import IsThere, RunScreen
from tui.screens.samples import SamplesScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.toned import Lines

SIZE = (80, 24)  # without a plot, which takes its time


def over(fixed: SimpleNamespace, state: Any) -> Any:
    return fixed.app_over(fixed.home_shown(fixed.home(state)), fixed.run_shown(state))


def footer(app: Any) -> set[str]:
    return {item.key for _, item in app.screen.query_one(KeyBar).items}


def said(lines: Any) -> list[str]:
    return ["".join(words for words, _ in line) for line in lines]


def with_samples(state: Any) -> Any:
    for round, text in ((10, "the cat"), (11, "the hat\x1b[2J\nsat " + 300 * "x")):
        state = apply(state, EvalRead(msgspec.structs.replace(state.evals[round], sample=text)))
    return state


async def test_plus_gives_a_run_another_number_of_rounds(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_state())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "plus")
        assert isinstance(app.screen, Ask)
        assert app.screen.query_one(Input).value == "40"
        await pilot.press("backspace", "backspace", *"80", "enter")
        assert app.feed.asked[-1] == ("extend", (fixed.AT, 80))
        before = len(app.feed.asked)
        for answer in ((), "3"):
            await pilot.press("plus", "backspace", "backspace", *answer, "enter")
            assert isinstance(app.screen, Choice), "it would never end, or at once"
            await pilot.press("enter")
            assert len(app.feed.asked) == before
        await pilot.press("plus", "backspace", "backspace", "enter", "up", "enter")
        assert app.feed.asked[-1] == ("extend", (fixed.AT, None)), "until it is stopped"
        await pilot.press("plus", "backspace", "backspace", "3", "enter", "up", "enter")
        assert app.feed.asked[-1] == ("extend", (fixed.AT, 3))
        before = len(app.feed.asked)
        await pilot.press("plus", "x", "enter", "plus", "escape", "plus", "backspace", "backspace", "0", "enter")
        assert len(app.feed.asked) == before
        assert [n.message for n in app._notifications] == ["40x is no number of rounds", "0 is no number of rounds"]
        app.feed.tell(CommandEnded("extend", fixed.AT.run))
        await pilot.pause()
        assert "extend was asked for: it takes effect at the next round" in [n.message for n in app._notifications]


async def test_e_exports_and_asks_before_it_writes_over_a_file(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_state())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "e")
        assert app.screen.query_one(Input).value == f"{fixed.NAME}.safetensors"
        await pilot.press("enter")
        question = IsThere(f"{fixed.NAME}.safetensors")
        assert app.feed.asked[-1] == ("ask", question)
        app.feed.tell(Answered(question, False))
        await pilot.pause()
        assert app.feed.asked[-1] == ("export", (fixed.AT, question.file))
        app.feed.tell(Answered(question, True))
        await pilot.pause()
        assert isinstance(app.screen, Choice)
        assert isinstance(app.focused, Button)
        assert app.focused.id == "cancel"
        await pilot.press("enter")
        assert app.feed.asked.count(("export", (fixed.AT, question.file))) == 1
        app.feed.tell(Answered(question, True))
        await pilot.pause()
        await pilot.press("up", "enter")
        assert app.feed.asked.count(("export", (fixed.AT, question.file))) == 2
        app.feed.tell(CommandEnded("export", question.file))
        await pilot.pause()
        assert f"wrote {question.file}" in [n.message for n in app._notifications]


async def test_whether_a_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    api: Any = None
    assert await IsThere(str(tmp_path / "x")).answer(api)
    assert not await IsThere(str(tmp_path / "y")).answer(api)
    assert await in_thread(lambda: 7) == 7


async def test_v_shows_what_the_model_wrote(fixed: SimpleNamespace) -> None:
    app = over(fixed, with_samples(fixed.run_state()))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("w", "v")
        assert isinstance(app.screen, SamplesScreen)
        lines = said(app.screen.query_one("#text", Lines)._lines)
        assert lines[0].startswith("round 11  validation loss ")
        assert lines[1] == "│ the hat"
        assert lines[2].startswith("│ sat xxx")
        assert all(len(line) <= 78 for line in lines)
        assert any(line == "│ the cat" for line in lines)
        await pilot.press("j", "k", "pagedown", "pageup", "G", "g", "escape")
        assert isinstance(app.screen, RunScreen)


def test_samples_are_bounded(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    state = apply(state, EvalRead(msgspec.structs.replace(state.evals[11], sample="y\n" * 50_000)))
    assert len(said(view_samples.sample_pages(state, width=78))) < 20
    assert not view_samples.written(fixed.run_state())
    assert len(said(view_samples.sample_pages(fixed.run_state(), width=78))) == 1


def test_a_data_parallel_job_has_samples_too(fixed: SimpleNamespace) -> None:
    state = fixed.job_state()
    assert not view_samples.written(state)
    evals = tuple(msgspec.structs.replace(e, sample=f"sample {n}") for n, e in enumerate(state.ranks.evals))
    state = msgspec.structs.replace(state, ranks=msgspec.structs.replace(state.ranks, evals=evals))
    lines = said(view_samples.sample_pages(state, width=78))
    assert lines[0] == f"iteration {evals[-1].iteration}  validation loss {evals[-1].loss:.3f}"
    assert lines[1] == f"│ sample {len(evals) - 1}"


async def test_the_footer_offers_only_what_applies(fixed: SimpleNamespace) -> None:
    stopped = fixed.run_state(stop=True)
    app = over(fixed, stopped)
    async with app.run_test(size=(240, 36)) as pilot:
        await pilot.press("w")
        assert not footer(app) & {"plus", "v", "J", "S", "P", "x", "L"}
        assert "e" in footer(app)
        await pilot.press("plus", "v")
        assert isinstance(app.screen, RunScreen)
        app.feed.tell(fixed.run_shown(with_samples(fixed.run_state(closed=40))))
        await pilot.pause()
        assert {"plus", "v", "e"} <= footer(app), "one that has all its rounds can have more"
        app.feed.tell(fixed.run_shown(fixed.job_state()))
        await pilot.pause()
        assert not footer(app) & {"plus", "v"}
        assert "x" in footer(app)


def test_a_run_that_is_about_to_stop_gets_no_more_rounds(fixed: SimpleNamespace) -> None:
    from swarm.core.state import ControlRead
    from tui import view_run

    assert view_run.extensible(fixed.run_state())
    assert not view_run.extensible(apply(fixed.run_state(), ControlRead(1, Control(action="stop", by="mbp"))))
    assert not view_run.exportable(fixed.lost(fixed.run_state()))
