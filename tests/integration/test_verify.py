"""`swarm.audit.verify`: whole mailboxes are whole, also while they are trained in; each kind of damage is found, by name."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from swarm.audit import checking, hashing
from swarm.audit.faults import Fault
from swarm.core.errors import MailboxUnavailable
from swarm.core.keys import RunKeys
from swarm.core.lines import decode, encode
from swarm.core.manifest import FileRef, PayloadRef
from swarm.core.ranks import GenerationEnd, JobCheckpoint, StoredFile
from swarm.core.records import Checkpoint, Control, LearnerRecord, RoundRecord
from swarm.core.specs import Algorithm
from swarm.core.trust import SwarmKey
from swarm.exchange import create_run
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault as Planned
from swarm.mailbox.faults import FaultyMailbox
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.signed import SignedMailbox
from swarm.tape import Tape
from swarm.tensors.payload import Packed
from tests.integration import handmade_job
from tests.integration.audited import (
    FED,
    KEYS,
    SPEC,
    checked,
    done,
    faults_of,
    flip,
    half_done,
    newest,
    rewrite,
    some,
    train,
)
from tests.integration.simulation import draft_of, model, new_run, virtually

SECRET = SwarmKey(bytes(range(32)))


def kinds(faults: list[Fault]) -> list[tuple[str, str]]:
    return sorted((fault.fault, fault.key) for fault in faults)


# Whole ones


@pytest.mark.parametrize("make", [half_done, done])
def test_a_run_that_is_whole_has_no_fault(make: Callable[[], MemoryStore]) -> None:
    store = make()
    faults, report = virtually(checked(MemoryMailbox(store)))
    assert faults == []
    assert report.objects == len(store.objects) - 1  # all but the marker
    assert report.bytes == sum(len(data) for key, data in store.objects.items() if key.startswith("runs/"))
    assert (report.runs, report.unknown_count, report.notes) == (1, 0, [])


def test_an_empty_mailbox_is_whole() -> None:
    faults, report = virtually(checked(MemoryMailbox(MemoryStore())))
    assert (faults, report.runs, report.objects) == ([], 0, 0)


@pytest.mark.parametrize("spec", [SPEC, FED], ids=["diloco", "fedavg"])
def test_a_run_that_goes_on_gives_no_false_alarm(spec: Algorithm) -> None:
    reports: list[int] = []

    async def again_and_again(store: MemoryStore) -> None:
        while True:
            faults, report = await checked(MemoryMailbox(store))
            assert faults == []
            reports.append(report.objects)
            await asyncio.sleep(0.02)

    virtually(train(MemoryStore(), spec, beside=again_and_again))
    assert len(set(reports)) > 2  # how often depends on the machine: the run does not wait for the threads that hash


async def test_a_folder_is_checked_as_memory_is(tmp_path: Path) -> None:
    store = half_done()
    await FolderMailbox.init(tmp_path / "share")
    mailbox = FolderMailbox(tmp_path / "share")
    for key, data in store.objects.items():
        if key.startswith("runs/"):
            await (mailbox.create(key, data) if key.endswith("/record.json") else mailbox.put(key, [data]))
    faults, report = await checked(mailbox)
    assert (faults, report.objects) == ([], len(store.objects) - 1)
    flip(store, key := some(store, "blobs/rounds/"))
    (tmp_path / "share" / key).write_bytes(store.objects[key])
    (tmp_path / "share" / KEYS.root / "thumbs.db").write_bytes(b"x")
    faults, report = await checked(mailbox)
    assert kinds(faults) == [("damaged", key)]
    assert (report.unknown_count, report.unknown) == (1, {"testrun1": f"{KEYS.root}/thumbs.db"})


# Flipped bits

RECORDS = ["manifest/", "rounds/", "snapshots/", "claims/", "learners/", "beats/", "evals/", "checkpoints/"]
PAYLOADS = ["blobs/init/", "blobs/rounds/", "blobs/snapshots/", "blobs/checkpoints/"]


@pytest.mark.parametrize("last", [False, True], ids=["oldest", "newest"])
@pytest.mark.parametrize("prefix", [*RECORDS, *PAYLOADS])
def test_a_flipped_bit_is_found_where_it_is(prefix: str, last: bool) -> None:
    store = half_done()
    key = some(store, prefix, last=last)
    before = store.objects[key]
    flip(store, key, len(prefix))
    faults = faults_of(store)
    if any(_means_the_same(data, before) for data in [store.objects[key]] if key.endswith(".json")):
        assert faults == []  # a bit of the nonce, or in a name that nobody knows
        return
    assert ("damaged", key) in kinds(faults)
    assert len(faults) == 1
    assert faults[0].run == "testrun1"
    assert faults[0].remedy
    assert "\n" not in str(faults[0])


def _means_the_same(data: bytes, before: bytes) -> bool:
    lines, were = data.split(b"\n"), before.split(b"\n")
    try:
        return lines[0] == were[0] and len(lines) == 3 and msgspec.json.decode(lines[1])["sha256"] in before.decode()
    except (msgspec.MsgspecError, KeyError, UnicodeDecodeError):
        return False


def test_what_the_way_here_damaged_is_fetched_again() -> None:
    class Once(MemoryMailbox):
        def __init__(self, store: MemoryStore) -> None:
            super().__init__(store)
            self.spoilt: set[str] = set()

        async def read(self, key: str) -> bytes | None:
            data = await super().read(key)
            if data is None or key in self.spoilt or "/rounds/" not in key:
                return data
            self.spoilt.add(key)
            return data[:-3]

        async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
            size = await super().read_part(key, offset, buffer)
            if size and key not in self.spoilt and "/blobs/" in key:
                self.spoilt.add(key)
                buffer[0] ^= 1
            return size

    mailbox = Once(half_done())
    assert virtually(checked(mailbox))[0] == []
    assert len(mailbox.spoilt) > 10


# What is missing


def _needed(store: MemoryStore) -> list[str]:
    record = newest(store)
    assert record.outer is not None
    assert record.update is not None
    blobs = [KEYS.round_blob(ref.round, ref.sha256) for ref in (record.theta, record.outer, record.update)]
    return [*blobs, some(store, "blobs/init/"), some(store, "blobs/checkpoints/")]


@pytest.mark.parametrize("n", range(5))
def test_a_payload_that_a_record_refers_to_is_missed(n: int) -> None:
    store = half_done()
    key = _needed(store)[n]
    del store.objects[key]
    assert kinds(faults_of(store)) == [("missing", key)]


def test_the_delta_of_an_open_round_is_missed_and_one_of_a_closed_round_is_not() -> None:
    store = half_done()
    open = newest(store).round + 1
    key = some(store, f"blobs/snapshots/{open:010d}/")
    del store.objects[key]
    (fault,) = faults_of(store)
    assert (fault.fault, fault.key) == ("missing", key)
    assert "closes without it" in fault.remedy
    store = half_done()
    for old in [key for key in store.objects if "/blobs/snapshots/" in key and f"/{open:010d}/" not in key]:
        del store.objects[old]
    assert faults_of(store) == []


def test_payloads_of_older_rounds_may_be_gone() -> None:
    store, last = done(), newest(done()).round
    old = [key for key in store.objects if "/blobs/rounds/" in key and int(key.split("/")[4]) <= last - 4]
    for key in old:
        del store.objects[key]
    assert faults_of(store) == []


def test_a_round_in_the_middle_is_missed_once() -> None:
    store = half_done()
    for round in (2, 3):
        del store.objects[KEYS.round(round)]
    (fault,) = faults_of(store)
    assert (fault.fault, fault.key) == ("gap", KEYS.round(2))
    assert "rounds 2 to 3 are not there" in fault.what


def test_an_absurd_number_costs_nothing() -> None:
    store = half_done()
    absurd = 9_999_999_999
    store.objects[KEYS.round(absurd)] = store.objects[KEYS.round(0)]
    store.objects[KEYS.control_record(10**17)] = encode(Control(action="pause"), nonce="0" * 32)
    faults = faults_of(store)
    assert [fault.what for fault in faults if fault.fault == "gap"] == [
        f"rounds {newest(half_done()).round + 1} to {absurd - 1} are not there, and round {absurd} is",
        f"control records 1 to {10**17 - 1} are not there: those behind count for nothing",
    ]
    assert ("misplaced", KEYS.round(absurd)) in kinds(faults)


@pytest.mark.parametrize(
    ("numbers", "first", "end", "want"),
    [
        ([], 0, None, []),
        ([], 0, 3, [(0, 2)]),
        ([0, 1, 2], 0, 3, []),
        ([2, 0, 6, 2], 0, None, [(1, 1), (3, 5)]),
        ([0, 1, 9], 1, 5, [(2, 4)]),
        ([3], 1, None, [(1, 2)]),
    ],
)
def test_gaps(numbers: list[int], first: int, end: int | None, want: list[tuple[int, int]]) -> None:
    assert [*checking.gaps(numbers, first=first, end=end)] == want


def test_a_control_record_in_the_middle_is_missed() -> None:
    store = half_done()
    for n in (1, 2, 4):
        rewrite(store, KEYS.control_record(n), Control(action="pause"))
    assert kinds(faults_of(store)) == [("gap", KEYS.control_record(3))]
    store = half_done()
    last = newest(store)
    rewrite(store, KEYS.round(last.round), msgspec.structs.replace(last, control=1))
    assert kinds(faults_of(store)) == [("missing", KEYS.control_record(1))]


def test_a_manifest_is_missed_where_a_run_has_begun_and_not_where_none_has() -> None:
    store = half_done()
    del store.objects[KEYS.manifest]
    faults, report = virtually(checked(MemoryMailbox(store)))
    assert (kinds(faults), report.notes) == ([("missing", KEYS.manifest)], [])
    store.objects = {key: data for key, data in store.objects.items() if "/blobs/init/" in key or "mailbox/" in key}
    faults, report = virtually(checked(MemoryMailbox(store)))
    assert faults == []
    assert "no manifest" in report.notes[0]


# What does not fit


def test_another_parent_breaks_the_chain() -> None:
    store = half_done()
    last = newest(store)
    rewrite(store, key := KEYS.round(last.round), msgspec.structs.replace(last, parent="0" * 64))
    assert kinds(faults_of(store)) == [("chain", key)]
    first = decode(store.objects[KEYS.round(0)], RoundRecord)
    rewrite(store, KEYS.round(0), msgspec.structs.replace(first, parent="1" * 64))
    assert [key for _, key in kinds(faults_of(store))] == [KEYS.round(0), KEYS.round(1), key]


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        ("rounds/", KEYS.round(3)),
        ("learners/", KEYS.learner("mallory", 1)),
        ("snapshots/", KEYS.snapshot(newest(half_done()).round + 1, unit="z", learner="z", incarnation=1)),
        ("claims/", KEYS.claim(1, 0)),
        ("evals/", KEYS.eval(900)),
        ("checkpoints/", KEYS.checkpoint(900)),
    ],
)
def test_a_record_of_another_place_is_found(kind: str, to: str) -> None:
    store = half_done()
    source = KEYS.round(2) if kind == "rounds/" else some(store, kind)
    store.objects[to] = store.objects[source]
    assert ("misplaced", to) in kinds(faults_of(store))


def test_a_record_of_another_fragment_is_found() -> None:
    store = half_done()
    last = newest(store)
    rewrite(store, key := KEYS.round(last.round), msgspec.structs.replace(last, fragment=1 - last.fragment))
    assert ("misplaced", key) in kinds(faults_of(store))


@pytest.mark.parametrize("seal", [True, False], ids=["another size", "other tensors"])
def test_a_payload_is_measured_by_its_record(seal: bool) -> None:
    store = half_done()
    last = newest(store)
    packed = Packed({"other": np.zeros(3, np.float32)})
    data = b"".join(bytes(chunk) for chunk in packed)
    ref = PayloadRef(round=last.round, sha256=packed.sha256, size_bytes=len(data) + seal)
    store.objects[key := KEYS.round_blob(ref.round, ref.sha256)] = data
    rewrite(store, KEYS.round(last.round), msgspec.structs.replace(last, theta=ref))
    (fault,) = faults_of(store)
    assert (fault.fault, fault.key) == ("damaged", key)
    assert ("its record says" if seal else "other tensors") in fault.what


@pytest.mark.parametrize("data", [b"", b"junk", b"\xff" * 64, (10).to_bytes(8, "little") + b"{}        x"])
def test_what_hashes_and_is_no_safetensors_file_is_found(data: bytes) -> None:
    store = half_done()
    store.objects[key := KEYS.round_blob(0, hashlib.sha256(data).hexdigest())] = data
    (fault,) = faults_of(store)
    assert (fault.fault, fault.key) == ("damaged", key)
    assert "no Safetensors file" in fault.what


def test_a_checkpoint_needs_every_fragment() -> None:
    store = half_done()
    key = some(store, "checkpoints/")
    record = decode(store.objects[key], Checkpoint)
    rewrite(store, key, msgspec.structs.replace(record, theta=record.theta[:1]))
    assert kinds(faults_of(store)) == [("misplaced", key)]


def test_a_damaged_manifest_does_not_hide_what_else_is_wrong() -> None:
    store = half_done()
    flip(store, KEYS.manifest, 1)
    flip(store, theta := _needed(store)[0])
    flip(store, learner := some(store, "learners/"), 2)
    assert {key for _, key in kinds(faults_of(store))} == {KEYS.manifest, theta, learner}


def test_unknown_keys_are_counted_and_named_and_no_faults() -> None:
    store = half_done()
    for key in (f"{KEYS.root}/rounds/notes", f"{KEYS.root}/later/000001/record.json", "runs/desktop.ini"):
        store.objects[key] = b"x"
    faults, report = virtually(checked(MemoryMailbox(store)))
    assert (faults, report.unknown_count) == ([], 3)
    assert report.unknown[""] == "runs/desktop.ini"


def test_a_large_payload_is_read_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "PART_BYTES", 48)
    store = half_done()
    faults, report = virtually(checked(MemoryMailbox(store)))
    assert faults == []
    assert report.bytes == sum(len(data) for key, data in store.objects.items() if key.startswith("runs/"))
    flip(store, key := _needed(store)[1])
    assert kinds(faults_of(store)) == [("damaged", key)]


def test_what_the_share_refuses_again_and_again_is_unreadable_and_the_rest_is_checked() -> None:
    store = half_done()
    blob, record = _needed(store)[0], KEYS.round(1)
    plan = [Planned("fail", op="read_part", key=blob, count=None), Planned("fail", op="read", key=record, count=None)]
    faults, report = virtually(checked(FaultyMailbox(MemoryMailbox(store), plan)))
    assert kinds(faults) == sorted([("unreadable", blob), ("unreadable", record)])
    assert report.objects >= len(store.objects) - 3
    passing = [Planned("fail", op="read_part", count=3), Planned("fail", op="read", skip=5, count=2)]
    assert virtually(checked(FaultyMailbox(MemoryMailbox(store), passing)))[0] == []


def test_a_share_that_is_away_ends_it() -> None:
    plan = [Planned("fail", op="read_part", count=None), Planned("fail", op="open", count=None)]
    with pytest.raises(MailboxUnavailable):
        virtually(checked(FaultyMailbox(MemoryMailbox(half_done()), plan)))


def test_late_and_doubled_listings_give_no_false_alarm() -> None:
    store = half_done()
    double = [Planned("double", count=None)]
    assert virtually(checked(FaultyMailbox(MemoryMailbox(store), double)))[0] == []

    class Late(MemoryMailbox):
        async def sizes(self, prefix: str) -> Any:
            return {key: size for key, size in (await super().sizes(prefix)).items() if "/rounds/" not in key or "7" not in key}

    assert virtually(checked(Late(store)))[0] == []


def test_a_run_that_is_deleted_meanwhile_is_said_to_be() -> None:
    class Deleting(MemoryMailbox):
        async def read_part(self, key: str, offset: int, buffer: bytearray | memoryview) -> int | None:
            self.store.objects = {key: data for key, data in self.store.objects.items() if not key.startswith("runs/")}
            return await super().read_part(key, offset, buffer)

    faults, report = virtually(checked(Deleting(half_done())))
    assert faults == []
    assert report.notes == ["test-run was deleted while it was checked"]


# Attached files


async def with_file(store: MemoryStore, chunks: int = 3) -> tuple[FileRef, bytes]:
    data, size = bytes(range(250)) * 4, 400
    parts = [data[n * size : (n + 1) * size] for n in range(chunks)]
    hashes = b"".join(hashlib.sha256(part).digest() for part in parts)
    ref = FileRef(
        name="data.txt",
        kind="data",
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        chunk_bytes=size,
        hashes_sha256=hashlib.sha256(hashes).hexdigest(),
    )
    store.objects[KEYS.file_hashes(ref.sha256)] = hashes
    for n, part in enumerate(parts):
        store.objects[KEYS.file_chunk(ref.sha256, n)] = part
    await new_run(store, SPEC, files=(ref,))
    return ref, data


def test_attached_files_are_checked_chunk_by_chunk() -> None:
    store = MemoryStore()
    ref, _ = virtually(with_file(store))
    assert faults_of(store) == []
    whole = dict(store.objects)
    for n in range(3):
        flip(store, key := KEYS.file_chunk(ref.sha256, n), n)
        assert kinds(faults_of(store)) == [("damaged", key)]
        del store.objects[key]
        assert kinds(faults_of(store)) == [("missing", key)]
        store.objects = dict(whole)
    flip(store, key := KEYS.file_hashes(ref.sha256))
    assert kinds(faults_of(store)) == [("damaged", key)]
    del store.objects[key]
    assert kinds(faults_of(store)) == [("missing", key)]
    store.objects = whole | {KEYS.file_chunk("ab" * 32, 0): b"of who came second"}
    faults, report = virtually(checked(MemoryMailbox(store)))
    assert (faults, report.unneeded) == ([], 1)


# Other methods


def test_a_federated_run_is_checked() -> None:
    store = MemoryStore()
    virtually(train(store, FED, for_s=1.5))
    assert faults_of(store) == []
    for prefix in ("clients/", "snapshots/", "rounds/"):
        key = some(store, prefix)
        store.objects[key] = store.objects[key].replace(b'"round":', b'"rount":')
        assert kinds(faults_of(store)) == [("damaged", key)]
        store.objects[key] = store.objects[key].replace(b'"rount":', b'"round":')


def job(store: MemoryStore, *, finished: bool = False) -> RunKeys:
    made = handmade_job.manifest()
    place = RunKeys(made.run)
    text = b'{"w":{"dtype":"U32","shape":[2],"data_offsets":[0,8]}}  '
    file = len(text).to_bytes(8, "little") + text + bytes(8)
    stored = StoredFile(sha256=hashlib.sha256(file).hexdigest(), size_bytes=len(file))
    for record in [made, *handmade_job.job(finished=finished)]:
        if isinstance(record, JobCheckpoint):
            record = msgspec.structs.replace(record, state=stored, adapter=stored)
            store.objects[place.job_file(record.generation, record.step, stored.sha256)] = file
        rewrite(store, handmade_job.key_of(place, record), record)
    return place


def _kind(key: str) -> str:
    parts = key.split("/")
    return "/".join(part for part in parts if not part.isdecimal() and len(part) < 60)


@pytest.mark.parametrize("finished", [False, True])
def test_a_data_parallel_job_is_checked(finished: bool) -> None:
    store = MemoryStore()
    place = job(store, finished=finished)
    assert faults_of(store) == []
    if not finished:
        return
    whole = dict(store.objects)
    for key in {**{_kind(key): key for key in reversed(whole)}, **{_kind(key): key for key in whole}}.values():
        if "/blobs/checkpoints/" in key:
            flip(store, key)
            assert kinds(faults_of(store)) == [("damaged", key)]
            del store.objects[key]
            assert kinds(faults_of(store)) == [("missing", key)]
        elif "/ranks/" in key:
            flip(store, key, 1)
            if not _means_the_same(store.objects[key], whole[key]):
                assert kinds(faults_of(store)) == [("damaged", key)]
        store.objects = dict(whole)
    del store.objects[place.job_log(2, 1)]
    del store.objects[place.generation_end(1)]
    assert kinds(faults_of(store)) == [("gap", place.generation_end(1)), ("gap", place.job_log(2, 1))]


def test_the_checkpoint_that_an_end_names_is_missed() -> None:
    store = MemoryStore()
    place = job(store, finished=True)
    end = next(decode(data, GenerationEnd) for key, data in store.objects.items() if key == place.generation_end(2))
    assert end.checkpoint is not None
    key = place.job_checkpoint(end.checkpoint.generation, end.checkpoint.step)
    for each in [key, *(each for each in store.objects if f"/{end.checkpoint.step:010d}/" in each)]:
        store.objects.pop(each, None)
    assert kinds(faults_of(store)) == [("missing", key)]


# Signed ones


async def signed(store: MemoryStore) -> Mailbox:
    mailbox = SignedMailbox(MemoryMailbox(store), SECRET)
    manifest, _ = await create_run(mailbox, *draft_of(NumpyAdapter(model(7)), SPEC))
    tape = Tape(mailbox, manifest)
    record = LearnerRecord(learner="a", incarnation=1, machine="m", machine_name="m", boot="b", pid=1, process="1", version="0")
    await tape.register(record, nonce="0" * 32)
    await tape.control(Control(action="pause", by="a"))
    return mailbox


def test_a_signed_run_is_checked_with_the_passphrase_and_without() -> None:
    store = MemoryStore()
    mailbox = virtually(signed(store))
    faults, report = virtually(checked(mailbox))
    assert (faults, report.notes) == ([], [])
    for other in (MemoryMailbox(store), SignedMailbox(MemoryMailbox(store), SwarmKey(bytes(32)))):
        faults, report = virtually(checked(other))
        assert faults == []
        assert report.notes == ["test-run: signatures were not checked: it is signed with a passphrase that this machine lacks"]


@pytest.mark.parametrize("kind", ["control/", "learners/", "manifest/"])
def test_what_somebody_else_wrote_into_a_signed_run_is_named(kind: str) -> None:
    store = MemoryStore()
    mailbox = virtually(signed(store))
    key = some(store, kind)
    body = store.objects[key].split(b"\n")[0]
    store.objects[key] = encode(msgspec.Raw(body), nonce="0" * 32)
    (fault,) = virtually(checked(mailbox))[0]
    assert (fault.fault, fault.key) == ("forged", key)


def test_a_flipped_bit_in_a_signed_record_is_damage_and_no_forgery() -> None:
    store = MemoryStore()
    mailbox = virtually(signed(store))
    flip(store, key := some(store, "control/"), 1)
    assert kinds(virtually(checked(mailbox))[0]) == [("damaged", key)]


def test_an_open_run_beside_a_passphrase_is_checked_and_said_to_be_open() -> None:
    faults, report = virtually(checked(SignedMailbox(MemoryMailbox(half_done()), SECRET)))
    assert faults == []
    assert report.notes == ["test-run: signatures were not checked: it is not signed, and this machine has a passphrase"]


async def test_what_one_of_many_raises_ends_all() -> None:
    served: list[int] = []

    async def work(n: int) -> None:
        await asyncio.sleep(0)
        served.append(n)
        if n == 3:
            raise MailboxUnavailable("gone")

    with pytest.raises(MailboxUnavailable):
        await checking.spread(work, range(100), 4)
    assert len(served) < 20
