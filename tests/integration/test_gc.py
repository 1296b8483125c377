"""What `swarm mailbox gc` frees, and that nobody misses it: whoever joins afterwards comes to the same parameters."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.audit import gc, size
from swarm.audit.gc import Waste
from swarm.core.keys import RunKeys
from swarm.core.lines import decode
from swarm.core.ranks import CheckpointAt, GenerationEnd, JobCheckpoint, StoredFile
from swarm.core.records import Beat, Control, RoundRecord
from swarm.core.specs import DiLoCo, FedAvg
from swarm.core.trust import SwarmKey
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import FaultyMailbox
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.signed import SignedMailbox
from tests.integration import handmade_job
from tests.integration.audited import FED, KEYS, ROUNDS, SPEC, checked, copied, done, half_done, newest, rewrite, some, train
from tests.integration.simulation import virtually


async def collected(store: MemoryStore, mailbox: Mailbox | None = None) -> Waste:
    """Freed, and nothing beside it."""
    mailbox = mailbox or MemoryMailbox(store)
    found = await gc.look(mailbox)
    freed: dict[str, int] = {}

    def tell(run: str, what: str, objects: int, size_bytes: int) -> None:
        freed[what] = freed.get(what, 0) + objects

    before = dict(store.objects)
    await gc.free(mailbox, found, freed=tell)
    promised = {key: size for each in found.runs for keys in each.sizes.values() for key, size in keys.items()}
    gone = {key: len(data) for key, data in before.items() if key not in store.objects}
    assert gone == promised
    assert sum(freed.values()) == len(gone)
    return found


def whats(found: Waste) -> set[str]:
    return {what for each in found.runs for what in each.sizes}


# Nobody misses it

SPECS = st.one_of(
    st.builds(
        DiLoCo,
        sync_every=st.just(2),
        fragments=st.sampled_from([1, 2]),
        quorum_size=st.sampled_from([1, 2]),
        start_learners=st.just(1),
        commit_dtype=st.sampled_from([None, "BF16"]),
        delta_dtype=st.sampled_from([None, "F8_E4M3"]),
        beat_s=st.just(1.0),
        lease_s=st.just(3.0),
    ),
    st.just(FED),
)


def went_on(store: MemoryStore, spec: DiLoCo | FedAvg, names: str, every: int) -> tuple[list[str], list[bytes]]:
    """(the parameters that those who join come to, the bodies of all round records)."""
    rewrite(store, KEYS.control_record(1), Control(action="extend", rounds=ROUNDS + 4))
    learners = virtually(train(store, spec, names=names, pids=100, checkpoint_every=every))
    records = [data.split(b"\n")[0] for key, data in sorted(store.objects.items()) if f"{KEYS.root}/rounds/" in key]
    return [learner.params for learner in learners], records


@settings(max_examples=settings().max_examples // 16, deadline=None)
@given(
    spec=SPECS,
    for_s=st.floats(0.0, 3.0),
    before=st.sampled_from(["a", "ab"]),
    after=st.sampled_from(["c", "a", "ca"]),
    every=st.sampled_from([0, 1]),
)
def test_whoever_joins_after_it_comes_to_the_same_parameters(
    spec: DiLoCo | FedAvg, for_s: float, before: str, after: str, every: int
) -> None:
    """Learners are killed at any time, then it is freed what nobody needs; others, or the same, go on."""
    store = MemoryStore()
    virtually(train(store, spec, names=before, for_s=for_s, checkpoint_every=every))
    swept = copied(store)
    virtually(collected(swept))
    virtually(collected(swept))  # once more changes nothing that matters
    assert virtually(checked(MemoryMailbox(swept)))[0] == []
    assert went_on(swept, spec, after, every) == went_on(store, spec, after, every)
    assert virtually(checked(MemoryMailbox(swept)))[0] == []


@pytest.mark.parametrize("spec", [SPEC, FED], ids=["diloco", "fedavg"])
def test_it_disturbs_nobody_who_trains(spec: DiLoCo | FedAvg) -> None:
    alone, beside = MemoryStore(), MemoryStore()
    times: list[int] = []

    async def again_and_again(store: MemoryStore) -> None:
        while True:
            await collected_quietly(store)
            times.append(1)
            await asyncio.sleep(0.13)

    async def collected_quietly(store: MemoryStore) -> None:
        mailbox = MemoryMailbox(store)
        await gc.free(mailbox, await gc.look(mailbox), freed=lambda *told: None)

    want = [learner.params for learner in virtually(train(alone, spec))]
    assert [learner.params for learner in virtually(train(beside, spec, beside=again_and_again))] == want
    assert len(times) > 2


# What goes


def test_of_a_run_that_rests_what_its_newest_records_need_stays() -> None:
    store = half_done()
    last = newest(store).round
    found = virtually(collected(store))
    assert whats(found) >= {"deltas", "claims"}
    left = [key.removeprefix(f"{KEYS.root}/") for key in store.objects if key.startswith(f"{KEYS.root}/")]
    numbers = {kind: {int(key.split("/")[n]) for key in left if key.startswith(kind)} for kind, n in WHERE}
    assert numbers["blobs/snapshots/"] == numbers["claims/"] | {last + 1} == {last + 1}
    assert numbers["snapshots/"] == {last, last + 1}
    assert min(numbers["blobs/rounds/"]) > last - 4
    assert numbers["rounds/"] == {0}
    assert virtually(gc.look(MemoryMailbox(store))).runs[0].sizes == {}


WHERE = [("blobs/snapshots/", 2), ("blobs/rounds/", 2), ("snapshots/", 1), ("claims/", 1), ("rounds/", 1)]


def test_orphans_of_losers_and_of_the_dead_go() -> None:
    store = half_done()
    last = newest(store).round
    orphans = [
        KEYS.round_blob(last, "ab" * 32),
        KEYS.round_blob(0, "ab" * 32),
        KEYS.snapshot_blob(last, "a", "ab" * 32),
        KEYS.init_blob(0, "ab" * 32),
        KEYS.file_chunk("ab" * 32, 0),
        KEYS.checkpoint_blob(0, 0, "ab" * 32),
        *(KEYS.beat("z", 1, n) for n in range(4)),
    ]
    open = [KEYS.round_blob(last + 1, "ab" * 32), KEYS.snapshot_blob(last + 1, "z", "ab" * 32), KEYS.claim(last + 1, 7)]
    for key in [*orphans, *open]:
        store.objects[key] = b"x"
    for n in range(4, 6):
        rewrite(store, KEYS.beat("z", 1, n), Beat(phase="left"))
    virtually(collected(store))
    assert {*orphans} & {*store.objects} == {KEYS.beat("z", 1, 3)}
    assert {*open} <= {*store.objects}


def test_checkpoints_that_are_kept_stay_and_older_ones_go() -> None:
    store = done()
    kept = sorted(key for key in store.objects if "/checkpoints/" in key)
    record = some(store, "checkpoints/")
    store.objects[KEYS.checkpoint(0)] = store.objects[record].replace(b'"round":11', b'"round":0')
    store.objects[KEYS.checkpoint_blob(0, 0, "ab" * 32)] = b"x"
    assert "checkpoints" in whats(virtually(collected(store)))
    assert sorted(key for key in store.objects if "/checkpoints/" in key) == kept


def test_while_somebody_trains_only_what_is_two_turns_back_goes() -> None:
    store = half_done()
    last = newest(store).round
    old, young = KEYS.snapshot_blob(last - 4, "z", "ab" * 32), KEYS.snapshot_blob(last - 3, "z", "ab" * 32)
    fetched = KEYS.round_blob(0, "cd" * 32)
    for key in (old, young, fetched):
        store.objects[key] = b"x"

    async def beats() -> None:
        for n in range(50):
            rewrite(store, KEYS.beat("live", 1, n), Beat(phase="train", fetching=("cd" * 32,)))
            await asyncio.sleep(1.0)

    async def main() -> Waste:
        beating = asyncio.create_task(beats())
        await asyncio.sleep(1.5)
        found = await gc.look(MemoryMailbox(store))
        await gc.free(MemoryMailbox(store), found, freed=lambda *told: None)
        beating.cancel()
        return found

    found = virtually(main())
    assert "live" in found.runs[0].live
    assert found.live
    assert old not in store.objects
    assert {young, fetched} <= {*store.objects}


def test_who_was_silent_for_a_lease_is_listened_for_and_who_has_left_is_not() -> None:
    waits: list[float] = []
    virtually(gc.look(MemoryMailbox(half_done()), told=waits.append))
    assert waits == [3.0]
    virtually(gc.look(MemoryMailbox(done()), told=waits.append))
    assert waits == [3.0]


# What is left alone


def test_what_cannot_be_told_for_certain_is_left_alone_with_the_reason() -> None:
    broken, torn, nameless = half_done(), half_done(), half_done()
    del broken.objects[KEYS.round(newest(broken).round - 1)]
    last = newest(torn)
    rewrite(torn, KEYS.round(last.round), msgspec.structs.replace(last, parent="0" * 64))
    del nameless.objects[KEYS.manifest]
    for store, why in ((broken, "missing below round"), (torn, "replaced or restored"), (nameless, "no manifest")):
        before = dict(store.objects)
        (each,) = virtually(collected(store)).runs
        assert why in each.kept
        assert each.size_bytes == sum(len(data) for key, data in before.items() if key.startswith("runs/"))
        assert store.objects == before
    assert "swarm rm testrun1 --force" in each.kept


def test_runs_of_others_are_left_alone() -> None:
    store = half_done()
    key = SwarmKey(bytes(range(32)))
    (each,) = virtually(collected(store, SignedMailbox(MemoryMailbox(store), key))).runs
    assert each.kept == "it is not signed, and this machine has a passphrase"
    data = store.objects[KEYS.manifest].replace(b'"signature":null', b'"signature":"' + b"ab" * 32 + b'"')
    store.objects[KEYS.manifest] = data
    for mailbox in (MemoryMailbox(store), SignedMailbox(MemoryMailbox(store), key)):
        (each,) = virtually(collected(store, mailbox)).runs
        assert each.kept == "it is signed with a passphrase that this machine lacks"


# Data-parallel jobs


def job(store: MemoryStore, ending: GenerationEnd | None) -> RunKeys:
    made = handmade_job.manifest()
    place = RunKeys(made.run)
    for record in [made, *handmade_job.job(ending=ending)]:
        rewrite(store, handmade_job.key_of(place, record), record)
    for generation, step in ((0, 100), (1, 200), (1, 300), (2, 400), (2, 500), (2, 600)):
        data = f"{generation} {step}".encode()
        file = StoredFile(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        record = JobCheckpoint(generation=generation, step=step, iteration=step, by="studio", state=file, adapter=file)
        rewrite(store, place.job_checkpoint(generation, step), record)
        store.objects[place.job_file(generation, step, file.sha256)] = data
    store.objects[place.job_file(1, 250, "ab" * 32)] = b"without a record"
    return place


@pytest.mark.parametrize("named", [None, 100])
def test_of_a_job_the_newest_two_checkpoints_stay_and_what_its_end_names(named: int | None) -> None:
    at = None if named is None else CheckpointAt(generation=0, step=named)
    store = MemoryStore()
    place = job(store, GenerationEnd(generation=2, ending="stopped", by="studio", checkpoint=at))
    virtually(collected(store))
    left = {(int(k.split("/")[4]), int(k.split("/")[5])) for k in store.objects if k.startswith(place.files_of_checkpoints)}
    start = {(1, 200)} if any("/000001/0000000200/" in key for key in store.objects) else set()
    assert left == {(2, 500), (2, 600)} | ({(0, 100)} if named else set()) | start
    assert {int(k.split("/")[4]) for k in store.objects if k.startswith(place.checkpoints)} == {step for _, step in left}


def test_a_job_in_which_somebody_trains_is_left_to_it() -> None:
    store = MemoryStore()
    place = job(store, None)

    async def main() -> Waste:
        async def beats() -> None:
            for n in range(100):
                rewrite(store, place.beat("studio", 1, n), Beat(phase="train"))
                await asyncio.sleep(1.0)

        beating = asyncio.create_task(beats())
        await asyncio.sleep(0.5)
        found = await gc.look(MemoryMailbox(store))
        beating.cancel()
        return found

    found = virtually(main())
    assert found.runs[0].live == ("studio",)
    assert found.runs[0].sizes == {}


# What dead writers staged


def test_what_is_staged_goes_if_it_does_not_change(tmp_path: Path) -> None:
    async def main() -> tuple[Waste, int, list[float]]:
        loop = asyncio.get_running_loop()
        await FolderMailbox.init(tmp_path / "share")
        mailbox = FolderMailbox(tmp_path / "share", now=loop.time)
        dead, alive = tmp_path / "share/tmp" / uuid4().hex, tmp_path / "share/tmp" / uuid4().hex
        dead.write_bytes(b"x" * 100)
        alive.write_bytes(b"x")
        (tmp_path / "share/trash" / uuid4().hex).write_bytes(b"x" * 7)
        found = await gc.look(mailbox)
        seconds: list[float] = []

        def watching(left_s: float) -> None:
            seconds.append(left_s)
            with alive.open("ab") as file:
                file.write(b"x")

        removed = await gc.free_staged(mailbox, found, watching=watching)
        assert [each.name for each in (tmp_path / "share/tmp").iterdir()] == [alive.name]
        return found, removed, seconds

    found, removed, seconds = virtually(main())
    assert sum(found.staged.values()) == 108
    assert removed == 2
    assert seconds[0] == gc.STAGED_S
    assert len(seconds) == gc.STAGED_S


def test_where_nothing_is_staged_nobody_waits() -> None:
    mailbox = FaultyMailbox(MemoryMailbox(MemoryStore()))
    assert virtually(gc.free_staged(mailbox, Waste((), {}))) == 0
    assert mailbox.calls == []


# Sizes


async def sizes(mailbox: Mailbox) -> dict[str, size.Size]:
    return {each.run: each async for each in size.size(mailbox)}


@pytest.mark.parametrize("make", [half_done, done])
def test_every_byte_has_its_place(make: Any) -> None:
    store = make()
    store.objects[f"{KEYS.root}/notes"] = b"xyz"
    found = virtually(sizes(MemoryMailbox(store)))
    assert sum(each.bytes for each in found.values()) == sum(map(len, store.objects.values()))
    of = found["testrun1"]
    assert sum(of.sorts.values()) == of.bytes
    assert of.sorts["unknown"] == 3
    assert of.objects == len(store.objects) - 1
    record = newest(store)
    assert record.outer is not None
    assert record.update is not None
    four = [decode(store.objects[KEYS.round(n)], RoundRecord) for n in range(record.round - 3, record.round + 1)]
    assert of.sorts["theta"] == sum(each.theta.size_bytes for each in four)
    assert of.sorts["init"] == sum(len(data) for key, data in store.objects.items() if "/blobs/init/" in key)


def test_what_gc_would_free_is_told_at_least() -> None:
    for make in (half_done, done):
        store = make()
        told = virtually(sizes(MemoryMailbox(store)))["testrun1"].gc_bytes
        found = virtually(collected(store))
        freed = sum(sum(keys.values()) for keys in found.runs[0].sizes.values())
        assert told <= freed
        if make is done:  # all have left, which needs no listening
            assert told == freed > 0


def test_sizes_of_what_cannot_be_read_are_told_all_the_same() -> None:
    store = half_done()
    store.objects[KEYS.manifest] = b"junk"
    of = virtually(sizes(MemoryMailbox(store)))["testrun1"]
    assert of.bytes == sum(len(data) for key, data in store.objects.items() if key.startswith("runs/"))
    assert of.flaw
    assert of.gc_bytes == 0
    store = half_done()
    store.objects[some(store, "rounds/")] = b"junk"
    of = virtually(sizes(MemoryMailbox(store)))["testrun1"]
    assert "damaged" in of.flaw
