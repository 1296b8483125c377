"""A share that dies, is unmounted or is exchanged under a mailbox that uses it, and comes back.

Each test has a mount of its own: what is unmounted is gone for good.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from swarm.core.errors import FormatMismatch, MailboxAway, MailboxError, MailboxMoved, MailboxUnavailable
from swarm.core.events import ShareBack, ShareLost, WorkerEvent
from swarm.core.keys import MARKER
from swarm.core.lines import encode
from swarm.core.manifest import FORMAT, Marker
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.folder_init import init_folder
from swarm.runtime.patience import Patience
from tests.process.faults.share import QuickMailbox, Share, mounted

pytestmark = pytest.mark.process
RECORD = "runs/r/rounds/00000000/0000000001/record.json"
NEXT = "runs/r/rounds/00000000/0000000002/record.json"
BLOB = "runs/r/blobs/1/x"

CALLS: dict[str, Callable[[Mailbox], Any]] = {
    "open": lambda mailbox: mailbox.open(),
    "create": lambda mailbox: mailbox.create(NEXT, b"mine"),
    "put": lambda mailbox: mailbox.put(BLOB, [b"who", b"le"]),
    "read": lambda mailbox: mailbox.read(RECORD),
    "read_part": lambda mailbox: mailbox.read_part(RECORD, 0, bytearray(9)),
    "list": lambda mailbox: mailbox.list("runs/"),
    "lists": lambda mailbox: mailbox.lists([("runs/", "")]),
    "names": lambda mailbox: mailbox.names("runs/"),
    "delete": lambda mailbox: mailbox.delete([RECORD]),
    "sweep": lambda mailbox: mailbox.sweep(0),
}


@pytest.fixture
def share() -> Iterator[Share]:
    """One whose mount point is the mailbox's own folder, as at home."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=place) as folder, mounted(Path(folder)) as share:
        share.new("")
        share.server().create(RECORD, b"record")
        yield share


async def opened(share: Share) -> QuickMailbox:
    mailbox = QuickMailbox(share.mount.path)
    await mailbox.open()
    return mailbox


async def every_call(mailbox: Mailbox, error: type[MailboxError]) -> None:
    for name, call in CALLS.items():
        with pytest.raises(error) as caught:
            await call(mailbox)
        assert type(caught.value) is error, name


