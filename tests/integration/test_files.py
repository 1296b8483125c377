"""Attached files over mailboxes of both kinds: written whole before the manifest, fetched verified, resumed, kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from swarm.core.errors import (
    CacheUnusable,
    DataMissing,
    FileChanged,
    FileRefused,
    MailboxFull,
    MailboxUnavailable,
    PayloadCorrupt,
    PayloadMissing,
    UsageError,
)
from swarm.core.events import ShareBack, Transfer, Trouble, WorkerEvent
from swarm.core.keys import RunKeys
from swarm.core.manifest import DataRef, FileRef
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.files.attach import attach, describe, describe_folder
from swarm.files.cache import Cache
from swarm.files.fetch import STALLED_S, cached, fetch_file, fetch_folder
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox
from swarm.mailbox.folder import FolderMailbox
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.attached import LATE_S, Told, attach_patiently, attached_data, chosen, fetch_patiently
from tests.integration.simulation import new_run, virtually
from tests.integration.wrappers import Counting, Mortal

RUN, CHUNK = "testrun1", 1000
TEXT = bytes(ord("a") + (i * 7 + i // 91) % 26 for i in range(4321))  # five chunks, the last one short
KEYS = RunKeys(RUN)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "mine.txt"
    path.write_bytes(TEXT)
    path.chmod(0o755)
    return path


@pytest.fixture(params=["memory", "folder"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Mailbox]:
    """Another machine's handle on one mailbox."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: MemoryMailbox(store)
    asyncio.run(FolderMailbox.init(tmp_path / "mailbox"))
    return lambda: FolderMailbox(tmp_path / "mailbox")


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Cache]:
    with Cache(tmp_path / "cache", limit_bytes=100_000) as found:
        yield found


def left(cache: Cache) -> list[str]:
    return sorted(path.name for path in cache.root.rglob("*") if path.is_file())


async def attached(mailbox: Mailbox, path: Path) -> FileRef:
    return await attach(mailbox, RUN, describe(path, chunk_bytes=CHUNK))


async def rewritten(mailbox: Mailbox, key: str, data: bytes | None) -> None:
    """What only a damaged disk or a hostile peer does."""
    await mailbox.delete([key])
    if data is not None:
        await mailbox.put(key, [data])


async def test_a_file_goes_through_the_mailbox(machine: Callable[[], Mailbox], text: Path, cache: Cache) -> None:
    told: list[int] = []
    mailbox = machine()
    ref = await attach(mailbox, RUN, describe(text, chunk_bytes=CHUNK), progress=told.append)
    assert told == [1000, 2000, 3000, 4000, 4321]
    assert (ref.name, ref.kind, ref.size_bytes, ref.chunks) == ("mine.txt", "data", 4321, 5)
    assert ref.sha256 == hashlib.sha256(TEXT).hexdigest()
    names = ["000000", "000001", "000002", "000003", "000004", "hashes"]
    written = [f"runs/{RUN}/files/{ref.sha256}/{name}" for name in names]
    assert await mailbox.list("runs/") == written

    assert await attached(mailbox, text) == ref  # harmless to repeat
    assert await mailbox.list("runs/") == written

    told.clear()
    there = await fetch_file(machine(), RUN, ref, cache, progress=told.append)
    assert there.read_bytes() == TEXT
    assert told == [1000, 2000, 3000, 4000, 4321]
    assert stat.S_IMODE(there.stat().st_mode) == 0o600
    assert left(cache) == [ref.sha256]

    counting = Counting(machine())
    told.clear()
    assert await fetch_file(counting, RUN, ref, cache, progress=told.append) == there
    assert (counting.calls, told) == ([], [])  # the second time, nothing moves


