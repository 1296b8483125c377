"""The stores on which the mailbox suite runs. A store gives independent handles: as many machines as a test needs.

One is a folder on a real share, its handles taking turns between two mounts: SWARM_TEST_SHARES=A:B names them, and
`make shares` makes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import pytest

from swarm.core.trust import SwarmKey
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.signed import SignedMailbox

SHARES = [Path(p) for p in os.environ.get("SWARM_TEST_SHARES", "").split(":") if p]
KEY = SwarmKey(bytes(range(32)))
KINDS = ["memory", "folder", "signed", pytest.param("share", marks=pytest.mark.share)]


class Store:
    """One mailbox; `machine()` is another machine's handle on it, not opened."""

    def __init__(self, id: str, handle: Callable[[], Mailbox], paths: list[Path]) -> None:
        self.id = id
        self.machine = handle
        self.paths = paths  # its folders, one per mount; none in memory


async def make_store(kind: str, tmp_path: Path) -> Store:
    if kind == "memory":
        memory = MemoryStore()
        return Store(memory.id, lambda: MemoryMailbox(memory), [])
    if kind == "signed":
        memory = MemoryStore()
        return Store(memory.id, lambda: SignedMailbox(MemoryMailbox(memory), KEY), [])
    if kind == "share" and not SHARES:
        pytest.skip("SWARM_TEST_SHARES names no mounts; `make shares` makes some")
    name = uuid4().hex
    paths = [share / name for share in SHARES] if kind == "share" else [tmp_path / name]
    id = await FolderMailbox.init(paths[0])
    turns = cycle(paths)
    return Store(id, lambda: FolderMailbox(next(turns)), paths)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store(kind: str, tmp_path: Path) -> Store:
    return await make_store(kind, tmp_path)


@pytest.fixture
async def a(store: Store) -> Mailbox:
    """One machine."""
    mailbox = store.machine()
    await mailbox.open()
    return mailbox


@pytest.fixture
async def b(store: Store, a: Mailbox) -> Mailbox:
    """Another one."""
    mailbox = store.machine()
    await mailbox.open()
    return mailbox
