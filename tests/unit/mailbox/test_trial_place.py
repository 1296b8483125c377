"""Where a share is tried: nothing of it stays, and what a killed trial left goes with the next one, or with a sweep."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm.mailbox import init_mailbox
from swarm.mailbox.folder_write import FolderFiles
from swarm.mailbox.sweep import Sweeper
from swarm.mailbox.trial_place import LEFT_S, Place, remove_tree


def tree(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


@pytest.fixture(params=["mailbox", "empty"])
async def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "share"
    folder.mkdir()
    if request.param == "mailbox":
        await init_mailbox(folder)
    return folder


def made(root: Path, owner: str) -> Place:
    place = Place(str(root), owner)
    place.make()
    return place


def aged(place: Place, by_s: float) -> None:
    at = os.stat(place.path).st_mtime - by_s
    os.utime(place.path, (at, at))


def test_it_is_a_mailbox_and_leaves_nothing(root: Path) -> None:
    before = tree(root)
    place = made(root, "me")
    assert place.files().create("runs/x/record.json", b"1")
    assert os.path.dirname(place.path) in (str(root), str(root / "tmp"))
    assert place.remove()
    assert tree(root) == before
    assert place.remove(), "also when it is gone already"


def test_neither_a_run_nor_an_init_sees_it(root: Path) -> None:
    place = made(root, "me")
    FolderFiles(place.path).create("runs/x/record.json", b"1")
    if (root / "mailbox").exists():
        assert FolderFiles(str(root)).list("", "") == ["mailbox/record.json"]
    else:
        assert tree(root)[0].startswith(".swarm-probe-")


async def test_a_folder_that_is_tried_can_become_a_mailbox_meanwhile(tmp_path: Path) -> None:
    place = made(tmp_path, "me")
    assert await init_mailbox(tmp_path)
    assert place.remove()
    assert tree(tmp_path) == ["mailbox", "mailbox/record.json", "runs", "tmp", "trash"]


def test_what_the_dead_left_goes_with_the_next_trial_and_nothing_else(root: Path) -> None:
    before = tree(root)
    dead, living, old = made(root, "dead"), made(root, "living"), made(root, "far away")
    aged(old, LEFT_S + 10)
    aged(living, LEFT_S - 60)
    mine = made(root, "me")
    assert mine.remove_left(lambda owner: owner == "dead") == 2
    assert not os.path.exists(dead.path)
    assert not os.path.exists(old.path)
    assert os.path.exists(living.path)
    assert living.remove()
    assert mine.remove()
    assert tree(root) == before


async def test_what_writers_stage_is_no_trials(tmp_path: Path) -> None:
    await init_mailbox(tmp_path)
    staged = tmp_path / "tmp" / ("a" * 32)
    staged.mkdir()
    (staged / "record.json").write_bytes(b"x")
    os.utime(staged, (1, 1))
    mine = made(tmp_path, "me")
    assert mine.remove_left(lambda owner: True) == 0
    assert staged.exists()


async def test_a_sweep_takes_all_of_a_trial_that_was_killed(tmp_path: Path) -> None:
    await init_mailbox(tmp_path)
    before = tree(tmp_path)
    place = made(tmp_path, "dead")
    FolderFiles(place.path).create("runs/x/y/record.json", b"1")
    sweeper = Sweeper(FolderFiles(str(tmp_path)))
    assert sweeper.sweep(600, 0.0) == 0
    assert sweeper.sweep(600, 600.0) == 1
    assert tree(tmp_path) == before


def test_a_link_out_of_it_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").touch()
    (tmp_path / "place").mkdir()
    (tmp_path / "place/link").symlink_to(tmp_path / "precious")
    assert remove_tree(str(tmp_path / "place"))
    assert tree(tmp_path) == ["precious", "precious/file"]
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    remove_tree(str(tmp_path / "link"))
    assert (tmp_path / "precious/file").exists()