def everything(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


async def test_the_file_system_dies_and_comes_back(share: Share) -> None:
    """Every call says "unavailable" while it is dead, "away" while nothing is mounted, and goes on when it is back."""
    mailbox = await opened(share)
    assert share.mount.process is not None
    os.kill(share.mount.process.pid, signal.SIGKILL)
    share.mount.process.wait()
    await every_call(mailbox, MailboxUnavailable)
    share.mount.unmount()
    await every_call(mailbox, MailboxAway)
    assert everything(share.mount.path) == []
    share.mount.mount()
    assert await mailbox.read(RECORD) == b"record"
    assert await mailbox.create(NEXT, b"mine") is True
    assert await mailbox.put(BLOB, [b"who", b"le"]) == BLOB
    assert sorted(await mailbox.list("runs/")) == [BLOB, RECORD, NEXT]


SLOW = pytest.mark.slow


@pytest.mark.parametrize("call", ["create", pytest.param("put", marks=SLOW)])
@pytest.mark.parametrize("op", ["rename", pytest.param("create", marks=SLOW), pytest.param("fsync", marks=SLOW)])
async def test_the_file_system_dies_in_the_middle_of_a_write(share: Share, call: str, op: str) -> None:
    mailbox = await opened(share)
    share.fails({"ops": [op], "exit": True, "after": op == "rename"})
    with pytest.raises(MailboxUnavailable):
        await CALLS[call](mailbox)
    share.mount.unmount()
    share.mount.mount()
    # What was renamed is there; what was not is not; the second try's answer is the same.
    assert (await mailbox.list("runs/") == [RECORD]) is (op != "rename")
    assert await CALLS[call](mailbox) == (True if call == "create" else BLOB)
    assert await mailbox.read(NEXT if call == "create" else BLOB) == (b"mine" if call == "create" else b"whole")
    await mailbox.sweep(0)
    assert share.left() == []


async def test_an_unmounted_share_gets_not_one_byte(share: Share) -> None:
    mailbox = await opened(share)
    await mailbox.create(NEXT, b"theirs")  # the folders on the way are known
    share.mount.unmount()
    await every_call(mailbox, MailboxAway)
    assert everything(share.mount.path) == []


@pytest.mark.parametrize("call", ["create", pytest.param("put", marks=SLOW), pytest.param("delete", marks=SLOW)])
@pytest.mark.parametrize("step", [3, *(pytest.param(n, marks=SLOW) for n in range(25) if n != 3)])
async def test_a_share_unmounted_at_any_step_of_a_write_gets_not_one_byte(share: Share, call: str, step: int) -> None:
    steps = ("mkdir", "create", "write", "flush", "fsync", "fsyncdir", "rename", "unlink", "rmdir")
    mailbox = await opened(share)
    share.fails({"ops": steps, "unmount": True, "skip": step, "count": 1})
    with suppress(MailboxAway, MailboxUnavailable):
        await CALLS[call](mailbox)
    if os.path.ismount(share.mount.path):
        assert step > 3, "it was unmounted"
    else:
        assert everything(share.mount.path) == []
    share.mount.unmount()
    share.mount.mount()
    assert await CALLS[call](mailbox) in (True, BLOB, None)
    if call == "delete":
        assert await mailbox.read(RECORD) is None
    else:
        assert await mailbox.read(NEXT if call == "create" else BLOB) == (b"mine" if call == "create" else b"whole")


async def test_another_share_mounted_in_its_place_is_refused_by_every_call(share: Share, tmp_path: Path) -> None:
    mailbox = await opened(share)
    other = tmp_path / "other"
    init_folder(str(other))
    before = everything(other)
    share.mount.unmount()
    share.mount.root = other
    share.mount.mount()
    await every_call(mailbox, MailboxMoved)
    assert everything(other) == before
    share.mount.unmount()
    share.mount.root = share.root
    share.mount.mount()
    assert await mailbox.read(RECORD) == b"record"


@pytest.mark.parametrize("theirs", [FORMAT - 1, FORMAT + 1])
async def test_a_share_of_another_format_is_refused_with_both_versions(share: Share, tmp_path: Path, theirs: int) -> None:
    mailbox = await opened(share)
    other = tmp_path / "other"
    id = init_folder(str(other))
    (other / MARKER).write_bytes(encode(Marker(id=id, format=theirs), nonce="n"))
    before = everything(other)
    share.mount.unmount()
    share.mount.root = other
    share.mount.mount()
    for name, call in CALLS.items():
        with pytest.raises(FormatMismatch, match=f"format {theirs}.*format {FORMAT}"):
            await call(mailbox)
        assert everything(other) == before, name


async def test_who_waits_for_a_share_is_told_twice_and_gets_the_answer(share: Share) -> None:
    """The layer that repeats: the file system dies, is unmounted, is mounted again, and each call has its effect once."""
    mailbox, told = await opened(share), list[WorkerEvent]()
    patience = Patience(mailbox, told.append, longest_s=0.2)
    assert share.mount.process is not None
    os.kill(share.mount.process.pid, signal.SIGKILL)
    share.mount.process.wait()
    waiting = [
        asyncio.create_task(patience.through(lambda: mailbox.create(NEXT, b"mine"))),
        asyncio.create_task(patience.through(lambda: mailbox.put(BLOB, [b"who", b"le"]))),
        asyncio.create_task(patience.through(lambda: mailbox.read(RECORD))),
    ]
    assert (await asyncio.wait(waiting, timeout=0.3))[0] == set()
    await asyncio.to_thread(share.mount.unmount)
    assert (await asyncio.wait(waiting, timeout=0.3))[0] == set()
    await asyncio.to_thread(share.mount.mount)
    assert await asyncio.gather(*waiting) == [True, BLOB, b"record"]
    *lost, back = told
    assert isinstance(back, ShareBack)
    kinds = [event.how for event in lost if isinstance(event, ShareLost)]
    assert 1 <= len(kinds) == len(lost) == len(set(kinds))  # it died, and then it was not there: each is told once
    assert everything(share.root / "tmp") == []
    assert sorted(await mailbox.list("runs/")) == [BLOB, RECORD, NEXT]
