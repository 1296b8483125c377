"""Commands in this process, over a real folder and without any worker: what they print, and what they say is wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from swarm.cli import run, status
from swarm.core.events import ShareBack, ShareLost
from swarm.core.jobs import Learn
from swarm.core.keys import RunKeys
from swarm.core.lease import BeatId
from swarm.core.lines import decode, encode
from swarm.core.manifest import DataRef, Manifest
from swarm.core.records import Beat, Checkpoint, Control, Rejected, RejectReason, Role, RoundRecord
from swarm.core.sentences import REASONS
from swarm.core.specs import DiLoCo
from swarm.core.state import ControlRead, ManifestRead, Polled, RunState, apply
from swarm.host.identity import note_process
from tests.integration.handmade import (
    QUICK,
    beat,
    make_mailbox,
    make_run,
    manifest_of_another_format,
    round_records,
    stop,
    write_rounds,
)


class Swarm:
    """`swarm ARGV` here; what it printed is in `out` and `err`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *argv: str) -> int:
        code = run(list(argv))
        self.out, self.err = self._capsys.readouterr()
        assert "Traceback" not in self.err
        return code

    def fails(self, code: int, *argv: str) -> str:
        """The one line that says why."""
        assert self(*argv) == code, self.err
        assert not self.out
        lines = self.err.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith("swarm: ")
        return lines[0]

    def objects(self, *argv: str) -> list[dict[str, object]]:
        assert self(*argv, "--json") == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def swarm(capsys: pytest.CaptureFixture[str], state_dir: Path) -> Swarm:
    return Swarm(capsys)


@pytest.fixture
def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    location = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    return location


needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")

ON_ONE_RUN = [
    ("status", "RUN"),
    ("join", "RUN"),
    ("stop", "RUN"),
    ("pause", "RUN"),
    ("resume", "RUN"),
    ("extend", "RUN", "--rounds", "9"),
    ("drop", "RUN", "studio"),
    ("compare", "RUN", "RUN"),
    ("rm", "RUN", "--yes"),
    ("export", "RUN", "out.safetensors"),
    ("generate", "RUN", "--prompt", "x"),
]
EVERY = [("runs",), ("join",), ("start", "diloco", "--task", "mlp"), *ON_ONE_RUN]


# Which mailbox


@pytest.mark.parametrize("argv", EVERY, ids=lambda argv: argv[0])
def test_without_a_mailbox_it_says_how_to_name_one(swarm: Swarm, argv: tuple[str, ...]) -> None:
    line = swarm.fails(3 if argv == ("join",) else 2, *argv)
    assert "--mailbox" in line
    assert "swarm init" in line


@pytest.mark.parametrize(("location", "word"), [("s3://home/x?foo=1", "foo"), ("smb://nas/swarm", "smb://")])
@pytest.mark.parametrize("found", [False, True], ids=["discovery off", "discovery on"])
def test_a_mailbox_that_is_named_and_none_is_not_passed_over(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch, location: str, word: str, found: bool
) -> None:
    """Else `runs` tells of the network alone, as if no mailbox were known."""
    monkeypatch.setenv("SWARM_MAILBOX", location)
    monkeypatch.setattr("swarm.api.discovers", lambda: found)
    assert word in swarm.fails(2, "runs")


@pytest.mark.parametrize("argv", EVERY, ids=lambda argv: argv[0])
@pytest.mark.parametrize("kind", ["missing", "file", "plain folder"])
def test_what_is_no_mailbox_is_named(swarm: Swarm, tmp_path: Path, argv: tuple[str, ...], kind: str) -> None:
    place = tmp_path / "place"
    if kind == "file":
        place.touch()
    elif kind == "plain folder":
        place.mkdir()
    line = swarm.fails(1, *argv, "--mailbox", str(place))
    assert str(place) in line
    assert "mounted?" in line
    assert not (tmp_path / "config").exists()  # it is not remembered


