"""A folder mailbox whose file operations fail, one after the other, before or after their effect; and one that dies there.

Whatever fails: only our errors get out, another machine never sees anything half done, and the same call repeated gives the
right answer.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from itertools import count

import pytest

from swarm.core.errors import MailboxError, MailboxFull, MailboxReadOnly, MailboxUnavailable
from swarm.mailbox import folder_write
from swarm.mailbox.folder_write import FolderFiles
from tests.contract.mailbox.system import BLOB, CALLS, RECORD, Died, blob, contents, files, make


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOENT])
def test_an_error_at_any_operation(folder, faults, name, error, after):
    before, call, answer = CALLS[name]
    for at in count():
        root = make(folder)
        before(files(root))
        subject, witness = files(root), FolderFiles(root)
        seen = contents(witness)
        faults.plan(at, error, after)
        try:
            first = call(subject)
        except MailboxError as raised:
            first = raised
        if not faults.hit:
            assert first == answer
            break
        hit = f"{faults.hit}, call {at}"
        faults.plan(-1, error, after)
        assert first == answer or isinstance(first, MailboxError), hit
        now = contents(FolderFiles(root))
        final = {"create": {RECORD: b"mine"}, "create, lost": {RECORD: b"theirs"}}.get(name, {})
        for key, data in now.items():
            assert data in {RECORD: [b"mine", b"theirs"], BLOB: [b"whole"]}.get(key, [seen.get(key)]), (hit, key)
        assert call(subject) == answer, hit
        now = contents(FolderFiles(root))
        for key, data in final.items():
            assert now[key] == data, hit
        if name.startswith("delete"):
            assert now == {}, hit
        elif name.startswith("put"):
            assert now == {BLOB: b"whole"}, hit
        else:
            assert seen.items() <= now.items(), hit
    assert at > 2  # faults were tried at all


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE])
def test_an_error_in_one_of_several_lists_takes_nothing_from_those_before_it(folder, faults, error):
    subject = files(make(folder))
    subject.put(BLOB, blob())
    subject.create(RECORD, b"mine")
    requests = [("runs/r/blobs/", ""), ("runs/r/rounds/", ""), ("runs/", "")]
    answer = [[BLOB], [RECORD], [BLOB, RECORD]]
    ends = set()
    for at in count():
        subject._names.forget("runs/r")
        faults.plan(at, error, False)
        try:
            found = list(subject.lists(requests))
        except MailboxError:
            found = []
        if not faults.hit:
            break
        assert found == answer[: len(found)], f"{faults.hit}, call {at}"
        ends.add(len(found))
    assert found == answer
    assert ends == ({0, 1, 2} if error == errno.EIO else {3})


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_death_at_any_operation(folder, faults, name, after):
    before, call, _ = CALLS[name]
    for at in count():
        root = make(folder)
        before(files(root))
        victim = files(root)
        seen = contents(FolderFiles(root))
        faults.plan(at, Died, after)
        with suppress(Died):
            call(victim)
        hit = f"{faults.hit}, call {at}"
        faults.dead = False
        if not faults.hit:
            break
        faults.plan(-1, Died, after)
        heir = files(root)
        now = contents(heir)
        for key, data in now.items():
            assert data in {RECORD: [b"mine", b"theirs"], BLOB: [b"whole"]}.get(key, [seen.get(key)]), (hit, key)
        if not name.startswith("delete"):
            assert seen.items() <= now.items(), hit
        # What the dead one did whole stands; what it did not can be done by another.
        assert heir.create(RECORD, b"heir's") is (RECORD not in now), hit
        heir.put(BLOB, blob())
        heir.delete([RECORD, BLOB])
        assert RECORD not in contents(heir), hit
        assert BLOB not in contents(heir), hit
        assert heir.create(RECORD, b"again") is True, hit
    assert at > 2


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (errno.ENOSPC, MailboxFull),
        (errno.EDQUOT, MailboxFull),
        (errno.EROFS, MailboxReadOnly),
        (errno.EIO, MailboxUnavailable),
        (errno.EHOSTDOWN, MailboxUnavailable),
        (errno.ENOTCONN, MailboxUnavailable),
        (errno.ECONNABORTED, MailboxUnavailable),
        (errno.ETIMEDOUT, MailboxUnavailable),
        (errno.EPROTO, MailboxUnavailable),
    ],
)
def test_what_an_error_means(folder, faults, monkeypatch, error, raised):
    root = make(folder)
    subject = files(root)

    def fails(*_, **__):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(faults, "mkdir", fails, raising=False)
    monkeypatch.setattr(faults, "write", fails, raising=False)
    with pytest.raises(raised):
        subject.create(RECORD, b"mine")
    with pytest.raises(raised):
        subject.put(BLOB, blob())
    assert subject.list("runs/", "") == []
    assert os.listdir(f"{root}/tmp") == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_only_when_the_file_is_closed(folder, faults, monkeypatch, error):
    root = make(folder)
    subject = files(root)
    real = os.close

    def close(fd):
        real(fd)
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(folder_write.os, "close", close, raising=False)
        with pytest.raises(MailboxFull):
            subject.put(BLOB, blob())
    monkeypatch.undo()
    assert files(root).read(BLOB) is None


@pytest.mark.skipif(sys.platform != "linux", reason="looks at files by their descriptors, and macOS syncs otherwise")
@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_will_do(folder, faults, monkeypatch, error):
    root = make(folder)
    subject = files(root)

    def fsync(fd):
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(error, os.strerror(error))

    monkeypatch.setattr(faults, "fsync", fsync, raising=False)
    assert subject.create(RECORD, b"mine") is True
    assert subject.put(BLOB, blob()) == BLOB


def test_a_listing_that_gives_names_twice_gives_keys_once(folder, faults, monkeypatch):
    root = make(folder)
    subject = files(root)
    subject.create(RECORD, b"mine")
    subject.put(BLOB, blob())

    class Twice:
        def __init__(self, path):
            self.entries = list(os.scandir(path)) * 2

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(faults, "scandir", Twice, raising=False)
    assert subject.list("", "") == ["mailbox/record.json", BLOB, RECORD]


def test_what_an_nfs_client_remembers_as_missing_is_deleted_all_the_same(folder, faults, monkeypatch):
    root = make(folder)
    subject = files(root)
    subject.create(RECORD, b"mine")
    subject.put(BLOB, blob())

    def missing_once(name: str) -> None:
        real, answers = getattr(os, name), iter([FileNotFoundError(errno.ENOENT, "remembered")])

        def operation(path):
            for error in answers:
                raise error
            return real(path)

        monkeypatch.setattr(faults, name, operation, raising=False)

    missing_once("listdir")
    missing_once("unlink")
    subject.delete([RECORD, BLOB])
    assert contents(files(root)) == {}


def test_an_empty_published_folder_is_won_even_where_a_rename_does_not_replace_it(folder, faults, monkeypatch):
    root = make(folder)
    subject = files(root)
    os.makedirs(os.path.dirname(f"{root}/{RECORD}"))

    def rename(old, new):
        if os.path.isdir(new):
            raise PermissionError(errno.EACCES, "SMB")
        os.rename(old, new)

    monkeypatch.setattr(faults, "rename", rename, raising=False)
    assert subject.create(RECORD, b"mine") is True
    assert subject.create(RECORD, b"theirs") is False
    assert subject.read(RECORD) == b"mine"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at files by their descriptors, and macOS syncs otherwise")
@pytest.mark.parametrize("call", ["create", "put"])
def test_content_is_on_the_disk_before_its_name_and_the_name_before_the_answer(folder, faults, monkeypatch, call):
    root = make(folder)
    subject = files(root)
    done = []

    def fsync(fd):
        done.append(("sync", os.readlink(f"/proc/self/fd/{fd}")))

    def rename(old, new):
        done.append(("rename", new))
        os.rename(old, new)

    monkeypatch.setattr(faults, "fsync", fsync, raising=False)
    monkeypatch.setattr(faults, "rename", rename, raising=False)
    if call == "create":
        subject.create(RECORD, b"mine")
        key = os.path.dirname(f"{root}/{RECORD}")
    else:
        subject.put(BLOB, blob())
        key = f"{root}/{BLOB}"
    at = done.index(("rename", key))
    staged = [path for what, path in done[:at] if what == "sync" and path.startswith(f"{root}/tmp/")]
    assert any(path.endswith("/record.json") for path in staged) or call == "put"
    assert staged
    made = [f"{root}/runs", f"{root}/runs/r"]
    assert [path for what, path in done[:at] if path in made] == made  # each new folder's own name
    assert ("sync", os.path.dirname(key)) in done[at:]


def test_a_late_listing_does_not_hide_what_this_machine_wrote(folder, faults, monkeypatch):
    root = make(folder)
    subject, witness = files(root), files(root)
    real = os.scandir
    late = {path: list(real(path)) for path in (f"{root}/runs", root)}

    class Late:
        def __init__(self, path):
            self.path = path

        def __enter__(self):
            return iter(late.get(self.path, []))

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(faults, "scandir", Late, raising=False)
    subject.create(RECORD, b"mine")
    subject.put(BLOB, blob())
    assert subject.read(RECORD) == b"mine"
    assert subject.read(BLOB) == b"whole"
    assert witness.read(RECORD) is None
    assert witness.create(RECORD, b"theirs") is False
    assert witness.read(RECORD) == b"mine"
    subject.delete([RECORD, BLOB])
    assert subject.read(RECORD) is None
    assert subject.read(BLOB) is None


@pytest.mark.parametrize("short", [1, 3])
def test_reads_and_writes_that_the_system_cuts_short_are_whole(folder, faults, monkeypatch, short):
    root = make(folder)
    subject = files(root)
    data = bytes(range(200))
    monkeypatch.setattr(faults, "write", lambda fd, data: os.write(fd, data[:short]), raising=False)
    monkeypatch.setattr(faults, "read", lambda fd, n: os.read(fd, short), raising=False)
    monkeypatch.setattr(faults, "readv", lambda fd, views: os.readv(fd, [views[0][:short]]), raising=False)
    subject.put(BLOB, [data])
    assert subject.read(BLOB) == data
    for offset in (0, 1, 150):
        buffer = bytearray(210)
        assert subject.read_part(BLOB, offset, buffer) == 200 - offset
        assert buffer == data[offset:] + bytes(10 + offset)


def test_a_file_that_ends_too_early_is_never_given_out(folder, faults, monkeypatch):
    root = make(folder)
    subject = files(root)
    subject.put(BLOB, blob())
    monkeypatch.setattr(faults, "read", lambda fd, n: b"", raising=False)
    monkeypatch.setattr(faults, "readv", lambda fd, views: 0, raising=False)
    with pytest.raises(MailboxUnavailable):
        subject.read(BLOB)
    with pytest.raises(MailboxUnavailable):
        subject.read_part(BLOB, 1, bytearray(9))
