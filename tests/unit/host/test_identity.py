"""Which process is which, on this machine and on others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from swarm.core.errors import UsageError
from swarm.core.jobs import Process
from swarm.core.records import LearnerRecord
from swarm.host import identity as module
from swarm.host.identity import (
    PROCESS,
    Identity,
    boot_id,
    holder,
    identity,
    machine_id,
    note_process,
    process_alive,
    process_gone,
    renew_machine_id,
    started,
)

ME = Identity(machine="m", machine_name="me", boot="b2", pid=1, process="x")


def test_this_process_is_alive_and_not_gone(state_dir: Path) -> None:
    me = identity()
    assert me.pid == os.getpid()
    assert process_alive(me, me)
    assert not process_gone(me, me)


def test_a_process_that_ended_is_gone_before_and_after_it_is_waited_for(state_dir: Path) -> None:
    me = identity()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    other = msgspec.structs.replace(me, pid=child.pid, process=started(child.pid))
    assert process_alive(me, other)
    assert not process_gone(me, other)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
    assert started(child.pid) is None
    assert process_gone(me, other)
    child.wait()
    assert process_gone(me, other)
    assert not process_alive(me, other)


def test_another_process_with_the_same_pid_is_another(state_dir: Path) -> None:
    me = identity()
    earlier = msgspec.structs.replace(me, process="earlier")
    assert process_gone(me, earlier)
    assert not process_alive(me, earlier)


def test_of_another_machine_nothing_is_known() -> None:
    other = msgspec.structs.replace(ME, machine="another")
    assert not process_gone(ME, other)
    assert not process_alive(ME, other)


def test_of_an_earlier_boot_all_are_gone() -> None:
    other = msgspec.structs.replace(ME, boot="b1")
    assert process_gone(ME, other)
    assert not process_alive(ME, other)


def test_a_record_without_a_start_is_never_alive() -> None:
    assert not process_alive(ME, msgspec.structs.replace(ME, pid=2**22 + 1, process=""))


def test_no_such_process() -> None:
    assert started(2**22 + 1) is None


@pytest.mark.skipif(sys.platform != "linux", reason="what /proc says")
def test_a_process_started_when_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = int(started(os.getpid()) or 0) / os.sysconf("SC_CLK_TCK")
    assert ticks == pytest.approx(psutil.Process().create_time() - psutil.boot_time(), abs=1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="what /proc says")
def test_a_name_with_parentheses_and_spaces_misleads_nobody(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b"
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([str(odd), "60"])
    try:
        assert started(process.pid)
        assert started(process.pid) == started(process.pid)
        assert abs(int(started(process.pid) or 0) - int(started(os.getpid()) or 0)) < 10**6
    finally:
        process.kill()
        process.wait()


def test_ids_are_stable_and_tell_nothing(state_dir: Path) -> None:
    assert machine_id() == machine_id()
    assert boot_id() == boot_id()
    assert len(machine_id()) == 32
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        if Path(path).exists():
            assert Path(path).read_text().strip() not in (machine_id(), "")


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A Mac, whose sysctl prints what stands in this file."""
    says = tmp_path / "boot session"
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(module, "SYSCTL", (sys.executable, "-c", f"print(open({str(says)!r}).read())"))
    module._boot_session.cache_clear()
    yield says
    module._boot_session.cache_clear()


def test_a_boot_stays_the_same_when_the_clock_is_set(mac: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mac.write_text("7D3B1B53-9F5E-4F0C-9D5C-0A4E1B6C2D11")
    first = boot_id()
    monkeypatch.setattr(psutil, "boot_time", lambda: 1_700_000_000.0)
    assert boot_id() == first == "7d3b1b53-9f5e-4f0c-9d5c-0a4e1b6c2d11"
    mac.unlink()
    assert boot_id() == first  # asked once


@pytest.mark.parametrize("says", [None, "", "sysctl: unknown oid"])
def test_a_mac_that_does_not_tell_its_boot_has_the_time_of_it(
    says: str | None, mac: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if says is not None:
        mac.write_text(says)
    monkeypatch.setattr(psutil, "boot_time", lambda: 1_700_000_003.0)
    assert boot_id() == "1700000000"


def test_a_machine_without_an_id_makes_one_and_keeps_it(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYSTEM_IDS", ())
    first = machine_id()
    assert machine_id() == first
    (state_dir / "machine-id").unlink()
    assert machine_id() != first


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYSTEM_IDS", ())
    (tmp_path / "file").touch()
    monkeypatch.setenv("SWARM_STATE_DIR", str(tmp_path / "file" / "state"))
    with pytest.raises(UsageError, match="SWARM_STATE_DIR"):
        machine_id()
    with pytest.raises(UsageError):
        renew_machine_id("a" * 32)


@pytest.mark.parametrize("system", ["its own id", ""])
def test_a_machine_whose_id_another_one_has_takes_a_new_one(
    system: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "system-id").write_text(system)
    monkeypatch.setattr(module, "SYSTEM_IDS", (str(tmp_path / "none"), str(tmp_path / "system-id")))
    old = machine_id()
    new = renew_machine_id(old)
    assert new != old
    assert machine_id() == new
    assert renew_machine_id(old) == new  # asked by another process, which has the old one in mind


def test_a_new_id_in_a_copied_home_is_another_machine_s(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "system-id"
    monkeypatch.setattr(module, "SYSTEM_IDS", (str(place),))
    place.write_text("here")
    here = renew_machine_id(machine_id())
    place.write_text("there")
    assert machine_id() != here


def test_a_learner_record_says_who_holds_the_id() -> None:
    fields = {"machine": "m", "machine_name": "me", "boot": "b2", "pid": 1, "process": "x"}
    assert holder(LearnerRecord(learner="a", incarnation=1, version="0", **fields)) == ME


def test_a_job_is_noted_as_a_whole(tmp_path: Path) -> None:
    note_process(tmp_path, os.getpid())
    found = msgspec.json.decode((tmp_path / PROCESS).read_bytes(), type=Process)
    assert found == Process(pid=os.getpid(), process=started(os.getpid()) or "", boot=boot_id())
    assert [p.name for p in tmp_path.iterdir()] == [PROCESS]
