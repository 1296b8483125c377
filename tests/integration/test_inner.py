"""The training side by itself: what is published, what becomes of local steps, and what error feedback keeps back."""

from __future__ import annotations

import dataclasses
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.errors import StateMismatch
from swarm.core.fragments import Schedule, plan
from swarm.core.records import Participant
from swarm.core.specs import DiLoCo
from swarm.learners.numpy import NumpyAdapter
from swarm.runtime.handoff import Aligned, Handoff, Publication, Verdict
from swarm.runtime.inner import InnerLoop
from swarm.runtime.saved import Saved, save
from swarm.tensors.blocks import BLOCK, in_one_piece, spans
from swarm.tensors.codec import Decoder
from swarm.tensors.precision import DTYPES
from tests.integration.simulation import model

F32 = np.float32


class Bench:
    """One inner loop, and by hand what the other side of the hand-over does: a commit moves Θ by half of what it accepted."""

    def __init__(self, *, dtype: str = "F32", seed: int = 0, owns: bool = False, **options: Any) -> None:
        self.owns = owns
        self.spec = DiLoCo(**{"sync_every": 6, **options})
        self.model = {name: array.astype(DTYPES[dtype]) for name, array in model(1).items()}
        self.adapter = NumpyAdapter(self.model)
        self.schema = self.adapter.schema()
        self.plan = plan(self.schema, self.spec.fragments, self.spec.partition)
        self.schedule = Schedule(sync_every=self.spec.sync_every, fragments=len(self.plan))
        start = {name: array.astype(DTYPES[dtype]) for name, array in model(7).items()}
        self.theta = [{name: start[name] for name in names} for names in self.plan]
        self.newest = -1
        self.published: dict[int, Publication] = {}
        self.random = np.random.default_rng(seed)
        self.inner = self.fresh()

    def fresh(self) -> InnerLoop:
        start = self.start()
        return InnerLoop(self.adapter, self.spec, plan=self.plan, schedule=self.schedule, start=start, owns=self.owns)

    def start(self) -> Aligned:
        return Aligned(newest=self.newest, fragments={k: (self.sha(k), self.handed(k)) for k in range(len(self.theta))})

    def handed(self, fragment: int) -> dict[str, np.ndarray]:
        theta = self.theta[fragment]
        return {name: array.copy() for name, array in theta.items()} if self.owns else theta

    def sha(self, fragment: int) -> str:
        last = self.newest - (self.newest - fragment) % len(self.plan)
        return f"{max(last, -1):064x}".replace("-", "f")

    # The learner

    def step(self, count: int = 1, *, by: float | None = None, tokens: int = 10) -> None:
        for _ in range(count):
            for array in self.model.values():
                moved = self.random.standard_normal(array.shape) * 0.01 if by is None else np.full(array.shape, by)
                array[...] = (array.astype(F32) + moved.astype(F32)).astype(array.dtype)
            self.inner.count(tokens=tokens, loss=2.0, seconds_s=1 + self.random.random())

    def report(self, **how: Any) -> Publication | None:
        made = self.inner.due(**{"flush": False, **how})
        if made is not None:
            self.published[made.round] = made
        return made

    def work(self) -> Publication:
        """Inner steps until something is published."""
        while (made := self.report()) is None:
            self.step()
        return made

    def values(self, publication: Publication) -> dict[str, np.ndarray]:
        found = {}
        for name in self.plan[publication.fragment]:
            spec = self.schema[name]
            decoder, out = Decoder(publication.delta, spec, self.spec.delta_dtype), np.empty(BLOCK, F32)
            whole = np.concatenate([np.array(decoder.block(span, out)) for span in spans(spec.size)] or [np.empty(0, F32)])
            found[name] = whole.reshape(spec.shape)
        return found

    # The others

    def participant(self, publication: Publication, **changed: Any) -> Participant:
        figures = {
            "learner": "a",
            "unit": "a",
            "weight": 1.0,
            "tokens": publication.tokens,
            "steps": publication.steps,
            "train_loss": publication.train_loss,
            "seconds_s": publication.seconds_s,
            "size_bytes": 1,
        }
        return Participant(**{**figures, **changed})

    def commit(self, *, accept: bool = True, verdict: Verdict | None = None) -> Aligned:
        """The next round is committed. Without the learner's snapshot, somebody else's moves Θ."""
        round = self.newest + 1
        fragment = self.schedule.fragment(round)
        mine = self.published.get(round)
        if accept:
            assert mine is not None
            moved = self.values(mine)
            verdict = Verdict(counted=self.participant(mine))
        else:
            moved = {n: self.random.standard_normal(a.shape).astype(F32) * F32(0.1) for n, a in self.theta[fragment].items()}
        self.theta[fragment] = {
            n: (a.astype(F32) - F32(0.5) * moved[n]).astype(a.dtype) for n, a in self.theta[fragment].items()
        }
        self.newest = round
        return Aligned(
            newest=round,
            fragments={fragment: (self.sha(fragment), self.handed(fragment))},
            verdicts={} if verdict is None else {round: verdict},
        )

    def closes(self, **how: Any) -> None:
        self.inner.align(self.commit(**how))

    def off(self, fragment: int) -> float:
        """How far the model is from Θ."""
        return max(float(np.abs(self.model[n].astype(F32) - a.astype(F32)).max()) for n, a in self.theta[fragment].items())


