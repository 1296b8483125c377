"""What went wrong, with its reason and a remedy."""

from types import SimpleNamespace

import msgspec
import pytest

from swarm.core.ticks import warning
from tui import view_run, view_trouble
from tui.widgets.toned import content


def said(shown: object) -> str:
    return content(view_run.banner(shown)).plain  # type: ignore[arg-type]


def test_a_worker_that_failed_says_why_where_its_log_is_and_how_to_join_again(fixed: SimpleNamespace) -> None:
    failed = fixed.job(state="failed", message="the data of\x1b[31m this task is not here")
    assert said(fixed.run_shown(fixed.run_state(), job=failed)).splitlines() == [
        "✗ the worker on this machine failed: the data of this task is not here",
        f"  J joins again; whole log: {failed.log}",
    ]
    over = fixed.run_state(closed=40, left=("studio", "mbp", "linux-3090", "air"))
    assert "J joins" not in said(fixed.run_shown(over, job=failed))


def test_a_machine_that_was_dropped_may_join_again(fixed: SimpleNamespace) -> None:
    dropped = fixed.job(state="dropped", message="studio was dropped by mbp")
    assert said(fixed.run_shown(fixed.run_state(), job=dropped)) == (
        "○ this machine trains no more: studio was dropped by mbp; J joins again"
    )


@pytest.mark.parametrize(
    ("silent", "words"),
    [
        ("linux-3090", "  linux-3090 is still seen on the network: its worker or its share is in trouble; there: swarm doctor"),
        ("air", "  air is not seen on the network either: is it on, awake and connected?"),
    ],
)
def test_of_a_silent_learner_the_network_tells_whether_its_machine_is_there(
    fixed: SimpleNamespace, silent: str, words: str
) -> None:
    state = fixed.run_state(silent=(silent,))
    assert said(fixed.run_shown(state, sightings=fixed.sightings())).splitlines()[1] == words
    deaf = fixed.sightings(peers=(fixed.seen_peer("studio", itself=True),))
    assert "network" not in said(fixed.run_shown(state, sightings=deaf))  # who hears nobody cannot tell


def test_oddities_are_few_lines(fixed: SimpleNamespace) -> None:
    ticks = tuple(warning("clock", f"the clock of mbp\x1b[31m is {n} min ahead", "set it") for n in range(5))
    lines = content(view_trouble.oddity_lines(ticks)).plain.splitlines()
    assert lines[:2] == ["⚠ the clock of mbp is 0 min ahead", "  set it"]
    assert lines[-1] == "  and 3 more: d on Home shows the network"
    assert len(lines) == 5


def test_machines_of_different_versions_are_told_with_a_remedy(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    views = list(state.learners)
    views[0] = msgspec.structs.replace(views[0], record=msgspec.structs.replace(views[0].record, version="0.0.9"))
    shown = fixed.run_shown(msgspec.structs.replace(state, learners=tuple(views)))
    first, remedy = said(shown).splitlines()
    assert first.startswith("⚠ swarm 0.1.0 on ")
    assert f"swarm 0.0.9 on {views[0].record.machine_name}" in first
    assert remedy.startswith(f"  pip install --upgrade homeswarm on {views[0].record.machine_name}")
