"""The mailbox against a model, a dict of key → bytes, with faults: any call may fail before its effect, or after it without
a reply, and is then repeated; and in a folder any of the system's calls that it makes, in a bucket any of its requests. The
repeated call's answer, and what every machine then sees, are the model's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from swarm.core.errors import MailboxError, MailboxFull, MailboxUnavailable
from swarm.core.keys import MARKER
from swarm.core.lines import encode
from swarm.core.manifest import Marker
from swarm.core.trust import SwarmKey
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.objects import ObjectMailbox
from swarm.mailbox.signed import SignedMailbox
from tests.contract.mailbox.system import Faults
from tests.integration.bucket import Bucket, Mishap

RECORDS = [f"runs/r{r}/{kind}/{n:03d}/record.json" for r in (1, 2) for kind in ("claims", "rounds-x") for n in range(2)]
OBJECTS = [f"runs/r{r}/{name}" for r in (1, 2) for name in ("beats/a/1", "beats/a-b/1", "beats.x/1", "blobs/0/x.safetensors")]
PREFIXES = ["", "runs/", "runs/r1/", "runs/r1/claims/", "runs/r1/beats/", "runs/r1/beats/a/", "runs/r3/"]
AFTERS = ["", *RECORDS, *OBJECTS, "runs/r1/beats/a", "runs/r1/claims/000", "runs/r1/z", "runs/r2"]
REQUESTS = 8  # of one call to a store, at most
FAULTS = [None, None, "fail", "lose", "tear"]


@dataclass(frozen=True)
class Glitch:
    """Number `at` of the system's calls, or of the requests to a store, fails, before its effect or after it."""

    at: int
    error: int
    after: bool


records = st.sampled_from(RECORDS)
objects = st.sampled_from(OBJECTS)
machines = st.integers(0, 1)
plain_faults = st.sampled_from(FAULTS)
glitches = st.builds(
    Glitch,
    at=st.integers(0, 30),
    error=st.sampled_from([errno.EIO, errno.ESTALE, errno.EBUSY, errno.EACCES, errno.ENOSPC, errno.EROFS]),
    after=st.booleans(),
)
faults = plain_faults | glitches


def payload(key: str) -> list[bytes]:
    """An object's key decides its bytes, as a hash in a key does."""
    return [key.encode() * 50, b"", key[::-1].encode() * 7]


def new_record() -> bytes:
    return encode(msgspec.Raw(b"{}"), nonce=uuid4().hex)


class Quick(FolderMailbox):
    """Tries again without pauses."""

    def _start(self) -> None:
        super()._start()
        self._files._pauses_s = (0.0,) * 6