@pytest.mark.parametrize("argv", EVERY, ids=lambda argv: argv[0])
def test_a_url_that_is_no_mailbox_is_told(swarm: Swarm, argv: tuple[str, ...]) -> None:
    assert "smb:// is no mailbox" in swarm.fails(2, *argv, "--mailbox", "smb://nas/x")


@needs_permissions
def test_a_mailbox_without_permission_is_named(swarm: Swarm, mailbox: str) -> None:
    Path(mailbox).chmod(0)
    try:
        assert mailbox in swarm.fails(1, "runs")
    finally:
        Path(mailbox).chmod(0o755)


def test_a_home_that_is_nobodys(swarm: Swarm) -> None:
    assert "~nosuchuser" in swarm.fails(2, "runs", "--mailbox", "~nosuchuser/mailbox")


def test_init_makes_remembers_and_repeats(swarm: Swarm, tmp_path: Path) -> None:
    [made] = swarm.objects("init", str(tmp_path / "m"))
    assert made["mailbox"] == str(tmp_path / "m")
    assert swarm.objects("init", str(tmp_path / "m")) == [made]
    assert swarm("runs") == 0
    assert "no run in" in swarm.err


@pytest.mark.parametrize(
    ("place", "words"), [("a/b/c", "there is no folder"), ("file", "is not a folder"), ("full", "not empty: thing")]
)
def test_init_refuses(swarm: Swarm, tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing").touch()
    line = swarm.fails(2, "init", str(tmp_path / place))
    assert words in line
    assert str(tmp_path) in line


# Settings


def test_a_broken_settings_file_is_named_and_stops_nothing(swarm: Swarm, tmp_path: Path, mailbox: str) -> None:
    config = tmp_path / "config" / "settings.toml"
    config.parent.mkdir()
    config.write_text("mailboxes = [\n")
    assert swarm("runs") == 0
    assert str(config) in swarm.err
    assert swarm("init", mailbox) == 0
    assert "is not remembered" in swarm.err
    assert config.read_text() == "mailboxes = [\n"


def test_a_bad_setting_is_named(swarm: Swarm, tmp_path: Path) -> None:
    config = tmp_path / "config" / "settings.toml"
    config.parent.mkdir()
    config.write_text('mailboxes = "/x"\nasci = true\n')
    assert swarm("runs") == 2
    assert "mailboxes = '/x'" in swarm.err
    assert "did you mean 'ascii'?" in swarm.err
    assert "which mailbox?" in swarm.err


# Runs


def test_a_run_that_is_not_there(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "mlp-one", "aaaa1111")
    for argv in ON_ONE_RUN:
        line = swarm.fails(1, *("nosuch" if a == "RUN" else a for a in argv))
        assert "'nosuch'" in line
        assert "mlp-one" in line


def test_a_prefix_that_fits_several_runs(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "mlp-one", "aaaa1111")
    make_run(mailbox, "mlp-two", "aaaa2222")
    for argv in ON_ONE_RUN:
        for text in ("mlp", "aaaa"):
            line = swarm.fails(1, *(text if a == "RUN" else a for a in argv))
            assert "mlp-one (aaaa1111), mlp-two (aaaa2222)" in line
    assert swarm("status", "mlp-t") == 0
    assert "mlp-two (aaaa2222)" in swarm.out
    assert "''" in swarm.fails(1, "status", "")


def test_a_whole_name_is_no_prefix(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "mlp", "aaaa1111")
    make_run(mailbox, "mlp-two", "aaaa2222")
    assert swarm("status", "mlp") == 0
    assert "(aaaa1111)" in swarm.out


def test_runs_tells_idle_done_and_stopped(swarm: Swarm, mailbox: str) -> None:
    write_rounds(mailbox, make_run(mailbox, "a-done", "aaaa1111", rounds=3), 3)
    write_rounds(mailbox, make_run(mailbox, "b-idle", "bbbb1111"), 2)
    make_run(mailbox, "c-stopped", "cccc1111", rounds=5)
    stop(mailbox, "cccc1111")
    done, idle, stopped = swarm.objects("runs")
    expected = {"run": "aaaa1111", "name": "a-done", "method": "diloco", "task": "mlp", "round": 3, "rounds": 3}
    expected |= {"checkpoint_every": 0, "checkpoints_kept": 3, "waits_for": "", "asked": None, "by": None, "base": None}
    expected |= {"signed": False, "fingerprint": None, "forged": {"count": 0, "kinds": {}, "newest": None}, "halted": False}
    assert done == expected | {"state": "done", "certain": True, "learners": [], "syncers": []}
    assert (idle["state"], idle["round"], idle["rounds"]) == ("idle", 2, None)
    assert (stopped["state"], stopped["round"]) == ("stopped", 0)
    assert swarm("runs") == 0
    assert swarm.out.splitlines()[0].split() == ["NAME", "RUN", "METHOD", "TASK", "ROUND", "STATE", "SIGNED", "LEARNERS"]
    assert swarm.out.splitlines()[2].split() == ["b-idle", "bbbb1111", "diloco", "mlp", "2/∞", "idle", "open", "–"]


def test_a_learner_of_which_nothing_is_heard_is_not_listed(swarm: Swarm, mailbox: str) -> None:
    """It may have been killed on another machine: its lease has not run out yet, and nobody waits for that."""
    make_run(mailbox, "mlp-one", "aaaa1111")
    beat(mailbox, "aaaa1111", "studio", 0)
    [found] = swarm.objects("runs")
    assert (found["state"], found["certain"], found["learners"]) == ("idle", False, [])
    [found] = swarm.objects("status", "mlp-one")
    assert [m["state"] for m in found["members"]] == ["silent"]  # type: ignore[attr-defined]


def test_a_learner_whose_process_ended_on_this_machine_is_gone_at_once(swarm: Swarm, mailbox: str) -> None:
    from swarm.host.identity import boot_id, machine_id

    make_run(mailbox, "mlp-one", "aaaa1111")
    beat(mailbox, "aaaa1111", "here", 0, machine=machine_id(), boot=boot_id(), pid=os.getpid(), process="another")
    [found] = swarm.objects("runs")
    assert (found["state"], found["certain"], found["learners"]) == ("idle", True, [])


def test_a_run_of_another_version_is_told_and_hides_no_other(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "mlp-one", "aaaa1111")
    manifest_of_another_format(mailbox, make_run(mailbox, "mlp-new", "bbbb1111"))
    [found] = swarm.objects("runs")
    assert found["name"] == "mlp-one"
    assert "mlp-new has format 2, this swarm reads format 1" in swarm.err
    assert "reads format 1" in swarm.fails(1, "join", "mlp-new")


def test_status_shows_the_last_rounds(swarm: Swarm, mailbox: str) -> None:
    write_rounds(mailbox, make_run(mailbox, "mlp-one", "aaaa1111", rounds=7), 7)
    assert swarm("status", "mlp-one") == 0
    head, *lines = swarm.out.splitlines()
    assert head == "mlp-one (aaaa1111)  done  round 7/7  task mlp  H=10 q=1  open"
    assert lines[-1] == "round 6: studio  train 0.143  val –  unchanged  up 24 B"
    assert len(lines) == 5
    [found] = swarm.objects("status", "mlp-one", "--watch")
    assert [r["round"] for r in found["history"]] == list(range(7))  # type: ignore[attr-defined]


def test_status_and_jobs_say_what_keeps_a_worker_of_this_machine_from_the_mailbox(
    swarm: Swarm, mailbox: str, state_dir: Path
) -> None:
    """A full mailbox answers whoever reads it, so `status` itself meets nothing wrong."""
    make_run(mailbox, "mlp-one", "aaaa1111", rounds=7)
    job = state_dir / "jobs" / "20260101-000000-000aaaa"
    job.mkdir(parents=True)
    order = Learn(mailbox=mailbox, run="aaaa1111", learner="studio", may_rename=False)
    (job / "order.json").write_bytes(msgspec.json.encode(order))
    note_process(job, os.getpid())
    lost = ShareLost(reason="/mnt/swarm: No space left on device (ENOSPC)", how="full")
    (job / "events.jsonl").write_bytes(msgspec.json.encode(lost) + b"\n")
    words = "the mailbox is full (/mnt/swarm: No space left on device (ENOSPC))"
    assert swarm("status", "mlp-one") == 0
    assert f"studio on this machine: {words}" in swarm.err
    [found] = swarm.objects("status", "mlp-one")
    assert found["troubles"] == {"studio": words}
    assert swarm("jobs") == 0
    assert words in swarm.out
    [told] = swarm.objects("jobs")
    assert told["trouble"] == words
    (job / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in (lost, ShareBack(after_s=9.0))))
    assert swarm.objects("status", "mlp-one")[0]["troubles"] == {}


