"""What `swarm status` and `swarm jobs` say of time, memory, energy, and of how far learners agree."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from swarm.cli import jobs as cli_jobs
from swarm.cli.status import show
from swarm.core.events import Ended, JobStepped, Joined, Spent, Stepped
from swarm.core.jobs import Learn
from swarm.core.lease import BeatId
from swarm.core.manifest import Manifest
from swarm.core.records import Beat, LearnerRecord, Participant, RoundRecord
from swarm.core.specs import FedAvg
from swarm.core.state import LearnerRead, ManifestRead, Polled, RoundRead, RunState, apply
from swarm.host.identity import note_process
from tests.unit.test_state import manifest, round_record

HERE = {"machine": "m", "machine_name": "m", "boot": "b", "pid": 1, "process": "1", "version": "0"}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWARM_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("SWARM_CONFIG", str(tmp_path / "settings.toml"))
    return tmp_path


def part(learner: str, cosine: float | None) -> Participant:
    shared: dict[str, Any] = {"weight": 1.0, "tokens": 100, "steps": 10, "train_loss": 1.0, "seconds_s": 1.0, "size_bytes": 80}
    return Participant(learner=learner, unit=learner, cosine=cosine, **shared)


def seen(*rounds: RoundRecord, run: Manifest | None = None, **beats: Beat) -> RunState:
    state = apply(RunState(run="abcd1234"), ManifestRead(run or manifest()))
    for record in rounds:
        state = apply(state, RoundRead(record))
    for learner in beats:
        device = "torch cuda:0" if learner == "pc" else "mlx metal"
        record = LearnerRecord(learner=learner, incarnation=1, device=device, memory_bytes=24 * 10**9, **HERE)  # type: ignore[arg-type]
        state = apply(state, LearnerRead(record))
    for n in range(2):
        state = apply(state, Polled(float(n), {name: (BeatId(1, n), beat) for name, beat in beats.items()}))
    return state


ROUNDS = (round_record(0, part("mac", 0.5), part("pc", 0.75)), round_record(1, part("mac", 0.8), part("pc", None)))
MAC = Beat(phase="train", rss_bytes=2 * 10**9, alive_s=100.0, trained_s=93.0)
PC = Beat(phase="train", rss_bytes=3 * 10**9, alive_s=100.0, trained_s=50.0, power_w=312.0, energy_wh=8.5)


def test_status_of_a_run(capsys: pytest.CaptureFixture[str], own_folders: Path) -> None:
    (own_folders / "settings.toml").write_text('price_per_kwh = 0.4\ncurrency = "€"\n')
    show(seen(*ROUNDS, mac=MAC, pc=PC), False, [])
    lines = capsys.readouterr().out.splitlines()
    assert "energy 8.5 Wh, 0.003 €, of 1/2 learners  cosine 0.71 over the last 2 rounds" in lines
    heads = next(line for line in lines if line.startswith("LEARNER")).split()
    assert heads[-5:] == ["GOODPUT", "MEMORY", "POWER", "ENERGY", "DEVICE"]
    mac, pc = (next(line for line in lines if line.startswith(f"{name} ")) for name in ("mac", "pc"))
    assert "93%" in mac
    assert "2.00 GB/24.0 GB  –      –" in mac
    assert "–/24.0 GB        312 W  8.5 Wh" in pc
    assert any(line.startswith("round 0: ") and "cos 0.62" in line for line in lines)
    assert not any(line.startswith("round 1: ") and "cos" in line for line in lines), "of one there is no mean"


def test_where_nothing_is_told_there_are_no_columns_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    show(seen(round_record(0, part("mac", 1.0)), mac=MAC), False, [])
    out = capsys.readouterr().out
    assert "ENERGY" not in out
    assert "energy" not in out
    assert "cos" not in out
    assert "GOODPUT" in out


def test_status_tells_programs_the_same(capsys: pytest.CaptureFixture[str], own_folders: Path) -> None:
    (own_folders / "settings.toml").write_text("price_per_kwh = 0.4\n")
    show(seen(*ROUNDS, mac=MAC, pc=PC), True, [])
    found = json.loads(capsys.readouterr().out)
    assert (found["energy_wh"], found["energy_of"], found["currency"]) == (8.5, 1, None)
    assert found["cost"] == pytest.approx(0.0034)
    assert found["cosine"] == pytest.approx((0.625 + 0.8) / 2)
    mac, pc = found["members"]
    assert (mac["goodput"], mac["memory_bytes"], mac["memory_total_bytes"]) == (0.93, 2 * 10**9, 24 * 10**9)
    assert (mac["power_w"], mac["energy_wh"], mac["cost"]) == (None, None, None)
    assert (pc["power_w"], pc["energy_wh"], pc["cost"]) == (312.0, 8.5, pytest.approx(0.0034))
    assert found["history"][0]["cosines"] == {"mac": 0.5, "pc": 0.75}


def test_of_private_clients_nothing_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    spec = FedAvg(clients=2, per_round=2, private=True, beat_s=5, lease_s=30)
    run = msgspec.structs.replace(manifest(), algorithm=spec)
    state = seen(*ROUNDS, run=run, mac=MAC)
    show(state, False, [])
    assert "cos" not in capsys.readouterr().out
    show(state, True, [])
    found = json.loads(capsys.readouterr().out)
    assert found["cosine"] is None
    assert all(row["cosines"] == {} for row in found["history"])


# Jobs


def a_job(state_dir: Path, *events: Any, runs: bool = True) -> None:
    folder = state_dir / "jobs" / "20260101-000000-000aaaa"
    folder.mkdir(parents=True)
    order = Learn(mailbox="/mnt/share", run="abcd1234", learner="studio", may_rename=False)
    (folder / "order.json").write_bytes(msgspec.json.encode(order))
    (folder / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    if runs:
        note_process(folder, os.getpid())


JOINED = Joined(
    run="abcd1234", name="tiny", learner="studio", incarnation=1, round=0, device="mlx metal", memory_bytes=64 * 10**9
)
TAKEN = Spent(alive_s=200.0, trained_s=180.0, power_w=40.0, energy_wh=2.5)
STEPPED = Stepped(round=1, step=1, steps_before=10, loss=1.0, tokens_per_s=5.0, spent=TAKEN)


def told(*argv: str) -> str:
    return CliRunner().invoke(cli_jobs.jobs, list(argv), catch_exceptions=False).output


def test_a_job_says_what_it_takes(own_folders: Path) -> None:
    (own_folders / "settings.toml").write_text('price_per_kwh = 0.4\ncurrency = "€"\n')
    a_job(own_folders / "state", JOINED, STEPPED)
    heads, row = told().splitlines()
    assert heads.split() == [
        "JOB",
        "RUN",
        "LEARNER",
        "STATE",
        "GOODPUT",
        "MEMORY",
        "POWER",
        "ENERGY",
        "COST",
        "DEVICE",
        "MESSAGE",
    ]
    assert "90%" in row
    assert "/64.0 GB" in row
    assert "40 W   2.5 Wh  0.001 €  mlx metal" in row
    found = json.loads(told("--json"))
    assert (found["goodput"], found["power_w"], found["energy_wh"]) == (0.9, 40.0, 2.5)
    assert found["memory_bytes"] > 10**6, "what this process has"
    assert found["memory_total_bytes"] == 64 * 10**9
    assert found["cost"] == pytest.approx(0.001)
    assert found["log"].endswith("log.txt")


def test_of_an_older_workers_events_nothing_is_known(own_folders: Path) -> None:
    joined = msgspec.to_builtins(JOINED)
    stepped = msgspec.to_builtins(STEPPED)
    del joined["memory_bytes"], stepped["spent"]
    a_job(own_folders / "state")
    events = own_folders / "state" / "jobs" / "20260101-000000-000aaaa" / "events.jsonl"
    events.write_bytes(msgspec.json.encode(joined) + b"\n" + msgspec.json.encode(stepped) + b"\n")
    heads, row = told().splitlines()
    assert heads.split() == ["JOB", "RUN", "LEARNER", "STATE", "GOODPUT", "MEMORY", "DEVICE", "MESSAGE"]
    assert row.split()[4] == "–"


def test_a_job_that_has_ended_draws_nothing_more(own_folders: Path) -> None:
    stepped = JobStepped(step=1, steps=2, iteration=1, loss=None, tokens_per_s=1.0, spent=TAKEN)
    a_job(own_folders / "state", JOINED, stepped, Ended(reason="done", rounds=0), runs=False)
    found = json.loads(told("--all", "--json"))
    assert (found["state"], found["power_w"], found["energy_wh"], found["memory_bytes"]) == ("done", None, 2.5, None)