def test_one_in_flight_publishes_reports_and_waits_as_ever() -> None:
    bench = Bench()
    made = bench.work()
    assert (made.round, made.steps, made.tokens, made.train_loss) == (0, 6, 60, 2.0)
    assert bench.inner.waits
    bench.closes()
    assert not bench.inner.waits
    assert (bench.inner.round, bench.inner.step, bench.off(0)) == (1, 0, 0.0)


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_so_many_rounds_are_reported_to_before_the_learner_waits(in_flight: int, overlap: int) -> None:
    bench = Bench(fragments=3, in_flight=in_flight, overlap_steps=overlap)
    for round in range(in_flight):
        made = bench.work()
        assert (made.round, made.fragment) == (round, round % 3)
        assert bench.inner.pending == tuple(range(round + 1))
    steps = 0
    while not bench.inner.waits:
        bench.step()
        steps += 1
        assert bench.report() is None, "the window is full"
    assert steps == overlap
    bench.closes()
    assert not bench.inner.waits
    assert bench.work().round == in_flight
    assert bench.inner.waits or overlap


def test_deltas_in_flight_are_of_their_own_fragment_and_base() -> None:
    bench = Bench(fragments=3, in_flight=3)
    for round in range(12):
        made = bench.work()
        assert made.base_sha256 == bench.sha(made.fragment)
        assert sorted(made.delta) == sorted(bench.plan[round % 3])
        for name, delta in bench.values(made).items():
            assert np.array_equal(delta, bench.theta[made.fragment][name] - bench.model[name])
        if round >= 2:
            bench.closes()
            assert bench.off(bench.newest % 3) == 0


def test_a_learner_that_missed_a_round_begins_anew_or_goes_on_counting() -> None:
    for follow, step in ((True, 0), (False, 4)):
        bench = Bench(follow=follow)
        bench.step(4)
        bench.closes(accept=False)
        assert (bench.inner.round, bench.inner.step, bench.off(0)) == (1, step, 0.0)
        made = bench.work()
        assert (made.round, made.steps) == (1, 6 - step)


def test_nothing_is_reported_without_a_step() -> None:
    bench = Bench(follow=False)
    bench.step(5)
    bench.step()
    bench.closes(accept=False)
    assert bench.inner.step == bench.inner.steps_before
    assert bench.report() is None, "its steps were given up with the round"
    assert not bench.inner.waits
    bench.step()
    made = bench.report()
    assert made is not None
    assert made.steps == 1


