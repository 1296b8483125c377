"""A data-parallel job on the command line, from its records alone."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from swarm.cli import ranks, status
from swarm.core.finetune import FineTune
from swarm.core.records import Control
from swarm.core.state import ControlRead, apply
from tests.integration import handmade_job as made
from tests.integration.handmade import make_mailbox, make_run, on, write_rounds
from tests.integration.test_commands import Swarm

NAME = "smollm2-quiet-heron"


@pytest.fixture
def swarm(capsys: pytest.CaptureFixture[str], state_dir: Path) -> Swarm:
    return Swarm(capsys)


@pytest.fixture
def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    location = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    return location


@pytest.fixture
def done(mailbox: str) -> str:
    made.write(mailbox, made.manifest(), made.job(upto=1000, finished=True))
    return mailbox


def shown(capsys: pytest.CaptureFixture[str], state: Any, *, as_json: bool = False) -> str:
    status.show(state, as_json, [])
    return capsys.readouterr().out


def test_runs_tells_how_far_a_job_is(swarm: Swarm, done: str) -> None:
    assert swarm("runs") == 0
    assert swarm.out.splitlines()[1].split() == [NAME, "k4m7q2xw", "mlx-lm", "mlx-lm", "1000/1000", "it", "done", "open", "–"]
    [found] = swarm.objects("runs")
    assert (found["state"], found["iteration"], found["iters"], found["generation"]) == ("done", 1000, 1000, 2)
    assert (found["world_size"], found["rounds"], found["eta_s"]) == (3, None, None)


def test_status_of_a_job_that_is_done(swarm: Swarm, done: str) -> None:
    assert swarm("status", NAME) == 0
    head, *lines = swarm.out.splitlines()
    assert head.startswith(f"{NAME} (k4m7q2xw)  done  iteration 1000/1000  epoch 2.50 of 2.50  model HuggingFaceTB/SmolLM2")
    assert lines[0] == f"train {made.loss_at(1000):.3f}  val {made.loss_at(1000) + 0.1:.3f}"
    assert "finished: all 1000 steps are done" in lines
    assert f"generation 0: linux-3090, mbp, studio; ended, lost: {made.LOST}" in lines
    assert "generation 1; ended, rendezvous: studio made no plan within 240 s" in lines
    assert lines[-1] == f"iteration 1000: val {made.loss_at(1000) + 0.1:.3f}  5,000 tokens"
    [found] = swarm.objects("status", NAME, "--watch")
    assert [row["iteration"] for row in found["history"]] == list(range(10, 1001, 10))  # type: ignore[attr-defined]
    assert found["ending"]["checkpoint"] == {"generation": 2, "step": 1000}  # type: ignore[index]


def test_status_shows_each_rank_the_plan_and_the_preflight(capsys: pytest.CaptureFixture[str]) -> None:
    state = made.seen(made.job(), step=604)
    out = shown(capsys, state)
    assert out.splitlines()[1] == f"1,988 tokens/s  train {made.loss_at(600):.3f}  val {made.loss_at(600) + 0.1:.3f}  ETA 3 min"
    table = out[: out.index("preflight:")].splitlines()
    rows = {line.split()[0]: line.split() for line in table if line.startswith(("studio ", "mbp "))}
    assert rows["mbp"][:5] == ["mbp", "train", "1/3", "192.168.1.21:21000", "18%"]
    assert rows["mbp"][7:13] == ["90%", "10%", "0%", "7.52", "GB", "1"]
    assert rows["studio"][7:10] == ["65%", "10%", "25%"]
    assert f"air has no rank: {made.OTHER_MLX}" in table
    assert "mini waits for the next generation" in table
    assert "plan of generation 2, by linux-3090: 3 ranks over ring, from step 200 of generation 0, seed 0" in table
    assert any(line.startswith("the ring's sockets know no passwords: each rank binds to the one address") for line in table)
    assert "checkpoints: step 500 of generation 2, step 600 of generation 2" in table
    preflight = out[out.index("preflight:") :].splitlines()
    assert any(line.split()[:2] == ["air", "refused"] and "0.31.2 / 0.32.0" in line for line in preflight)
    assert "  mbp → studio: 192.168.1.20  0.4 ms  110 MB/s" in preflight


def test_status_tells_programs_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(shown(capsys, made.seen(made.job(), step=604), as_json=True))
    assert (found["state"], found["iteration"], found["step"], found["generation"]) == ("running", 604, 604, 2)
    assert found["eta_s"] == pytest.approx(396 * 1200 / 2485 + 6.0)
    assert found["val_loss"] == pytest.approx(made.loss_at(600) + 0.1)
    members = {m["learner"]: m for m in found["members"]}
    mbp = members["mbp"]
    assert (mbp["rank"], mbp["microbatch_rows"], mbp["memory_bytes"], mbp["generation"]) == (1, 1, 7 << 30, 2)
    assert (mbp["compute"], mbp["communication"], mbp["waiting"]) == (pytest.approx(0.9), pytest.approx(0.1), 0.0)
    assert members["air"]["refused"] == [made.OTHER_MLX]
    assert members["mini"]["next_generation"] is True
    assert found["plan"]["seats"][0]["address"] == "192.168.1.22"
    assert "passwords" in found["security"]
    checks = {c["learner"]: c for c in found["preflight"]}
    assert checks["air"]["reasons"] == [made.OTHER_MLX]
    assert {way["by"] for way in checks["studio"]["reached"]} == {"air", "linux-3090", "mbp"}
    assert [(g["generation"], g["ending"]) for g in found["generations"]] == [
        (0, "lost"),
        (1, "rendezvous"),
        (2, None),
        (3, None),
    ]
    assert len(found["history"]) == 60


def test_a_job_that_waits_says_for_whom(capsys: pytest.CaptureFixture[str]) -> None:
    records = [r for r in made.job(late=False) if getattr(r, "generation", None) in (0, 1)]
    words = {"studio": "waiting for 1 more machine; not here: mbp\x1b[2J"}
    out = shown(capsys, made.seen([*records, made.member("studio", 2)], trains=False, words=words))
    assert "waiting for 1 more machine; not here: mbp·[2J  iteration" in out.splitlines()[0]
    assert "generation 2 gathers: studio" in out.splitlines()


def test_words_of_other_machines_are_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Records take printable lines only; a beat's words are anybody's."""
    state = made.seen(made.job(), words={"air": "\x1b]0;owned\x07" * 10, "mini": "x" * 200})
    for as_json in (False, True):
        out = shown(capsys, state, as_json=as_json)
        assert all(c.isprintable() or c == "\n" for c in out)
    assert max(map(len, shown(capsys, state).splitlines())) < 400