async def test_a_spoiled_file_in_the_cache_is_fetched_again(machine: Callable[[], Mailbox], text: Path, cache: Cache) -> None:
    ref = await attached(machine(), text)
    with cache:
        there = await fetch_file(machine(), RUN, ref, cache)
    for spoiled in (TEXT[:-1] + b"!", TEXT[:-1], TEXT + b"!", b""):
        there.write_bytes(spoiled)
        assert cache.find(ref) is None
        assert (await fetch_file(machine(), RUN, ref, cache)).read_bytes() == TEXT


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fetch_killed_at_any_call_is_gone_on_with(text: Path, tmp_path: Path, when: str) -> None:
    async def main(at: int) -> bool:
        store = MemoryStore()
        ref = await attached(MemoryMailbox(store), text)
        mortal = Mortal(MemoryMailbox(store), at=at, when=when)  # type: ignore[arg-type]
        root = tmp_path / f"cache-{at}"
        with Cache(root) as cache:
            mortal.victim = asyncio.create_task(fetch_file(mortal, RUN, ref, cache))  # type: ignore[arg-type]
            await asyncio.wait({mortal.victim})
            if not mortal.dead:
                return False
        kept = at - 2  # whole chunks: the first call reads their hashes
        counting = Counting(MemoryMailbox(store))
        with Cache(root) as cache:
            assert cache.partial_bytes(ref) == max(0, kept) * CHUNK
            told: list[int] = []
            there = await fetch_file(counting, RUN, ref, cache, progress=told.append)
            assert there.read_bytes() == TEXT
        assert len(counting.calls) == 1 + 5 - max(0, kept)
        assert told == [1000, 2000, 3000, 4000, 4321]  # what was there counts
        assert left(cache) == [ref.sha256]
        return True

    killed = 0
    while virtually(main(killed + 1)):
        killed += 1
    assert killed == 6


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_attaching_killed_at_any_call_leaves_nothing_that_is_wrong(text: Path, tmp_path: Path, when: str) -> None:
    async def main(at: int) -> bool:
        store = MemoryStore()
        file = describe(text, chunk_bytes=CHUNK)
        mortal = Mortal(MemoryMailbox(store), at=at, when=when)  # type: ignore[arg-type]
        mortal.victim = asyncio.create_task(attach(mortal, RUN, file))  # type: ignore[arg-type]
        await asyncio.wait({mortal.victim})
        if not mortal.dead:
            return False
        before = dict(store.objects)
        with Cache(tmp_path / f"cache-{at}") as cache:
            if KEYS.file_chunk(file.ref.sha256, 4) not in before:
                with pytest.raises(PayloadMissing):
                    await fetch_file(MemoryMailbox(store), RUN, file.ref, cache)
            await attach(MemoryMailbox(store), RUN, file)
            assert {key: store.objects[key] for key in before} == before
            assert (await fetch_file(MemoryMailbox(store), RUN, file.ref, cache)).read_bytes() == TEXT
        return True

    killed = 0
    while virtually(main(killed + 1)):
        killed += 1
    assert killed == 6


async def test_what_an_earlier_fetch_left_is_believed_only_as_far_as_it_is_right(
    machine: Callable[[], Mailbox], text: Path, cache: Cache
) -> None:
    ref = await attached(machine(), text)
    for damaged, fetched in (
        (TEXT[:2500], 3),  # a torn chunk
        (TEXT[:1500] + b"!" + TEXT[1501:4000], 4),
        (b"!" + TEXT[1:], 5),
        (TEXT + b"and more", 0),  # all of it, and then some
        (TEXT, 0),
        (b"", 5),
    ):
        with Cache(cache.root) as now:
            (cache.root / "files").mkdir(parents=True, exist_ok=True)
            (cache.root / "files" / ref.sha256).unlink(missing_ok=True)
            partial = now.begin(ref)
            assert partial is not None
            with partial:
                partial.path.write_bytes(damaged)
            counting = Counting(machine())
            assert (await fetch_file(counting, RUN, ref, now)).read_bytes() == TEXT
            assert len(counting.calls) == 1 + fetched, damaged[:10]


@pytest.mark.parametrize("n", range(5))
@pytest.mark.parametrize("damage", ["flip", "short", "long", "empty", "other"])
async def test_a_damaged_chunk_is_named_and_the_good_ones_before_it_are_kept(
    machine: Callable[[], Mailbox], text: Path, cache: Cache, n: int, damage: str
) -> None:
    ref = await attached(machine(), text)
    key = KEYS.file_chunk(ref.sha256, n)
    good = TEXT[n * CHUNK : (n + 1) * CHUNK]
    bad = {
        "flip": good[:100] + bytes([good[100] ^ 1]) + good[101:],
        "short": good[:-1],
        "long": good + b"!",
        "empty": b"",
        "other": good[::-1],
    }[damage]
    await rewritten(machine(), key, bad)
    with pytest.raises(PayloadCorrupt, match=key):
        await fetch_file(machine(), RUN, ref, cache)
    assert cache.partial_bytes(ref) == n * CHUNK
    assert cache.find(ref) is None
    await rewritten(machine(), key, good)
    counting = Counting(machine())
    assert (await fetch_file(counting, RUN, ref, cache)).read_bytes() == TEXT
    assert len(counting.calls) == 1 + 5 - n


