"""FedAvg on the Run screen: who trains which client, accuracy and the last round's details."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from swarm.core.state import EvalRead, apply
from tui import view_clients, view_curves, view_rounds, view_run
from tui.screens.dialogs import Page
from tui.screens.run import RunScreen
from tui.transitions import round_closed
from tui.widgets.plot import PlotPane
from tui.widgets.table import Table


def words(rows: tuple[object, ...]) -> dict[str, list[str]]:
    return {row.key: [cell.text for cell in row.cells] for row in rows}  # type: ignore[attr-defined]


def said(lines: object) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]  # type: ignore[attr-defined]


def test_clients_of_the_open_round_come_first(fixed: SimpleNamespace) -> None:
    rows = view_clients.client_rows(fixed.run_shown(fixed.fed_state()))
    assert [row.cells[1].text for row in rows[:5]] == ["✓ reported", "● training", "● training", "◌ waiting", ""]
    assert [row.cells[2].text for row in rows[:4]] == ["studio", "mbp", "linux-3090", "—"]
    assert [row.quiet for row in rows] == [False] * 4 + [True] * 6
    silent = view_clients.client_rows(fixed.run_shown(fixed.fed_state(silent=("linux-3090",))))
    assert silent[2].cells[1] == ("? silent", "bad", "")


def test_rows_of_very_many_clients_are_bounded(fixed: SimpleNamespace) -> None:
    rows = view_clients.client_rows(fixed.run_shown(fixed.fed_state(clients=9000, per_round=150, closed=5, polls=1)))
    assert len(rows) == view_clients.SHOWN
    assert sum(not row.quiet for row in rows) == 150


def test_of_private_clients_only_counts_are_on_screen(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.fed_state(private=True, silent=("linux-3090",)))
    rows = words(view_clients.client_rows(shown))
    assert rows["studio"] == ["studio", "● training", "studio", "11", "134", "—", "—", "—", "r10"]
    assert rows["linux-3090"][1] == "✓ reported"
    assert all(row[5] == "—" for row in words(view_run.learner_rows(shown)).values())
    assert not any("train" in line for line in said(view_rounds.closed_round_lines(shown.state, width=80)))
    assert [t.name for t in view_curves.chart(shown.state, view_curves.PlotView(metric="loss")).drawn] == ["validation"]
    assert not view_curves.can_overlay(shown.state)
    assert "the round closes without their clients" in said(view_run.banner(shown))[0]
    details = "\n".join(said(view_clients.details(shown.state)))
    assert "samples" in details
    assert "training loss" not in details
    last = round_closed(shown.state.rounds[-1], None, shown.state.manifest.algorithm, shown.state.rounds[-2])
    assert last == "round 11 closed: 2/3, the deadline is over: 3 of 4 clients"


def test_a_round_counts_the_clients_that_were_sampled(fixed: SimpleNamespace) -> None:
    state = fixed.fed_state()
    newest, duplicate, before = said(view_rounds.closed_round_lines(state, width=80))[:3]
    assert newest.startswith("r11 ◐ 3/4  ")
    assert "acc 0.891" in newest
    assert duplicate == "  client-0001: two learners trained it to different bytes: replay is not exact"
    assert before.startswith("r10 ✓ 4/4  ")
    assert "1/4 reported" in said([view_rounds.open_round_line(fixed.run_shown(state))])[0]


def test_the_details_of_the_last_round(fixed: SimpleNamespace) -> None:
    lines = said(view_clients.details(fixed.fed_state(buffers="local")))
    assert lines[:3] == [
        "Round 11  closed by studio",
        "  the deadline is over: 3 of 4 clients",
        "  waited 2.5 s, merged in 0.4 s",
    ]
    assert lines[3].split() == ["client-0001", "63", "samples", "loss", "1.913", "acc", "0.868", "1.2", "s", "studio"]
    assert "Evaluation of round 11  with studio's own buffers" in lines
    assert lines[-1].split()[0] == "9"
    assert said(view_clients.details(fixed.fed_state(closed=0))) == ["no round has closed yet"]
    many = said(view_clients.details(fixed.fed_state(labels=100)))
    assert many[-1].startswith("  100 labels; most often mistaken: ")


def test_an_ended_run_tells_its_accuracy(fixed: SimpleNamespace) -> None:
    state = fixed.fed_state(closed=40)
    assert said(view_run.banner(fixed.run_shown(state)))[0].endswith("(validation), accuracy 0.965")


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (50, 20), (20, 6)])
async def test_keys_of_a_federated_run(fixed: SimpleNamespace, size: tuple[int, int]) -> None:
    shown = fixed.run_shown(fixed.fed_state())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    async with app.run_test(size=size) as pilot:
        await pilot.press("w")
        await pilot.pause()
        run = app.screen
        assert isinstance(run, RunScreen)
        clients, pane = run.query_one("#clients", Table), run.query_one(PlotPane)
        assert bool(clients.display) == (size[0] >= 60)
        await pilot.press("5")
        assert clients.has_focus == (size[0] >= 60)
        assert pane.chart.title == "Accuracy"
        await pilot.press("m")
        assert pane.chart.title == "Loss"
        await pilot.press("d")
        assert isinstance(app.screen, Page)
        assert app.screen.text.startswith("Round 11")
        await pilot.press("escape")
        assert app.screen is run


async def test_a_run_of_diloco_has_no_clients_and_no_such_keys(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state())
    app = fixed.app_over(fixed.home_shown(fixed.home(shown.state)), shown)
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("w", "5", "d")
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert not app.screen.query_one("#clients").display


async def test_the_accuracy_of_a_diloco_run_is_drawn_too(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    for found in state.evals:
        state = apply(state, EvalRead(msgspec.structs.replace(found, metrics={"accuracy": 0.5})))
    app = fixed.app_over(fixed.home_shown(fixed.home(state)), fixed.run_shown(state))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("w")
        await pilot.pause()
        pane = app.screen.query_one(PlotPane)
        assert "Accuracy" in str(pane.border_title)
