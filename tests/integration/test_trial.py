"""A share tried out with processes of its own, on folders that are well and on some that are not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from swarm.core.mounts import Mount
from swarm.core.ticks import Tick, warning
from swarm.host.children import python
from swarm.mailbox import init_mailbox, probe
from swarm.mailbox import trial as module
from swarm.mailbox.trial import Extent, trial
from swarm.mailbox.trial_place import Place

SHARES = [Path(p) for p in os.environ.get("SWARM_TEST_SHARES", "").split(":") if p]
LITTLE = Extent(processes=3, records=12, race_s=60.0, names=30, names_s=60.0, speed_s=0.05)
COMMAND = python("swarm.mailbox.racing")
QUICK = ["folder", "file system", "mailbox", "writable", "exclusive creation", "free space"]
ALL = [*QUICK, "marker", "race", "visibility", "listing", "names", "timings", "syncing", "speed", "clock", "verdict"]
LIAR = """
import errno, os, runpy, uuid
real = os.rename
def rename(old, new):  # as a cloud drive: it takes what is there away, and says that all went well
    while True:
        try:
            return real(old, new)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        try:
            real(new, f"{new}.{uuid.uuid4().hex}")
        except FileNotFoundError:
            pass
os.rename = rename
runpy.run_module("swarm.mailbox.racing", run_name="__main__")
"""


def tree(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def disk() -> list[Mount]:
    return [Mount(point="/", device="/dev/sda1", kind="ext4", options="rw")]


async def tried(path: Path, command: Sequence[str] = COMMAND, **more: object) -> dict[str, Tick]:
    found = await trial(path, command=command, **({"extent": LITTLE, "mounts": disk} | more))  # type: ignore[arg-type]
    assert all(bool(tick.remedy) == (tick.verdict != "ok") and tick.topic == "share" for tick in found), found
    return {tick.name: tick for tick in found}


async def test_a_mailbox_is_fit_and_stays_as_it_was(tmp_path: Path) -> None:
    await init_mailbox(tmp_path)
    before = tree(tmp_path)
    told: list[Sequence[Tick]] = []
    found = await tried(tmp_path, told=told.append)
    assert list(found) == ALL
    assert [tick for tick in found.values() if tick.verdict == "failed"] == []
    assert found["race"].detail == "3 processes created 12 records at once: each had one winner, and all read the same"
    assert found["listing"].detail.startswith("30 names in ")
    assert "second process" in found["marker"].detail
    assert tree(tmp_path) == before
    assert [ticks[-1].verdict for ticks in told] == ["checking"] * len(told)
    assert [tick.name for tick in told[-1][:-1]] == ALL[:-1]


async def test_two_trials_at_once_do_not_meet(tmp_path: Path) -> None:
    await init_mailbox(tmp_path)
    before = tree(tmp_path)
    one, other = await asyncio.gather(tried(tmp_path), tried(tmp_path, gone=lambda owner: False))
    for found in (one, other):
        assert list(found) == ALL
        assert found["verdict"].verdict != "failed", found["verdict"]
    assert tree(tmp_path) == before


async def test_an_empty_folder_is_tried_and_stays_empty(tmp_path: Path) -> None:
    found = await tried(tmp_path, extent=LITTLE._replace(processes=2))
    assert list(found) == ALL
    assert found["mailbox"].verdict == "warning"
    assert "swarm init" in found["mailbox"].remedy
    assert found["verdict"].detail.startswith("fit, with warnings: mailbox")
    assert tree(tmp_path) == []


async def test_among_other_files_nothing_is_tried(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    found = await tried(tmp_path)
    assert list(found) == [*QUICK[:3], "verdict"]
    assert "thesis.tex" in found["mailbox"].detail
    assert found["verdict"].detail.startswith("not fit: ")
    assert tree(tmp_path) == ["thesis.tex"]


async def test_a_marker_that_is_damaged_is_no_empty_folder(tmp_path: Path) -> None:
    await init_mailbox(tmp_path)
    (tmp_path / "mailbox/record.json").write_bytes(b"{}")
    found = await tried(tmp_path)
    assert list(found) == [*QUICK[:3], "verdict"]
    assert found["mailbox"].verdict == "failed"
    assert found["mailbox"].remedy.startswith("copy it back from a backup")


@pytest.mark.parametrize("kind", ["fuse.rclone", "dropbox"])
async def test_what_synchronises_later_is_refused_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("Dropbox" if kind == "dropbox" else "x")
    path.mkdir()
    found = await tried(path, mounts=lambda: [Mount(point="/", device="remote:", kind=kind)])
    assert list(found) == ["folder", "file system", "verdict"]
    assert found["verdict"].verdict == "failed"
    assert "SMB or NFS" in found["verdict"].remedy
    assert tree(path) == []


async def test_a_share_that_lets_two_win_is_found_out_by_the_race(tmp_path: Path) -> None:
    """The quick check may see nothing of it: here only other processes are lied to."""
    await init_mailbox(tmp_path)
    found = await tried(tmp_path, command=[sys.executable, "-c", LIAR])
    assert found["exclusive creation"].verdict == "ok"
    assert found["race"].verdict == "failed"
    assert "12 records had more than one winner: 000000 (processes 1, 2, 3), " in found["race"].detail
    assert found["verdict"].detail.startswith("not fit: of 12 records that 3 processes created at once")


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import json, sys; print('{}', flush=True); sys.stdin.readline()"])
async def test_a_second_process_that_ends_is_told_and_the_rest_is_tried(tmp_path: Path, code: str) -> None:
    await init_mailbox(tmp_path)
    before = tree(tmp_path)
    found = await tried(tmp_path, command=[sys.executable, "-c", code])
    if "SystemExit" in code:
        assert found["second process"].verdict == "warning"
        assert "race" not in found
        assert found["listing"].verdict == "ok"
    else:
        assert found["marker"].verdict == "warning"
        assert "was ended" in found["marker"].detail
        assert "race" not in found
    assert found["verdict"].detail.startswith("fit, with warnings: ")
    assert tree(tmp_path) == before


async def test_a_disk_that_is_full_says_so_wherever_it_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await init_mailbox(tmp_path)
    before = tree(tmp_path)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.disk, "sync", full)
    found = await tried(tmp_path)
    assert list(found)[-2:] == ["writable", "verdict"]
    assert "make room" in found["writable"].remedy
    monkeypatch.setattr(probe, "_write", lambda path, data: Path(path).write_bytes(data))
    found = await tried(tmp_path)
    assert "No space left" in found["marker"].detail
    assert "make room" in found["marker"].remedy
    assert tree(tmp_path) == before


async def test_a_share_that_hangs_ends_the_trial_and_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await init_mailbox(tmp_path)
    answer = threading.Event()
    monkeypatch.setattr(module, "HURRY_S", 0.2)
    monkeypatch.setattr(module, "_syncs_folders", lambda path: answer.wait(60))
    monkeypatch.setattr(module.Second, "end", lambda self: answer.wait(60))
    found = await tried(tmp_path, timeout_s=4.0)
    answer.set()
    assert list(found)[-3:] == ["syncing", "leavings", "verdict"]
    assert "no answer for 4 s" in found["syncing"].detail
    assert found["verdict"].verdict == "failed"


async def test_a_trial_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    await init_mailbox(tmp_path)
    before = tree(tmp_path)
    at = asyncio.Event()

    def told(ticks: Sequence[Tick]) -> None:
        if ticks[-1].name == "visibility":
            at.set()

    trying = asyncio.create_task(tried(tmp_path, told=told))
    await at.wait()
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert tree(tmp_path) == before


async def test_an_object_store_has_checks_of_its_own_and_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def probed(location: object, **_: object) -> list[Tick]:
        asked.append(location)
        return [warning("speed", "little", "wire", topic="share")]

    monkeypatch.setattr(probe, "probe", probed)
    found = await trial("s3://bucket/x", command=["no such program"])
    assert asked == ["s3://bucket/x"]
    assert found[-1].detail == "fit, with warnings: speed"


def second(place: Place) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert asked(process) == {"ready": True}
    return process


def asked(process: subprocess.Popen[bytes], **request: object) -> dict[str, object]:
    assert process.stdin is not None
    assert process.stdout is not None
    if request:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
    found: dict[str, object] = json.loads(process.stdout.readline())
    return found


def test_the_second_process_removes_everything_when_the_first_is_dead(tmp_path: Path) -> None:
    place = Place(str(tmp_path), "dead")
    place.make()
    process = second(place)
    assert "id" in asked(process, do="open", place=place.path)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    assert tree(tmp_path) == []


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="names the children by /proc")
def test_a_process_of_the_race_that_is_killed_is_told(tmp_path: Path) -> None:
    place = Place(str(tmp_path), "me")
    place.make()
    process = second(place)
    assert process.stdin is not None
    assert process.stdout is not None
    request = {"do": "race", "place": place.path, "processes": 3, "records": 1_000_000, "limit_s": 100.0}
    process.stdin.write(json.dumps(request).encode() + b"\n")
    process.stdin.flush()
    while not (racing := children_of(process.pid)) or not any(Path(place.path, "runs").iterdir()):
        pass
    os.kill(racing[-1], signal.SIGKILL)
    found = json.loads(process.stdout.readline())
    assert (found["ended"], found["doubles"], found["changed"]) == (1, [], [])
    process.stdin.close()
    assert process.wait(60) == 0
    assert tree(tmp_path) == []


@pytest.mark.share
@pytest.mark.timeout(300)
@pytest.mark.skipif(not SHARES, reason="no share is mounted: SWARM_TEST_SHARES names none")
async def test_a_real_share_is_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "FREE_BYTES", 100 << 20)
    place = SHARES[0] / f"trial-{os.getpid()}"
    await init_mailbox(place)
    before = tree(place)
    extent = Extent(records=20, names=200, speed_s=0.2)
    found = {tick.name: tick for tick in await trial(place, command=COMMAND, extent=extent)}
    print("\n".join(f"{tick.verdict:<8} {tick.name}: {tick.detail}" for tick in found.values()))
    assert found["verdict"].verdict != "failed", found["verdict"]
    assert "each had one winner" in found["race"].detail or "one winner each" in found["race"].detail
    assert tree(place) == before
