"""Which curves a run has, what of them a plot shows, and that any of it is drawn at any size."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from swarm import api
from swarm.core.state import EvalRead, ManifestRead, RoundRead, apply
from tui import text
from tui.plotting import GLYPHS, Chart, Trace, lines
from tui.view_curves import AXES, PlotView, after, can_overlay, chart, metrics, overlaid

MADE: dict[tuple[int, int, int], api.RunState] = {}


def long_run(fixed: SimpleNamespace, rounds: int, *, learners: int = 3, keep: int = 64) -> api.RunState:
    """As a screen keeps it: the newest records, and curves of all rounds. The learner a<n> is away every (n+2)th round."""
    if (rounds, learners, keep) in MADE:
        return MADE[rounds, learners, keep]
    state = apply(api.RunState(run=fixed.AT.run, keep=keep), ManifestRead(fixed.manifest(rounds=None)))
    for round in range(rounds):
        there = [f"a{n}" for n in range(learners) if round % (n + 2)] or ["a0"]
        record = fixed.round_record(round, there)
        parts = (msgspec.structs.replace(p, cosine=0.5 - 0.1 * n) for n, p in enumerate(record.participants))
        state = apply(state, RoundRead(msgspec.structs.replace(record, participants=tuple(parts))))
    MADE[rounds, learners, keep] = state
    return state


def names(state: api.RunState) -> list[str]:
    return [m.name for m in metrics(state)]


def xs(drawn: Chart) -> list[float]:
    return [x for x, _ in drawn.traces[0].points]


def said(drawn: Chart, width: int = 60, height: int = 12) -> list[str]:
    return ["".join(words for words, _ in line) for line in lines(drawn, width, height)]


def test_each_method_has_metrics_of_its_own(fixed: SimpleNamespace) -> None:
    assert names(fixed.run_state()) == ["Loss", "Tokens/s", "Round time", "Bytes per round"]
    assert names(fixed.run_state(closed=0)) == ["Loss"]
    assert names(long_run(fixed, 3))[1] == "Cosine"
    assert names(fixed.fed_state()) == ["Accuracy", "Loss", "Samples/s", "Round time", "Bytes per round"]
    assert names(fixed.fed_state(private=True)) == ["Accuracy", "Loss", "Bytes per round"]
    assert names(fixed.job_state()) == ["Loss", "Perplexity", "Tokens/s", "Learning rate"]


def test_a_language_model_that_writes_samples_has_a_perplexity(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    state = apply(state, EvalRead(msgspec.structs.replace(state.evals[-1], sample="To be", metrics={"perplexity": 7.0})))
    assert names(state).count("Perplexity") == 1
    train, validation = chart(state, PlotView(metric="perplexity")).traces
    assert train.newest == pytest.approx(math.exp(state.series.train.values[-1]))
    assert validation.newest == pytest.approx(math.exp(state.evals[-1].loss))


def test_a_metric_that_a_peer_named_is_harmless(fixed: SimpleNamespace) -> None:
    state = apply(fixed.run_state(), EvalRead(api.EvalRecord(round=3, learner="air", loss=1.0, metrics={"\x1b[2Jloss\n": 0.5})))
    [odd] = [m for m in metrics(state) if m.measured]
    assert odd.name.isprintable()
    assert odd.key != "loss"
    assert chart(state, PlotView(metric=odd.key)).traces[0].points == ((3.0, 0.5),)


def test_m_goes_through_all_metrics_and_a_run_without_the_one_shows_its_first(fixed: SimpleNamespace) -> None:
    every, view, seen = metrics(fixed.fed_state()), PlotView(), []
    for _ in every:
        view = after(every, view)
        seen.append(view.metric)
    assert sorted(seen) == sorted(m.key for m in every)
    assert chart(fixed.run_state(), PlotView(metric=every[0].key)).title == "Loss"


@pytest.mark.parametrize("metric", ["loss", "cosine", "rate", "seconds", "sent"])
def test_the_newest_rounds_of_a_long_run_are_drawn_one_by_one(fixed: SimpleNamespace, metric: str) -> None:
    state = long_run(fixed, 1500)
    assert state.series.train.stride > 1
    assert len(xs(chart(state, PlotView(metric=metric)))) <= 1025
    last = chart(state, PlotView(metric=metric, window=2))
    assert xs(last) == list(range(1480, 1500))
    assert "last 20 rounds" in last.notes
    wider = chart(state, PlotView(metric=metric, window=1))
    assert set(xs(last)) < set(xs(wider))
    assert min(xs(wider)) >= 1400
    assert set(range(1436, 1500)) <= set(xs(wider))  # as many as there are records of
    whole = dict(chart(state, PlotView(metric=metric)).traces[0].points)
    assert all(whole[x] == y for x, y in wider.traces[0].points if x in whole)


@pytest.mark.parametrize("axis", ["steps", "time"])
def test_steps_and_time_run_on_exactly_where_one_looks_closely(fixed: SimpleNamespace, axis: str) -> None:
    state = long_run(fixed, 1500)
    curve = state.series.steps if axis == "steps" else state.series.elapsed
    near = chart(state, PlotView(axis=axis, window=2))  # type: ignore[arg-type]
    assert xs(near)[-1] == curve.values[-1]
    steps = [b - a for a, b in itertools.pairwise(xs(near))]
    if axis == "steps":
        assert steps == [100.0] * 19
        assert near.unit == "step"
    else:
        took = [max(p.seconds_s for p in r.participants) + r.close_s for r in state.rounds[1:]]
        assert steps[-len(took) :] == pytest.approx(took)
        assert xs(near)[0] >= xs(near)[-1] - 600.0
        assert "by time in rounds" in near.notes
    whole = chart(state, PlotView(axis=axis))  # type: ignore[arg-type]
    assert xs(whole) == list(curve.values)


def test_an_evaluation_lies_where_its_round_does(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    train, validation = chart(state, PlotView(axis="time")).traces
    assert [x for x, _ in validation.points] == [x for x, _ in train.points] == list(state.series.elapsed.values)


def test_a_data_parallel_job_by_iterations_steps_and_time(fixed: SimpleNamespace) -> None:
    state = fixed.job_state()
    assert xs(chart(state, PlotView())) == [p.iteration for p in state.ranks.points]
    assert xs(chart(state, PlotView(axis="steps"))) == [p.step for p in state.ranks.points]
    by_time = chart(state, PlotView(axis="time"))
    assert xs(by_time)[-1] == pytest.approx(api.run_history(state)[-1].seconds_s)
    assert xs(chart(state, PlotView(window=2))) == list(range(410, 601, 10))
    assert chart(state, PlotView(metric="rate")).traces[0].newest == state.ranks.points[-1].tokens_per_s
    assert not can_overlay(state)


def test_what_a_logarithmic_axis_cannot_show_is_left_out_and_counted(fixed: SimpleNamespace) -> None:
    state = long_run(fixed, 4)
    for round, value in enumerate((-0.5, 0.0, 0.25, 0.5)):
        state = apply(state, EvalRead(api.EvalRecord(round=round, learner="a0", loss=2.0, metrics={"gain": value})))
    view = PlotView(metric="metric gain", log=True)
    drawn = chart(state, view)
    assert drawn.traces[0].points == ((2.0, 0.25), (3.0, 0.5))
    assert "2 not above 0" in drawn.notes
    assert "log" in drawn.notes
    for round in (2, 3):
        state = apply(state, EvalRead(api.EvalRecord(round=round, learner="a0", loss=2.0, metrics={"gain": -1.0})))
    assert said(chart(state, view)) == ["gain: no value above 0, as a logarithmic axis needs it"]


def test_a_model_that_diverged_is_said_to_have(fixed: SimpleNamespace) -> None:
    state = apply(long_run(fixed, 4), EvalRead(api.EvalRecord(round=3, learner="a0", loss=None)))
    assert "1 not finite" in chart(state, PlotView()).notes


def test_nothing_one_point_and_a_constant(fixed: SimpleNamespace) -> None:
    assert said(chart(fixed.run_state(closed=0), PlotView())) == ["loss: no round has closed yet"]
    assert said(chart(fixed.job_state(meeting=True), PlotView(metric="rate")))
    one = said(chart(long_run(fixed, 1), PlotView()))
    assert sum(line.count("●") for line in one) == 1
    flat = said(Chart("Loss", (Trace("train", ((0.0, 2.5), (5.0, 2.5))),)))
    assert sum("⠤⠤⠤" in line or "⠒⠒⠒" in line or "⣀⣀⣀" in line or "⠉⠉⠉" in line for line in flat) == 1
    assert any("2.5" in line or "2.6" in line for line in flat)


@pytest.mark.parametrize(("at", "axis"), [(0.0, ["0", "1"]), (7.0, ["6", "7", "8"])])
def test_no_round_comes_before_the_first_one(at: float, axis: list[str]) -> None:
    labels = said(Chart("Loss", (Trace("train", ((at, 2.5),)),)))[-1].split()
    assert labels == axis


def test_a_window_in_which_nothing_lies_says_so(fixed: SimpleNamespace) -> None:
    state = apply(long_run(fixed, 50), EvalRead(api.EvalRecord(round=3, learner="a0", loss=1.0, metrics={"gain": 0.5})))
    assert said(chart(state, PlotView(metric="metric gain", window=2))) == ["gain: nothing in the last 20 rounds"]


def test_the_selected_learner_and_the_most_active_are_laid_over_one_another(fixed: SimpleNamespace) -> None:
    state = long_run(fixed, 60, learners=9)
    chosen, more = overlaid(state, "a0")
    assert chosen == ("a0", "a4", "a5", "a6", "a7", "a8")
    assert more == 3
    drawn = chart(state, PlotView(each=True), selected="a0")
    assert [t.name for t in drawn.traces] == list(chosen)
    assert "".join(t.mark for t in drawn.traces) == GLYPHS
    assert len({t.color for t in drawn.traces}) == 6
    assert "3 learners more" in drawn.notes
    legend = "".join(said(drawn, 58, 12)[:4])
    assert all(f"{glyph} {name}" in legend for glyph, name in zip(GLYPHS, chosen, strict=True))


def test_what_is_known_of_each_learner_only_since_some_round_says_so(fixed: SimpleNamespace) -> None:
    state = long_run(fixed, 1500)
    assert xs(chart(state, PlotView(each=True)))[0] < 10
    drawn = chart(state, PlotView(metric="cosine", each=True))
    assert xs(drawn)[0] >= 1436
    assert "since r1436" in drawn.notes


def test_of_private_clients_nothing_is_overlaid(fixed: SimpleNamespace) -> None:
    state = fixed.fed_state(private=True)
    assert chart(state, PlotView(each=True)) == chart(state, PlotView())


def test_bars_where_there_is_no_room(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    top, bottom = said(chart(state, PlotView(metric="loss", log=True, window=2)), 78, 2)
    assert top.startswith("loss 2.084")
    assert top.endswith("log, last 20 rounds")
    assert bottom.startswith("val 2.124")
    assert "█" in bottom
    first, second = said(chart(state, PlotView(each=True)), 78, 2)
    assert first.startswith("● air 2.114")
    assert second.startswith("○ linux-3090 2.094")
    assert "2 more" in first
    assert said(chart(state, PlotView(each=True), selected="studio"), 78, 2)[0].startswith("◇ studio 2.054")


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(max_examples=60)
@given(
    series=st.lists(st.lists(st.tuples(st.floats(0, 1e7), finite), max_size=40), max_size=6),
    width=st.integers(1, 130),
    height=st.integers(1, 40),
    log=st.booleans(),
    kinds=st.tuples(st.sampled_from(["figure", "rate", "bytes", "seconds"]), st.sampled_from(["count", "seconds"])),
    legend=st.booleans(),
)
def test_whatever_the_values_the_drawing_fits(
    series: list, width: int, height: int, log: bool, kinds: tuple, legend: bool
) -> None:
    traces = []
    for n, points in enumerate(series):
        shown = tuple(sorted((x, y) for x, y in points if y > 0 or not log))
        traces.append(Trace(f"learner-{n}", shown, mark=GLYPHS[n], line=n % 3 != 2, color=n))
    made = Chart("Loss", tuple(traces), kind=kinds[0], across=kinds[1], log=log, legend=legend, short="loss", flags=("log",))
    drawn = ["".join(words for words, _ in line) for line in lines(made, width, height)]
    assert len(drawn) <= height
    if height >= 6 and width >= 24:
        assert all(cell_len(line) <= width for line in drawn)
        points = [p for t in made.traces for p in t.points]
        marks = "".join(drawn)
        assert not points or any("\u2800" < c <= "\u28ff" or c in GLYPHS for c in marks)


def test_numbers_at_the_ends_of_what_a_float_holds_are_drawn() -> None:
    far = (0.0, 5e-324, 1e-310, 1e-108, 1.0, 9e299)
    for a, b, log, kind in itertools.product(far, far, (False, True), ("figure", "bytes", "seconds", "rate", "count")):
        points = ((0.0, a or 1.0), (b, b or 1.0)) if log else ((0.0, -a), (b, b))
        for drawn in (points, points[1:]):
            assert len(lines(Chart("Loss", (Trace("", drawn),), kind=kind, log=log), 60, 12)) == 12
    assert text.bars((1.7e308, -1.7e308, 1.7e308, 1.7e308), 2, rows=2) == (" █", "▁█")


def test_every_view_of_every_kind_of_run_is_drawn(fixed: SimpleNamespace) -> None:
    states = [fixed.run_state(), fixed.run_state(closed=1), fixed.fed_state(), fixed.fed_state(private=True), fixed.job_state()]
    for state in [*states, fixed.job_state(meeting=True), api.RunState(run="x")]:
        for n, (metric, axis, window) in enumerate(itertools.product(metrics(state), AXES, range(3))):
            view = PlotView(metric=metric.key, axis=axis, log=n % 2 == 0, window=window, each=n % 3 == 0)
            assert said(chart(state, view, selected="nobody"), 58, 12)