@pytest.mark.parametrize("alignment", ["overwrite", "blend", "carry", "adaptive"])
def test_steps_made_since_the_report_are_given_up_averaged_in_or_kept(alignment: str) -> None:
    bench = Bench(alignment=alignment, overlap_steps=3)
    made = bench.work()
    reported = {n: a.copy() for n, a in bench.model.items()}
    anchor = dict(bench.theta[0])
    bench.step(3)
    local = {n: a.copy() for n, a in bench.model.items()}
    bench.closes()
    for name, committed in bench.theta[0].items():
        since = local[name] - reported[name]
        change = committed - anchor[name]
        cosine = float((since * change).sum() / np.sqrt((since**2).sum() * (change**2).sum()))
        expected = {
            "overwrite": committed,
            "blend": (committed + local[name]) / 2,
            "carry": committed + since,
            "adaptive": committed + max(0.0, cosine) * since,
        }[alignment]
        assert np.allclose(bench.model[name], expected, atol=1e-6)
    given_up = 3 if alignment == "overwrite" else 0
    following = bench.work()
    assert (following.round, following.steps, following.tokens) == (1, 6 - given_up, 10 * (6 - given_up))
    assert made.steps == 6


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("how", ["late", "missed"])
def test_carry_contributes_what_was_not_accepted_with_the_next_delta(how: str, fragments: int) -> None:
    bench = Bench(alignment="carry", fragments=fragments, sync_every=6)
    if how == "late":
        first = bench.work()
    else:
        bench.step(1)
        first = None
    before = {n: bench.theta[0][n] - bench.model[n] for n in bench.plan[0]}
    bench.closes(accept=False)
    assert bench.off(0) > 0
    while True:
        made = bench.work()
        if made.fragment == 0:
            break
        bench.closes()
    for name, delta in bench.values(made).items():
        assert np.allclose(delta, bench.theta[0][name] - bench.model[name])
    assert made.steps == (first.steps if first is not None else 1) + (6 if fragments == 1 else made.round * 2)
    assert made.tokens == 10 * made.steps
    moved = {n: bench.values(made)[n] for n in before}
    bench.closes()
    assert bench.off(0) == 0, "accepted: nothing of it is left"
    assert all(np.abs(moved[n]).max() > 0 for n in before)


def test_overwrite_gives_up_what_was_not_accepted() -> None:
    bench = Bench()
    bench.work()
    bench.closes(accept=False)
    assert bench.off(0) == 0
    assert bench.work().steps == 6


@pytest.mark.parametrize("alignment", ["blend", "carry", "adaptive"])
def test_steps_whose_numbers_were_refused_are_not_tried_again(alignment: str) -> None:
    bench = Bench(alignment=alignment, overlap_steps=2)
    bench.work()
    bench.step(2)
    bench.closes(accept=False, verdict=Verdict(refused=True))
    assert bench.off(0) == 0
    assert bench.work().steps == 6 - 2


def test_what_a_former_incarnation_contributed_is_not_contributed_again() -> None:
    bench = Bench(alignment="carry", delta_dtype="F4")
    bench.work()
    bench.closes()
    assert bench.inner.parts[0].residual
    made = bench.work()
    other = bench.participant(made, seconds_s=made.seconds_s + 1)
    bench.closes(accept=False, verdict=Verdict(counted=other))
    assert bench.off(0) == 0
    assert not bench.inner.parts[0].residual, "its snapshot held that, too"
    assert bench.work().steps == 6


def test_commits_that_come_together_are_taken_over_together() -> None:
    bench = Bench(fragments=3, in_flight=3, alignment="carry", delta_dtype="F8_E4M3")
    for _ in range(3):
        bench.work()
    bench.step()
    many = [bench.commit(accept=accept) for accept in (True, False, True)]
    bench.inner.align(
        Aligned(
            newest=2,
            fragments={k: v for aligned in many for k, v in aligned.fragments.items()},
            verdicts={k: v for aligned in many for k, v in aligned.verdicts.items()},
        )
    )
    assert bench.inner.pending == ()
    assert [part.work.steps for part in bench.inner.parts] == [4 + 1, 4 + 2 + 1, 1]
    assert [bool(part.residual) for part in bench.inner.parts] == [True, False, True]