def rejecting(mailbox: str, reason: str) -> None:
    manifest = make_run(mailbox, "mlp-one", "aaaa1111")
    (first,) = round_records(manifest, 1)
    record = decode(first, RoundRecord)
    refused = Rejected(learner="air", unit="air", reason=reason, round=0)  # type: ignore[arg-type]
    one, two = msgspec.structs.replace(record.participants[0], delta_norm=0.25), record.participants[0]
    two = msgspec.structs.replace(two, learner="mbp", unit="mbp", delta_norm=0.5)
    record = msgspec.structs.replace(record, version=0, rejected=(refused,), participants=(one, two))
    path = Path(mailbox, RunKeys(manifest.run).round(0))
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(record, nonce="0" * 32))


@pytest.mark.parametrize("reason", get_args(RejectReason))
def test_status_says_in_words_why_something_was_rejected(swarm: Swarm, mailbox: str, reason: str) -> None:
    rejecting(mailbox, reason)
    assert swarm("status", "mlp-one") == 0
    first, second = swarm.out.splitlines()[-2:]
    assert first == "round 0: studio, mbp  train 1.000  val –  Δ 0.25–0.5  up 48 B"
    assert second == f"  air: {REASONS[reason]}"
    [found] = swarm.objects("status", "mlp-one")
    [closed] = found["history"]  # type: ignore[misc]
    assert closed["rejected"] == [{"learner": "air", "reason": reason, "round": 0}]
    assert closed["delta_norms"] == {"studio": 0.25, "mbp": 0.5}
    assert (closed["sent_bytes"], closed["changed"]) == (48, True)


