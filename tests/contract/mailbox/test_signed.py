"""What only a signed mailbox has: records of others, and of other places, count for nothing."""

from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from swarm.core.errors import MailboxCorrupt, MailboxUnavailable, RecordError, RecordForged
from swarm.core.keys import MARKER, RunKeys
from swarm.core.lines import Envelope, encode
from swarm.core.records import Control
from swarm.core.trust import SwarmKey
from swarm.mailbox.contract import MAX_READ_BYTES
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.signed import SignedMailbox

KEY = SwarmKey(bytes(range(32)))
KEYS, ELSEWHERE = RunKeys("run1"), RunKeys("run2")
ROUND, BEAT = KEYS.round(7), KEYS.beat("studio", 1, 0)


def record(action: str = "stop") -> bytes:
    return encode(Control(action=action), nonce=uuid4().hex)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def mailbox(store: MemoryStore) -> SignedMailbox:
    return SignedMailbox(MemoryMailbox(store), KEY)


def resigned(data: bytes, signature: str | None) -> bytes:
    line, envelope, _ = data.split(b"\n")
    return b"%b\n%b\n" % (
        line,
        msgspec.json.encode(msgspec.structs.replace(msgspec.json.decode(envelope, type=Envelope), signature=signature)),
    )


async def test_what_stands_there_is_the_record_with_its_signature(mailbox, store):
    data = record()
    await mailbox.create(ROUND, data)
    await mailbox.put(BEAT, [data[:9], data[9:]])
    for key in (ROUND, BEAT):
        assert store.objects[key] == resigned(data, KEY.signature("run1", key, data.split(b"\n")[0]))
        assert await mailbox.read(key) == data
        buffer = bytearray(len(data))
        assert await mailbox.read_part(key, 3, buffer) == len(data) - 3
        assert buffer.startswith(data[3:])


async def test_a_machine_without_the_passphrase_reads_it_all_the_same(mailbox, store):
    await mailbox.create(ROUND, record())
    found = await MemoryMailbox(store).read(ROUND)
    assert msgspec.json.decode(found.split(b"\n")[1], type=Envelope).signature


async def test_the_marker_and_payloads_pass_as_they_are(mailbox, store):
    blob = KEYS.init_blob(0, "ab" * 32)
    await mailbox.put(blob, [b"x"])
    assert store.objects[blob] == b"x"
    assert await mailbox.read(MARKER) == store.objects[MARKER]
    assert await mailbox.read(blob) == b"x"


FORGERIES = {
    "unsigned": lambda key: record(),
    "another passphrase": lambda key: resigned(
        data := record(), SwarmKey(bytes(32)).signature("run1", key, data.split(b"\n")[0])
    ),
    "another run": lambda key: resigned(
        data := record(), KEY.signature("run2", key.replace("run1", "run2"), data.split(b"\n")[0])
    ),
    "another run under this key": lambda key: resigned(data := record(), KEY.signature("run2", key, data.split(b"\n")[0])),
    "another place": lambda key: resigned(data := record(), KEY.signature("run1", KEYS.round(8), data.split(b"\n")[0])),
    "another body": lambda key: resigned(record("pause"), KEY.signature("run1", key, record().split(b"\n")[0])),
    "no signature's text": lambda key: resigned(record(), "é" * 64),
    "empty": lambda key: b"",
    "junk": lambda key: b"\0\xff" * 500,
    "no envelope": lambda key: b"{}\n{}\n",
    "three lines": lambda key: record() + b"{}\n",
}


@pytest.mark.parametrize("key", [ROUND, BEAT])
@pytest.mark.parametrize("how", FORGERIES)
async def test_a_forgery_is_refused_named_and_counted_once(mailbox, store, how, key):
    store.objects[key] = FORGERIES[how](key)
    for _ in range(3):
        with pytest.raises(RecordForged, match=key) as raised:
            await mailbox.read(key)
        with pytest.raises(RecordForged):
            await mailbox.read_part(key, 0, bytearray(9))
    assert KEY.fingerprint in str(raised.value)
    assert raised.value.unsigned == (how in ("unsigned", "empty", "junk", "no envelope", "three lines"))
    forged = mailbox.forged("run1")
    assert (forged.count, forged.newest) == (1, key)
    assert mailbox.forged("run2").count == 0