def test_long_asleep_takes_the_newest_and_forgets_what_was_pending() -> None:
    bench = Bench(fragments=3, in_flight=2, delta_dtype="F4")
    bench.work()
    bench.work()
    verdicts = {}
    for accept in (True, False, *[False] * 30):
        verdicts |= bench.commit(accept=accept).verdicts
    bench.inner.align(dataclasses.replace(bench.start(), verdicts=verdicts))
    assert bench.inner.pending == ()
    assert [bool(part.residual) for part in bench.inner.parts] == [True, False, False]
    assert (bench.inner.round, bench.inner.step) == (32, 0)
    assert all(bench.off(k) == 0 for k in range(3))


# Error feedback


OUTCOMES = st.lists(st.sampled_from(["accepted", "rejected", "missed"]), min_size=4, max_size=14)


@settings(max_examples=40, deadline=None)
@given(
    OUTCOMES,
    st.sampled_from(["F8_E4M3", "F4", "BF16"]),
    st.sampled_from(["overwrite", "carry"]),
    st.sampled_from([1, 2, 3]),
    st.integers(0, 9),
)
def test_what_was_accepted_and_what_is_kept_back_sum_up_to_what_was_meant(
    outcomes: list[str], dtype: str, alignment: str, in_flight: int, seed: int
) -> None:
    """Over rejections, late snapshots and missed rounds, with several rounds in flight."""
    bench = Bench(
        fragments=3, in_flight=in_flight, overlap_steps=1, alignment=alignment, delta_dtype=dtype, seed=seed, sync_every=6
    )
    sent = {name: np.zeros(array.shape) for name, array in bench.model.items()}
    meant = {name: np.zeros(array.shape) for name, array in bench.model.items()}
    deltas: dict[int, dict[str, np.ndarray]] = {}
    for outcome in outcomes:
        while outcome != "missed" and not bench.inner.waits:
            made = bench.report()
            if made is not None:
                deltas[made.round] = {
                    n: bench.theta[made.fragment][n].astype(float) - bench.model[n] for n in bench.plan[made.fragment]
                }
            else:
                bench.step()
        round = bench.newest + 1
        if round not in bench.published:  # missed, or not reported to yet
            bench.closes(accept=False)
            continue
        accept = outcome == "accepted"
        if accept:
            for name, q in bench.values(bench.published[round]).items():
                sent[name] += q
                meant[name] += deltas[round][name]
        bench.closes(accept=accept)
    for part, names in zip(bench.inner.parts, bench.plan, strict=True):
        for name in names:
            kept = part.residual.get(name, np.zeros(()))
            assert np.allclose(sent[name] + kept, meant[name], atol=2e-6)


def test_carried_steps_are_sent_once_and_wholly() -> None:
    """Every step that was ever made is in what was accepted, in the residual, or still in the parameters."""
    bench = Bench(alignment="carry", overlap_steps=2, delta_dtype="F8_E4M3")
    made = {name: np.zeros(array.shape) for name, array in bench.model.items()}
    sent = {name: np.zeros(array.shape) for name, array in bench.model.items()}

    def step() -> None:
        before = {n: a.astype(float) for n, a in bench.model.items()}
        bench.step()
        for name, array in bench.model.items():
            made[name] += before[name] - array

    for round in range(12):
        while not bench.inner.waits:
            if bench.report() is None:
                step()
        accept = round % 3 != 1
        if accept:
            for name, q in bench.values(bench.published[round]).items():
                sent[name] += q
        bench.closes(accept=accept)
    part = bench.inner.parts[0]
    for name in bench.plan[0]:
        left = bench.theta[0][name].astype(float) - bench.model[name]
        assert np.allclose(sent[name] + part.residual[name] + left, made[name], atol=5e-6)


