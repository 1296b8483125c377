"""`swarm mailbox` in this process, over a real folder."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from swarm.audit import gc as collecting
from swarm.cli import run
from swarm.core.errors import MailboxAway
from swarm.core.records import Beat
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryStore
from tests.integration.audited import KEYS, done, flip, half_done, newest, rewrite, some
from tests.integration.handmade import make_mailbox
from tests.integration.test_commands import Swarm

pytestmark = pytest.mark.usefixtures("state_dir")


@pytest.fixture
def swarm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Swarm:
    monkeypatch.setenv("SWARM_KEY_FILE", "")
    return Swarm(capsys)


def lay(store: MemoryStore, folder: Path) -> str:
    """The same mailbox in a folder."""

    async def write() -> None:
        await FolderMailbox.init(folder)
        mailbox = FolderMailbox(folder)
        for key, data in store.objects.items():
            if key.startswith("runs/"):
                await (mailbox.create(key, data) if key.endswith("/record.json") else mailbox.put(key, [data]))

    asyncio.run(write())
    return str(folder)


@pytest.fixture
def share(tmp_path: Path) -> str:
    return lay(done(), tmp_path / "share")


def files(share: str) -> set[str]:
    return {str(path.relative_to(share)) for path in Path(share).rglob("*") if path.is_file()}


def test_a_whole_mailbox_is_said_to_be(swarm: Swarm, share: str) -> None:
    assert swarm("mailbox", "verify", "--mailbox", share) == 0
    assert swarm.out == ""
    assert swarm.err.startswith(f"whole: 1 run, {len(done().objects) - 1} objects, ")
    assert "/s" in swarm.err
    (summary,) = swarm.objects("mailbox", "verify", "--mailbox", share)
    assert (summary["faults"], summary["runs"], summary["notes"]) == (0, 1, [])


def test_each_fault_is_a_line_with_what_where_and_what_to_do(swarm: Swarm, tmp_path: Path) -> None:
    store = half_done()
    flip(store, theta := KEYS.round_blob(newest(store).theta.round, newest(store).theta.sha256))
    del store.objects[gap := KEYS.round(1)]
    share = lay(store, tmp_path / "share")
    (Path(share) / KEYS.root / "thumbs.db").write_bytes(b"x")
    assert swarm("mailbox", "verify", "--mailbox", share) == 1
    lines = swarm.out.splitlines()
    assert len(lines) == 2
    assert {line.split(":")[0] for line in lines} == {"damaged", "gap"}
    assert all(any(key in line for line in lines) for key in (theta, gap))
    assert all("copy it back from a backup" in line for line in lines)
    assert "2 faults" in swarm.err
    assert "1 object that no swarm wrote, such as runs/testrun1/thumbs.db" in swarm.err
    assert run(["mailbox", "verify", "--mailbox", share, "--json"]) == 1


def test_one_run_is_checked_by_its_name_even_if_it_cannot_be_read(swarm: Swarm, tmp_path: Path) -> None:
    store = half_done()
    flip(store, KEYS.manifest, 3)
    share = lay(store, tmp_path / "share")
    assert swarm("mailbox", "verify", "--run", "testr", "--mailbox", share) == 1
    assert "damaged: manifest" in swarm.out
    said = swarm.fails(1, "mailbox", "verify", "--run", "other", "--mailbox", share)
    assert "no run 'other'" in said


def test_an_empty_mailbox_and_none(swarm: Swarm, tmp_path: Path) -> None:
    share = make_mailbox(tmp_path / "share")
    for words in (("verify",), ("gc",), ("gc", "--now"), ("size",)):
        assert swarm("mailbox", *words, "--mailbox", share) == 0
        assert "swarm init" in swarm.fails(1, "mailbox", *words, "--mailbox", str(tmp_path / "nothing"))
    (Path(share) / "mailbox/record.json").write_bytes(b"junk\n")
    said = swarm.fails(1, "mailbox", "verify", "--mailbox", share)
    assert "mailbox/record.json" in said
    assert "copy it back from a backup" in said


def test_what_is_said_of_a_lost_marker_works(swarm: Swarm, share: str, tmp_path: Path) -> None:
    (Path(share) / "mailbox/record.json").write_bytes(b"junk\n")
    assert "`swarm init` an empty folder or place and move all of runs/ there" in swarm.fails(1, "runs", "--mailbox", share)
    other = make_mailbox(tmp_path / "other")
    for path in (Path(share) / "runs").iterdir():
        path.rename(Path(other) / "runs" / path.name)
    assert swarm("mailbox", "verify", "--mailbox", other) == 0
    assert swarm("status", "test-run", "--mailbox", other) == 0


@pytest.mark.parametrize("place", ["tmp", "trash"])
def test_a_folder_that_a_mailbox_lacks_is_a_fault_and_what_is_said_of_it_works(swarm: Swarm, share: str, place: str) -> None:
    (Path(share) / place).rmdir()

    async def used() -> None:
        mailbox = FolderMailbox(share)
        await mailbox.create(KEYS.control_record(1), b"x")
        await mailbox.delete([KEYS.control_record(1)])

    with pytest.raises(MailboxAway, match=f"no folder {place}/"):
        asyncio.run(used())
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(Path(share) / KEYS.root / "control")  # what could be written, and not be deleted
    assert swarm("mailbox", "verify", "--mailbox", share) == 1
    (line,) = swarm.out.splitlines()
    assert line.startswith("missing: a folder of the mailbox")
    assert f"make an empty folder {place} in {share}" in line
    (Path(share) / place).mkdir()
    asyncio.run(used())
    assert swarm("mailbox", "verify", "--mailbox", share) == 0


def test_that_nothing_can_be_freed_is_said_before_anybody_is_listened_for(
    swarm: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = done()
    rewrite(store, KEYS.beat("gone", 1, 0), Beat(phase="train"))  # has not left
    share = lay(store, tmp_path / "share")
    real = os.mkdir

    def refused(error: int) -> Callable[..., None]:
        def mkdir(path: str, *rest: Any, **more: Any) -> None:
            if f"{share}/" in str(path):
                raise OSError(error, os.strerror(error), path)
            real(path, *rest, **more)

        return mkdir

    before = files(share)
    for error, words in ((errno.EROFS, "Read-only file system"), (errno.EACCES, "this user may not write there")):
        monkeypatch.setattr(os, "mkdir", refused(error))
        said = swarm.fails(1, "mailbox", "gc", "--now", "--mailbox", share)
        assert words in said
        assert "is anybody there?" not in said
    assert files(share) == before
    shutil.rmtree(Path(share) / KEYS.root / "beats/gone")
    assert swarm("mailbox", "gc", "--dry-run", "--mailbox", share) == 0
    monkeypatch.setattr(os, "mkdir", refused(errno.ENOSPC))
    assert swarm("mailbox", "gc", "--now", "--mailbox", share) == 0, "a full disk can be freed"
    assert files(share) < before
    assert [*(Path(share) / "tmp").iterdir()] == []


def test_gc_shows_first_and_frees_what_it_showed(swarm: Swarm, share: str) -> None:
    before = files(share)
    shown = swarm.objects("mailbox", "gc", "--mailbox", share)
    assert shown == swarm.objects("mailbox", "gc", "--dry-run", "--mailbox", share)
    assert files(share) == before
    assert swarm("mailbox", "gc", "--mailbox", share) == 0
    assert "deltas of closed rounds" in swarm.out
    assert "`swarm mailbox gc --now` frees them" in swarm.err
    freed = swarm.objects("mailbox", "gc", "--now", "--mailbox", share)
    assert [{**row, "freed": True} for row in shown] == freed
    assert len(before) - len(files(share)) == sum(int(str(row["objects"])) for row in freed) > 0
    assert swarm("mailbox", "gc", "--now", "--mailbox", share) == 0
    assert "0 objects, 0 bytes freed" in swarm.err
    assert swarm("mailbox", "verify", "--mailbox", share) == 0
    assert "one of them" in swarm.fails(2, "mailbox", "gc", "--now", "--dry-run", "--mailbox", share)


def test_what_writers_left_is_shown_and_freed(swarm: Swarm, share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "STAGED_S", 0.05)
    (Path(share) / "tmp" / uuid4().hex).write_bytes(b"x" * 500)
    assert swarm.objects("mailbox", "gc", "--mailbox", share)[-1]["bytes"] == 500
    assert "may be somebody's" in swarm.err
    assert swarm.objects("mailbox", "size", "--mailbox", share)[-1]["gc_bytes"] == 500
    assert swarm.objects("mailbox", "gc", "--now", "--mailbox", share)[-1] == {
        "run": "",
        "name": "",
        "what": "staged",
        "objects": 1,
        "bytes": 500,
        "freed": True,
    }
    assert [*(Path(share) / "tmp").iterdir()] == []


def test_a_run_in_which_somebody_trains_keeps_what_is_young(swarm: Swarm, tmp_path: Path) -> None:
    store = done()
    rewrite(store, KEYS.beat("live", 1, 0), Beat(phase="train"))
    share = lay(store, tmp_path / "share")
    (Path(share) / "tmp" / uuid4().hex).write_bytes(b"x" * 500)
    before = files(share)

    async def beats() -> None:
        mailbox = FolderMailbox(share)
        store = MemoryStore()
        for n in range(1, 1000):
            rewrite(store, key := KEYS.beat("live", 1, n), Beat(phase="train"))
            await mailbox.put(key, [store.objects[key]])
            await asyncio.sleep(0.05)

    async def both() -> int:
        beating = asyncio.create_task(beats())
        code = await asyncio.to_thread(run, ["mailbox", "gc", "--now", "--mailbox", share])
        beating.cancel()
        return code

    assert asyncio.run(both()) == 0
    swarm.out, swarm.err = swarm._capsys.readouterr()
    assert "live takes part: what is younger than two turns is left to the learners" in swarm.err
    assert re.search(
        r"\d staged objects?, \d+ bytes: left to the learners", swarm.err
    )  # the learner may just be at another one
    assert before <= files(share)


def test_what_is_left_alone_is_said_with_its_size(swarm: Swarm, tmp_path: Path) -> None:
    store = done()
    del store.objects[KEYS.manifest]
    share = lay(store, tmp_path / "share")
    assert swarm("mailbox", "gc", "--mailbox", share) == 0
    assert "left alone: no manifest" in swarm.err
    assert "`swarm rm testrun1 --force`" in swarm.err


def test_sizes_are_told_per_run_and_in_all(swarm: Swarm, tmp_path: Path) -> None:
    store = done()
    for key in [key for key in store.objects if key.startswith("runs/")]:
        if "/manifest/" in key or "/blobs/init/" in key:
            data = store.objects[key]
            store.objects[key.replace("testrun1", "other111")] = data
    share = lay(store, tmp_path / "share")
    large, small, outside = swarm.objects("mailbox", "size", "--mailbox", share)
    assert (large["run"], small["run"], outside["run"]) == ("testrun1", "other111", "")
    assert int(str(large["bytes"])) > int(str(small["bytes"])) > int(str(outside["bytes"]))
    whole = sum((Path(share) / name).stat().st_size for name in files(share))
    assert sum(int(str(each["bytes"])) for each in (large, small, outside)) == whole
    assert swarm("mailbox", "size", "--mailbox", share) == 0
    heads, first, _, last, whole_line = swarm.out.splitlines()
    assert heads.split()[:3] == ["RUN", "BYTES", "THETA"]
    assert first.startswith("test-run ")
    assert last.startswith("outside of runs ")
    assert whole_line.startswith("in all ")
    (one,) = swarm.objects("mailbox", "size", "--run", "test-run", "--mailbox", share)
    assert one == large


def test_nothing_of_a_hostile_name_reaches_the_terminal(swarm: Swarm, tmp_path: Path) -> None:
    store = half_done()
    key = some(store, "learners/")
    store.objects[key] = b'{"learner":"\\u001b[31m","incarnation":1}\n{}\n'
    share = lay(store, tmp_path / "share")
    assert swarm("mailbox", "verify", "--mailbox", share) == 1
    assert "\x1b" not in swarm.out + swarm.err
