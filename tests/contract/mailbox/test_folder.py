"""What only a folder has: foreign names, links, mounts that come and go, making it a mailbox, sweeping it."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from pathlib import Path
from uuid import uuid4

import pytest

from swarm.core.errors import FormatMismatch, MailboxAway, MailboxCorrupt, MailboxMoved, MailboxReadOnly, UsageError
from swarm.core.keys import MARKER
from swarm.core.lines import decode, encode
from swarm.core.manifest import FORMAT, Marker
from swarm.mailbox import init_mailbox, open_mailbox
from swarm.mailbox.contract import STAGED, TRASHED
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.folder_write import FolderFiles

RECORD = "runs/r/rounds/00000000/0000000001/record.json"
BLOB = "runs/r/blobs/1/x"


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    await init_mailbox(tmp_path / "share")
    return tmp_path / "share"


@pytest.fixture
async def mailbox(path: Path) -> FolderMailbox:
    mailbox = FolderMailbox(path)
    await mailbox.open()
    return mailbox


def tree(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*"))


# Foreign names


async def test_names_that_no_swarm_made_are_invisible(mailbox, path):
    await mailbox.create(RECORD, b"r")
    await mailbox.put(BLOB, [b"x"])
    folder = path / "runs/r/rounds/00000000"
    for name in ("._0000000001", ".DS_Store", ".nfs000000000001", ".smbdelete1", "@eaDir", "Thumbs.db", "x (conflicted copy)"):
        for place in (path, path / "runs", path / "runs/r", folder, folder / "0000000001", path / "runs/r/blobs/1"):
            (place / name).write_bytes(b"junk")
    (folder / "0000000002").mkdir()
    (folder / "0000000003").mkdir()
    (folder / "0000000003/.record.json").write_bytes(b"junk")
    (folder / "notes.sync-conflict-20260101-000000-ABCDEFG").mkdir()
    (folder / "notes.sync-conflict-20260101-000000-ABCDEFG/record.json").write_bytes(b"junk")
    os.mkfifo(path / "runs/r/blobs/1/fifo")
    assert await mailbox.list("") == [MARKER, BLOB, RECORD]
    assert await mailbox.read("runs/r/blobs/1/fifo") is None
    await mailbox.delete([RECORD])  # junk beside it does not keep it
    assert await mailbox.list("runs/") == [BLOB]


async def test_links_do_not_lead_out_of_the_mailbox(mailbox, path, tmp_path):
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "secret").write_bytes(b"secret")
    await mailbox.put("runs/r/a/x", [b"x"])
    (path / "runs/r/a/secret").symlink_to(outside / "secret")
    (path / "runs/r/out").symlink_to(outside)
    assert await mailbox.list("runs/") == ["runs/r/a/x"]
    for key in ("runs/r/a/secret", "runs/r/out/secret"):
        assert await mailbox.read(key) is None
        assert await mailbox.read_part(key, 0, bytearray(9)) is None
    for attempt in (
        mailbox.put("runs/r/out/y", [b"y"]),
        mailbox.put("runs/r/a/secret", [b"y"]),
        mailbox.create("runs/r/out/n/record.json", b"y"),
    ):
        with pytest.raises(MailboxCorrupt):
            await attempt
    await mailbox.delete(["runs/r/a/secret"])
    assert tree(outside) == ["folder", "secret"]
    assert (outside / "secret").read_bytes() == b"secret"


async def test_an_object_where_a_folder_should_be_is_a_corrupt_mailbox(mailbox):
    await mailbox.put("runs/r/x", [b"x"])
    with pytest.raises(MailboxCorrupt):
        await mailbox.put("runs/r/x/y", [b"y"])
    with pytest.raises(MailboxCorrupt):
        await mailbox.create("runs/r/x/record.json", b"y")
    await mailbox.put("runs/r/z/y", [b"y"])
    with pytest.raises(MailboxCorrupt):
        await mailbox.put("runs/r/z", [b"z"])


# What a crashed server or person leaves


async def test_a_published_folder_that_lost_its_record_is_won_again(mailbox, path):
    (path / RECORD).parent.mkdir(parents=True)
    assert await mailbox.read(RECORD) is None
    assert await mailbox.create(RECORD, b"r") is True
    assert await mailbox.create(RECORD, b"s") is False
    assert await mailbox.read(RECORD) == b"r"


async def test_an_object_cut_short_by_a_crashed_server_is_put_again(mailbox, path):
    await mailbox.put(BLOB, [b"whole"])
    (path / BLOB).write_bytes(b"who")
    await mailbox.put(BLOB, [b"whole"])
    assert await mailbox.read(BLOB) == b"whole"


async def test_a_record_is_not_deleted_with_what_lies_beside_it(mailbox, path):
    await mailbox.create(RECORD, b"r")
    (path / RECORD).with_name("other").write_bytes(b"x")
    with pytest.raises(MailboxCorrupt):
        await mailbox.delete([RECORD])
    assert await mailbox.read(RECORD) == b"r"


async def test_an_object_too_large_for_memory_is_not_read(mailbox, path):
    await mailbox.put(BLOB, [b"x"])
    os.truncate(path / BLOB, 1 << 40)
    with pytest.raises(MailboxCorrupt):
        await mailbox.read(BLOB)
    assert await mailbox.read_part(BLOB, 1 << 39, bytearray(9)) == 9


# Mounts


async def test_an_unmounted_share_gets_no_write_and_gives_no_answer(mailbox, path, tmp_path):
    await mailbox.create(RECORD, b"r")
    path.rename(tmp_path / "mounted elsewhere")
    for exists in (False, True):
        if exists:
            path.mkdir()  # an empty mount point
        for attempt in (
            mailbox.open(),
            mailbox.read(RECORD),
            mailbox.read_part(RECORD, 0, bytearray(9)),
            mailbox.list("runs/"),
            mailbox.create(RECORD, b"s"),
            mailbox.put(BLOB, [b"x"]),
            mailbox.delete([RECORD]),
            mailbox.sweep(0),
        ):
            with pytest.raises(MailboxAway):
                await attempt
        assert not exists or tree(path) == []
    path.rmdir()
    (tmp_path / "mounted elsewhere").rename(path)
    assert await mailbox.read(RECORD) == b"r"


@pytest.mark.parametrize("call", ["put", "create"])
async def test_a_share_unmounted_in_the_middle_of_a_write_gets_no_write(mailbox, path, tmp_path, call, monkeypatch):
    def unmount() -> None:
        path.rename(tmp_path / "mounted elsewhere")
        path.mkdir()

    if call == "put":

        class Source:
            def __iter__(self):
                yield b"x"
                unmount()
                yield b"y"

        attempt = mailbox.put(BLOB, Source())
    else:
        real = FolderFiles.stage_record

        def stage_record(*args) -> None:
            real(*args)
            unmount()

        monkeypatch.setattr(FolderFiles, "stage_record", stage_record)
        attempt = mailbox.create(RECORD, b"r")
    with pytest.raises(MailboxAway):
        await attempt
    assert tree(path) == []


async def test_another_mailbox_in_its_place_is_noticed_by_every_call(mailbox, path, tmp_path):
    await mailbox.put(BLOB, [b"x"])
    path.rename(tmp_path / "old")
    await init_mailbox(path)
    before = tree(path)
    attempts = (mailbox.open(), mailbox.read(BLOB), mailbox.list(""), mailbox.create(RECORD, b"r"), mailbox.put(BLOB, [b"x"]))
    for attempt in attempts:
        with pytest.raises(MailboxMoved, match="another mailbox") as caught:
            await attempt
        assert not isinstance(caught.value, MailboxAway), "waiting for it would not help"
    assert tree(path) == before


async def test_the_same_mailbox_copied_to_another_disk_goes_on(mailbox, path, tmp_path):
    await mailbox.put(BLOB, [b"x"])
    shutil.copytree(path, tmp_path / "copy")
    shutil.rmtree(path)
    (tmp_path / "copy").rename(path)
    assert await mailbox.read(BLOB) == b"x"


async def test_a_folder_pruned_by_another_machine_is_made_again(mailbox, path):
    other = FolderMailbox(path)
    for n in range(3):
        await mailbox.put(BLOB, [b"x"])
        await mailbox.create(RECORD, b"r")
        await other.delete([BLOB, RECORD])
        assert tree(path / "runs") == [], n


async def test_pruning_stops_at_what_is_still_there(mailbox, path):
    await mailbox.put("runs/r/a/b/x", [b"x"])
    await mailbox.put("runs/r/a/y", [b"y"])
    await mailbox.delete(["runs/r/a/b/x"])
    assert tree(path / "runs") == ["r", "r/a", "r/a/y"]


async def test_other_users_may_write_where_they_may_write_in_the_mailbox(tmp_path):
    for mode in (0o777, 0o775, 0o755):
        path = tmp_path / f"{mode:o}"
        path.mkdir()
        path.chmod(mode)
        await init_mailbox(path)
        mailbox = FolderMailbox(path)
        await mailbox.put(BLOB, [b"x"])
        await mailbox.create(RECORD, b"r")
        folders = [p for p in path.rglob("*") if p.is_dir() and p.name != "mailbox"]
        assert len(folders) == 9
        assert {stat.S_IMODE(p.stat().st_mode) & mode for p in folders} == {mode}


# Making a mailbox


async def test_init_makes_a_mailbox_and_says_its_id_again(tmp_path):
    path = tmp_path / "new"
    id = await init_mailbox(path)
    assert tree(path) == ["mailbox", "mailbox/record.json", "runs", "tmp", "trash"]
    marker = decode((path / MARKER).read_bytes(), Marker)
    assert marker.id == id
    assert marker.format == 1
    assert await init_mailbox(path) == id
    assert await FolderMailbox(path).open() == id


async def test_inits_at_once_agree(tmp_path):
    for n in range(5):
        path = tmp_path / str(n)
        ids = await asyncio.gather(*(FolderMailbox.init(path) for _ in range(6)))
        assert len(set(ids)) == 1
        assert await open_mailbox(path).open() == ids[0]
        assert os.listdir(path / "tmp") == os.listdir(path / "trash") == []


async def test_init_completes_what_was_interrupted(tmp_path):
    for made in ([], ["tmp"], ["tmp", "trash"], ["tmp", "trash", "runs"], ["tmp", "trash", "runs", f"tmp/{uuid4().hex}"]):
        path = tmp_path / str(len(made))
        path.mkdir()
        (path / ".DS_Store").write_bytes(b"")
        for name in made:
            (path / name).mkdir()
        assert await init_mailbox(path) == await FolderMailbox(path).open()


@pytest.mark.parametrize("name", ["thesis.docx", "mailbox/x", "runs/r/rounds", "Documents"])
async def test_init_refuses_a_folder_with_something_else_in_it(tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=name.split("/")[0]):
        await init_mailbox(tmp_path)
    assert tree(tmp_path) == before


async def test_init_refuses_what_cannot_be_a_folder(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file/x", tmp_path / "missing/x"):
        with pytest.raises(UsageError):
            await init_mailbox(path)
    assert tree(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("folder", "mark", "cloud"),
    [
        ("Dropbox/swarm", None, "Dropbox"),
        ("OneDrive - Home/swarm", None, "OneDrive"),
        ("Library/Mobile Documents/swarm", None, "iCloud Drive"),
        ("synced/swarm", ".stfolder/", "Syncthing"),
        ("box/swarm", ".dropbox", "Dropbox"),
    ],
)
async def test_init_refuses_a_folder_of_a_cloud_client_with_the_reason(tmp_path, folder, mark, cloud):
    path = tmp_path / folder
    path.parent.mkdir(parents=True)
    if mark is not None:
        (path.parent / mark).mkdir() if mark.endswith("/") else (path.parent / mark).touch()
    with pytest.raises(UsageError, match=rf"{cloud}: .*copies that are synchronised later let two machines win"):
        await init_mailbox(path)
    assert not path.exists()


async def test_a_home_with_the_settings_of_a_cloud_client_is_no_folder_of_its(tmp_path):
    (tmp_path / ".dropbox").mkdir()
    assert await init_mailbox(tmp_path / "swarm")


async def test_open_says_what_is_wrong_with_a_marker(tmp_path):
    path = tmp_path / "m"
    await init_mailbox(path)
    for theirs, who in ((FORMAT + 1, "here"), (FORMAT - 1, "where it was made")):
        (path / MARKER).write_bytes(encode(Marker(id="0" * 32, format=theirs), nonce="n"))
        for attempt in (FolderMailbox(path).open(), init_mailbox(path)):
            with pytest.raises(FormatMismatch, match=rf"format {theirs}, .*format {FORMAT}: upgrade swarm {who}"):
                await attempt
    (path / MARKER).write_bytes(b"{}")
    with pytest.raises(MailboxCorrupt):
        await FolderMailbox(path).open()


async def test_open_waits_for_no_mailbox_but_finds_it_when_it_comes(tmp_path):
    mailbox = FolderMailbox(tmp_path / "m")
    with pytest.raises(MailboxMoved):
        await mailbox.open()
    assert await init_mailbox(tmp_path / "m") == await mailbox.open()


def test_constructors_do_no_io(tmp_path):
    assert open_mailbox(tmp_path / "missing").location == str(tmp_path / "missing")
    assert open_mailbox("~/share").location == os.path.expanduser("~/share")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("location", ["gs://bucket", "smb://nas/share", "file:///tmp/x", ""])
async def test_what_is_no_folder_is_a_usage_error(location):
    with pytest.raises(UsageError, match=r"is no mailbox: mount the share|no mailbox given"):
        open_mailbox(location)
    with pytest.raises(UsageError):
        await init_mailbox(location)


# Sweeping


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def leave(path: Path) -> set[str]:
    """What dead writers leave: a staged record, a staged object, a record and an object in trash/."""
    names = set()
    for place in ("tmp", "trash"):
        folder, file = uuid4().hex, uuid4().hex
        (path / place / folder).mkdir()
        (path / place / folder / "record.json").write_bytes(b"r")
        (path / place / file).write_bytes(b"x")
        names |= {f"{place}/{folder}", f"{place}/{folder}/record.json", f"{place}/{file}"}
    return names


async def test_sizes_tell_what_dead_writers_left_and_no_foreign_names(mailbox, path):
    names = leave(path)
    (path / "tmp/.nfs0001").write_bytes(b"junk")
    (path / "trash/notes.txt").write_bytes(b"junk")
    found = {**await mailbox.sizes(STAGED), **await mailbox.sizes(TRASHED)}
    assert found == dict.fromkeys((name for name in names if "." not in name), 1)
    assert await mailbox.sizes("runs/") == {}


@pytest.mark.parametrize("place", [STAGED, TRASHED])
async def test_sizes_name_the_folder_that_is_not_there(mailbox, path, place):
    (path / place).rmdir()
    with pytest.raises(MailboxAway, match=f"no folder {place} there"):
        await mailbox.sizes(place)


async def test_sizes_leave_out_what_goes_meanwhile(mailbox, path, monkeypatch):
    await mailbox.put(BLOB, [b"x"])
    await mailbox.put(f"{BLOB}2", [b"xy"])
    files = mailbox._files
    listed = files.list

    def list_and_lose(prefix: str, after: str) -> list[str]:
        keys = listed(prefix, after)
        (path / BLOB).unlink()
        return keys

    monkeypatch.setattr(files, "list", list_and_lose)
    assert await mailbox.sizes("runs/") == {f"{BLOB}2": 2}


async def test_sweep_counts_from_when_this_process_first_saw_it(path):
    clock = Clock()
    mailbox = FolderMailbox(path, now=clock)
    before = tree(path)
    leave(path)
    os.utime(path / "tmp", (0, 0))  # clocks of other machines say nothing
    assert await mailbox.sweep(600) == 0
    clock.now_s += 599
    assert await mailbox.sweep(600) == 0
    later = leave(path)
    clock.now_s += 1
    assert await mailbox.sweep(600) == 4
    assert set(tree(path)) == {*before, *later}
    clock.now_s += 600
    assert await mailbox.sweep(600) == 4
    assert tree(path) == before
    assert await mailbox.sweep(600) == 0


async def test_sweep_spares_what_is_still_being_written(path):
    clock = Clock()
    mailbox = FolderMailbox(path, now=clock)
    name = path / "tmp" / uuid4().hex
    for n in range(5):
        with name.open("ab") as file:
            file.write(b"x" * 10)
        os.utime(name, ns=(n, n))
        assert await mailbox.sweep(600) == 0
        clock.now_s += 500
    clock.now_s += 100
    assert await mailbox.sweep(600) == 1


async def test_sweep_spares_what_this_process_is_writing_and_foreign_names(mailbox, path):
    swept = []

    class Source:
        def __iter__(self):
            yield b"x"
            swept.append(asyncio.run_coroutine_threadsafe(mailbox.sweep(0), loop).result())
            yield b"y"

    loop = asyncio.get_running_loop()
    (path / "tmp/.nfs0001").write_bytes(b"")
    (path / "trash/notes.txt").write_bytes(b"")
    await mailbox.put(BLOB, Source())
    assert swept == [0]
    assert await mailbox.read(BLOB) == b"xy"
    assert (path / "trash/notes.txt").exists()


async def test_the_writer_whose_staging_was_swept_says_unavailable_and_can_try_again(mailbox, path):
    other = FolderMailbox(path)

    class Source:
        def __iter__(self):
            yield b"x"
            if not swept:
                swept.append(asyncio.run_coroutine_threadsafe(other.sweep(0), loop).result())

    loop = asyncio.get_running_loop()
    swept: list[int] = []
    with pytest.raises(Exception, match="No such file"):
        await mailbox.put(BLOB, Source())
    assert swept == [1]
    assert await mailbox.read(BLOB) is None
    await mailbox.put(BLOB, Source())
    assert await mailbox.read(BLOB) == b"x"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
async def test_a_folder_without_the_right_to_write_is_read_only(mailbox, path):
    (path / "tmp").chmod(0o555)
    for attempt in (mailbox.create(RECORD, b"r"), mailbox.put(BLOB, [b"x"])):
        with pytest.raises(MailboxReadOnly):
            await attempt