async def test_hashes_that_are_not_the_files(machine: Callable[[], Mailbox], text: Path, cache: Cache) -> None:
    ref = await attached(machine(), text)
    key = KEYS.file_hashes(ref.sha256)
    good = describe(text, chunk_bytes=CHUNK).hashes
    for bad in (good[:-1] + b"!", good[32:], good + good, b""):
        await rewritten(machine(), key, bad)
        with pytest.raises(PayloadCorrupt, match=key):
            await fetch_file(machine(), RUN, ref, cache)
    await rewritten(machine(), key, None)
    with pytest.raises(PayloadMissing, match=key):
        await fetch_file(machine(), RUN, ref, cache)


async def test_a_manifest_whose_hashes_belong_to_another_file(
    machine: Callable[[], Mailbox], text: Path, tmp_path: Path, cache: Cache
) -> None:
    """Every chunk is what the hashes say, and the whole is not what the manifest says: nothing of it stays."""
    other = tmp_path / "other.txt"
    other.write_bytes(TEXT[::-1])
    ref, false = await attached(machine(), text), describe(other, chunk_bytes=CHUNK)
    mailbox = machine()
    await rewritten(mailbox, KEYS.file_hashes(ref.sha256), false.hashes)
    for n in range(5):
        await rewritten(mailbox, KEYS.file_chunk(ref.sha256, n), TEXT[::-1][n * CHUNK : (n + 1) * CHUNK])
    lie = msgspec.structs.replace(ref, hashes_sha256=false.ref.hashes_sha256)
    with pytest.raises(PayloadCorrupt, match=ref.sha256):
        await fetch_file(mailbox, RUN, lie, cache)
    assert left(cache) == []


async def test_nothing_that_could_be_executed_is_kept_whatever_the_manifest_says(
    machine: Callable[[], Mailbox], tmp_path: Path, cache: Cache
) -> None:
    path, mailbox = tmp_path / "a.txt", machine()
    path.write_bytes(TEXT)
    for content in (b"\x80\x04\x95" + TEXT, b"\x7fELF" + TEXT, b"#!/bin/sh\n" + TEXT, b"PK\x03\x04" + TEXT):
        honest = describe(path, chunk_bytes=CHUNK)
        chunks = [content[at : at + CHUNK] for at in range(0, len(content), CHUNK)]
        hashes = b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)
        ref = msgspec.structs.replace(
            honest.ref,
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
            hashes_sha256=hashlib.sha256(hashes).hexdigest(),
        )
        await mailbox.put(KEYS.file_hashes(ref.sha256), [hashes])
        for n, chunk in enumerate(chunks):
            await mailbox.put(KEYS.file_chunk(ref.sha256, n), [chunk])
        with pytest.raises(FileRefused, match="only plain data"):
            await fetch_file(mailbox, RUN, ref, cache)
        counting = Counting(mailbox)
        for name in ("a.py", "a.pt", "a"):
            with pytest.raises(FileRefused, match="by its name"):
                await fetch_file(counting, RUN, msgspec.structs.replace(ref, name=name), cache)
        assert counting.calls == []
    assert left(cache) == []


