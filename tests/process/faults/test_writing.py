"""What is written to a share that fails: what the caller is told, what others see, and that a second try is right."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from swarm.core.errors import MailboxError, MailboxFull, MailboxReadOnly, MailboxUnavailable
from swarm.mailbox import folder_write
from swarm.mailbox.folder_write import FolderFiles
from tests.process.faults.share import Share, contents

pytestmark = pytest.mark.process
RECORD = "runs/r/rounds/00000000/0000000001/record.json"
BESIDE = "runs/r/rounds/00000000/0000000000/record.json"
BLOB = "runs/r/blobs/1/x"
PART = bytes(range(256)) * 1600  # the kernel passes on a mebibyte at a time
PARTS = [PART, PART, PART]
LARGE = b"".join(PARTS)

Call = Callable[[FolderFiles], Any]
CREATE: tuple[Call, Any, dict[str, bytes]] = (lambda files: files.create(RECORD, LARGE), True, {RECORD: LARGE})
PUT: tuple[Call, Any, dict[str, bytes]] = (lambda files: files.put(BLOB, PARTS), BLOB, {BLOB: LARGE})
each_call = pytest.mark.parametrize(("call", "answer", "whole"), [CREATE, PUT], ids=["create", "put"])


def fails(share: Share, call: Call, error: type[MailboxError], *rules: dict[str, Any], left: int = 0) -> None:
    """The call, whose answer is `error`, and of which nobody sees anything; `left`: what a sweep will take."""
    files = share.files()
    share.fails(*rules)
    with pytest.raises(error) as caught:
        call(files)
    assert type(caught.value) is error
    assert share.fails() > 0, "nothing was hit"
    assert contents(share.server()) == {}
    assert len(share.left()) == left
    assert share.swept() == []


def succeeds(share: Share, call: Call, answer: Any, whole: dict[str, bytes], *rules: dict[str, Any]) -> int:
    """The call, in spite of the rules; how many operations they hit."""
    files = share.files()
    share.fails(*rules)
    assert call(files) == answer
    hit = share.fails()
    assert contents(share.server()) == whole
    assert share.left() == []
    return hit


# The disk is full


FULL = {
    "from the start": {"ops": ["write"]},
    "in the middle": {"ops": ["write"], "skip": 1},
    "when the file is closed": {"ops": ["flush"], "path": "tmp/"},
    "when it is synced": {"ops": ["fsync"]},
    "when a folder is made": {"ops": ["mkdir"], "path": "runs/"},
    "when it is renamed": {"ops": ["rename"], "path": "runs/"},
}


@each_call
@pytest.mark.parametrize("when", FULL)
@pytest.mark.parametrize("error", ["ENOSPC", pytest.param("EDQUOT", id="over quota", marks=pytest.mark.slow)])
def test_a_full_disk_is_said_and_nothing_half_written_stays(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes], when: str, error: str
) -> None:
    fails(share, call, MailboxFull, FULL[when] | {"errno": error})
    succeeds(share, call, answer, whole)


@each_call
def test_a_quota_is_a_full_disk(share: Share, call: Call, answer: Any, whole: dict[str, bytes]) -> None:
    fails(share, call, MailboxFull, {"ops": ["write"], "errno": "EDQUOT"})
    succeeds(share, call, answer, whole)


@each_call
def test_a_disk_so_full_that_nothing_can_be_taken_back_is_swept_later(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes]
) -> None:
    fails(share, call, MailboxFull, {"ops": ["write", "rename"], "errno": "ENOSPC"}, left=1)
    succeeds(share, call, answer, whole)


# Synced, or not


@each_call
@pytest.mark.parametrize("op", ["fsync", "fsyncdir"])
@pytest.mark.parametrize("error", ["EINVAL", "ENOTSUP"])
def test_a_share_that_cannot_sync_will_do(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes], op: str, error: str
) -> None:
    assert succeeds(share, call, answer, whole, {"ops": [op], "errno": error}) > 0


@each_call
@pytest.mark.parametrize("where", ["tmp/", "runs$", "runs/r$"])
def test_what_could_not_be_synced_is_not_published(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes], where: str
) -> None:
    if where == "tmp/":
        fails(share, call, MailboxUnavailable, {"ops": ["fsync"], "errno": "EIO"})
    else:
        fails(share, call, MailboxUnavailable, {"ops": ["fsyncdir"], "path": where, "errno": "EIO"})
    succeeds(share, call, answer, whole)


@each_call
def test_a_name_that_could_not_be_synced_is_synced_by_the_next_try(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes]
) -> None:
    """The name of a folder on the way, then that of the object itself: no answer before both are there to stay."""
    files = share.files()
    for folder in ("runs/r$", "rounds/00000000$|blobs/1$"):
        for _ in range(2):
            share.fails({"ops": ["fsyncdir"], "path": folder, "errno": "EIO"})
            with pytest.raises(MailboxUnavailable):
                call(files)
            assert share.fails() == 1, folder
    assert call(files) == answer
    assert contents(share.server()) == whole
    assert share.left() == []


# A rename


@each_call
@pytest.mark.parametrize("error", ["EIO", "ESTALE", "ETIMEDOUT", "EEXIST"])
def test_the_rename_was_done_and_the_reply_is_lost(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes], error: str
) -> None:
    assert succeeds(share, call, answer, whole, {"ops": ["rename"], "path": "runs/", "errno": error, "after": True}) == 1


@each_call
def test_the_rename_was_not_done_and_the_reply_is_lost(share: Share, call: Call, answer: Any, whole: dict[str, bytes]) -> None:
    fails(share, call, MailboxUnavailable, {"ops": ["rename"], "path": "runs/", "errno": "ETIMEDOUT"})
    succeeds(share, call, answer, whole)


@each_call
def test_the_rename_is_done_after_its_caller_has_given_up(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes]
) -> None:
    """Neither what takes the staged object back nor a second try undoes what the server did late."""
    key = next(iter(whole))

    class Late(FolderFiles):
        def discard(self, path: str) -> bool:
            os.rename(share.below / path, share.below / key.removesuffix("/record.json"))
            return super().discard(path)

    share.fails({"ops": ["rename"], "path": "runs/", "errno": "ETIMEDOUT"})
    with pytest.raises(MailboxUnavailable):
        call(Late(str(share.at), pauses_s=()))
    assert share.fails() == 1
    assert contents(share.server()) == whole
    assert share.left() == []
    succeeds(share, call, answer, whole)


def test_who_lost_both_the_reply_and_the_race_is_told_so(share: Share) -> None:
    files = share.files()
    share.fails({"ops": ["rename"], "path": "runs/", "errno": "ETIMEDOUT"})
    with pytest.raises(MailboxUnavailable):
        files.create(RECORD, b"mine")
    share.fails()
    assert share.server().create(RECORD, b"theirs") is True
    assert files.create(RECORD, b"mine") is False
    assert files.read(RECORD) == b"theirs"


@each_call
def test_a_name_that_is_busy_five_times_is_renamed_the_sixth_time(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes]
) -> None:
    assert succeeds(share, call, answer, whole, {"ops": ["rename"], "path": "runs/", "errno": "EBUSY", "count": 5}) == 5


@each_call
def test_a_name_that_stays_busy_is_the_callers_to_try_again(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes]
) -> None:
    fails(share, call, MailboxUnavailable, {"ops": ["rename"], "path": "runs/", "errno": "EBUSY"})
    succeeds(share, call, answer, whole)


# Staging


@each_call
def test_a_staging_name_that_is_taken_is_left_to_its_owner(
    share: Share, monkeypatch: pytest.MonkeyPatch, call: Call, answer: Any, whole: dict[str, bytes]
) -> None:
    taken = [UUID(int=1), UUID(int=2)]
    for name in taken:
        (share.below / "tmp" / name.hex).mkdir()
        (share.below / "tmp" / name.hex / "record.json").write_bytes(b"another's")
    real, names = folder_write.uuid4, iter(taken)
    monkeypatch.setattr(folder_write, "uuid4", lambda: next(names, None) or real())
    assert call(share.files()) == answer
    assert contents(share.server()) == whole
    assert share.left() == [f"tmp/{name.hex}" for name in taken]
    assert (share.below / "tmp" / taken[0].hex / "record.json").read_bytes() == b"another's"


@each_call
def test_a_staging_name_that_was_made_by_a_request_sent_twice(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes]
) -> None:
    """The second one finds what the first one made: the caller takes another name, and what was made is swept."""
    files = share.files()
    share.fails({"ops": ["mkdir", "create"], "path": "/tmp/[0-9a-f]{32}$", "errno": "EEXIST", "after": True, "count": 1})
    assert call(files) == answer
    assert share.fails() == 1
    assert contents(share.server()) == whole
    assert len(share.left()) == 1
    assert share.swept() == []


# A share that may only be read


@each_call
def test_a_share_that_is_mounted_read_only_says_so_and_can_be_read(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes]
) -> None:
    share.server().create(BESIDE, b"other's")
    files = share.files()
    writes = ["mkdir", "create", "write", "rename", "unlink", "rmdir", "chmod", "truncate"]
    share.fails({"ops": writes, "errno": "EROFS"})
    for attempt in (call, lambda files: files.delete([BESIDE]), FolderFiles.check_writable):
        with pytest.raises(MailboxReadOnly):
            attempt(files)
    assert contents(files) == {BESIDE: b"other's"}
    assert share.fails() > 0
    assert call(files) == answer  # mounted again as it was
    assert contents(share.server()) == whole | {BESIDE: b"other's"}


@each_call
def test_a_share_that_goes_read_only_in_the_middle(share: Share, call: Call, answer: Any, whole: dict[str, bytes]) -> None:
    fails(share, call, MailboxReadOnly, {"ops": ["rename"], "errno": "EROFS"}, left=1)
    succeeds(share, call, answer, whole)


# Everything that may pass


@each_call
@pytest.mark.parametrize(
    ("op", "error"),
    [
        ("rename", "ESTALE"),
        ("mkdir", "EACCES"),
        ("getattr", "EBUSY"),
        ("rename", "EAGAIN"),
        ("mkdir", "EINVAL"),
        ("getattr", "ESTALE"),
    ],
)
def test_what_is_often_over_within_a_second_is_tried_again_on_the_spot(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes], op: str, error: str
) -> None:
    hit = succeeds(share, call, answer, whole, {"ops": [op], "path": "runs/r|mailbox", "errno": error, "count": 3})
    assert hit == 3


@each_call
@pytest.mark.parametrize("error", ["EIO", "EHOSTDOWN", "ENOTCONN", "ECONNABORTED", "ETIMEDOUT", "EREMOTEIO"])
def test_what_takes_longer_is_the_callers_to_try_again(
    share: Share, call: Call, answer: Any, whole: dict[str, bytes], error: str
) -> None:
    assert hasattr(errno, error)
    fails(share, call, MailboxUnavailable, {"errno": error})
    succeeds(share, call, answer, whole)
