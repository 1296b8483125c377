"""The layer that repeats a call for as long as a share fails (swarm/runtime/patience.py), over a share that does."""

from __future__ import annotations

import pytest

from swarm.core.events import ShareBack, ShareLost, WorkerEvent
from swarm.runtime.patience import Patience
from tests.process.faults.share import QuickMailbox, Share

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("error", "fails"),
    [
        ("EIO", 2),
        ("ENOSPC", 2),
        ("ESTALE", 15),
        *(
            pytest.param(name, n, marks=pytest.mark.slow)
            for name, n in (("EHOSTDOWN", 2), ("EDQUOT", 2), ("EROFS", 2), ("EBUSY", 9))
        ),
    ],
)
async def test_each_call_that_is_repeated_has_its_effect_once_and_the_right_answer(
    share: Share, error: str, fails: int
) -> None:
    """`fails`: more than are tried again on the spot, of ESTALE by the kernel, too. The last one has its effect, and only its
    reply is lost."""
    mailbox, told = QuickMailbox(share.at), list[WorkerEvent]()
    await mailbox.open()
    patience = Patience(mailbox, told.append, longest_s=0.05)
    failing = {"ops": ["rename"], "path": "runs/", "errno": error}
    record, blob = "runs/r/claims/0/000/record.json", "runs/r/beats/a/1"

    share.fails(failing | {"count": fails}, failing | {"count": 1, "after": True})
    assert await patience.through(lambda: mailbox.create(record, b"mine")) is True
    assert share.fails(failing | {"count": fails}, failing | {"count": 1, "after": True}) == fails + 1
    assert await patience.through(lambda: mailbox.put(blob, [b"be", b"at"])) == blob
    assert share.fails() == fails + 1
    assert [type(event) for event in told] == [ShareLost, ShareBack] * 2

    share.fails({"ops": ["open"], "path": "runs/", "errno": error, "count": fails})
    assert await patience.through(lambda: mailbox.read(record)) == b"mine"
    share.fails({"ops": ["readdir"], "errno": error, "count": fails})
    assert await patience.through(lambda: mailbox.list("runs/")) == [blob, record]
    share.fails({"ops": ["rename", "unlink"], "errno": error, "count": fails})
    await patience.through(lambda: mailbox.delete([record, blob]))
    assert share.fails() > 0
    assert await mailbox.list("runs/") == []
    await mailbox.sweep(0)
    assert share.left() == []
