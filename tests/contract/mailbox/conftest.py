"""The stores on which the mailbox suite runs. A store gives independent handles: as many machines as a test needs.

One is a folder on a real share, its handles taking turns between two mounts: SWARM_TEST_SHARES=A:B names them, and
`make shares` makes them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import pytest

from swarm.core.keys import MARKER
from swarm.core.lines import encode
from swarm.core.manifest import Marker
from swarm.core.trust import SwarmKey
from swarm.mailbox import folder_read, folder_write
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.objects import ObjectMailbox
from swarm.mailbox.signed import SignedMailbox
from tests.contract.mailbox.system import Faults
from tests.integration.bucket import Bucket, give_credentials, serve

SHARES = [Path(p) for p in os.environ.get("SWARM_TEST_SHARES", "").split(":") if p]
HERE = Path(__file__).parent
KEY = SwarmKey(bytes(range(32)))
KINDS = ["memory", "folder", "signed", "objects", pytest.param("share", marks=pytest.mark.share)]


class Store:
    """One mailbox; `machine()` is another machine's handle on it, not opened."""

    def __init__(self, id: str, handle: Callable[[], Mailbox], paths: list[Path]) -> None:
        self.id = id
        self.machine = handle
        self.paths = paths  # its folders, one per mount; none but of folders


async def make_store(kind: str, tmp_path: Path, bucket: Callable[[], Bucket]) -> Store:
    if kind == "memory":
        memory = MemoryStore()
        return Store(memory.id, lambda: MemoryMailbox(memory), [])
    if kind == "signed":
        memory = MemoryStore()
        return Store(memory.id, lambda: SignedMailbox(MemoryMailbox(memory), KEY), [])
    if kind == "share" and not SHARES:
        pytest.skip("SWARM_TEST_SHARES names no mounts; `make shares` makes some")
    name = uuid4().hex
    if kind == "objects":
        served = bucket()
        url, id = served.url(f"swarms/{name}"), uuid4().hex
        served.write(
            f"swarms/{name}/{MARKER}", encode(Marker(id=id), nonce=name)
        )  # init asks for much, and is tested elsewhere
        return Store(id, lambda: ObjectMailbox(url), [])
    paths = [share / name for share in SHARES] if kind == "share" else [tmp_path / name]
    id = await FolderMailbox.init(paths[0])
    turns = cycle(paths)
    return Store(id, lambda: FolderMailbox(next(turns)), paths)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is checked before any store is asked is tried with each of the keys elsewhere: here with one of them."""
    seen: set[str] = set()
    for item in list(items):
        name, _, parameters = item.name.partition("[")
        if Path(item.path).parent == HERE and parameters.startswith("objects-"):
            if name in seen:
                items.remove(item)
            seen.add(name)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def serving() -> Iterator[Bucket]:
    with serve() as found:
        yield found


@pytest.fixture
def bucket(serving: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An object store on this machine, and the right to use it."""
    give_credentials(monkeypatch)
    serving.calm()
    return serving


@pytest.fixture
async def store(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return await make_store(kind, tmp_path, lambda: request.getfixturevalue("bucket"))


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


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    faults = Faults()
    for module in (folder_read, folder_write, folder_write.disk):
        monkeypatch.setattr(module, "os", faults)
    return faults


@pytest.fixture
def folder() -> Iterator[Path]:
    # A memory file system where there is one: these tests make a mailbox per operation.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)