@pytest.mark.parametrize(
    ("dtype", "delta_dtype", "error_feedback", "keeps"),
    [
        ("F32", "F32", True, False),
        ("F32", None, True, False),
        ("F32", "F16", True, True),
        ("BF16", "F32", True, False),
        ("BF16", None, True, True),
        ("F32", "F4", False, False),
    ],
)
def test_error_feedback_costs_memory_only_where_rounding_loses_anything(
    dtype: str, delta_dtype: str | None, error_feedback: bool, keeps: bool
) -> None:
    bench = Bench(dtype=dtype, delta_dtype=delta_dtype, error_feedback=error_feedback, residual_dtype="BF16")
    bench.work()
    pending = bench.inner.parts[0].pending
    assert pending is not None
    assert bool(pending.kept) == keeps
    bench.closes()
    assert bool(bench.inner.parts[0].residual) == keeps
    assert all(array.dtype == DTYPES["BF16"] for array in bench.inner.parts[0].residual.values())


# Numbers that are none


@pytest.mark.parametrize("delta_dtype", [None, "F16", "F8_E4M3", "F4"])
def test_a_delta_that_is_not_finite_is_said_to_be_and_local_steps_are_given_up(delta_dtype: str | None) -> None:
    bench = Bench(fragments=3, in_flight=2, delta_dtype=delta_dtype, alignment="carry", overlap_steps=1)
    bench.work()
    bench.step(1)
    bench.model[bench.plan[1][0]].reshape(-1)[0] = np.inf
    made = bench.work()
    assert (made.round, made.flaw, dict(made.delta)) == (1, bench.plan[1][0], {})
    assert made.steps == 4
    assert all(bench.off(k) == 0 for k in range(3)), "of every fragment: the steps were made with these numbers"
    bench.step(1)
    moved = {n: bench.model[n] - bench.theta[0][n] for n in bench.plan[0]}
    bench.closes()
    for name, since in moved.items():
        assert np.allclose(bench.model[name] - bench.theta[0][name], since, atol=1e-6), "steps made after that are carried"
    moved = {n: bench.model[n] - bench.theta[1][n] for n in bench.plan[1]}
    bench.closes(accept=False, verdict=Verdict(refused=True))
    for name, since in moved.items():
        assert np.abs(since).max() > 0
        assert np.allclose(bench.model[name] - bench.theta[1][name], since, atol=1e-6)
    assert bench.work().flaw == ""


# Deltas in the place of anchors


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("delta_dtype", [None, "F16", "F8_E4M3", "F4"])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
def test_a_delta_made_in_the_place_of_its_anchor_is_the_same(dtype: str, delta_dtype: str | None, fragments: int) -> None:
    one, two = (Bench(dtype=dtype, delta_dtype=delta_dtype, fragments=fragments, owns=owns) for owns in (False, True))
    for round in range(3 * fragments):
        made = [bench.work() for bench in (one, two)]
        assert [(m.round, m.fragment, m.base_sha256, m.steps) for m in made] == [
            (round, round % fragments, one.sha(round % fragments), made[0].steps)
        ] * 2
        left, right = ({n: (a.dtype, a.shape, a.tobytes()) for n, a in m.delta.items()} for m in made)
        assert left == right
        assert (one.inner.lacking, two.inner.lacking) == ((), (round % fragments,))
        accept = round % 4 != 2
        for bench in (one, two):
            bench.closes(accept=accept)
        assert two.inner.lacking == ()
        assert all(np.array_equal(one.model[n], a) for n, a in two.model.items())
        mine = two.inner.committed()
        assert all(np.array_equal(a, mine[n]) for n, a in one.inner.committed().items())