@pytest.mark.parametrize("key", [ROUND, BEAT])
async def test_what_is_too_large_to_be_a_record_is_a_forgery(mailbox, store, key):
    store.objects[key] = bytes(MAX_READ_BYTES + 1)
    with pytest.raises(RecordForged, match=key):
        await mailbox.read(key)
    assert await mailbox.is_genuine(key) is False
    assert mailbox.forged("run1").count == 1


class Weighing(MemoryMailbox):
    """Counts what is read."""

    read_bytes = 0

    async def read(self, key: str) -> bytes | None:
        data = await super().read(key)
        self.read_bytes += len(data or b"")
        return data

    async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
        size = await super().read_part(key, offset, buffer)
        self.read_bytes += size or 0
        return size


@pytest.mark.parametrize("key", [BEAT, KEYS.snapshot(7, unit="a", learner="a", incarnation=1), KEYS.claim(7, 0)])
async def test_a_large_forgery_is_read_once_and_what_takes_its_place_at_once(store, key):
    inner = Weighing(store)
    mailbox = SignedMailbox(inner, KEY)
    store.objects[key] = bytes(8 << 20)
    for _ in range(20):
        with pytest.raises(RecordForged, match=key):
            await mailbox.read(key)
    assert inner.read_bytes < 9 << 20
    assert mailbox.forged("run1").count == 1
    data = record()
    del store.objects[key]
    assert await mailbox.read(key) is None
    assert await (mailbox.create(key, data) if key.endswith("/record.json") else mailbox.put(key, [data]))
    assert await mailbox.read(key) == data


async def test_a_payload_that_is_too_large_to_be_read_is_no_forgery(mailbox, store):
    blob = KEYS.init_blob(0, "ab" * 32)
    store.objects[blob] = bytes(MAX_READ_BYTES + 1)
    with pytest.raises(MailboxCorrupt) as raised:
        await mailbox.read(blob)
    assert not isinstance(raised.value, RecordForged)


async def test_a_record_moved_from_another_run_or_round_does_not_verify(mailbox, store):
    await mailbox.create(ROUND, record())
    for key in (KEYS.round(8), ELSEWHERE.round(7), KEYS.control_record(1)):
        store.objects[key] = store.objects[ROUND]
        with pytest.raises(RecordForged):
            await mailbox.read(key)
    assert mailbox.forged("run1").kinds == {"round": 1, "control": 1}


async def test_who_comes_second_to_a_forged_record_has_lost(mailbox, store):
    store.objects[ROUND] = record()
    assert await mailbox.create(ROUND, record()) is False
    with pytest.raises(RecordForged):
        await mailbox.read(ROUND)


async def test_who_lost_the_reply_recognises_its_own(store):
    inner = FaultyMailbox(MemoryMailbox(store), [Fault("lose", op="create")])
    mailbox, mine = SignedMailbox(inner, KEY), record()
    with pytest.raises(MailboxUnavailable):
        await mailbox.create(ROUND, mine)
    assert await mailbox.create(ROUND, mine) is True
    assert await mailbox.create(ROUND, record()) is False


async def test_what_is_no_record_is_not_signed(mailbox, store):
    for attempt in (mailbox.create(ROUND, b"x"), mailbox.put(BEAT, [b"{}\n{}\n"])):
        with pytest.raises(RecordError):
            await attempt
    assert list(store.objects) == [MARKER]


async def test_what_is_remembered_of_forgeries_is_bounded(mailbox, store, monkeypatch):
    monkeypatch.setattr("swarm.mailbox.signed.MAX_REMEMBERED", 10)
    for n in range(100):
        key = RunKeys(f"run{n:04d}").round(0)
        store.objects[key] = b"junk"
        with pytest.raises(RecordForged):
            await mailbox.read(key)
    assert len(mailbox._met) == len(mailbox._forged) == 10
    assert mailbox.forged("run0099").count == 1
