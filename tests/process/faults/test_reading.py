"""What is read from a share that fails: the whole of it or an error, never anything else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.core.errors import MailboxError, MailboxUnavailable
from swarm.core.keys import MARKER
from swarm.mailbox.folder_write import FolderFiles
from tests.process.faults.share import Share, contents, mounted

pytestmark = pytest.mark.process
RECORD = "runs/r/rounds/00000000/0000000001/record.json"
NEXT = "runs/r/rounds/00000000/0000000002/record.json"
BLOB = "runs/r/blobs/1/x"
DATA = bytes(range(200)) * 3


@pytest.fixture
def files(share: Share) -> FolderFiles:
    """This machine's handle, on a share where another machine has written."""
    server = share.server()
    server.create(RECORD, b"record")
    server.put(BLOB, [DATA])
    return share.files()


def read_part(files: FolderFiles, offset: int = 0) -> bytes | None:
    buffer = bytearray(len(DATA) + 10)
    size = files.read_part(BLOB, offset, buffer)
    return None if size is None else bytes(buffer[:size])


READS: dict[str, tuple[Callable[[FolderFiles], Any], Any]] = {
    "read": (lambda files: files.read(RECORD), b"record"),
    "read_part": (read_part, DATA),
    "list": (lambda files: files.list("", ""), [MARKER, BLOB, RECORD]),
    "names": (lambda files: files.names("runs/r/"), ["blobs", "rounds"]),
    "open": (lambda files: len(files.open()), 32),
}


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("error", ["ESTALE", "EAGAIN", "EACCES"])
def test_a_name_that_is_stale_several_times_is_asked_for_anew(share: Share, files: FolderFiles, name: str, error: str) -> None:
    """The kernel hides the first ESTALE by asking again itself."""
    call, answer = READS[name]
    share.fails({"ops": ["open", "read", "readdir"], "errno": error, "count": 4})
    assert call(files) == answer
    assert share.fails() == 4


@pytest.mark.parametrize("name", ["read", "read_part", "open"])
def test_a_name_that_is_listed_and_cannot_be_opened_yet_is_listed_anew(share: Share, files: FolderFiles, name: str) -> None:
    call, answer = READS[name]
    share.fails({"ops": ["open"], "errno": "ENOENT", "count": 2})
    assert call(files) == answer
    assert share.fails() == 2


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("error", ["ESTALE", "EIO", "ENOTCONN"])
def test_what_stays_away_is_said_and_read_when_it_is_back(share: Share, files: FolderFiles, name: str, error: str) -> None:
    call, answer = READS[name]
    share.fails({"errno": error})
    with pytest.raises(MailboxUnavailable):
        call(files)
    assert share.fails() > 0
    assert call(files) == answer


@pytest.mark.parametrize("size", [7, 199])
def test_a_read_that_gives_less_than_it_was_asked_for_goes_on(share: Share, files: FolderFiles, size: int) -> None:
    share.fails({"ops": ["read"], "short": size})
    assert files.read(RECORD) == b"record"
    assert files.read(BLOB) == DATA
    for offset in (0, 1, 150):
        assert read_part(files, offset) == DATA[offset:]
    assert share.fails() > len(DATA) // size