@pytest.mark.parametrize("error_feedback", [True, False])
@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize(
    ("dtype", "delta_dtype", "value"),
    [("F32", None, np.nan), ("F16", None, np.inf), ("BF16", None, 3.39e38), ("F32", "F16", 1e38), ("F32", "F8_E4M3", np.inf)],
)
def test_a_delta_that_is_not_finite_may_cost_its_anchor_and_the_next_commit_brings_another(
    dtype: str, delta_dtype: str | None, value: float, fragments: int, error_feedback: bool
) -> None:
    bench = Bench(dtype=dtype, delta_dtype=delta_dtype, owns=True, fragments=fragments, error_feedback=error_feedback)
    bench.work()
    bench.closes()
    while bench.inner.schedule.fragment(bench.inner.round):
        bench.work()
        bench.closes()
    bench.step(bench.inner.steps_before - 1)
    last = bench.plan[0][-1]
    bench.model[last].reshape(-1)[-1] = value
    if dtype == "BF16":
        bench.inner.parts[0].anchor[last].reshape(-1)[-1] = -value  # both are finite, their difference is not
        bench.theta[0][last].reshape(-1)[-1] = -value
    residual = {name: array.copy() for name, array in bench.inner.parts[0].residual.items()}
    bench.inner.count(tokens=1, loss=None, seconds_s=1.0)
    made = bench.report()
    assert made is not None
    assert (made.flaw, dict(made.delta)) == (last, {})
    in_place = delta_dtype in (None, dtype)
    assert bench.inner.lacking == ((0,) if in_place else ())
    assert not any(bench.off(k) for k in range(1, fragments)), "the steps of every fragment are given up"
    bench.inner.take_committed({k: bench.handed(k) for k in bench.inner.lacking})
    assert bench.off(0) == 0.0
    assert bench.inner.lacking == ((0,) if in_place else ()), "it is not held beside what comes"
    bench.closes(accept=False, verdict=Verdict(refused=True))
    assert (bench.inner.lacking, bench.off(0)) == ((), 0.0)
    kept = bench.inner.parts[0].residual
    assert {name: array.tobytes() for name, array in kept.items()} == {n: a.tobytes() for n, a in residual.items()}
    for _ in range(fragments + 1):
        assert bench.work().flaw == ""
        bench.closes()


# Evaluation


@pytest.mark.parametrize("alignment", ["overwrite", "carry"])
def test_the_committed_parameters_are_lent_and_the_local_ones_come_back(alignment: str) -> None:
    bench = Bench(fragments=3, alignment=alignment)
    bench.step(1)
    local = {n: a.copy() for n, a in bench.model.items()}

    def fails() -> None:
        with bench.inner.as_committed():
            assert all(bench.off(k) == 0 for k in range(3))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert all(np.array_equal(bench.model[n], a) for n, a in local.items())


# Going on after a restart


UNPUBLISHED: dict[str, Any] = {
    "base_sha256": "0" * 64,
    "tokens": 1,
    "steps": 1,
    "train_loss": None,
    "seconds_s": 1.0,
    "flaw": "",
}


def copied(sections: Any) -> Any:
    return {section: {name: np.array(array) for name, array in arrays.items()} for section, arrays in sections.items()}


@pytest.mark.parametrize("alignment", ["overwrite", "carry"])
@pytest.mark.parametrize("delta_dtype", [None, "F8_E4M3", "F4"])
@pytest.mark.parametrize("steps", range(14))
def test_a_restarted_loop_publishes_what_the_first_would_have(steps: int, delta_dtype: str | None, alignment: str) -> None:
    """Killed after any number of actions, with nothing committed meanwhile."""

    def run(bench: Bench, restart_at: int | None) -> list[Publication]:
        unpublished: list[Publication] = []
        for action in range(30):
            if action == restart_at:
                sections, values = save(bench.inner, unpublished)
                sections = copied(sections)
                for array in bench.model.values():
                    array[...] = np.nan  # another process, another model
                bench.inner = bench.fresh()
                saved = Saved(bench.inner, sections, values)
                assert saved.rounds == ()
                again = saved.take_up({})
                assert [p.round for p in again] == [p.round for p in unpublished]
                for new, old in zip(again, unpublished, strict=True):
                    assert dataclasses.replace(new, delta={}) == dataclasses.replace(old, delta={})
                    assert {n: (a.dtype, a.shape, a.tobytes()) for n, a in new.delta.items()} == {
                        n: (a.dtype, a.shape, a.tobytes()) for n, a in old.delta.items()
                    }
                assert sections["theta"].keys() >= sections["anchor"].keys()
            made = bench.report()
            if made is not None:
                unpublished.append(made)
            elif bench.inner.waits:
                bench.closes(accept=bench.newest % 4 != 1)
                unpublished = [p for p in unpublished if p.round > bench.newest]
            else:
                bench.step()
        return list(bench.published.values())

    options: dict[str, Any] = {
        "fragments": 3,
        "in_flight": 2,
        "overlap_steps": 1,
        "delta_dtype": delta_dtype,
        "alignment": alignment,
        "sync_every": 6,
    }
    first, second = run(Bench(**options), None), run(Bench(**options), 2 * steps)
    assert len(first) > 4
    assert [dataclasses.replace(p, delta={}) for p in first] == [dataclasses.replace(p, delta={}) for p in second]
    for one, two in zip(first, second, strict=True):
        assert {n: a.tobytes() for n, a in one.delta.items()} == {n: a.tobytes() for n, a in two.delta.items()}