def heard(manifest: Manifest, *controls: Control, **roles: Role) -> RunState:
    """A run whose members, by their roles, were heard twice; no round is closed."""
    state = apply(RunState(run=manifest.run), ManifestRead(manifest))
    for n in range(2):
        beats = {who: (BeatId(1, n), Beat(phase="train", role=role, tokens_per_s=9.0)) for who, role in roles.items()}
        state = apply(state, Polled(now_s=0.1 * n, beats=beats))
    for n, control in enumerate(controls, 1):
        state = apply(state, ControlRead(n, control))
    return state


@pytest.fixture
def shown(mailbox: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """(what `status --json` prints of a state, the lines without it)."""
    manifest = make_run(mailbox, "mlp-one", "aaaa1111", rounds=7)

    def show(*controls: Control, checkpoints: tuple[int, ...] = (), **roles: Role) -> tuple[dict[str, Any], list[str]]:
        state = heard(manifest, *controls, **roles)
        status.show(state, True, list(checkpoints))
        fields = json.loads(capsys.readouterr().out)
        status.show(state, False, list(checkpoints))
        return fields, capsys.readouterr().out.splitlines()

    return show


def test_a_syncer_is_listed_for_itself(shown: Callable[..., Any]) -> None:
    fields, lines = shown(studio="both", nas="syncer")
    assert (fields["learners"], fields["syncers"], fields["state"]) == (["studio"], ["nas"], "running")
    assert [(m["learner"], m["role"]) for m in fields["members"]] == [("nas", "syncer"), ("studio", "both")]
    nas = next(line.split() for line in lines if line.startswith("nas"))
    assert nas[:3] == ["nas", "syncer", "–"]


def test_learners_alone_wait_for_a_syncer(shown: Callable[..., Any]) -> None:
    fields, lines = shown(studio="learner")
    assert (fields["state"], fields["waits_for"]) == ("waiting", "a syncer")
    assert "  waiting for a syncer  round 0/7" in lines[0]


def test_what_is_asked_for_and_by_whom(shown: Callable[..., Any]) -> None:
    pause = Control(action="pause", by="mbp")
    fields, lines = shown(pause, studio="both")
    assert (fields["state"], fields["asked"], fields["by"]) == ("running", "pause", "mbp")
    assert "  running, pause asked for by mbp  round 0/7" in lines[0]
    fields, lines = shown(pause)
    assert (fields["state"], fields["asked"], fields["by"]) == ("paused", None, "mbp")
    assert "  paused by mbp  round 0/7" in lines[0]
    fields, lines = shown(Control(action="drop", by="mbp", learner="studio", incarnation=1), studio="both", air="both")
    assert [(m["learner"], m["dropped_by"]) for m in fields["members"]] == [("air", None), ("studio", "mbp")]
    assert any("leaving, dropped by mbp" in line for line in lines)


def test_an_extended_run_tells_its_rounds(shown: Callable[..., Any]) -> None:
    fields, lines = shown(Control(action="extend", rounds=9))
    assert fields["rounds"] == 9
    assert "round 0/9" in lines[0]


def test_checkpoints_are_listed(swarm: Swarm, mailbox: str, shown: Callable[..., Any]) -> None:
    fields, lines = shown(checkpoints=(10, 20))
    assert fields["checkpoints"] == [10, 20]
    assert lines[1] == "checkpoints of round 10, 20"
    manifest = make_run(mailbox, "kept", "bbbb1111", checkpoint_every=1)
    for round in (4, 12):
        path = Path(mailbox, RunKeys(manifest.run).checkpoint(round))
        path.parent.mkdir(parents=True)
        path.write_bytes(encode(Checkpoint(round=round, theta=manifest.init), nonce="0" * 32))
    [found] = swarm.objects("status", "kept")
    assert (found["checkpoints"], found["checkpoint_every"], found["checkpoints_kept"]) == ([4, 12], 1, 3)


def test_what_a_run_began_with_is_shown(mailbox: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = DataRef(name="start.safetensors", sha256="ab" * 32, size_bytes=4_351_186)
    manifest = msgspec.structs.replace(make_run(mailbox, "mlp-one", "aaaa1111", rounds=7), base=base)
    status.show(heard(manifest), True, [])
    assert json.loads(capsys.readouterr().out)["base"] == msgspec.to_builtins(base)
    status.show(heard(manifest), False, [])
    assert capsys.readouterr().out.splitlines()[1] == "began with start.safetensors, 4.35 MB, SHA-256 abababababab…"


# Joining


def test_a_run_of_a_program_is_joined_by_that_program(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "own-model", "aaaa1111", task="library")
    assert "joined by starting that program here" in swarm.fails(2, "join", "own-model")
    assert "no run to join" in swarm.fails(3, "join")
    assert swarm.objects("runs")[0]["task"] == "library"


def test_join_without_a_run_wants_exactly_one(swarm: Swarm, mailbox: str) -> None:
    assert "no run to join" in swarm.fails(3, "join")
    write_rounds(mailbox, make_run(mailbox, "a-done", "aaaa1111", rounds=3), 3)
    make_run(mailbox, "c-stopped", "cccc1111")
    stop(mailbox, "cccc1111")
    assert "no run to join" in swarm.fails(3, "join")
    make_run(mailbox, "mlp-one", "dddd1111")
    make_run(mailbox, "mlp-two", "eeee1111")
    assert swarm("join") == 3
    first, *listed = swarm.err.splitlines()
    assert "say which" in first
    assert [line.split() for line in listed] == [["mlp-one", "dddd1111"], ["mlp-two", "eeee1111"]]


def test_an_ended_run_cannot_be_joined(swarm: Swarm, mailbox: str) -> None:
    write_rounds(mailbox, make_run(mailbox, "a-done", "aaaa1111", rounds=3), 3)
    make_run(mailbox, "c-stopped", "cccc1111")
    stop(mailbox, "cccc1111")
    assert "has all its 3 rounds" in swarm.fails(1, "join", "a-done")
    assert "was stopped" in swarm.fails(1, "join", "c-stopped")


def test_stopping_what_has_ended_says_so(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "mlp-one", "aaaa1111")
    assert swarm("stop", "mlp-one") == 0
    assert "at once if nobody trains" in swarm.err
    assert swarm("stop", "mlp-one") == 0
    assert "mlp-one is stopped already" in swarm.err


# Deleting


def test_rm_asks_and_without_a_terminal_wants_yes(swarm: Swarm, mailbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    write_rounds(mailbox, make_run(mailbox, "mlp-one", "aaaa1111"), 2)
    assert "--yes" in swarm.fails(2, "rm", "mlp-one")
    assert swarm("rm", "mlp-one", "--yes") == 0
    assert swarm.objects("runs") == []
    assert not [p for p in Path(mailbox, "runs").rglob("*") if p.is_file()]


@pytest.mark.parametrize("damage", ["garbage", "missing"])
def test_rm_takes_a_run_that_cannot_be_read_by_its_id(swarm: Swarm, mailbox: str, damage: str) -> None:
    for id in ("aaaa1111", "bbbb2222"):
        write_rounds(mailbox, make_run(mailbox, f"mlp-{id[0]}", id), 2)
    manifest = Path(mailbox, "runs/aaaa1111/manifest/record.json")
    if damage == "garbage":
        manifest.write_text("garbage")
    else:
        manifest.unlink()
    assert "--force" in swarm.fails(1, "rm", "aaaa1111", "--yes")
    assert "no run 'cccc3333'" in swarm.fails(1, "rm", "cccc3333", "--yes", "--force")
    assert swarm("rm", "aaaa1111", "--yes", "--force") == 0
    assert not [p for p in Path(mailbox, "runs/aaaa1111").rglob("*") if p.is_file()]
    assert [found["run"] for found in swarm.objects("runs")] == ["bbbb2222"]


def test_rm_waits_for_the_lease_of_a_silent_learner(swarm: Swarm, mailbox: str) -> None:
    import msgspec

    algorithm = msgspec.structs.replace(QUICK, beat_s=0.1, lease_s=0.6)
    make_run(mailbox, "mlp-one", "aaaa1111", algorithm=algorithm)
    beat(mailbox, "aaaa1111", "studio", 0)
    assert swarm("rm", "mlp-one", "--yes") == 0
    assert "is anybody there?" in swarm.err


def test_rm_of_a_run_that_all_have_left_waits_for_nobody(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "mlp-one", "aaaa1111")
    beat(mailbox, "aaaa1111", "studio", 0)
    beat(mailbox, "aaaa1111", "studio", 1, phase="left")
    assert swarm("rm", "mlp-one", "--yes") == 0
    assert "anybody" not in swarm.err


# Options


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--sync-every", "0"), "sync_every must be >= 1, got 0"),
        (("--sync-every", "10", "--fragments", "20"), "fragments must be <= sync_every"),
        (("--lease-s", "nan"), "lease_s must be a finite number"),
        (("--lease-s", "5"), "lease_s must be >= 2 × beat_s"),
        (("--task", "mpl"), "did you mean 'mlp'?"),
        (("-o", "width"), "'width' is not KEY=VALUE"),
        (("-o", "=3"), "'=3' is not KEY=VALUE"),
        (("-o", "batch_sise=3"), "did you mean batch_size?"),
        (("-o", "batch-size=many"), "batch_size must be a whole number"),
        (("--name", "Foo Bar"), "is no name for a run"),
        (("--name", ""), "is no name for a run"),
        (("--learner-id", "Foo Bar"), "is no learner id"),
        (("--learner-id", ""), "is no learner id"),
        (("--seed", str(2**64)), "seed must be"),
        (("--rounds", str(10**12)), "rounds must be"),
        (("--base-model", "\udcff"), "is no UTF-8 text: rename it"),
        (("--data", "\udcff"), "is no UTF-8 text: rename it"),
    ],
)
def test_a_wrong_option_is_named(swarm: Swarm, mailbox: str, argv: tuple[str, ...], words: str) -> None:
    task = () if "--task" in argv else ("--task", "mlp")
    assert words in swarm.fails(2, "start", "diloco", *task, *argv)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("staus",), "did you mean 'status'?"),
        (("start", "dilocco"), "dilocco"),
        (("start", "diloco", "--rounds", "0"), "--rounds"),
        (("start", "diloco", "--rounds", "x"), "--rounds"),
        (("start", "diloco", "--threads", "0"), "--threads"),
        (("start", "diloco", "--delta-dtype", "F99"), "--delta-dtype"),
        (("start", "diloco", "--nonsense"), "--nonsense"),
        (("runs", "extra"), "extra"),
        (("status",), "RUN"),
        (("generate", "x"), "--prompt"),
        (("generate", "x", "--prompt", "y", "--temp", "-1"), "--temp"),
    ],
)
def test_wrong_usage_is_2(swarm: Swarm, argv: tuple[str, ...], words: str) -> None:
    assert swarm(*argv) == 2
    assert words in swarm.err
    assert not swarm.out


