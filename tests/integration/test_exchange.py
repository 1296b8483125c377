"""Runs created by several at once, payloads read and written in parts, checkpoints, and what is swept."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import numpy as np
import pytest

import swarm.exchange
from swarm.core.errors import MailboxCorrupt, MailboxUnavailable, PayloadCorrupt, PayloadMissing, SchemaMismatch, UsageError
from swarm.core.finetune import FineTune
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.manifest import INIT, DataRef, Manifest, ModelRef, PayloadRef, TaskRef
from swarm.core.records import Checkpoint, RoundRecord
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange, create_run
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.manifests import read_manifest
from swarm.tensors.payload import Packed
from swarm.tensors.schema import Schema, TensorSpec
from tests.integration.simulation import draft_of, model, new_run, virtually
from tests.integration.wrappers import Wrapped

SPEC = DiLoCo(sync_every=4, fragments=2)


def draft(seed: int, fragments: int = 2) -> tuple[Manifest, list[dict[str, np.ndarray]]]:
    """A manifest that is not written yet, and its Θ⁰."""
    return draft_of(NumpyAdapter(model(seed)), msgspec.structs.replace(SPEC, fragments=fragments), name=f"by-{seed}")


# Creating


def test_of_several_that_create_one_run_exactly_one_does_and_the_others_adopt_it() -> None:
    async def main() -> None:
        store = MemoryStore()
        made = await asyncio.gather(*(create_run(MemoryMailbox(store), *draft(seed)) for seed in range(5)))
        assert [created for _, created in made].count(True) == 1
        assert len({manifest for manifest, _ in map(hashable, made)}) == 1
        manifest = made[0][0]
        assert await read_manifest(MemoryMailbox(store), "testrun1") == manifest
        exchange = Exchange(MemoryMailbox(store), manifest)
        winner = int(manifest.name.removeprefix("by-"))
        for fragment, ref in enumerate(manifest.init):
            for name, array in (await exchange.fetch(fragment, ref)).items():
                assert array.tobytes() == model(winner)[name].tobytes()

    virtually(main())


def test_only_a_run_in_rounds_needs_parameters_to_begin_with() -> None:
    files = (DataRef(name="model.safetensors", sha256="0" * 64, size_bytes=5),)
    tuning = Manifest(
        run="testrun1",
        name="tuned",
        algorithm=FineTune(),
        task=TaskRef(name="mlx-lm"),
        model=ModelRef(name="tiny", files=files),
    )
    bare = msgspec.structs.replace(draft(0)[0], run="testrun2", init=())

    async def main() -> None:
        mailbox = MemoryMailbox(MemoryStore())
        for manifest in (tuning, bare):
            await mailbox.create(RunKeys(manifest.run).manifest, encode(manifest, nonce="0" * 32))
        assert await read_manifest(mailbox, "testrun1") == tuning
        with pytest.raises(MailboxCorrupt, match="no initial payloads"):
            await read_manifest(mailbox, "testrun2")

    virtually(main())


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("a.weight.scale", {"delta_dtype": "F4"}, "F4 keeps 'a.weight'"),
        ("a.weight.scale", {"commit_dtype": "F8_E4M3"}, "F8_E4M3 keeps 'a.weight'"),
        ("b.bias.master", {"commit_dtype": "BF16"}, "master copy keeps 'b.bias'"),
    ],
)
def test_a_run_whose_payloads_would_have_a_name_twice_is_not_made(name: str, changes: dict[str, str], words: str) -> None:
    def clashing(**changes: str) -> tuple[Manifest, list[dict[str, np.ndarray]]]:
        theta = model(1) | {name: np.zeros(2, np.float32)}
        schema = Schema(TensorSpec(n, "F32", a.shape) for n, a in theta.items())
        manifest, _ = draft(1)
        manifest = msgspec.structs.replace(
            manifest,
            algorithm=msgspec.structs.replace(SPEC, **changes),
            tensors=tuple(schema),
            schema_sha256=schema.digest,
        )
        return manifest, [{n: theta[n] for n in names} for names in manifest.plan]

    store = MemoryStore()
    before = set(store.objects)
    with pytest.raises(UsageError, match=words) as caught:
        virtually(create_run(MemoryMailbox(store), *clashing(**changes)))
    assert "\n" not in str(caught.value)
    assert store.objects.keys() == before
    assert virtually(create_run(MemoryMailbox(store), *clashing()))[1]


def hashable(made: tuple[Manifest, bool]) -> tuple[bytes, bool]:
    return msgspec.json.encode(made[0]), made[1]


@pytest.mark.parametrize("kind", ["fail", "lose"])
@pytest.mark.parametrize("calls", range(3))
def test_creating_again_after_a_failure_or_a_lost_reply_gives_the_same_run(kind: Any, calls: int) -> None:
    async def main() -> None:
        mailbox = FaultyMailbox(MemoryMailbox(MemoryStore()), [Fault(kind, skip=calls)])
        with pytest.raises(MailboxUnavailable):
            await create_run(mailbox, *draft(1), nonce="mine")
        manifest, created = await create_run(mailbox, *draft(1), nonce="mine")
        assert created, "whoever made it and did not hear so hears it now"
        assert await create_run(mailbox, *draft(1), nonce="mine") == (manifest, True)
        assert await create_run(mailbox, *draft(2), nonce="another") == (manifest, False)
        assert await create_run(mailbox, *draft(1)) == (manifest, False)
        assert await read_manifest(mailbox, "testrun1") == manifest

    virtually(main())


def test_what_the_losers_of_a_creation_wrote_is_swept_after_two_cycles_and_not_before() -> None:
    async def main() -> None:
        store = MemoryStore()
        (manifest, _), *_ = [await create_run(MemoryMailbox(store), *draft(seed)) for seed in range(3)]
        exchange = Exchange(MemoryMailbox(store), manifest)
        prefix = f"{exchange.keys.root}/blobs/init/"
        assert len(await exchange.mailbox.list(prefix)) == 6
        assert await exchange.sweep(3, fetching=frozenset()) == 0
        assert await exchange.sweep(4, fetching=frozenset()) == 4
        assert await exchange.mailbox.list(prefix) == [exchange.key_of(k, ref) for k, ref in enumerate(manifest.init)]
        assert await exchange.sweep(5, fetching=frozenset()) == 0

    virtually(main())


def test_what_a_record_may_need_that_is_not_seen_just_now_is_not_swept() -> None:
    """A round of no weight repeats the references of the one before: parameters of any age may be needed."""

    async def main() -> None:
        store = MemoryStore()
        box = MemoryMailbox(store)
        place = Exchange(box, await new_run(store, DiLoCo(sync_every=4), rounds=None))
        refs = [await place.store(round, {"w": np.full(3, round, np.float32)}) for round in range(4)]
        refs[3] = refs[0]
        for round, theta in enumerate(refs):
            record = RoundRecord(
                round=round,
                fragment=0,
                step=4 * (round + 1),
                version=round,
                parent=await place.parent_of(round),
                participants=(),
                rejected=(),
                theta=theta,
                outer=None,
            )
            assert await place.commit(record)
        behind = Exchange(box, place.manifest)  # it has read no record yet
        record_3 = store.objects.pop(place.keys.round(3))
        await behind.sweep(3, fetching=frozenset())
        store.objects[place.keys.round(3)] = record_3
        await behind.sweep(3, fetching=frozenset())
        left = [key for key in store.objects if "/blobs/rounds/" in key]
        assert place.key_of(0, refs[0]) in left
        assert place.key_of(0, refs[1]) not in left

    virtually(main())


# Parts


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 40 bytes: a payload of the small model takes many."""
    monkeypatch.setattr(swarm.exchange, "PART_BYTES", 40)
    monkeypatch.setattr(swarm.exchange, "HEAD_BYTES", 24)