async def test_what_is_cached_under_one_name_is_judged_again_under_another(
    machine: Callable[[], Mailbox], tmp_path: Path, cache: Cache
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\x93NUMPY\x01\x00 objects")
    ref = await attached(machine(), path)
    there = await fetch_file(machine(), RUN, ref, cache)
    for name, why in (("a.npy", "not what its name says"), ("a.py", "by its name")):
        with pytest.raises(FileRefused, match=why):
            await fetch_patiently(machine(), RUN, msgspec.structs.replace(ref, name=name), cache, lambda event: None)
    assert cached(cache, ref) == there


async def test_a_size_that_the_cache_cannot_hold_is_refused_before_a_chunk_is_read(
    machine: Callable[[], Mailbox], text: Path, tmp_path: Path
) -> None:
    ref = await attached(machine(), text)
    counting = Counting(machine())
    with Cache(tmp_path / "small", limit_bytes=4320) as cache, pytest.raises(CacheUnusable, match=r"most 4\.32 kB.*--data"):
        await fetch_file(counting, RUN, ref, cache)
    with Cache(tmp_path / "full", free_bytes=lambda _: 64 << 20) as cache, pytest.raises(CacheUnusable, match="are free"):
        await fetch_file(counting, RUN, ref, cache)
    assert counting.calls == [("read_part", KEYS.file_hashes(ref.sha256))] * 2
    huge = msgspec.structs.replace(ref, size_bytes=1 << 40, chunk_bytes=64 << 20)
    with Cache(tmp_path / "huge") as cache, pytest.raises(PayloadCorrupt):
        await fetch_file(counting, RUN, huge, cache)


async def test_a_disk_that_fills_up_and_a_cache_that_may_not_be_written(
    machine: Callable[[], Mailbox], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = await attached(machine(), text)
    honest, written = os.pwrite, 0

    def full(fd: int, data: memoryview, offset: int) -> int:
        nonlocal written
        if offset + len(data) > 2500:
            if offset >= 2500:
                raise OSError(28, "No space left on device")
            data = data[: 2500 - offset]  # a write may be cut short first
        written += 1
        return honest(fd, data, offset)

    with Cache(tmp_path / "cache") as cache:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(CacheUnusable, match="No space left"):
            await fetch_file(machine(), RUN, ref, cache)
        assert written == 3
        monkeypatch.undo()
        counting = Counting(machine())
        assert (await fetch_file(counting, RUN, ref, cache)).read_bytes() == TEXT
        assert len(counting.calls) == 1 + 3

    (tmp_path / "file").write_bytes(b"")
    with Cache(tmp_path / "file") as cache, pytest.raises(CacheUnusable, match="SWARM_CACHE_DIR"):
        await fetch_file(machine(), RUN, ref, cache)


async def test_two_who_fetch_at_once_read_each_chunk_once(machine: Callable[[], Mailbox], text: Path, tmp_path: Path) -> None:
    ref = await attached(machine(), text)
    counting = Counting(machine())
    with Cache(tmp_path / "cache") as a, Cache(tmp_path / "cache") as b:
        found = await asyncio.gather(*(fetch_file(counting, RUN, ref, cache) for cache in (a, b, a)))
        assert [path.read_bytes() for path in found] == [TEXT] * 3
        assert left(a) == [ref.sha256]
    assert len(counting.calls) == 1 + 5


def test_one_who_has_stopped_is_not_waited_for_for_ever(text: Path, tmp_path: Path) -> None:
    async def main() -> None:
        store = MemoryStore()
        ref = await attached(MemoryMailbox(store), text)
        hung = asyncio.Event()
        asleep = FaultyMailbox(MemoryMailbox(store), [Fault("delay", "read_part", "000002", wait=lambda: hung.wait())])  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        with Cache(tmp_path / "cache") as a, Cache(tmp_path / "cache") as b:
            first = asyncio.create_task(fetch_file(asleep, RUN, ref, a))
            await asyncio.sleep(1)
            started_s = loop.time()
            there = await fetch_file(MemoryMailbox(store), RUN, ref, b)
            assert there.read_bytes() == TEXT
            assert loop.time() - started_s <= STALLED_S + 2
            hung.set()  # it wakes up, and does no harm
            assert await first == there
            assert there.read_bytes() == TEXT
            assert left(a) == [ref.sha256]

    virtually(main())


def test_a_share_that_is_away_or_late_is_waited_for(text: Path, tmp_path: Path) -> None:
    async def main() -> list[WorkerEvent]:
        store, events = MemoryStore(), list[WorkerEvent]()
        writing = FaultyMailbox(
            MemoryMailbox(store), [Fault("fail", "put", "/000001$", count=3), Fault("lose", "put", "/000003$")]
        )
        ref = await attach_patiently(writing, RUN, describe(text, chunk_bytes=CHUNK), events.append)
        late = store.objects.pop(KEYS.file_chunk(ref.sha256, 3))
        plan = [
            Fault("fail", "read_part", "/hashes$", count=2),
            Fault("fail", "read_part", "/000001$", count=2, error=MailboxFull),
        ]
        with Cache(tmp_path / "cache") as cache:
            fetching = asyncio.create_task(
                fetch_patiently(FaultyMailbox(MemoryMailbox(store), plan), RUN, ref, cache, events.append)
            )
            await asyncio.sleep(LATE_S - 10)
            assert not fetching.done()
            store.objects[KEYS.file_chunk(ref.sha256, 3)] = late
            assert (await fetching).read_bytes() == TEXT
            await fetch_patiently(MemoryMailbox(store), RUN, ref, cache, events.append)
        return events

    events = virtually(main())
    shown = [(e.how, e.done_bytes, e.size_bytes) for e in events if isinstance(e, Transfer) and e.line]
    assert shown == [
        ("attach", 0, 4321),
        ("attach", 4321, 4321),
        ("fetch", 0, 4321),
        ("fetch", 4321, 4321),
        ("have", 4321, 4321),
    ]
    troubles = [e.message for e in events if isinstance(e, Trouble)]
    assert [message.rpartition(": ")[2] for message in troubles] == [
        "attaching goes on when it is back",
        "attaching goes on when it is back",
        "fetching goes on when it is back",
        "fetching goes on when it is back",  # which is full now
    ]
    assert len([e for e in events if isinstance(e, ShareBack)]) == 3


def test_a_chunk_that_stays_away_ends_it_with_advice(text: Path, tmp_path: Path) -> None:
    async def main() -> float:
        store = MemoryStore()
        ref = await attached(MemoryMailbox(store), text)
        del store.objects[KEYS.file_chunk(ref.sha256, 3)]
        started_s = asyncio.get_running_loop().time()
        with Cache(tmp_path / "cache") as cache, pytest.raises(DataMissing, match=r"'mine.txt' .* with --data") as caught:
            await fetch_patiently(MemoryMailbox(store), RUN, ref, cache, lambda event: None)
        assert KEYS.file_chunk(ref.sha256, 3) in str(caught.value)
        waited_s = asyncio.get_running_loop().time() - started_s
        store.objects[KEYS.file_chunk(ref.sha256, 3)] = b"!" * CHUNK
        with Cache(tmp_path / "cache") as cache, pytest.raises(DataMissing, match="--data"):
            await fetch_patiently(MemoryMailbox(store), RUN, ref, cache, lambda event: None)
        return waited_s

    assert LATE_S <= virtually(main()) < 2 * LATE_S


async def test_a_file_that_changes_while_it_is_attached(machine: Callable[[], Mailbox], text: Path) -> None:
    file = describe(text, chunk_bytes=CHUNK)
    for changed in (TEXT[:3500] + b"!" + TEXT[3501:], TEXT[:3500], b""):
        text.write_bytes(changed)
        with pytest.raises(FileChanged, match=r"mine\.txt"):
            await attach(machine(), RUN, file)
        assert not any(key.endswith("000003") for key in await machine().list("runs/"))
        for key in await machine().list("runs/"):
            await machine().delete([key])
    text.unlink()
    with pytest.raises(FileRefused, match="cannot read"):
        await attach(machine(), RUN, file)
    text.write_bytes(TEXT + b"appended")  # what was described is all still there
    assert (await attach(machine(), RUN, file)).size_bytes == 4321


def test_a_file_that_shrinks_or_changes_while_it_is_described(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = os.pread

    def meddled(change: Callable[[], object]) -> None:
        def pread(fd: int, size: int, offset: int) -> bytes:
            data = honest(fd, size, offset)
            if offset == 2000:
                change()
            return data

        monkeypatch.setattr(os, "pread", pread)

    for change in (lambda: os.truncate(text, 2500), lambda: text.write_bytes(TEXT + b"!"), lambda: os.utime(text, (1, 1))):
        text.write_bytes(TEXT)
        meddled(change)
        with pytest.raises(FileChanged):
            describe(text, chunk_bytes=CHUNK)
        monkeypatch.undo()


def test_what_cannot_be_attached(tmp_path: Path) -> None:
    made = {"empty.txt": b"", "a.py": b"pass", "a.pkl": b"x", "pickled.txt": b"\x80\x04x", "a:b.txt": b"x", ".hidden.txt": b"x"}
    for name, content in made.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")
    for name in (*made, "folder.txt", "pipe.txt", "missing.txt"):
        with pytest.raises(FileRefused):
            describe(tmp_path / name)
    (tmp_path / "sparse.txt").touch()
    os.truncate(tmp_path / "sparse.txt", (1 << 40) + 1)
    with pytest.raises(FileRefused, match="more than"):
        describe(tmp_path / "sparse.txt")
    (tmp_path / "plain.txt").write_bytes(TEXT)
    (tmp_path / "link.txt").symlink_to("plain.txt")
    assert describe(tmp_path / "link.txt").ref.name == "link.txt"  # who named it chose where it leads


async def test_a_base_models_folder(machine: Callable[[], Mailbox], tmp_path: Path, cache: Cache) -> None:
    model, secret = tmp_path / "model", tmp_path / "secret.txt"
    model.mkdir()
    secret.write_bytes(b"not yours")
    weights = (2).to_bytes(8, "little") + b"{}" + bytes(3000)
    honest = {
        "config.json": b'{"layers": 2}',
        "tokenizer.json": b"{}",
        "model.safetensors": weights,
        "merges.txt": b"a b\n",
        "chat.jinja": b"{{ x }}",
    }
    left_out = {"modeling.py": b"import os", "pytorch_model.bin": b"\x80\x02x", "README": b"x", "run.sh": b"x"}
    for name, content in (honest | left_out).items():
        (model / name).write_bytes(content)
    (model / ".cache").mkdir()
    (model / "onnx").mkdir()
    (model / "link.txt").symlink_to(secret)
    files, refused = describe_folder(model, chunk_bytes=CHUNK)
    assert [file.ref.name for file in files] == sorted(honest)
    assert {file.ref.kind for file in files} == {"model"}
    assert [line.split("'")[1] for line in refused] == sorted([*left_out, "link.txt", "onnx"])

    refs = tuple([await attach(machine(), RUN, file) for file in files])
    told: set[str] = set()
    folder = await fetch_folder(machine(), RUN, refs, cache, progress=lambda ref, done: told.add(ref.name))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == honest
    assert told == set(honest)
    counting = Counting(machine())
    assert await fetch_folder(counting, RUN, refs, cache, progress=lambda ref, done: None) == folder
    assert counting.calls == []

    (model / "config.json").unlink()
    with pytest.raises(FileRefused, match=r"lacks config\.json"):
        describe_folder(model)
    with pytest.raises(FileRefused, match="cannot read"):
        describe_folder(tmp_path / "none")


def test_a_sweep_leaves_files_alone(text: Path) -> None:
    async def main() -> None:
        store = MemoryStore()
        manifest = await new_run(store, DiLoCo(sync_every=2), rounds=None)
        assert manifest.run == RUN
        ref = await attached(MemoryMailbox(store), text)
        before = {key for key in store.objects if "/files/" in key}
        await Exchange(MemoryMailbox(store), manifest).sweep(100_000, fetching=frozenset())
        assert {key for key in store.objects if "/files/" in key} == before
        assert len(before) == ref.chunks + 1

    virtually(main())


def test_foreign_names_beside_the_chunks_change_nothing(text: Path, tmp_path: Path) -> None:
    async def main() -> None:
        location = tmp_path / "mailbox"
        await FolderMailbox.init(location)
        ref = await attached(FolderMailbox(location), text)
        folder = location / KEYS.file_chunk(ref.sha256, 0)
        for name in ("000005", "0000000", ".DS_Store", "000001 (conflicted copy)", "evil.py"):
            (folder.parent / name).write_bytes(b"#!/bin/sh\n")
        (folder.parent / "000002").unlink()
        (folder.parent / "000002").symlink_to(text)  # a link is no object
        with Cache(tmp_path / "cache") as cache:
            with pytest.raises(PayloadMissing, match="000002"):
                await fetch_file(FolderMailbox(location), RUN, ref, cache)
            (folder.parent / "000002").unlink()
            (folder.parent / "000002").write_bytes(TEXT[2000:3000])
            assert (await fetch_file(FolderMailbox(location), RUN, ref, cache)).read_bytes() == TEXT

    asyncio.run(main())


def test_an_unavailable_mailbox_is_the_callers_to_wait_for(text: Path, tmp_path: Path) -> None:
    async def main() -> None:
        store = MemoryStore()
        ref = await attached(MemoryMailbox(store), text)
        faulty = FaultyMailbox(MemoryMailbox(store), [Fault("fail", "read_part", "/000002$")])
        with Cache(tmp_path / "cache") as cache:
            with pytest.raises(MailboxUnavailable):
                await fetch_file(faulty, RUN, ref, cache)
            assert (await fetch_file(faulty, RUN, ref, cache)).read_bytes() == TEXT
        read = [key for op, key in faulty.calls if "hashes" not in key]
        assert [key[-1] for key in read] == list("012234")

    virtually(main())


def test_what_is_chosen_to_be_attached(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[WorkerEvent] = []
    ref = describe(text).ref
    data = (DataRef(name="any.txt", sha256=ref.sha256, size_bytes=ref.size_bytes),)
    for wanted in (None, True):
        file = chosen(text, data, wanted=wanted, emit=events.append)
        assert file is not None
        assert file.ref == ref
    assert chosen(text, data, wanted=False, emit=events.append) is None
    assert events == []
    for other in ((), (msgspec.structs.replace(data[0], size_bytes=1),)):
        with pytest.raises(FileChanged):
            chosen(text, other, wanted=None, emit=events.append)

    monkeypatch.setattr("swarm.runtime.attached.ATTACHED_BYTES", 4321)
    assert chosen(text, data, wanted=True, emit=events.append) is not None
    assert chosen(text, data, wanted=None, emit=events.append) is None
    assert [e.message for e in events if isinstance(e, Trouble)] == [
        "mine.txt, 4.32 kB, is not attached without --attach: who joins passes it with --data"
    ]
    text.write_bytes(b"#!/bin/sh")
    assert chosen(text, data, wanted=None, emit=events.append) is None
    assert len(events) == 2
    for path in (text, tmp_path / "missing.txt"):
        with pytest.raises(UsageError, match=path.name):
            chosen(path, data, wanted=True, emit=events.append)
    with pytest.raises(UsageError, match="data of 2 files"):
        chosen(text, data * 2, wanted=True, emit=events.append)
    assert chosen(text, data * 2, wanted=None, emit=events.append) is None
    assert len(events) == 3


async def test_only_what_the_task_trains_on_is_fetched_for_it(text: Path) -> None:
    store = MemoryStore()
    manifest = await new_run(store, DiLoCo(sync_every=2), rounds=None)
    ref = describe(text).ref
    data = DataRef(name="any.txt", sha256=ref.sha256, size_bytes=ref.size_bytes)

    def found(*files: FileRef, data: tuple[DataRef, ...] = (data,)) -> FileRef | None:
        task = msgspec.structs.replace(manifest.task, data=data)
        return attached_data(msgspec.structs.replace(manifest, task=task, files=files))

    assert found(ref) == ref
    assert found() is None
    assert found(ref, data=()) is None
    assert found(msgspec.structs.replace(ref, kind="model")) is None
    assert found(msgspec.structs.replace(ref, size_bytes=1)) is None
    assert found(msgspec.structs.replace(ref, sha256="0" * 64)) is None


def test_progress_is_told_now_and_then(text: Path) -> None:
    ref = msgspec.structs.replace(describe(text).ref, size_bytes=100)
    events: list[WorkerEvent] = []
    now_s = 0.0
    told = Told(ref, "fetch", events.append, now=lambda: now_s)
    for done in range(1, 101):
        now_s += 0.25
        told(done)
    told.done()
    shown = [(e.done_bytes, e.line) for e in events if isinstance(e, Transfer)]
    assert shown == [(0, True), *((done, done in (40, 80)) for done in range(4, 100, 4)), (100, True)]


def test_small_files_are_one_chunk(text: Path) -> None:
    file = describe(text)
    assert (file.ref.chunk_bytes, file.ref.chunks) == (8 << 20, 1)
    assert file.hashes.hex() == file.ref.sha256
