"""A share on which names that differ by case only are one: macOS, Windows, most SMB servers."""

from __future__ import annotations

import os

import pytest

from swarm.core.errors import UsageError
from swarm.core.keys import MARKER
from swarm.mailbox.folder_init import init_folder
from tests.process.faults.share import Share, contents

pytestmark = pytest.mark.process
RECORD = "runs/r/rounds/00000000/0000000001/record.json"
BLOB = "runs/r/blobs/1/x"
FOLDS = {"folds": True, "ops": ["none"]}  # of every path, whatever the operation


def test_a_mailbox_on_a_share_that_folds_case_keeps_its_promises(share: Share) -> None:
    share.fails(FOLDS)
    assert (share.at / "RUNS").is_dir(), "it folds"
    a, b = share.files(), share.files()
    assert a.create(RECORD, b"a's") is True
    assert b.create(RECORD, b"b's") is False
    assert a.put(BLOB, [b"whole"]) == b.put(BLOB, [b"whole"]) == BLOB
    assert contents(a) == contents(b) == {RECORD: b"a's", BLOB: b"whole"}
    assert a.list("", "") == [MARKER, BLOB, RECORD]
    a.delete([RECORD])
    assert b.create(RECORD, b"b's") is True
    assert share.swept() == []


def test_what_people_named_in_capitals_there_is_no_mailbox_and_no_key(share: Share) -> None:
    share.server().put(BLOB, [b"whole"])
    (share.below / "runs/r/blobs/1/X").write_bytes(b"a person's")  # on the server itself both can be
    (share.below / "runs/R").mkdir()
    share.fails(FOLDS)
    assert contents(share.files()) == {BLOB: b"whole"}
    share.name = f"{share.name}-people"
    os.makedirs(share.below / "RUNS")
    with pytest.raises(UsageError, match="not empty: RUNS"):
        init_folder(str(share.at))