def test_a_file_that_is_shorter_than_it_says_is_never_given_out(share: Share, files: FolderFiles) -> None:
    """As when an NFS client knows its size, but not yet its content."""
    real = os.fstat

    class Longer:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def fstat(self, fd: int) -> os.stat_result:
            found = list(real(fd))
            found[6] += 1
            return os.stat_result(found)

    for call in (lambda: files.read(RECORD), lambda: read_part(files)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("swarm.mailbox.folder_read.os", Longer())
            with pytest.raises(MailboxUnavailable):
                call()
    assert files.read(RECORD) == b"record"
    assert read_part(files) == DATA


def test_a_bit_that_flips_on_the_way_is_in_the_reading_and_not_in_the_mailbox(share: Share, files: FolderFiles) -> None:
    """The reader's hash finds it out (tests/integration/test_flipped_bits.py), and the next reading is right."""
    share.fails({"ops": ["read"], "path": "runs/", "flip": True, "count": 1})
    assert files.read(RECORD) == b"secord"
    assert files.read(RECORD) == b"record"


def test_a_bit_that_flips_in_the_marker_does_not_pass_for_another_mailbox(share: Share, files: FolderFiles) -> None:
    files.stop()
    share.fails({"ops": ["read"], "path": "mailbox/", "flip": True, "count": 1})
    with pytest.raises(MailboxError, match=r"damaged|two lines|SHA-256|malformed"):
        share.files()
    assert share.files().open() == share.server().open()


def test_a_winner_whose_own_record_is_misread_once_knows_it_all_the_same(share: Share) -> None:
    files = share.files()
    share.fails(
        {"ops": ["rename"], "path": "runs/", "errno": "EIO", "after": True},
        {"ops": ["read"], "path": "runs/", "flip": True, "count": 1},
    )
    assert files.create(RECORD, b"mine") is True
    assert share.fails() == 2


# Listings


def test_a_late_listing_lacks_the_newest_and_nothing_else(share: Share, files: FolderFiles) -> None:
    share.server().create(NEXT, b"next")
    share.fails({"ops": ["readdir"], "late": "0000000002"})
    assert files.list("runs/", "") == [BLOB, RECORD]
    assert files.list("runs/r/rounds/", RECORD) == []
    assert files.read(NEXT) is None, "a name is opened after a listing has shown it, or an NFS client forgets that it is there"
    assert files.create(NEXT, b"mine") is False, "but what is there is not written over"
    assert files.read(NEXT) == b"next"
    share.fails()
    assert files.list("runs/r/rounds/", RECORD) == [NEXT]


def test_a_late_listing_does_not_hide_what_this_machine_wrote(share: Share) -> None:
    files = share.files()
    share.fails({"ops": ["readdir"], "late": "^(r|x)$"})
    assert files.create(RECORD, b"mine") is True
    files.put(BLOB, [DATA])
    assert files.read(RECORD) == b"mine"
    assert read_part(files) == DATA
    files.delete([RECORD, BLOB])
    assert files.read(RECORD) is None
    assert read_part(files) is None


@pytest.mark.parametrize("how", [{"twice": True}, {"junk": True}, {"twice": True, "junk": True}], ids=str)
def test_a_listing_that_doubles_names_or_has_foreign_ones_gives_ours_once(
    share: Share, files: FolderFiles, how: dict[str, bool]
) -> None:
    share.server().create(NEXT, b"next")
    share.fails({"ops": ["readdir"]} | how)
    assert files.list("", "") == [MARKER, BLOB, RECORD, NEXT]
    assert files.list("runs/r/rounds/", RECORD) == [NEXT]
    assert files.names("runs/r/rounds/00000000/") == ["0000000001", "0000000002"]
    assert contents(files) == {BLOB: DATA, RECORD: b"record", NEXT: b"next"}
    files.delete([NEXT])
    assert share.fails() > 0
    assert contents(share.server()) == {BLOB: DATA, RECORD: b"record"}


def test_foreign_files_in_staging_and_trash_stay_where_they_are(share: Share) -> None:
    for place in ("tmp", "trash"):
        (share.below / place / ".nfs000000000001").write_bytes(b"open elsewhere")
        (share.below / place / ".smbdelete1").write_bytes(b"open elsewhere")
    assert share.swept() == [f"{place}/{name}" for place in ("tmp", "trash") for name in (".nfs000000000001", ".smbdelete1")]
    files = share.files()
    assert files.create(RECORD, b"mine") is True
    files.delete([RECORD])
    assert contents(files) == {}


# Names that were missing a moment ago


@pytest.fixture(scope="module")
def forgetful() -> Iterator[Share]:
    """Mounted so that the kernel remembers for a minute that a name is missing."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, mounted(Path(folder), negative_s=60) as share:
        share.new("mailbox")
        yield share


def test_a_name_that_was_missing_a_moment_ago_is_found(forgetful: Share) -> None:
    files, server = forgetful.files(), forgetful.server()
    missing = [RECORD, NEXT, BLOB]
    for key in missing:
        assert files.read(key) is None
        assert files.read_part(key, 0, bytearray(9)) is None
    assert files.list("runs/r/rounds/", "") == []
    for key in missing:
        server.create(key, b"there") if key.endswith("record.json") else server.put(key, [b"there"])
        assert files.read(key) == b"there", key
    assert files.create(RECORD, b"late") is False
    # Whoever asks for the name itself is told for a minute that it is not there: this share does forget.
    other = forgetful.at / "runs/r/blobs/1/y"
    assert not other.exists()
    server.put("runs/r/blobs/1/y", [b"there"])
    assert not other.exists()