async def stored(tensors: dict[str, np.ndarray]) -> tuple[MemoryStore, Exchange, PayloadRef]:
    store = MemoryStore()
    exchange = Exchange(MemoryMailbox(store), await new_run(store, DiLoCo(sync_every=4), rounds=None))
    return store, exchange, await exchange.store(0, tensors)


def named(tensors: dict[str, np.ndarray]) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(name, "F32", array.shape) for name, array in tensors.items()]


async def streamed(
    exchange: Exchange, ref: PayloadRef, tensors: dict[str, np.ndarray], owner: dict[str, str]
) -> dict[str, Any]:
    """What a stream gave, copied, by parameter."""
    found: dict[str, Any] = {}
    async for parameters in exchange.stream(exchange.key_of(0, ref), ref, named(tensors), owner):
        assert not found.keys() & parameters.keys()
        for parameter, arrays in parameters.items():
            found[parameter] = {name: array.copy() for name, array in arrays.items()}
    return found


@pytest.mark.usefixtures("small_parts")
def test_a_payload_is_read_in_parts_that_show_as_progress() -> None:
    class Noting(Wrapped):
        async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
            if op == "read_part":
                seen.append(reader.progress_bytes)
            return await call()

    seen: list[int] = []
    reader: Exchange

    async def main() -> None:
        nonlocal reader
        tensors = model(3)
        store, exchange, ref = await stored(tensors)
        reader = Exchange(Noting(MemoryMailbox(store)), exchange.manifest)
        got = await reader.fetch(0, ref)
        assert {name: array.tobytes() for name, array in got.items()} == {n: a.tobytes() for n, a in tensors.items()}
        assert len(seen) == -(-ref.size_bytes // 40)
        assert seen == sorted(set(seen))
        assert reader.progress_bytes == reader.received_bytes == ref.size_bytes
        seen.clear()
        found = await streamed(reader, ref, tensors, {name: name for name in tensors})
        assert {name: arrays[name].tobytes() for name, arrays in found.items()} == {n: a.tobytes() for n, a in tensors.items()}
        assert len(seen) > 5
        assert seen == sorted(set(seen))
        assert reader.received_bytes == 2 * ref.size_bytes

    virtually(main())


@pytest.mark.parametrize("part_bytes", [1, 40, 100, 1 << 20])
def test_tensors_of_one_parameter_come_together_wherever_they_stand(monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    async def main() -> None:
        rng = np.random.default_rng(0)
        sizes = {"a": 30, "a-b": 3, "a.scale": 1, "a-b.scale": 1, "c": 0, "c.scale": 1}
        tensors = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
        owner = {name: name.removesuffix(".scale") for name in tensors}
        monkeypatch.setattr(swarm.exchange, "PART_BYTES", part_bytes)
        _, exchange, ref = await stored(tensors)
        found = await streamed(exchange, ref, tensors, owner)
        assert set(found) == {"a", "a-b", "c"}
        for parameter, arrays in found.items():
            assert set(arrays) == {parameter, f"{parameter}.scale"}
            assert all(array.tobytes() == tensors[name].tobytes() for name, array in arrays.items())

    virtually(main())


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("how", ["a bit of the header", "the last bit", "shorter", "longer", "gone", "another tensor", "size"])
def test_damage_comes_out_by_name_however_it_is_read(how: str) -> None:
    async def main() -> None:
        tensors = model(3)
        store, exchange, ref = await stored(tensors)
        key, expected = exchange.key_of(0, ref), PayloadCorrupt
        data = store.objects[key]
        wanted = dict(tensors)
        match how:
            case "a bit of the header":  # a name's letter, of which the header says nothing wrong
                store.objects[key] = data.replace(b"b.bias", b"b.bjas")
                expected = (PayloadCorrupt, SchemaMismatch)
            case "the last bit":
                store.objects[key] = data[:-1] + bytes([data[-1] ^ 1])
            case "shorter":
                store.objects[key] = data[:-1]
            case "longer":
                store.objects[key] = data + b"x"
            case "gone":
                del store.objects[key]
                expected = PayloadMissing
            case "another tensor":
                wanted["d"] = np.zeros(3, np.float32)
                expected = SchemaMismatch
            case "size":
                ref = msgspec.structs.replace(ref, size_bytes=1 << 40)
        with pytest.raises(expected):
            await streamed(exchange, ref, wanted, {name: name for name in wanted})
        if how != "another tensor":
            with pytest.raises(expected):
                await exchange.fetch(0, ref)

    virtually(main())


@pytest.mark.usefixtures("small_parts")
def test_a_payload_that_goes_while_it_is_read_is_missing() -> None:
    async def main() -> None:
        tensors = model(3)
        store, exchange, ref = await stored(tensors)

        class Gone(Wrapped):
            async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
                result = await call()
                store.objects.pop(key, None)
                return result

        with pytest.raises(PayloadMissing):
            await Exchange(Gone(MemoryMailbox(store)), exchange.manifest).fetch(0, ref)

    virtually(main())


@pytest.mark.parametrize("order", [1, -1])
def test_a_payload_that_grows_has_the_bytes_of_one_that_is_there(order: int) -> None:
    async def main() -> None:
        tensors = {
            "a": np.arange(9.0, dtype="f"),
            "a-b": np.ones((2, 3), "f"),
            "a.scale": np.ones((), "f"),
            "b": np.ones(0, "f"),
        }
        store, exchange, ref = await stored(tensors)
        twin = Exchange(MemoryMailbox(MemoryStore()), exchange.manifest)

        async def come() -> AsyncIterator[dict[str, np.ndarray]]:
            for name in sorted(tensors)[::order]:
                await asyncio.sleep(0)
                yield {name: tensors[name]}

        assert await twin.store_growing(0, named(tensors), come) == ref
        assert twin.mailbox.store.objects[twin.key_of(0, ref)] == store.objects[exchange.key_of(0, ref)]  # type: ignore[attr-defined]
        assert twin.sent_bytes == ref.size_bytes

        async def too_few() -> AsyncIterator[dict[str, np.ndarray]]:
            yield {"a": tensors["a"]}

        with pytest.raises(ValueError, match="announced"):
            await twin.store_growing(1, named(tensors), too_few)
        assert not [key for key in twin.mailbox.store.objects if "/0000000001/" in key]  # type: ignore[attr-defined]

    virtually(main())


# Checkpoints


async def kept(exchange: Exchange, *rounds: int) -> None:
    for round in rounds:
        values = model(round)

        async def theta(fragment: int, values: dict[str, np.ndarray] = values) -> dict[str, np.ndarray]:
            return {name: values[name] for name in exchange.plan[fragment]}

        await exchange.keep_checkpoint(round, theta)


async def run_of(fragments: int = 2, **changes: Any) -> tuple[MemoryStore, Exchange]:
    store = MemoryStore()
    manifest, init = draft(7, fragments)
    manifest, _ = await create_run(MemoryMailbox(store), msgspec.structs.replace(manifest, **changes), init)
    return store, Exchange(MemoryMailbox(store), manifest)


def test_checkpoints_are_the_parameters_of_their_round_and_the_newest_of_them_stay() -> None:
    async def main() -> None:
        store, exchange = await run_of(checkpoints_kept=2)
        assert await exchange.checkpoints() == []
        await kept(exchange, 1, 5, 9)
        await kept(exchange, 9)
        assert await exchange.checkpoints() == [5, 9]
        for round in (5, 9):
            got = await exchange.fetch_checkpoint(round)
            assert {name: array.tobytes() for name, array in got.items()} == {n: a.tobytes() for n, a in model(round).items()}
        with pytest.raises(PayloadMissing):
            await exchange.fetch_checkpoint(1)
        blobs = [key for key in store.objects if "/blobs/checkpoints/" in key]
        assert len(blobs) == 4
        assert await exchange.sweep(100, fetching=frozenset()) == 0
        assert [key for key in store.objects if "/blobs/checkpoints/" in key] == blobs

    virtually(main())


def test_a_checkpoint_that_is_begun_anew_after_any_failure_is_whole_and_leaves_nothing_else() -> None:
    async def main() -> None:
        for kind in ("fail", "lose"):
            for calls in range(12):
                store, exchange = await run_of(checkpoints_kept=1)
                await kept(exchange, 1)
                faulty = FaultyMailbox(exchange.mailbox, [Fault(kind, skip=calls)])  # type: ignore[arg-type]
                exchange.mailbox = faulty
                try:
                    await kept(exchange, 5)
                except MailboxUnavailable:
                    for round in await exchange.checkpoints():  # records first: what is listed is there
                        await exchange.fetch_checkpoint(round)
                (left,) = faulty.plan
                faulty.plan = []
                await kept(exchange, 9)
                assert await exchange.checkpoints() == [9]
                await exchange.fetch_checkpoint(9)
                assert len([key for key in store.objects if "/blobs/checkpoints/" in key]) == 2
            assert left.skip > 0, "every call was tried"

    virtually(main())


def test_a_checkpoint_of_another_round_or_model_is_refused_by_name() -> None:
    async def main() -> None:
        store, exchange = await run_of()
        await kept(exchange, 5)
        for record in (
            Checkpoint(round=4, theta=exchange.manifest.init),
            Checkpoint(round=5, theta=exchange.manifest.init[:1]),
        ):
            store.objects[exchange.keys.checkpoint(5)] = encode(record, nonce="x")
            with pytest.raises(Exception, match="is the checkpoint of round"):
                await exchange.fetch_checkpoint(5)
        packed = Packed({"other": np.zeros(3, np.float32)})
        data = b"".join(bytes(chunk) for chunk in packed)
        sha256 = hashlib.sha256(data).hexdigest()
        refs = tuple(PayloadRef(round=INIT, sha256=sha256, size_bytes=len(data)) for _ in exchange.plan)
        store.objects[exchange.keys.checkpoint(5)] = encode(Checkpoint(round=5, theta=refs), nonce="x")
        for fragment in range(2):
            store.objects[exchange.keys.checkpoint_blob(5, fragment, sha256)] = data
        with pytest.raises(SchemaMismatch, match="other"):
            await exchange.fetch_checkpoint(5)

    virtually(main())
