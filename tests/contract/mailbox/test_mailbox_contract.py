"""Every sentence of swarm/mailbox/contract.py, for every implementation."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import msgspec
import pytest

from swarm.core.errors import InvalidKey, MailboxUnavailable
from swarm.core.keys import MARKER, RunKeys
from swarm.core.lines import decode, encode
from swarm.core.manifest import Marker
from swarm.mailbox.contract import STAGED, TRASHED, Mailbox
from swarm.mailbox.faults import Fault, FaultyMailbox

KEYS = RunKeys("run1")
ROUND = KEYS.round(7)
BLOB = "runs/run1/blobs/rounds/0000000007/abc.safetensors"
HOSTILE = [
    "",
    "/",
    "runs",
    "runs/",
    "/runs/x",
    "runs//x",
    "runs/../x",
    "runs/./x",
    "runs/x/..",
    "../runs/x",
    "runs/.hidden/x",
    "runs/x.",
    "runs/X",
    "runs/é",
    "runs/a b",
    "runs/a\\b",
    "runs/a\x00b",
    "runs/a\n",
    "runs/a:b",
    "runs/con/x",
    "runs/nul.txt",
    "runs/~/x",
    "runs/" + "x" * 121,
    "tmp/x",
    "trash/x",
    "mailbox/other",
    "x/y",
]


def record(text: str = "") -> bytes:
    """A record with a nonce of its own."""
    return encode(msgspec.Raw(msgspec.json.encode({"text": text})), nonce=uuid4().hex)


async def put(mailbox: Mailbox, key: str, data: bytes = b"x") -> None:
    assert await mailbox.put(key, [record() if key.endswith(".json") else data]) == key


# open, and the marker


async def test_open_gives_every_machine_the_same_id(store, a, b):
    assert await a.open() == await b.open() == store.id
    assert len(store.id) == 32


async def test_the_marker_is_a_record_that_holds_the_id(store, a):
    data = await a.read(MARKER)
    assert data is not None
    assert decode(data, Marker).id == store.id


async def test_the_marker_can_neither_be_written_nor_deleted(store, a):
    for attempt in (a.create(MARKER, record()), a.put(MARKER, [b"x"]), a.delete([MARKER])):
        with pytest.raises(InvalidKey):
            await attempt
    assert await a.open() == store.id


# create


async def test_create_publishes_the_record_for_everybody(a, b):
    data = record("first")
    assert await a.create(ROUND, data) is True
    assert await a.read(ROUND) == data
    assert await b.read(ROUND) == data


async def test_a_second_create_loses_and_leaves_the_record_untouched(a, b):
    data = record("first")
    await a.create(ROUND, data)
    assert await a.create(ROUND, record("second")) is False
    assert await b.create(ROUND, record("third")) is False
    assert await b.read(ROUND) == data


async def test_of_racing_callers_exactly_one_wins(store):
    machines = [store.machine() for _ in range(4)]
    for mailbox in machines:
        await mailbox.open()
    for n in range(12):
        key = KEYS.claim(n, 0)
        bids = [record(str(i)) for i in range(8)]
        won = await asyncio.gather(*(machines[i % 4].create(key, bid) for i, bid in enumerate(bids)))
        assert won.count(True) == 1
        for mailbox in machines:
            assert await mailbox.read(key) == bids[won.index(True)]


async def test_who_lost_the_reply_is_told_apart_from_who_lost_the_race(a, b):
    mine, theirs = record("same body"), record("same body")
    assert await a.create(ROUND, mine) is True
    assert await a.create(ROUND, mine) is True  # the reply was lost: asked again
    assert await b.create(ROUND, theirs) is False
    assert await b.create(ROUND, theirs) is False
    assert await a.read(ROUND) == mine


async def test_create_takes_a_small_and_a_large_record(a, b):
    small = encode(msgspec.Raw(b""), nonce="")
    large = record("x" * 3_000_000)
    assert await a.create(KEYS.round(1), large) is True
    assert await b.read(KEYS.round(1)) == large
    assert await a.create(KEYS.round(2), small) is True
    assert await b.read(KEYS.round(2)) == small
    assert await b.create(KEYS.round(2), record()) is False


async def test_a_lost_create_leaves_nothing_behind(store, a, b):
    await a.create(ROUND, record())
    await b.create(ROUND, record())
    for path in store.paths:
        assert list((path / "tmp").iterdir()) == []
        assert list((path / "trash").iterdir()) == []


@pytest.mark.parametrize("key", ["runs/record.json", "runs/run1/x.json", "runs/run1/record.json/x", "record.json"])
async def test_create_refuses_keys_of_other_kinds(a, key):
    with pytest.raises(InvalidKey):
        await a.create(key, record())
    assert await a.list("runs/") == []


# put


async def test_put_writes_chunks_of_all_kinds_in_order(a, b):
    floats = memoryview(bytearray(b"abcdefgh")).cast("f")
    assert await a.put(BLOB, [b"12", bytearray(b"34"), memoryview(b"5678")[1:3], b"", floats, memoryview(b"")]) == BLOB
    assert await b.read(BLOB) == b"123467abcdefgh"


async def test_put_takes_an_empty_object(a, b):
    await a.put(BLOB, [])
    assert await b.read(BLOB) == b""
    assert await b.list("runs/run1/blobs/") == [BLOB]


async def test_put_asks_for_a_computed_key_when_the_source_is_exhausted(a, b):
    seen = []

    class Source:
        def __iter__(self):
            for chunk in (b"one", b"two"):
                seen.append(chunk)
                yield chunk

    def key() -> str:
        return f"runs/run1/blobs/{len(seen)}"

    assert await a.put(key, Source()) == "runs/run1/blobs/2"
    assert await b.read("runs/run1/blobs/2") == b"onetwo"


async def test_put_is_repeatable_with_the_same_source(a, b):
    source = [b"one", b"two"]
    for mailbox in (a, a, b):
        assert await mailbox.put(BLOB, source) == BLOB
    assert await a.read(BLOB) == await b.read(BLOB) == b"onetwo"
    assert await b.list("runs/") == [BLOB]


async def test_machines_that_put_the_same_object_at_once_all_succeed(store):
    machines = [store.machine() for _ in range(4)]
    for mailbox in machines:
        await mailbox.open()
    data = bytes(range(256)) * 100
    for n in range(6):
        key = f"runs/run1/blobs/{n}"
        assert await asyncio.gather(*(mailbox.put(key, [data]) for mailbox in machines)) == [key] * 4
        for mailbox in machines:
            assert await mailbox.read(key) == data


async def test_a_source_that_fails_leaves_nothing_and_its_error_gets_out(store, a, b):
    class Torn(Exception):
        pass

    class Source:
        def __iter__(self):
            yield b"x" * 100_000
            raise Torn

    for error, source in ((Torn, Source()), (FileNotFoundError, _Unreadable())):
        with pytest.raises(error):
            await a.put(BLOB, source)
        assert await b.read(BLOB) is None
        assert await b.list("runs/") == []
    for path in store.paths:
        assert list((path / "tmp").iterdir()) == []
        assert list((path / "trash").iterdir()) == []
    await put(a, BLOB, b"whole")
    assert await b.read(BLOB) == b"whole"


class _Unreadable:
    def __iter__(self):
        yield b"x"
        raise FileNotFoundError("the local file is gone")


async def test_a_computed_key_that_is_wrong_leaves_nothing(store, a):
    for key in ("runs/../x", "runs/run1/x/record.json", "tmp/x"):
        with pytest.raises(InvalidKey):
            await a.put(lambda key=key: key, [b"x"])
    assert await a.list("runs/") == []
    for path in store.paths:
        assert list((path / "tmp").iterdir()) == []


@pytest.mark.parametrize("key", ["runs/run1/x/record.json", "runs/record.json", "runs"])
async def test_put_refuses_keys_of_other_kinds(a, key):
    with pytest.raises(InvalidKey):
        await a.put(key, [b"x"])


class Growing:
    """A source that comes about while it is written."""

    def __init__(self, chunks, error: BaseException | None = None, wait=None) -> None:
        self.chunks, self.error, self.wait = chunks, error, wait
        self.begun = self.closed = 0

    async def __aiter__(self):
        self.begun += 1
        try:
            for chunk in self.chunks:
                await asyncio.sleep(0)
                yield chunk
            if self.wait is not None:
                await self.wait.wait()
            if self.error is not None:
                raise self.error
        finally:
            self.closed += 1


async def test_put_takes_chunks_as_they_come_about(a, b):
    floats = memoryview(bytearray(b"abcdefgh")).cast("f")
    source = Growing([b"12", bytearray(b"34"), b"", floats, *[bytes([n]) for n in range(20)]])
    expected = b"1234abcdefgh" + bytes(range(20))
    for machine in (a, b):  # repeated: from the start
        assert await machine.put(lambda: BLOB, source) == BLOB
        assert await b.read(BLOB) == expected
    assert (source.begun, source.closed) == (2, 2)
    await a.put("runs/run1/blobs/none", Growing([]))
    assert await b.read("runs/run1/blobs/none") == b""


async def test_a_source_may_read_the_mailbox_that_it_is_written_to(a):
    await put(a, BLOB, bytes(range(100)))

    async def copied():
        for offset in range(0, 100, 7):
            part = bytearray(7)
            size = await a.read_part(BLOB, offset, part)
            yield part[:size]

    await a.put("runs/run1/blobs/copy", copied())
    assert await a.read("runs/run1/blobs/copy") == bytes(range(100))


async def test_a_growing_source_that_fails_leaves_nothing_and_its_error_gets_out(store, a):
    for error in (ZeroDivisionError("mine"), FileNotFoundError("mine")):
        for chunks in ([], [b"x"], [b"x" * 100] * 9):
            source = Growing(chunks, error)
            with pytest.raises(type(error), match="mine"):
                await a.put(BLOB, source)
            assert source.closed == 1
    assert await a.list("runs/") == []
    for path in store.paths:
        assert list((path / "tmp").iterdir()) == []


async def test_a_put_that_is_given_up_ends_its_source_and_leaves_no_object(store, a):
    source = Growing([b"x"] * 9, wait=asyncio.Event())
    putting = asyncio.create_task(a.put(BLOB, source))
    while not source.begun:  # noqa: ASYNC110
        await asyncio.sleep(0)
    putting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await putting
    assert source.closed == 1
    assert await a.list("runs/") == []


async def test_a_put_that_fails_ends_its_source(a):
    source = Growing([b"x"] * 99)
    with pytest.raises(InvalidKey):
        await a.put(lambda: "runs/../x", source)
    assert source.closed == 1


# read


async def test_what_is_not_there_reads_as_none(a):
    await put(a, "runs/run1/x/y")
    for key in (ROUND, BLOB, "runs/run1/x/z", "runs/run1/x", "runs/run1/x/y/z", "runs/run2/x"):
        assert await a.read(key) is None
        assert await a.read_part(key, 0, bytearray(8)) is None


async def test_asking_too_early_does_not_hide_what_comes_later(a, b):
    for n in range(3):
        key, blob = KEYS.round(n), f"runs/run1/blobs/{n}/x"
        for mailbox in (a, b):
            assert await mailbox.read(key) is None
            assert await mailbox.read_part(blob, 0, bytearray(8)) is None
            assert await mailbox.list(f"runs/run1/blobs/{n}/") == []
        data = record(str(n))
        assert await a.create(key, data) is True
        await put(a, blob, data)
        assert await b.list(f"runs/run1/blobs/{n}/") == [blob]
        assert await b.read(key) == data
        assert await b.read(blob) == data


async def test_a_part_is_what_fits_from_the_offset_on(a, b):
    await put(a, BLOB, b"payload")
    for offset in range(9):
        for size in range(9):
            buffer = bytearray(b"." * size)
            part = b"payload"[offset : offset + size]
            assert await b.read_part(BLOB, offset, buffer) == len(part)
            assert buffer == part + b"." * (size - len(part))
    floats = memoryview(bytearray(b"." * 16)).cast("f")
    assert await b.read_part(BLOB, 0, floats) == 7
    assert bytes(floats) == b"payload" + b"." * 9
    large = bytearray(b"." * 20)
    assert await b.read_part(BLOB, 3, memoryview(large)[5:8]) == 3
    assert large == b"....." + b"loa" + b"." * 12


async def test_a_part_of_a_record_may_be_empty(a):
    await a.create(ROUND, record())
    assert await a.read_part(ROUND, 0, bytearray()) == 0
    assert await a.read_part(ROUND, 1 << 20, bytearray(9)) == 0


async def test_a_part_far_beyond_the_end_is_empty(a):
    await put(a, BLOB, b"payload")
    buffer = bytearray(b"..")
    for offset in (7, 8, 1 << 40):
        assert await a.read_part(BLOB, offset, buffer) == 0
    await put(a, "runs/run1/blobs/empty", b"")
    assert await a.read_part("runs/run1/blobs/empty", 0, buffer) == 0
    assert await a.read_part("runs/run1/blobs/empty", 0, bytearray()) == 0
    assert buffer == b".."


async def test_a_part_needs_an_offset_and_room_to_write(a):
    await put(a, BLOB, b"payload")
    with pytest.raises(ValueError, match="offset"):
        await a.read_part(BLOB, -1, bytearray(2))
    with pytest.raises(TypeError):
        await a.read_part(BLOB, 0, memoryview(b".."))


async def test_an_object_that_goes_while_it_is_read_is_told_apart_from_its_end(a, b):
    for n, elsewhere in enumerate((a, b)):
        key, buffer = f"runs/run1/blobs/{n}", bytearray(4)
        await put(a, key, b"payload!")
        assert await a.read_part(key, 0, buffer) == 4
        await elsewhere.delete([key])
        assert await a.read_part(key, 4, buffer) is None
        assert await a.read_part(key, 8, buffer) is None
        await put(b, key, b"payload!")
        assert await a.list("runs/run1/blobs/") == [key]
        assert await a.read_part(key, 4, buffer) == 4
        assert buffer == b"oad!"
        await a.delete([key])


async def test_parts_read_at_once_by_many_fit_together(store):
    machines = [store.machine() for _ in range(3)]
    for mailbox in machines:
        await mailbox.open()
    data = bytes(range(251)) * 1000
    await machines[0].put(BLOB, [data])
    into = [bytearray(len(data)) for _ in machines]

    async def read(machine: int, offset: int) -> None:
        part = memoryview(into[machine])[offset : offset + 9_999]
        assert await machines[machine].read_part(BLOB, offset, part) == len(part)

    await asyncio.gather(*(read(m, offset) for offset in range(0, len(data), 9_999) for m in range(3)))
    assert into == [data] * 3


async def test_a_large_object_is_whole(a, b):
    data = bytes(range(256)) * (11 << 12)
    await a.put(BLOB, [data[: 5 << 20], data[5 << 20 :]])
    assert await b.read(BLOB) == data
    buffer = bytearray(len(data))
    assert await b.read_part(BLOB, 0, buffer) == len(data)
    assert buffer == data


# list


async def test_list_is_in_byte_order_even_around_the_slash(a, b):
    # '-' and '.' sort before '/', digits, '_' and letters after it.
    keys = [f"runs/{name}" for name in ("a-b/x", "a.b/x", "a/b", "a/b-c/x", "a/b.c", "a0/x", "a_b/x", "ab/x", "a-b.c", "a-/x")]
    for key in reversed(keys):
        await put(a, key)
    await a.create("runs/a/b-c/z/record.json", record())
    everything = sorted([*keys, "runs/a/b-c/z/record.json"])
    assert everything != sorted(everything, key=lambda k: k.split("/"))
    assert await b.list("runs/") == everything
    assert await b.list("") == sorted([*everything, MARKER])
    for key in everything:
        assert await b.list("runs/", after=key) == everything[everything.index(key) + 1 :]
    partial = ("", "\x00", "/", "runs", "runs/a", "runs/a-", "runs/a/", "runs/a/b-", "runs/a/b-c/", "runs/a/b-c/z", "z")
    for after in partial:
        assert await b.list("", after=after) == [k for k in sorted([*everything, MARKER]) if k > after]
        assert await b.list("runs/a/", after=after) == [k for k in everything if k > after and k.startswith("runs/a/")]


async def test_a_prefix_is_whole_components(a, b):
    for key in ("runs/r1/x/1", "runs/r1/x/2", "runs/r1/xy/1", "runs/r10/x/1"):
        await put(a, key)
    assert await b.list("runs/r1/x/") == ["runs/r1/x/1", "runs/r1/x/2"]
    assert await b.list("runs/r1/") == ["runs/r1/x/1", "runs/r1/x/2", "runs/r1/xy/1"]
    assert await b.list("runs/r1/x/1/") == []
    assert await b.list("runs/r2/") == []
    assert await b.list("nowhere/") == []


async def test_an_empty_mailbox_lists_its_marker_alone(a):
    assert await a.list("") == [MARKER]
    assert await a.list("mailbox/") == [MARKER]
    assert await a.list("runs/") == []


async def test_list_shows_what_other_machines_wrote_and_deleted(a, b):
    for n in range(5):
        await a.create(KEYS.control_record(n), record())
        await put(a, KEYS.beat("studio", 1, n))
    assert await b.list(KEYS.control) == [KEYS.control_record(n) for n in range(5)]
    assert await b.list(KEYS.beats, after=KEYS.beat("studio", 1, 2)) == [KEYS.beat("studio", 1, n) for n in (3, 4)]
    await a.delete([KEYS.beat("studio", 1, n) for n in range(4)])
    await put(a, KEYS.beat("studio", 1, 5))
    assert await b.list(KEYS.beats) == [KEYS.beat("studio", 1, n) for n in (4, 5)]


@pytest.mark.parametrize("prefix", ["/", "runs", "runs/x", "runs//", "../", "runs/../", "runs/X/", "./"])
async def test_list_refuses_what_is_no_prefix(a, prefix):
    with pytest.raises(InvalidKey):
        await a.list(prefix)


async def test_lists_gives_what_each_list_would(a, b):
    for n in range(3):
        await a.create(KEYS.control_record(n), record())
        await put(a, KEYS.beat("studio", 1, n))
    requests = [(KEYS.beats, ""), (KEYS.control, KEYS.control_record(0)), ("nowhere/", ""), (KEYS.beats, "")]
    beats = [KEYS.beat("studio", 1, n) for n in range(3)]
    found = [list(keys) for keys in await b.lists(requests)]
    assert found == [beats, [KEYS.control_record(1), KEYS.control_record(2)], [], beats]
    assert list(await b.lists([])) == []


async def test_lists_are_made_in_their_order(a, b):
    """What was written before what an earlier listing shows, the next one shows."""

    async def write() -> None:
        for n in range(24):
            await put(a, f"runs/r/first/{n:02d}")
            await put(a, f"runs/r/then/{n:02d}")

    writing = asyncio.create_task(write())
    while not writing.done():
        then, first = await b.lists([("runs/r/then/", ""), ("runs/r/first/", "")])
        assert [key.rpartition("/")[2] for key in then] == [key.rpartition("/")[2] for key in first][: len(then)]
    await writing


async def test_lists_end_before_the_first_that_fails(a, b):
    for name in "xyz":
        await put(a, f"runs/r/{name}/1")
    faulty = FaultyMailbox(b, [Fault("fail", op="list", key="/y/", count=None)])
    x, y, z = (f"runs/r/{name}/" for name in "xyz")
    assert [list(keys) for keys in await faulty.lists([(x, ""), (z, ""), (y, ""), (x, "")])] == [[f"{x}1"], [f"{z}1"]]
    with pytest.raises(MailboxUnavailable):
        await faulty.lists([(y, ""), (x, "")])


@pytest.mark.parametrize("prefix", ["/", "runs", "runs//", "../"])
async def test_lists_refuse_what_is_no_prefix(a, prefix):
    with pytest.raises(InvalidKey):
        await a.lists([("runs/", ""), (prefix, "")])


# names


async def test_names_are_the_next_components_in_byte_order(a, b):
    for key in ("runs/r1/b-/x", "runs/r1/b/x", "runs/r1/b/y/z", "runs/r1/a", "runs/r10/x/1"):
        await put(a, key)
    await a.create(ROUND, record())
    assert list(await b.names("runs/")) == ["r1", "r10", "run1"]
    assert list(await b.names("runs/r1/")) == ["a", "b", "b-"]
    assert list(await b.names("runs/r1/b/")) == ["x", "y"]
    assert list(await b.names(KEYS.shard(0))) == ["0000000007"]
    assert list(await b.names("")) == ["mailbox", "runs"]
    for prefix in ("runs/r2/", "runs/r1/a/", "tmp/", "nowhere/"):
        assert list(await b.names(prefix)) == []
    with pytest.raises(InvalidKey):
        await b.names("runs/../")


async def test_asking_for_names_too_early_does_not_hide_what_comes_later(a, b):
    for n in range(3):
        assert list(await b.names(KEYS.claims(n))) == []
        await a.create(KEYS.claim(n, 0), record())
        assert list(await b.names(KEYS.claims(n))) == ["000"]
        await a.delete([KEYS.claim(n, 0)])
        assert list(await b.names(KEYS.claims(n))) == []


# sizes


async def test_sizes_are_those_of_what_list_gives(a, b):
    data = {BLOB: b"x" * 70_000, "runs/run1/blobs/rounds/0000000007/empty": b"", "runs/run10/files/x": b"y" * 17}
    for key, whole in data.items():
        await put(a, key, whole)
    assert await b.sizes("runs/") == {key: len(whole) for key, whole in data.items()}
    await a.create(ROUND, record("x" * 1000))
    for prefix in ("", "runs/", "runs/run1/", KEYS.shard(0), "mailbox/", "runs/run2/", "nowhere/"):
        found = await b.sizes(prefix)
        assert sorted(found) == await b.list(prefix)
        assert all(size == len(data[key]) if key in data else size > 100 for key, size in found.items())
    await a.delete([BLOB, ROUND])
    assert sorted(await b.sizes("runs/run1/")) == ["runs/run1/blobs/rounds/0000000007/empty"]


async def test_nothing_is_staged_or_trashed_that_nobody_left_there(a, b):
    await put(a, BLOB)
    await a.create(ROUND, record())
    await a.create(ROUND, record())
    await a.delete([BLOB, ROUND])
    assert await b.sizes(STAGED) == await b.sizes(TRASHED) == {}


@pytest.mark.parametrize("prefix", ["/", "runs", "runs//", "../", "tmp"])
async def test_sizes_refuse_what_is_no_prefix(a, prefix):
    with pytest.raises(InvalidKey):
        await a.sizes(prefix)


# delete


async def test_delete_is_out_of_sight_at_once_and_idempotent(a, b):
    await a.create(ROUND, record())
    await put(a, BLOB)
    await put(a, "runs/run1/blobs/other")
    for _ in range(2):
        await a.delete([ROUND, BLOB, KEYS.round(8), "runs/nothing/here"])
        assert await a.read(ROUND) is None
        assert await a.read(BLOB) is None
        assert await a.list("runs/") == ["runs/run1/blobs/other"]
    await b.delete([ROUND, BLOB])
    await b.delete([])
    assert await b.list("runs/") == ["runs/run1/blobs/other"]


async def test_a_deleted_record_can_be_won_again_by_exactly_one(a, b):
    for n in range(4):
        first = record()
        assert await a.create(ROUND, first) is True
        await b.delete([ROUND])
        bids = [record("a"), record("b")]
        won = await asyncio.gather(a.create(ROUND, bids[0]), b.create(ROUND, bids[1]))
        assert won.count(True) == 1, n
        assert await a.read(ROUND) == await b.read(ROUND) == bids[won.index(True)]
        await a.delete([ROUND])


async def test_a_deleted_object_can_be_put_again(a, b):
    for n in range(4):
        await put(a, BLOB, b"x")
        assert await b.read(BLOB) == b"x", n
        await b.delete([BLOB])
        assert await a.read(BLOB) is None


async def test_deleting_what_is_a_folder_of_others_deletes_nothing(a):
    await put(a, "runs/run1/x/y")
    await a.create("runs/run1/z/record.json", record())
    await a.delete(["runs/run1/x", "runs/run1/z", "runs/run1/x/record.json", "runs/run1/x/y/z"])
    assert await a.list("runs/") == ["runs/run1/x/y", "runs/run1/z/record.json"]


async def test_delete_checks_every_key_before_it_deletes_any(a):
    await put(a, BLOB)
    with pytest.raises(InvalidKey):
        await a.delete([BLOB, "runs/../x"])
    assert await a.read(BLOB) == b"x"


# keys


@pytest.mark.parametrize("key", HOSTILE)
async def test_hostile_keys_are_refused_before_anything_is_touched(a, key):
    def source():
        raise AssertionError("the source was touched")
        yield b""

    for attempt in (
        a.put(key, source()),
        a.create(key, record()),
        a.create(f"{key}/record.json", record()) if key not in ("runs", "mailbox/other") else a.put(key, source()),
        a.read(key),
        a.read_part(key, 0, bytearray(4)),
        a.delete([key]),
    ):
        with pytest.raises(InvalidKey):
            await attempt
    assert await a.list("") == [MARKER]


async def test_ids_at_the_edge_of_the_grammar_are_served(a, b):
    for learner in ("-", "--", "0", "a" * 64, "con-", "com10", "x" * 50 + "-2"):
        key = KEYS.learner(learner, 1)
        data = record(learner)
        assert await a.create(key, data) is True
        assert await b.read(key) == data
        assert await b.list(f"{KEYS.learners}{learner}/") == [key]


# sweep, close


async def test_sweep_touches_no_object(a, b):
    await a.create(ROUND, record())
    await put(a, BLOB)
    assert await b.sweep(0) == 0
    assert await a.list("runs/") == sorted([BLOB, ROUND])


async def test_a_closed_mailbox_can_be_opened_again(store, a):
    await put(a, BLOB)
    await a.close()
    assert await a.open() == store.id
    assert await a.read(BLOB) == b"x"