def restarted(bench: Bench, unpublished: list[Publication], meanwhile: Any) -> tuple[Saved, list[Publication]]:
    """Save, let `meanwhile` happen in the run, and go on in another process."""
    sections, values = save(bench.inner, unpublished)
    sections = copied(sections)
    verdicts = meanwhile() or {}
    for array in bench.model.values():
        array[...] = np.nan
    bench.inner = bench.fresh()
    saved = Saved(bench.inner, sections, values)
    assert saved.rounds is not None
    return saved, saved.take_up({r: v for r, v in verdicts.items() if r in saved.rounds})


@pytest.mark.parametrize("alignment", ["overwrite", "blend", "carry", "adaptive"])
def test_what_was_accepted_while_it_was_away_is_not_contributed_again(alignment: str) -> None:
    for later in (False, True):  # whether it was published after the state was saved
        bench = Bench(alignment=alignment, overlap_steps=2, delta_dtype="F8_E4M3")
        bench.work()
        bench.closes()
        bench.step(6)
        if later:
            sections, values = save(bench.inner, [])
            sections = copied(sections)
            bench.report()
            verdicts = bench.commit().verdicts
            bench.inner = bench.fresh()
            saved = Saved(bench.inner, sections, values)
            assert saved.rounds == (1,)
            assert saved.take_up(verdicts) == []
            assert bench.inner.parts[0].residual == {}, "what was kept back went with it"
        else:
            bench.report()
            pending = bench.inner.parts[0].pending
            assert pending is not None
            restarted(bench, [], lambda bench=bench: bench.commit().verdicts)
            assert all(np.array_equal(bench.inner.parts[0].residual[n], kept) for n, kept in pending.kept.items())
        assert bench.off(0) == 0
        assert bench.inner.parts[0].local.steps == 0
        assert (bench.inner.round, bench.inner.step) == (2, 0)
        assert bench.work().steps == 6


@pytest.mark.parametrize("put", [False, True])
def test_a_snapshot_whose_round_is_open_is_pending_again_and_published_if_it_was_not(put: bool) -> None:
    bench = Bench(alignment="carry", overlap_steps=2, delta_dtype="F4")
    made = bench.work()
    bench.step(1)
    since = {n: a.copy() for n, a in bench.model.items()}
    _, again = restarted(bench, [] if put else [made], lambda: None)
    assert [p.round for p in again] == ([] if put else [0])
    assert bench.inner.pending == (0,)
    assert all(np.array_equal(bench.model[n], a) for n, a in since.items())
    bench.closes()
    assert bench.inner.parts[0].residual
    assert bench.inner.parts[0].local.steps == 1


def test_a_snapshot_that_came_too_late_is_carried_over_a_restart() -> None:
    bench = Bench(alignment="carry", delta_dtype="F4")
    made = bench.work()
    local = {n: a.copy() for n, a in bench.model.items()}
    anchor = dict(bench.theta[0])
    _, again = restarted(bench, [made], lambda: bench.commit(accept=False).verdicts)
    assert again == [], "its round is over"
    assert bench.inner.parts[0].local.steps == 6
    for name, committed in bench.theta[0].items():
        assert np.allclose(bench.model[name], committed + local[name] - anchor[name], atol=1e-6)
    assert bench.inner.parts[0].residual == {}


