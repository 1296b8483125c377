from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from swarm.core.mounts import Mount
from swarm.core.ticks import Tick
from swarm.mailbox import init_mailbox
from swarm.mailbox import probe as module
from swarm.mailbox.probe import probe

EVERYTHING = ["folder", "file system", "mailbox", "writable", "exclusive creation", "free space", "timings"]


def tree(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


def plain() -> list[Mount]:
    return [Mount(point="/", device="/dev/sda1", kind="ext4", options="rw")]


def bad(found: list[Tick]) -> list[str]:
    return [tick.name for tick in found if tick.verdict == "failed"]


class Clock:
    """A clock that moves by `step_s` whenever it is read."""

    def __init__(self, step_s: float) -> None:
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


async def test_a_good_mailbox_passes_and_stays_as_it_was(tmp_path):
    id = await init_mailbox(tmp_path)
    before = tree(tmp_path)
    found = await probe(tmp_path, now=Clock(0.041), mounts=plain)
    assert [(f.name, f.verdict, f.remedy, f.topic) for f in found] == [(name, "ok", "", "share") for name in EVERYTHING]
    assert id[:8] in found[2].detail
    assert found[6].detail == "create 41 ms, write 41 ms, list 41 ms, read 41 ms, delete 41 ms"
    assert tree(tmp_path) == before


async def test_a_folder_that_is_no_mailbox_yet_is_checked_all_the_same(tmp_path):
    found = await probe(tmp_path, mounts=plain)
    assert [f.name for f in found] == EVERYTHING
    assert bad(found) == ["mailbox"]
    assert "swarm init" in found[2].remedy
    assert tree(tmp_path) == []


@pytest.mark.parametrize("name", ["tmp", "trash", "runs"])
async def test_a_mailbox_that_lost_a_folder_is_told(tmp_path, name):
    await init_mailbox(tmp_path)
    (tmp_path / name).rmdir()
    found = await probe(tmp_path, mounts=plain)
    assert bad(found) == ["mailbox"]
    assert name in found[2].remedy


async def test_what_is_not_there_says_to_mount_it(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "missing", tmp_path / "file"):
        found = await probe(path)
        assert [(f.name, f.verdict) for f in found] == [("folder", "failed")]
        assert "mount the share" in found[0].remedy


@pytest.mark.parametrize(
    "folder",
    [
        "Dropbox/swarm",
        "Dropbox (Personal)/../Dropbox - Family/x",
        "Library/Mobile Documents/com~apple~CloudDocs/swarm",
        "OneDrive - Company/swarm",
        "Google Drive/My Drive/x",
        "Library/CloudStorage/GoogleDrive-a@b.c/x",
        "onedrive",
    ],
)
async def test_cloud_folders_are_refused_before_anything_is_written(tmp_path, folder):
    path = tmp_path / folder
    (tmp_path / "Dropbox (Personal)").mkdir()
    path.mkdir(parents=True)
    before = tree(tmp_path)
    found = await probe(path, mounts=plain)
    assert [(f.name, f.verdict) for f in found] == [("folder", "ok"), ("file system", "failed")]
    assert "SMB or NFS" in found[1].remedy
    assert tree(tmp_path) == before


async def test_a_folder_that_another_program_synchronises_is_refused(tmp_path):
    (tmp_path / ".stfolder").mkdir()
    (tmp_path / "a/b").mkdir(parents=True)
    found = await probe(tmp_path / "a/b", mounts=plain)
    assert found[-1].verdict == "failed"
    assert "Syncthing" in found[-1].detail


async def test_a_link_into_a_cloud_folder_is_seen_through(tmp_path):
    (tmp_path / "Dropbox").mkdir()
    (tmp_path / "share").symlink_to(tmp_path / "Dropbox")
    found = await probe(tmp_path / "share", mounts=plain)
    assert "Dropbox" in found[-1].detail


async def test_the_innermost_mount_counts(tmp_path):
    def mounts() -> list[Mount]:
        inner = Mount(point=str(tmp_path / "in"), device="//nas/x", kind="cifs", options="rw,vers=3.1.1,closetimeo=0")
        return [*plain(), inner, Mount(point=str(tmp_path), device="remote:", kind="fuse.rclone")]

    (tmp_path / "in").mkdir()
    (tmp_path / "inside").mkdir()
    assert (await probe(tmp_path / "in", mounts=mounts))[1].detail == f"cifs at {tmp_path / 'in'}"
    found = await probe(tmp_path / "inside", mounts=mounts)
    assert [(f.name, f.verdict) for f in found] == [("folder", "ok"), ("file system", "failed")]
    assert "rclone" in found[1].detail


async def test_this_systems_mounts_are_found(tmp_path):
    found = await probe(tmp_path)
    assert found[1].verdict != "failed"
    assert found[1].detail.split(" at ")[0] not in ("", "unknown")


@pytest.mark.parametrize("loser", ["wins", "replaces"])
async def test_a_share_on_which_two_can_win_is_told(tmp_path, monkeypatch, loser):
    await init_mailbox(tmp_path)
    real = os.rename

    def rename(old: str, new: str) -> None:
        if os.path.isdir(new):
            os.unlink(f"{new}/record.json")
            real(f"{old}/record.json", f"{new}/record.json")
            if loser == "replaces":
                raise FileExistsError
            return
        real(old, new)

    monkeypatch.setattr(module.os, "rename", rename)
    found = {f.name: f for f in await probe(tmp_path, mounts=plain)}
    assert found["exclusive creation"].verdict == "failed"
    assert os.listdir(tmp_path / "tmp") == []


async def test_a_share_that_makes_a_folder_twice_is_told(tmp_path, monkeypatch):
    await init_mailbox(tmp_path)
    real = os.mkdir

    def mkdir(path: str, *args) -> None:
        if not os.path.isdir(path):
            real(path, *args)

    monkeypatch.setattr(module.os, "mkdir", mkdir)
    found = {f.name: f for f in await probe(tmp_path, mounts=plain)}
    assert "twice" in found["exclusive creation"].detail


async def test_little_space_and_a_slow_share_are_told(tmp_path, monkeypatch):
    await init_mailbox(tmp_path)
    monkeypatch.setattr(module, "FREE_BYTES", 1 << 70)
    found = {f.name: f for f in await probe(tmp_path, mounts=plain, now=Clock(3.0))}
    assert bad(list(found.values())) == ["free space", "timings"]
    assert "create 3000 ms" in found["timings"].detail


@pytest.mark.parametrize("made", [False, True])
async def test_a_share_that_may_not_be_written_is_told(tmp_path, monkeypatch, made):
    def refused(*_) -> int:
        raise PermissionError(13, "Permission denied")

    if made:
        await init_mailbox(tmp_path)
    before = tree(tmp_path)
    monkeypatch.setattr(module.disk, "write_all", refused)
    found = await probe(tmp_path, mounts=plain)
    assert [f.name for f in found] == EVERYTHING[:4]
    assert found[3].detail.endswith("Permission denied")
    assert "right to write" in found[3].remedy
    assert tree(tmp_path) == before


async def test_a_share_that_does_not_answer_is_told_and_not_asked_again(tmp_path, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(module, "_mailbox", lambda root: str(answer.wait(30)))
    found = await probe(tmp_path, mounts=plain, timeout_s=0.05)
    answer.set()
    assert [f.name for f in found] == EVERYTHING[:3]
    assert found[2].detail == f"{tmp_path}: no answer for 0.05 s"
