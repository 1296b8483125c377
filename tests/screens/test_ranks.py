"""A data-parallel job on the screens: ranks, generations, plan and preflight."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from swarm.core.rankstate import Generation
from swarm.core.records import Control
from swarm.core.state import ControlRead, apply
from tests.integration import handmade_job as made
from tui import view_curves, view_home, view_ranks, view_run
from tui.filters import asciify
from tui.screens.dialogs import Page
from tui.screens.run import RunScreen
from tui.transitions import run_notes
from tui.widgets.table import Table


def words(rows: tuple[object, ...]) -> dict[str, list[str]]:
    return {row.key: [cell.text for cell in row.cells] for row in rows}  # type: ignore[attr-defined]


def said(lines: object) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]  # type: ignore[attr-defined]


def test_each_rank_has_its_figures(fixed: SimpleNamespace) -> None:
    rows = words(view_ranks.rank_rows(fixed.run_shown(fixed.job_state(), job=fixed.job())))
    assert list(rows) == ["linux-3090", "mbp", "studio", "air", "mini"]
    assert rows["mbp"][:5] == ["mbp", "● train", "1/3", "604", "491"]
    assert rows["mbp"][5:9] == ["█████████▓ 90% 10%  0%", "7.00G", "1", "18%"]
    assert rows["studio"][5] == "██████▓▓░░ 65% 10% 25%"
    assert rows["studio"][0] == "studio*"
    assert rows["air"][1:4] == ["✗ refused", "—", "—"]
    assert rows["air"][5] == made.OTHER_MLX
    assert rows["mini"][2] == "next"
    assert "?" not in asciify(rows["studio"][5])


def test_every_row_has_a_cell_for_each_column(fixed: SimpleNamespace) -> None:
    for state in (fixed.job_state(), fixed.job_state(meeting=True), fixed.job_state(finished=True)):
        assert {len(row.cells) for row in view_ranks.rank_rows(fixed.run_shown(state))} == {len(view_ranks.RANK_COLUMNS)}


def test_the_banner_says_who_has_no_rank_and_why(fixed: SimpleNamespace) -> None:
    lines = said(view_run.banner(fixed.run_shown(fixed.job_state())))
    assert f"✗ air has no rank: {made.OTHER_MLX}" in lines
    assert "◌ mini waits for the next generation" in lines
    [silent, *_] = said(view_run.banner(fixed.run_shown(fixed.job_state(silent=("mbp",)))))
    assert silent.startswith("⚠ mbp silent")
    assert silent.endswith("the others go on from the last checkpoint")


def test_the_banner_stays_short(fixed: SimpleNamespace) -> None:
    late = [made.member(f"late-{n}", 3) for n in range(9)]
    lines = said(view_ranks.apart_lines(made.seen([*made.job(late=False), *late])))
    assert lines[-1] == "  and 7 more without a rank"
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ({"meeting": True}, "◌ waiting for 1 more machine; not here: linux-3090, mbp; join it here: J"),
        ({"finished": True}, "✓ done: 1000 iterations, validation 1.715"),
        ({"live": False}, "○ idle at it 600/1000: no learner is live; join it here: J"),
    ],
    ids=["meeting", "done", "idle"],
)
def test_the_banner_says_where_the_job_stands(fixed: SimpleNamespace, how: dict[str, bool], line: str) -> None:
    assert said(view_run.banner(fixed.run_shown(fixed.job_state(**how))))[0] == line


def test_a_job_that_cannot_go_on_says_why(fixed: SimpleNamespace) -> None:
    reason = "the loss is NaN at step 612; last good checkpoint: step 600"
    ending = made.GenerationEnd(generation=2, ending="stopped", by="mbp", reason=reason)
    lines = said(view_run.banner(fixed.run_shown(made.seen(made.job(ending=ending), live=False))))
    assert lines[:2] == ["■ stopped: 600 iterations, validation 1.789", f"  {reason}"]


def test_a_stop_takes_effect_at_a_step(fixed: SimpleNamespace) -> None:
    asked = apply(fixed.job_state(), ControlRead(1, Control(action="stop", by="mbp")))
    assert "■ stop was asked for by mbp: it takes effect at the next step" in said(view_run.banner(fixed.run_shown(asked)))


def test_the_first_line_says_how_far_it_is(fixed: SimpleNamespace) -> None:
    line = "".join(text for text, _ in view_run.headline(fixed.run_shown(fixed.job_state()), width=160))
    assert "it 604/1000  3/3 ranks  2.68k tok/s  ETA 3m17  epoch 1.50  MLX-LM  lora r=8 L=16 B=4 adam" in line


def test_generations_newest_first_and_the_ring_is_open(fixed: SimpleNamespace) -> None:
    heading = said(view_ranks.generation_heading(fixed.run_shown(fixed.job_state())))
    assert heading == ["⚠ no passwords on the ring: each binds to one address", "checkpoint: step 600 of g2"]
    entries = view_ranks.generation_entries(fixed.job_state())
    assert [number for number, _ in entries] == [3, 2, 1, 0]
    lines = [line for _, lines in entries for line in said(lines)]
    assert [line[:3].strip() for line in lines if line[:2].startswith("g")] == ["g3", "g2", "g1", "g0"]
    assert "  " + made.LOST in lines
    [brief] = said(view_ranks.generation_heading(fixed.run_shown(fixed.job_state()), brief=True))
    assert brief == "g2 ● trains 3 ranks, ring (no passwords)  2.68k tok/s  ETA 3m17  saved 600"
    assert len(brief) <= 78
    assert said(view_ranks.generation_heading(fixed.run_shown(made.seen([])))) == ["no machine has come yet"]


def test_curves_are_of_what_counts(fixed: SimpleNamespace) -> None:
    train, validation = view_curves.chart(fixed.job_state(), view_curves.PlotView()).traces
    assert [x for x, _ in train.points] == list(range(10, 601, 10))
    assert [x for x, _ in validation.points] == [200, 400, 600]


def test_the_plan_and_the_preflight_on_a_page(fixed: SimpleNamespace) -> None:
    page = "\n".join(said(view_ranks.details(fixed.job_state())))
    assert "192.168.1.21:21000" in page
    assert "sockets know no passwords" in page
    assert made.OTHER_MLX in page
    unreached = made.probe("air", "mbp", 2, error="no connection within 3 s")
    records = [unreached if getattr(r, "target", "") == "mbp" and r.learner == "air" else r for r in made.job()]
    assert "not reached: no connection within 3 s" in "\n".join(said(view_ranks.details(made.seen(records))))
    assert said(view_ranks.details(made.seen([]))) == ["No plan yet"]


def test_a_job_among_the_runs(fixed: SimpleNamespace) -> None:
    [row] = view_home.run_rows(fixed.home_shown(fixed.home(fixed.job_state())))
    cells = [cell.text for cell in row.cells]
    assert cells[:6] == ["smollm2-quiet-heron", "MLX-LM", "SmolLM2-135M-Instruct", "● running", "604/1000", "5"]
    long = made.seen(made.job(), spec=msgspec.structs.replace(made.SPEC, iters=100_000))
    assert [cell.text for cell in view_home.run_rows(fixed.home_shown(fixed.home(long)))[0].cells][4] == "0%"
    detail = said(view_home.run_detail(fixed.job_state(meeting=True)))
    assert detail == ["◌ smollm2-quiet-heron is waiting for 1 more machine; not here: linux-3090, mbp"]


def test_what_happens_is_told_once_and_history_is_no_news(fixed: SimpleNamespace) -> None:
    meeting = made.seen([r for r in made.job(late=False) if getattr(r, "generation", 9) < 2], trains=False)
    running, over = made.seen(made.job(late=False)), made.seen(made.job(finished=True, upto=600))
    begun = [note.text for note in run_notes(meeting, running)]
    assert f"generation 2 begins with 3 ranks; air: {made.OTHER_MLX}" in begun
    lost = made.GenerationEnd(generation=2, ending="lost", by="mbp", reason="studio: gone")
    after = apply(running, Generation(generation=2, end=lost))
    assert [note.text for note in run_notes(running, after) if "generation" in note.text] == [
        "generation 2 ended, lost: studio: gone"
    ]
    assert any("is done: 1000 iterations" in note.text for note in run_notes(running, over))
    first = apply(running, Generation(generation=0, end=lost))  # known before
    assert not list(run_notes(running, first))
    unread = msgspec.structs.replace(running, ranks=type(running.ranks)())
    assert not [note for note in run_notes(unread, running) if "generation" in note.text]


def test_words_of_other_machines_are_harmless(fixed: SimpleNamespace) -> None:
    evil = "\x1b[2J[red]\u202e" + "x" * 150
    state = made.seen(made.job(late=False), words={"air": evil, "mini": evil})
    meeting = made.seen([], trains=False, words={"air": evil})
    shown = fixed.run_shown(state)
    texts = [cell.text for row in view_ranks.rank_rows(shown) for cell in row.cells]
    texts += [*said(view_run.banner(shown)), *said(view_run.banner(fixed.run_shown(meeting)))]
    texts += said(view_home.run_detail(meeting))
    assert any("[red]" in text for text in texts)
    assert all(text.isprintable() and "\u202e" not in text for text in texts)


async def test_keys_on_a_job(fixed: SimpleNamespace) -> None:
    state = fixed.job_state()
    app = fixed.app_over(fixed.home_shown(fixed.home(state)), fixed.run_shown(state))
    async with app.run_test(size=(120, 36)) as pilot:
        await pilot.press("w")
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, RunScreen)
        table = screen.query_one("#learners", Table)
        assert [row.key for row in table.rows] == ["linux-3090", "mbp", "studio", "air", "mini"]
        assert not screen.check_action("clients", ())
        await pilot.press("d")
        await pilot.pause()
        assert isinstance(app.screen, Page)
        assert made.OTHER_MLX in app.screen.text
        await pilot.press("escape", "s")
        await pilot.pause()
        assert table.border_subtitle is not None
        assert "sort learner" in str(table.border_subtitle)
        await pilot.press("x")
        await pilot.pause()
        assert app.screen is not screen  # it asks first