class Contract(RuleBasedStateMachine):
    def __init__(self, kind: str, folder: Path, system: Faults, bucket: Bucket | None = None) -> None:
        super().__init__()
        self.kind, self.system, self.bucket = kind, system, bucket
        self.loop = asyncio.new_event_loop()
        self.machines: list[FaultyMailbox] = []
        memory = MemoryStore()
        path = folder / uuid4().hex
        if kind == "folder":
            self.wait(FolderMailbox.init(path))
        if bucket is not None:
            bucket.calm()
            bucket.write(f"{path.name}/{MARKER}", encode(Marker(id=path.name), nonce=""))
        for _ in range(2):
            inner: Mailbox = Quick(path) if kind == "folder" else MemoryMailbox(memory)
            if bucket is not None:
                inner = ObjectMailbox(bucket.url(path.name))
            if kind == "signed":
                inner = SignedMailbox(inner, SwarmKey(bytes(range(32))))
            self.wait(inner.open())
            self.machines.append(FaultyMailbox(inner))
        self.model: dict[str, bytes] = {}

    def wait(self, call):
        return self.loop.run_until_complete(call)

    def teardown(self) -> None:
        for machine in self.machines:
            self.wait(machine.close())
        self.loop.close()

    def attempt(self, machine: int, fault: str | Glitch | None, call):
        """The call's answer; asked again until there is one, as every caller does."""
        if isinstance(fault, Glitch):
            self.machines[machine].plan = []
            with self.glitch(fault):
                return self.wait(call())
        elif fault is not None:
            error = MailboxFull if fault == "tear" else MailboxUnavailable
            self.machines[machine].plan = [Fault(fault, error=error)]
            with pytest.raises(error):
                self.wait(call())
            assert self.machines[machine].plan[0].count == 0
        self.machines[machine].plan = []
        return self.wait(call())

    @contextlib.contextmanager
    def glitch(self, fault: Glitch) -> Iterator[None]:
        """While it may come. It is what an error of ours comes from."""
        mishap = Mishap(".", "lose" if fault.after else "refuse", skip=fault.at % REQUESTS)
        if self.bucket is not None:
            self.bucket.mishaps = [mishap]
        else:
            self.system.plan(fault.at, fault.error, fault.after)
        try:
            yield
        except MailboxError:
            assert self.system.hit if self.bucket is None else not mishap.count, "what fails has a cause"
        finally:
            self.system.plan(-1, 0, False)
            if self.bucket is not None:
                self.bucket.mishaps = []

    @rule(machine=machines, fault=faults, key=records)
    def create(self, machine: int, fault: str | Glitch | None, key: str) -> None:
        record = new_record()
        won = self.attempt(machine, fault, lambda: self.machines[machine].create(key, record))
        assert won is (key not in self.model)
        self.model.setdefault(key, record)

    @rule(fault=plain_faults, key=records, both=st.booleans())
    def race(self, fault: str | None, key: str, both: bool) -> None:
        """Both machines at once; one's reply may be lost, and it asks again."""
        bids = [new_record() for _ in self.machines]
        self.machines[0].plan = [Fault(fault)] if fault else []
        self.machines[1].plan = [Fault(fault)] if fault and both else []

        async def bid(machine: FaultyMailbox, record: bytes) -> bool:
            try:
                return await machine.create(key, record)
            except MailboxUnavailable:
                return await machine.create(key, record)

        async def everybody() -> list[bool]:
            return await asyncio.gather(*map(bid, self.machines, bids))

        won = self.wait(everybody())
        assert won.count(True) == (key not in self.model)
        if True in won:
            self.model[key] = bids[won.index(True)]

    @rule(machine=machines, fault=faults, key=objects, computed=st.booleans())
    def put(self, machine: int, fault: str | Glitch | None, key: str, computed: bool) -> None:
        name = (lambda: key) if computed else key
        assert self.attempt(machine, fault, lambda: self.machines[machine].put(name, payload(key))) == key
        self.model[key] = b"".join(payload(key))

    @rule(machine=machines, key=objects, fault=st.sampled_from(["fail", "tear"]))
    def put_without_a_second_try(self, machine: int, key: str, fault: str) -> None:
        self.machines[machine].plan = [Fault(fault, chunks=2)]
        with pytest.raises(MailboxUnavailable):
            self.wait(self.machines[machine].put(key, payload(key)))
        self.machines[machine].plan = []

    @rule(machine=machines, fault=faults, keys=st.lists(records | objects, max_size=3))
    def delete(self, machine: int, fault: str | Glitch | None, keys: list[str]) -> None:
        self.attempt(machine, fault, lambda: self.machines[machine].delete(keys))
        for key in keys:
            self.model.pop(key, None)

    @rule(machine=machines, fault=faults, key=records | objects)
    def read(self, machine: int, fault: str | Glitch | None, key: str) -> None:
        assert self.attempt(machine, fault, lambda: self.machines[machine].read(key)) == self.model.get(key)

    @rule(
        machine=machines,
        fault=faults,
        key=records | objects,
        offset=st.sampled_from([0, 1, 32, 900, 5000]),
        size=st.sampled_from([0, 31, 33, 4000]),
    )
    def read_part(self, machine: int, fault: str | Glitch | None, key: str, offset: int, size: int) -> None:
        buffer = bytearray(b"\xff" * size)
        found = self.attempt(machine, fault, lambda: self.machines[machine].read_part(key, offset, buffer))
        data = self.model.get(key)
        part = (data or b"")[offset : offset + size]
        assert found == (None if data is None else len(part))
        assert buffer == part + b"\xff" * (size - len(part))

    @rule(machine=machines, fault=faults, prefix=st.sampled_from(PREFIXES), after=st.sampled_from(AFTERS))
    def list(self, machine: int, fault: str | Glitch | None, prefix: str, after: str) -> None:
        keys = sorted(key for key in (*self.model, MARKER) if key.startswith(prefix) and key > after)
        assert self.attempt(machine, fault, lambda: self.machines[machine].list(prefix, after)) == keys

    @rule(
        machine=machines,
        fault=faults,
        requests=st.lists(st.tuples(st.sampled_from(PREFIXES), st.sampled_from(AFTERS)), min_size=1, max_size=4),
    )
    def lists(self, machine: int, fault: str | Glitch | None, requests: Sequence[tuple[str, str]]) -> None:
        everything = sorted([*self.model, MARKER])
        wanted = [[key for key in everything if key.startswith(prefix) and key > after] for prefix, after in requests]
        found = [*self.attempt(machine, fault, lambda: self.machines[machine].lists(requests))]
        assert found == (wanted[: len(found)] if isinstance(fault, Glitch) else wanted)
        assert found, "those before the first that fails"

    @rule(machine=machines, fault=faults, prefix=st.sampled_from(PREFIXES))
    def names(self, machine: int, fault: str | Glitch | None, prefix: str) -> None:
        keys = [key for key in (*self.model, MARKER) if key.startswith(prefix)]
        found = self.attempt(machine, fault, lambda: self.machines[machine].names(prefix))
        assert found == sorted({key[len(prefix) :].split("/")[0] for key in keys} | ({"runs"} & {*found}))

    @rule(machine=machines, fault=faults, prefix=st.sampled_from(PREFIXES))
    def sizes(self, machine: int, fault: str | Glitch | None, prefix: str) -> None:
        found = self.attempt(machine, fault, lambda: self.machines[machine].sizes(prefix))
        keys = {key: len(data) for key, data in self.model.items() if key.startswith(prefix)}
        # Records are stored with their signature, if they have one.
        assert {key: found[key] for key in keys if not key.endswith(".json")} == {
            key: size for key, size in keys.items() if not key.endswith(".json")
        }
        assert found.keys() - {MARKER} == keys.keys()
        assert all(found[key] >= size for key, size in keys.items())

    @rule(machine=machines, fault=faults)
    def sweep(self, machine: int, fault: str | Glitch | None) -> None:
        swept = self.attempt(machine, fault, lambda: self.machines[machine].sweep(0))
        assert swept == 0 or self.kind in ("folder", "objects"), "where nothing was left, nothing is swept"

    @rule(machine=machines)
    def reopen(self, machine: int) -> None:
        self.wait(self.machines[machine].close())
        self.wait(self.machines[machine].open())

    @invariant()
    def every_machine_sees_the_same(self) -> None:
        for machine in self.machines:
            assert self.wait(machine.inner.list("runs/")) == sorted(self.model)


@pytest.mark.slow
def test_a_mailbox_in_a_bucket_does_what_the_model_does(
    bucket: Bucket, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.mailbox.objects_put.PART_BYTES", 1000)  # payloads go in parts
    monkeypatch.setattr("swarm.mailbox.objects_store.RETRIES", 0)  # no request is repeated but by whoever calls
    run_state_machine_as_test(
        lambda: Contract("objects", tmp_path, faults, bucket),
        settings=settings(max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)),
    )


@pytest.mark.parametrize("kind", ["memory", "folder", "signed"])
def test_the_mailbox_does_what_the_model_does(kind: str, faults: Faults) -> None:
    # A memory file system where there is one: the folder's speed is not what is tested.
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        run_state_machine_as_test(
            lambda: Contract(kind, Path(folder), faults),
            settings=settings(max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)),
        )
