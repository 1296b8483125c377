"""Job folders: what is read of them, and how a worker is started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from swarm import launcher
from swarm.core.errors import UsageError, WorkerFailed
from swarm.core.events import Building, Ended, Failed, Freed, Held, Joined, Mended, ShareBack, ShareLost, Trouble, WorkerEvent
from swarm.core.jobs import Export, Learn
from swarm.host import children
from swarm.host.identity import note_process

ORDER = Learn(mailbox="/m", run="aaaa1111", run_name="mlp-one", learner="studio", may_rename=False)
JOINED = Joined(run="aaaa1111", name="mlp-one", learner="studio-2", incarnation=1, round=0, device="torch cpu")


def folder(state: Path, id: str, order: object = ORDER) -> Path:
    path = state / "jobs" / id
    path.mkdir(parents=True)
    (path / "order.json").write_bytes(msgspec.json.encode(order))
    return path


def append(path: Path, *events: WorkerEvent) -> None:
    with (path / "events.jsonl").open("ab") as file:
        file.write(b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def over(path: Path) -> Path:
    """As if its process had ended."""
    (path / "process.json").write_bytes(b'{"pid":1,"process":"none","boot":"none"}')
    return path


def test_jobs_are_listed_newest_first_and_only_those_that_take_part(state_dir: Path) -> None:
    assert launcher.jobs() == ()
    folder(state_dir, "20260101-000000-000aaaa")
    folder(state_dir, "20260101-000000-001bbbb")
    folder(state_dir, "20260101-000001-000cccc", Export(mailbox="/m", run="aaaa1111", file="/f"))
    folder(state_dir, "20260101-000002-000dddd", msgspec.structs.replace(ORDER, join=False))
    (state_dir / "jobs" / "a file").touch()
    (state_dir / "jobs" / "broken").mkdir()
    (state_dir / "jobs" / "broken" / "order.json").write_bytes(b"{")
    assert [job.id for job in launcher.jobs()] == ["20260101-000000-001bbbb", "20260101-000000-000aaaa"]


def test_one_that_was_asked_to_leave_before_it_could_say_so_has_left(state_dir: Path) -> None:
    path = folder(state_dir, "j1")
    note_process(path, os.getpid())
    (path / launcher.LEFT_BY_HAND).touch()
    assert launcher.job("j1").state == "starting"
    over(path)
    assert (launcher.job("j1").state, launcher.job("j1").by_hand) == ("left", True)


def test_a_worker_that_cannot_hear_ctrl_c_at_that_moment_is_reached(tmp_path: Path) -> None:
    """MLX calls system(3) before it compiles, which ignores SIGINT for this whole process meanwhile."""
    program = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    launcher.Worker(tmp_path, process).interrupt()
    assert process.wait() == -signal.SIGTERM
    process.stdout.close()


def test_a_job_starts_runs_and_ends(state_dir: Path) -> None:
    path = folder(state_dir, "j1")
    assert launcher.job("j1").state == "starting"
    note_process(path, os.getpid())
    assert (launcher.job("j1").state, launcher.job("j1").pid) == ("starting", os.getpid())
    assert (launcher.job("j1").run_name, launcher.job("j1").learner) == ("mlp-one", "studio")
    append(path, Building(what="mlp"), JOINED)
    found = launcher.job("j1")
    assert (found.state, found.learner, found.device) == ("running", "studio-2", "torch cpu")
    append(path, Ended(reason="left", rounds=3))
    assert launcher.job("j1").state == "running"  # as long as its process does
    over(path)
    assert (launcher.job("j1").state, launcher.job("j1").pid) == ("left", 0)


@pytest.mark.parametrize(
    ("events", "log", "state", "message"),
    [
        ([Ended(reason="done", rounds=1)], "", "done", ""),
        ([JOINED, Failed(error="E", message="no disk")], "noise\n", "failed", "no disk"),
        ([JOINED, Failed(error="KeyboardInterrupt", message="interrupted", exit_code=130)], "", "left", ""),
        ([JOINED, Failed(error="Dropped", message="learner 'vm' was dropped")], "", "dropped", "learner 'vm' was dropped"),
        ([JOINED], "line 1\nline 2\n\n", "failed", "line 2"),
        ([], "", "failed", "the process was ended from outside"),
    ],
)
def test_how_a_job_ended(state_dir: Path, events: list[WorkerEvent], log: str, state: str, message: str) -> None:
    path = over(folder(state_dir, "j1"))
    append(path, *events)
    (path / "log.txt").write_text(log)
    assert (launcher.job("j1").state, launcher.job("j1").message) == (state, message)


def test_a_running_job_says_what_keeps_it_from_its_mailbox_until_it_is_back(state_dir: Path) -> None:
    path = folder(state_dir, "j1")
    note_process(path, os.getpid())
    append(path, JOINED, ShareLost(reason="/mnt/swarm: No space left on device (ENOSPC)", how="full"))
    words = "the mailbox is full (/mnt/swarm: No space left on device (ENOSPC))"
    job = launcher.job("j1")
    assert (job.state, job.trouble, job.message) == ("running", words, words)
    append(path, Held(reason="somebody is here"))
    assert launcher.job("j1").message == f"paused here: somebody is here; {words}"
    append(path, Freed(), ShareBack(after_s=61.0))
    assert (launcher.job("j1").trouble, launcher.job("j1").message) == ("", "")
    append(path, Trouble(message="unusual"), Trouble(message="runs/x: SHA-256 is another", lasts=True))
    assert (launcher.job("j1").trouble, launcher.job("j1").message) == ("runs/x: SHA-256 is another",) * 2
    append(path, Mended(what="goes on with round 3", after_s=9.0))
    assert launcher.job("j1").trouble == ""
    append(path, ShareLost(reason="no answer for 5 s"), Ended(reason="left", rounds=1))
    over(path)
    assert (launcher.job("j1").state, launcher.job("j1").trouble) == ("left", "")


def test_a_pid_that_another_process_has_by_now_is_not_the_worker(state_dir: Path) -> None:
    path = folder(state_dir, "j1")
    (path / "process.json").write_bytes(msgspec.json.encode({"pid": os.getpid(), "process": "earlier", "boot": "b"}))
    assert launcher.job("j1").state == "failed"
    assert launcher.interrupt(launcher.job("j1")) is False


def test_a_job_is_named_by_any_part_of_its_id_that_fits_one(state_dir: Path) -> None:
    for id in ("20260101-a", "20260101-b", "20260101-bc"):
        folder(state_dir, id)
    assert launcher.job("01-a").id == "20260101-a"
    assert launcher.job("20260101-b").id == "20260101-b"
    with pytest.raises(UsageError, match="fits several jobs: 20260101-bc, 20260101-b"):
        launcher.job("01-b")
    with pytest.raises(UsageError, match="no job 'x'"):
        launcher.job("x")


def test_a_deleted_job_is_forgotten(state_dir: Path) -> None:
    path = over(folder(state_dir, "j1"))
    assert len(launcher.jobs()) == 1
    for file in path.iterdir():
        file.unlink()
    path.rmdir()
    assert launcher.jobs() == ()


def test_events_are_read_once_whole_lines_only_and_unknown_ones_left_out(tmp_path: Path) -> None:
    tail = launcher.EventTail(tmp_path / "events.jsonl")
    assert list(tail.read()) == []
    append(tmp_path, Building(what="a"))
    whole = msgspec.json.encode(Building(what="b"))
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b'{"event":"OfTomorrow","x":1}\nnonsense\n' + whole[:9])
    assert list(tail.read()) == [Building(what="a")]
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(whole[9:] + b"\n")
    assert list(tail.read()) == [Building(what="b")]
    assert list(tail.read()) == []


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert launcher.log_tail(log, 3) == ()
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(100_000)) + b"\xff")
    assert launcher.log_tail(log, 3) == ("line 99998", "line 99999", "\ufffd")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with code 3"),
        (-signal.SIGSEGV, "was ended by SIGSEGV"),
        (-signal.SIGKILL, "lack of memory"),
        (-99, "signal 99"),
    ],
)
def test_how_a_process_ended_in_words(code: int, words: str) -> None:
    assert words in children.ending(code)


def test_no_module_is_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the mailbox: whoever writes there would run code here."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # who puts the current folder there, wants it
    for name in ("msgspec", "psutil", "json", "torch", "swarm"):
        (tmp_path / f"{name}.py").write_text("print('taken')")
    (tmp_path / "mod.py").write_text("print('taken')")
    done = subprocess.run(children.python("swarm.worker"), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "usage" in done.stderr
    assert "taken" not in done.stdout


def test_a_module_runs_from_this_tree_and_gets_its_arguments(tmp_path: Path) -> None:
    done = subprocess.run(children.python("swarm", "--version"), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("swarm, version")
    code = "import sys, swarm; print(swarm.__file__)"
    (tmp_path / "where.py").write_text(code)
    command = children.python("where")
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert Path(done.stdout.strip()).parents[1] == Path(launcher.__file__).parents[1]
    assert sys.executable == command[0]


def test_a_job_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWARM_STATE_DIR", str(tmp_path / "file"))
    with pytest.raises(WorkerFailed, match="SWARM_STATE_DIR"):
        launcher.start(ORDER, foreground=False)


def test_of_ended_jobs_only_the_last_are_kept(state_dir: Path) -> None:
    for n in range(launcher.JOBS_KEPT + 5):
        over(folder(state_dir, f"j{n:03d}"))
    launcher._forget_old_jobs()
    kept = {path.name for path in (state_dir / "jobs").iterdir()}
    assert kept == {f"j{n:03d}" for n in range(5, launcher.JOBS_KEPT + 5)}
