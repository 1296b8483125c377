"""A process is killed, by SIGKILL, at every single operation of a call on the file system.

Then the object is there whole or not at all; whoever comes next gets a right answer at once; and what was left is swept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.process.faults.share import HERE, Share, contents

pytestmark = pytest.mark.process
RECORD = "runs/r/rounds/00000000/0000000001/record.json"
BESIDE = "runs/r/rounds/00000000/0000000000/record.json"
BLOB = "runs/r/blobs/1/x"
# What changes something on the share, or says that it is there to stay; between two of these it is as it was.
STEPS = ("mkdir", "chmod", "create", "write", "flush", "fsync", "fsyncdir", "rename", "unlink", "rmdir")


class Victims:
    def __init__(self) -> None:
        command = [sys.executable, str(HERE / "victims.py")]
        env = os.environ | {"PYTHONPATH": str(HERE.parents[2])}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ask(self, **order: Any) -> dict[str, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(order)}\n")
        self.process.stdin.flush()
        answer: dict[str, int] = json.loads(self.process.stdout.readline())
        return answer


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    made = Victims()
    yield made
    made.process.kill()
    made.process.communicate()


def killed(share: Share, victims: Victims, call: str, key: str, *, skip: int, after: bool) -> bool:
    """Let a process make the call and be killed when it has come through `skip` steps; whether it came so far."""
    pid = victims.ask(root=str(share.at), call=[call, key])["pid"]
    share.fails({"ops": STEPS, "kill": pid, "skip": skip, "count": 1, "after": after})
    status = victims.ask()["status"]
    hit = share.fails()
    assert status == (-signal.SIGKILL if hit else 0)
    return bool(hit)


AFTER = [False, pytest.param(True, marks=pytest.mark.slow)]  # behind one step is before the next, but for the last


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize(
    "beside",
    [pytest.param(False, id="first in its folder"), pytest.param(True, id="beside another", marks=pytest.mark.slow)],
)
def test_killed_at_any_step_of_create(share: Share, victims: Victims, beside: bool, after: bool) -> None:
    seen = set()
    for step in range(100):
        share.new(f"{share.name}-{step}")
        if beside:
            share.server().create(BESIDE, b"other's")
        hit = killed(share, victims, "create", RECORD, skip=step, after=after)
        found = contents(share.server())
        assert found.pop(BESIDE, None) == (b"other's" if beside else None)
        assert found in ({}, {RECORD: b"victim's"}), step
        seen.add(bool(found))
        # Nobody waits for anything: whoever comes next wins, or reads what is there.
        heir = share.server()
        assert heir.create(RECORD, b"heir's") is (not found), step
        assert heir.read(RECORD) == (found.get(RECORD) or b"heir's"), step
        assert heir.create(RECORD, b"late") is False, step
        assert share.swept() == [], step
        if not hit:
            break
    assert step > 8
    assert seen == {False, True}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("call", ["put", pytest.param("put again", marks=pytest.mark.slow)])
def test_killed_at_any_step_of_put(share: Share, victims: Victims, call: str, after: bool) -> None:
    seen = set()
    for step in range(100):
        share.new(f"{share.name}-{step}")
        if call == "put again":
            share.server().put(BLOB, [b"whole"])
        hit = killed(share, victims, "put", BLOB, skip=step, after=after)
        found = contents(share.server())
        assert found in ({}, {BLOB: b"whole"}), step
        seen.add(bool(found))
        heir = share.server()
        assert heir.put(BLOB, [b"whole"]) == BLOB
        assert heir.read(BLOB) == b"whole", step
        assert share.swept() == [], step
        if not hit:
            break
    assert step > 4
    assert seen == ({True} if call == "put again" else {False, True})


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("key", [RECORD, BLOB], ids=["record", "object"])
def test_killed_at_any_step_of_delete(share: Share, victims: Victims, key: str, after: bool) -> None:
    seen = set()
    for step in range(100):
        share.new(f"{share.name}-{step}")
        server = share.server()
        server.create(BESIDE, b"other's")
        assert server.create(key, b"whole") if key == RECORD else server.put(key, [b"whole"])
        hit = killed(share, victims, "delete", key, skip=step, after=after)
        found = contents(share.server())
        assert found.pop(BESIDE) == b"other's", step
        assert found in ({}, {key: b"whole"}), step
        seen.add(bool(found))
        heir = share.server()
        heir.delete([key])
        assert list(contents(heir)) == [BESIDE], step
        if key == RECORD:
            assert heir.create(key, b"again") is True, step
        assert share.swept() == [], step
        if not hit:
            break
    assert seen == {False, True}


@pytest.mark.parametrize("after", AFTER)
def test_killed_at_any_step_of_making_a_mailbox(share: Share, victims: Victims, after: bool) -> None:
    for step in range(100):
        share.name = f"{share.name[:32]}-{step}"
        hit = killed(share, victims, "init", "", skip=step, after=after)
        id = share.new(share.name)  # whoever finds it half made completes it
        assert share.files().open() == id, step
        if not hit:
            break
        assert share.left() == [] or share.swept() == [], step
    assert step > 8