def test_a_name_is_given_once(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "mlp-one", "aaaa1111")
    assert "choose another name" in swarm.fails(2, "start", "diloco", "--task", "mlp", "--name", "mlp-one")


# Jobs


def test_without_jobs(swarm: Swarm) -> None:
    assert swarm.objects("jobs", "--all") == []
    assert swarm("jobs") == 0
    assert "no job" in swarm.err
    assert "no job" in swarm.fails(2, "logs")
    assert "no job 'x'" in swarm.fails(2, "logs", "x")
    assert "no running job" in swarm.fails(2, "leave")
    assert "no running job in 'x'" in swarm.fails(2, "leave", "x")


def test_a_state_folder_that_cannot_be_written(
    swarm: Swarm, mailbox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWARM_STATE_DIR", str(tmp_path / "file" / "below"))
    line = swarm.fails(1, "start", "diloco", "--task", "mlp")
    assert str(tmp_path / "file") in line
    assert "SWARM_STATE_DIR" in line


def test_an_unforeseen_error_goes_to_a_file(swarm: Swarm, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm import api

    def broken() -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(api, "jobs", broken)
    line = swarm.fails(1, "jobs")
    assert "ZeroDivisionError: by nothing" in line
    assert str(state_dir / "crash.txt") in line
    assert "in broken" in (state_dir / "crash.txt").read_text()


# The screen


def test_the_screen_needs_a_terminal(swarm: Swarm) -> None:
    assert "needs a terminal" in swarm.fails(2, "tui")


def test_a_dumb_terminal_is_none_for_the_screen(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    import pty

    controller, terminal = pty.openpty()
    with os.fdopen(controller), open(terminal, closefd=True) as stream:
        monkeypatch.setattr(sys, "__stdin__", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(os, "execv", lambda *_: pytest.fail("the screen was started"))
        assert "needs a terminal" in swarm.fails(2, "tui")


# Steering


def test_pause_and_resume(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "one", "run1")
    assert swarm("resume", "one") == 0
    assert "not paused" in swarm.err
    assert swarm("pause", "one") == 0
    assert swarm.objects("runs")[0]["state"] == "paused"  # nobody is there: at once
    assert swarm("pause", "one") == 0
    assert "already" in swarm.err
    assert swarm("resume", "one") == 0
    assert swarm.objects("runs")[0]["state"] == "idle"


def test_a_done_run_goes_on_when_it_is_extended(swarm: Swarm, mailbox: str) -> None:
    write_rounds(mailbox, make_run(mailbox, "one", "run1", rounds=3), 3)
    assert swarm.objects("runs")[0]["state"] == "done"
    assert "--rounds" in swarm.fails(2, "extend", "one")
    assert "--rounds" in swarm.fails(2, "extend", "one", "--by", "2", "--forever")
    assert swarm("extend", "one", "--by", "2") == 0
    assert "5 rounds" in swarm.err
    assert "swarm join one" in swarm.err
    [now] = swarm.objects("runs")
    assert (now["state"], now["rounds"]) == ("idle", 5)
    assert swarm("extend", "one", "--forever") == 0
    assert swarm.objects("runs")[0]["rounds"] is None
    assert "until it is stopped" in swarm.fails(2, "extend", "one", "--by", "1")


def test_a_run_never_has_fewer_rounds_than_it_has_had(swarm: Swarm, mailbox: str) -> None:
    write_rounds(mailbox, make_run(mailbox, "done", "run1", rounds=3), 3)
    assert "done after 3 rounds" in swarm.fails(2, "extend", "done", "--rounds", "3")
    assert swarm.objects("runs")[0]["rounds"] == 3
    write_rounds(mailbox, make_run(mailbox, "open", "run2", rounds=None), 3)
    assert swarm("extend", "open", "--rounds", "1") == 0
    assert "3 rounds" in swarm.err
    assert "has 1 round" not in swarm.err
    now = next(each for each in swarm.objects("runs") if each["name"] == "open")
    assert (now["state"], now["round"], now["rounds"]) == ("done", 3, 3)
    assert swarm("extend", "open", "--by", "1") == 0
    assert "has 4 rounds" in swarm.err, "one more than it has had, not than it was to have"


def test_what_keeps_a_run_from_being_read_is_named(swarm: Swarm, mailbox: str) -> None:
    manifest = make_run(mailbox, "one", "run1", rounds=3)
    write_rounds(mailbox, manifest, 3)
    Path(mailbox, RunKeys("run1").round(2)).write_text("no record")
    for command in (("runs",), ("status", "one")):
        assert swarm(*command) == 0
        assert "no answer" in swarm.out
        assert RunKeys("run1").round(2) in swarm.err


def test_a_parameter_file_takes_the_place_of_a_file_only(swarm: Swarm, mailbox: str, tmp_path: Path) -> None:
    make_run(mailbox, "one", "run1")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "replaced" in swarm.fails(2, "export", "one", str(pipe))
    assert pipe.is_fifo()


def test_only_a_learner_of_the_run_is_dropped(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "one", "run1")
    beat(mailbox, "run1", "studio", 0)
    line = swarm.fails(2, "drop", "one", "nobody")
    assert "studio" in line
    assert swarm("drop", "one", "studio") == 0
    assert "studio" in swarm.err


@pytest.mark.parametrize("command", ["pause", "resume", "drop"])
def test_an_ended_run_is_steered_no_more(swarm: Swarm, mailbox: str, command: str) -> None:
    make_run(mailbox, "one", "run1")
    stop(mailbox, "run1")
    argv = ("studio",) if command == "drop" else ()
    assert "stopped" in swarm.fails(2, command, "one", *argv)


# Comparing


def test_two_runs_side_by_side(swarm: Swarm, mailbox: str) -> None:
    write_rounds(mailbox, make_run(mailbox, "one", "run1"), 30)
    write_rounds(mailbox, make_run(mailbox, "two", "run2", algorithm=DiLoCo(sync_every=20, beat_s=0.2, lease_s=2.0)), 3)
    assert swarm("compare", "one", "two") == 0
    lines = swarm.out.splitlines()
    assert ["sync_every", "10", "20"] in [line.split() for line in lines]
    assert not any(line.startswith("outer_lr") for line in lines)  # equal in both
    assert any(line.split()[0] == "29" for line in lines if line.strip())
    assert len(lines) < 45  # a long history is shown by some of its rounds
    tape = swarm.objects("compare", "one", "two")
    assert [(at["name"], at["round"]) for at in tape] == [("one", r) for r in range(30)] + [("two", r) for r in range(3)]
    assert tape[2]["tokens"] == 30


def test_a_run_without_rounds_can_be_compared(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "one", "run1")
    assert swarm("compare", "one", "one") == 0
    assert "rounds so far" in swarm.out