def test_a_job_that_begins_has_no_figures_yet(capsys: pytest.CaptureFixture[str]) -> None:
    state = made.seen([], trains=False, words={})
    out = shown(capsys, state)
    assert out.splitlines()[0].startswith(f"{NAME} (k4m7q2xw)  idle  iteration 0/1000  model")
    assert out.splitlines()[1] == "train –  val –"
    assert json.loads(shown(capsys, state, as_json=True))["plan"] is None


def test_what_happens_is_told_line_by_line() -> None:
    before, after = made.seen(made.job(upto=600, late=False)), made.seen(made.job(upto=620, late=False))
    assert [line.split(":")[0] for line in ranks.news(before, after)] == ["iteration 610", "iteration 620"]
    over = made.seen(made.job(upto=620, finished=True))
    [line] = ranks.news(after, over)
    assert line.endswith("ended, finished: all 620 steps are done")
    assert ranks.changed(after, over)
    assert not ranks.changed(after, after)
    stopping = apply(after, ControlRead(1, Control(action="stop", by="mbp")))
    assert not ranks.changed(after, stopping)


def test_a_job_is_watched_until_it_ends(swarm: Swarm, mailbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    early, whole = made.job(upto=980, late=False), made.job(upto=1000, finished=True)
    made.write(mailbox, made.manifest(), early)
    show = status.show

    def shown_and_then(*args: Any) -> None:
        show(*args)
        made.write(mailbox, made.manifest(), [r for r in whole if r not in early])  # it ends after the first look

    monkeypatch.setattr(status, "show", shown_and_then)
    assert swarm("status", NAME, "--watch") == 0
    assert swarm.out.splitlines()[0].split()[2] == "idle"
    assert "ended, finished: all 1000 steps are done" in swarm.out
    assert swarm.out.count("iteration 1000: train") == 1


def test_a_history_has_a_row_for_each_report(swarm: Swarm, done: str, tmp_path: Path) -> None:
    table, objects = tmp_path / "run.csv", tmp_path / "run.jsonl"
    assert swarm("export", NAME, "--history", str(table)) == 0
    assert "wrote 100 reports of" in swarm.err
    rows = list(csv.DictReader(table.open()))
    assert [row["iteration"] for row in rows] == [str(n) for n in range(10, 1001, 10)]
    assert (rows[19]["val_loss"] != "", rows[0]["val_loss"]) == (True, "")
    assert {row["generation"] for row in rows} == {"0", "2"}
    assert swarm("export", NAME, "--history", str(objects)) == 0
    assert json.loads(objects.read_text().splitlines()[19])["val_loss"] == pytest.approx(made.loss_at(200) + 0.1)


def test_a_job_without_reports_has_no_history(swarm: Swarm, mailbox: str, tmp_path: Path) -> None:
    made.write(mailbox, made.manifest(), [])
    assert "has no report yet" in swarm.fails(2, "export", NAME, "--history", str(tmp_path / "x.csv"))


def test_two_jobs_side_by_side(swarm: Swarm, done: str) -> None:
    spec = FineTune(iters=500, learning_rate=1e-4, beat_s=0.2, lease_s=2.0)
    made.write(done, made.manifest(spec, run="bbbb1111", name="other"), made.job(upto=500, finished=True))
    assert swarm("compare", NAME, "other") == 0
    lines = [line.split() for line in swarm.out.splitlines()]
    assert ["iterations", "so", "far", "1000", "500"] in lines
    assert ["learning_rate", "1e-05", "0.0001"] in lines
    assert ["ITERATION", "VAL", "VAL", "DIFF", "TRAIN", "TRAIN", "WORK", "WORK"] in lines
    assert [at["iteration"] for at in swarm.objects("compare", NAME, "other")][:2] == [10, 20]


def test_a_job_and_a_run_in_rounds_have_no_common_axis(swarm: Swarm, done: str) -> None:
    write_rounds(done, make_run(done, "rounds", "bbbb1111"), 3)
    assert swarm("compare", NAME, "rounds") == 0
    assert swarm.out.splitlines()[-1] == "one has rounds, the other iterations: they are not put side by side"
    assert ["iterations", "so", "far", "1000", "3", "rounds"] in [line.split() for line in swarm.out.splitlines()]


def test_an_ended_job_is_steered_no_more(swarm: Swarm, done: str) -> None:
    assert f"{NAME} is done" in swarm.fails(2, "pause", NAME)
    assert "is an MLX-LM fine-tuning of 1000 iterations: it has no rounds" in swarm.fails(2, "extend", NAME, "--rounds", "9")


def test_a_job_that_cannot_go_on_says_why(swarm: Swarm, mailbox: str) -> None:
    reason = "the loss is NaN at step 612; last good checkpoint: step 600"
    ending = made.GenerationEnd(generation=2, ending="stopped", by="mbp", reason=reason)
    made.write(mailbox, made.manifest(), made.job(ending=ending))
    assert swarm("status", NAME) == 0
    assert f"stopped: {reason}" in swarm.out.splitlines()
    assert f"{NAME} is stopped" in swarm.fails(2, "resume", NAME)


def test_a_stop_that_nobody_heard_holds(swarm: Swarm, mailbox: str) -> None:
    made.write(mailbox, made.manifest(), made.job())
    on(mailbox, "k4m7q2xw", lambda tape: tape.control(Control(action="stop", by="mbp")))
    [found] = swarm.objects("runs")
    assert (found["state"], found["by"]) == ("stopped", "mbp")


@pytest.mark.parametrize(
    ("seconds_s", "words"), [(None, "–"), (45.2, "45 s"), (720.0, "12 min"), (8040.0, "2 h 14 min"), (2.8e5, "3 d 5 h")]
)
def test_spans(seconds_s: float | None, words: str) -> None:
    assert ranks.span(seconds_s) == words


def test_a_plan_with_refusals_only_on_the_beats_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A machine whose record cannot be read is shown by its refusal in the plan."""
    records = [r for r in made.job(late=False) if not (isinstance(r, made.Member) and r.learner == "air")]
    out = shown(capsys, made.seen(records, words={}))
    assert f"air has no rank: {made.OTHER_MLX}" in out.splitlines()
