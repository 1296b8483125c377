"""What happens between two operations of a folder mailbox: time goes by, or another share stands in its place."""

from __future__ import annotations

import os
import shutil
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from swarm.core.errors import MailboxAway, MailboxError, MailboxMoved, MailboxUnavailable
from swarm.mailbox.folder_init import init_folder
from swarm.mailbox.folder_write import FolderFiles
from swarm.mailbox.sweep import Sweeper
from swarm.runtime.patience import HANG_S
from tests.contract.mailbox.system import CALLS, OTHER, RECORD, contents, files, make


class Slow:
    """A clock that every operation puts on by two seconds, and how long a call seemed to hang at the most."""

    def __init__(self) -> None:
        self.now_s = self.since_s = self.longest_s = 0.0

    def operation(self) -> None:
        self.now_s += 2
        self.longest_s = max(self.longest_s, self.now_s - self.since_s)

    def progressed(self) -> None:
        self.since_s = self.now_s


@pytest.mark.parametrize("name", CALLS)
def test_a_share_that_takes_two_seconds_for_everything_does_not_seem_to_hang(folder, faults, name):
    before, call, answer = CALLS[name]
    root, slow = make(folder), Slow()
    before(files(root))
    subject = FolderFiles(root, progressed=slow.progressed)
    faults.plan(-1, 0, False)
    faults.each = slow.operation
    assert call(subject) == answer
    assert slow.now_s > HANG_S, "long enough to be taken for hanging, were it not for progress"
    assert slow.longest_s < HANG_S


def test_several_listings_in_one_trip_do_not_seem_to_hang_either(folder, faults):
    root, slow = make(folder), Slow()
    files(root).create(RECORD, b"mine")
    subject = FolderFiles(root, progressed=slow.progressed)
    faults.plan(-1, 0, False)
    faults.each = slow.operation
    assert subject.lists([("runs/", ""), ("runs/r/", ""), ("runs/r/rounds/", "")]) == ([RECORD],) * 3
    assert slow.longest_s < HANG_S


def test_a_sweep_of_much_does_not_seem_to_hang_either(folder, faults):
    root, slow = make(folder), Slow()
    for place in ("tmp", "trash"):
        for n in range(6):
            path = Path(f"{root}/{place}/{uuid4().hex}")
            path.mkdir()
            if n % 2:
                (path / "record.json").write_bytes(b"record")
    subject = FolderFiles(root, progressed=slow.progressed)
    subject.open()
    faults.plan(-1, 0, False)
    faults.each = slow.operation
    assert Sweeper(subject).sweep(0, 0) == 12
    assert slow.longest_s < HANG_S


# Another share in its place


def exchange(root: str, other: Path | None) -> None:
    """Unmount what is at `root`, and mount `other` there; None: nothing, so that the mount point shows."""
    os.rename(root, f"{root}-away")
    shutil.copytree(other, root) if other is not None else os.mkdir(root)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("what", ["unmounted", "another share"])
def test_exchanged_at_any_operation_whatever_is_there_now_gets_nothing(folder, faults, name, what):
    before, call, answer = CALLS[name]
    other = folder / "other"
    init_folder(str(other))
    FolderFiles(str(other)).create(OTHER, b"other's")
    for at in count():
        root = make(folder)
        before(files(root))
        subject = files(root)

        def each(at: int = at, root: str = root) -> None:
            if faults.calls == at:
                exchange(root, other if what == "another share" else None)

        faults.plan(-1, 0, False)
        faults.each = each
        try:
            first = call(subject)
        except MailboxError as raised:
            first = raised
        faults.each = lambda: None
        if not os.path.exists(f"{root}-away"):
            assert first == answer
            break
        # Between the last look at the marker and the next step no time goes by: only a folder may have been made there.
        here = {path.relative_to(root) for path in Path(root).rglob("*") if not path.is_dir()}
        assert here == (
            {path.relative_to(other) for path in other.rglob("*") if not path.is_dir()} if what != "unmounted" else set()
        )
        if what == "unmounted":
            assert os.listdir(root) == []
        else:
            assert contents(FolderFiles(root)) == {OTHER: b"other's"}, at
        assert first == answer or isinstance(first, MailboxMoved | MailboxUnavailable), at
        if not isinstance(first, MailboxError) and name not in ("delete", "delete, missing"):
            continue
        with pytest.raises(MailboxAway if what == "unmounted" else MailboxMoved):
            call(subject)
        shutil.rmtree(root)
        os.rename(f"{root}-away", root)
        if name.startswith("delete") and not isinstance(first, MailboxError):
            assert contents(FolderFiles(root)) == {}, at
        assert call(subject) == answer, at
    assert at > 2