def test_of_a_state_from_long_ago_no_step_is_kept() -> None:
    bench = Bench(alignment="carry")
    bench.step(3)
    sections, values = save(bench.inner, [])
    sections = copied(sections)
    for _ in range(3):
        bench.commit(accept=False)
    bench.inner = bench.fresh()
    saved = Saved(bench.inner, sections, values)
    assert saved.rounds is None
    assert bench.off(0) == 0


def test_a_state_that_is_not_of_this_run_is_refused_before_anything_is_changed() -> None:
    bench = Bench(alignment="carry", fragments=3)
    bench.step(1)
    bench.closes(accept=False)
    bench.step(1)
    sections, values = save(bench.inner, [])
    sections = copied(sections)
    bench.inner = bench.fresh()
    name = bench.plan[0][0]
    wrong = [
        (sections, None, "not what it should be"),
        (sections, {**values, "format": 2}, "format 2"),
        (sections, {**values, "schema_sha256": "0" * 64}, "another model"),
        (sections, {**values, "newest": 7}, "round 7"),
        (sections, {**values, "fragments": values["fragments"][:2]}, "another model"),
        (sections, {**values, "fragments": [{**f, "base_sha256": "0" * 64} for f in values["fragments"]]}, "other parameters"),
        (sections, {**values, "unpublished": [{**UNPUBLISHED, "round": 3}]}, "a saved snapshot"),
        ({**sections, "theta": {}}, values, "lacks the theta"),
        ({**sections, "anchor": {}}, values, "lacks the anchor"),
        ({**sections, "theta": {**sections["theta"], "x": np.zeros(1, F32)}}, values, "unknown parameter 'x'"),
        ({**sections, "theta": {**sections["theta"], name: np.zeros(1, F32)}}, values, "another shape"),
    ]
    for arrays, told, words in wrong:
        with pytest.raises(StateMismatch, match=words):
            Saved(bench.inner, arrays, told)
    assert all(bench.off(k) == 0 for k in range(3))
    Saved(bench.inner, sections, values).take_up({})


# Memory


@pytest.mark.parametrize(("fragments", "owns", "models"), [(1, False, 3.0), (2, False, 2.5), (1, True, 2.0)])
def test_a_learner_holds_its_model_the_anchor_and_one_delta_or_what_comes_in(fragments: int, owns: bool, models: float) -> None:
    """In bytes of the parameters, all of NumPy's memory counted; a delta is large enough here to be asked for as it is. In the
    place of the anchor it takes none."""
    names = [f"layer.{k}.weight" for k in range(12)]

    def whole() -> dict[str, np.ndarray]:
        return {name: np.full((1536, 1024), 0.5, F32) for name in names}

    size_bytes = sum(array.nbytes for array in whole().values())
    tracemalloc.start()
    try:
        adapter = NumpyAdapter(whole())
        dealt = plan(adapter.schema(), fragments, "bytes")
        spec, schedule = DiLoCo(sync_every=4, fragments=fragments), Schedule(sync_every=4, fragments=fragments)

        def committed(fragment: int) -> tuple[str, dict[str, np.ndarray]]:
            theta = in_one_piece({name: ((1536, 1024), np.dtype(F32)) for name in dealt[fragment]})  # as they are fetched
            for array in theta.values():
                array[...] = 0.25
            return "0" * 64, theta

        start = Aligned(newest=-1, fragments={k: committed(k) for k in range(fragments)})
        inner = InnerLoop(adapter, spec, plan=dealt, schedule=schedule, start=start, owns=owns)
        handoff = Handoff()
        del start
        for round in range(2 * fragments):
            while (made := inner.due(flush=False)) is None:
                inner.count(tokens=1, loss=1.0, seconds_s=1.0)
            handoff.publish(made)
            del made
            under_way = handoff.outgoing()
            assert under_way is not None
            handoff.published(under_way)
            del under_way
            handoff.align(Aligned(newest=round, fragments={round % fragments: committed(round % fragments)}))
            taken = handoff.take_aligned()
            assert taken is not None
            inner.align(taken)
            del taken
            with inner.as_committed():
                pass
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes <= (models + 0.1) * size_bytes
