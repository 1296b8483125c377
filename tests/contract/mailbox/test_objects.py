"""What is special about a mailbox in an object store: stores that do not keep their word, lost replies, errors, large payloads,
and what dead writers leave."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest

from swarm.core.errors import (
    MailboxAway,
    MailboxCorrupt,
    MailboxError,
    MailboxFull,
    MailboxMoved,
    MailboxReadOnly,
    MailboxUnavailable,
    UsageError,
)
from swarm.core.keys import MARKER, RunKeys
from swarm.core.lines import encode
from swarm.core.manifest import Marker
from swarm.mailbox import init_mailbox, open_mailbox
from swarm.mailbox.contract import STAGED, Mailbox
from swarm.mailbox.objects import ObjectMailbox
from tests.integration.bucket import CREDENTIALS, Bucket, Mishap

ROUND = RunKeys("run1").round(7)
BLOB = "runs/run1/blobs/x"
PART_BYTES = 64 << 10
LARGE = 2 * PART_BYTES + 12345


def record(text: str = "") -> bytes:
    return encode(msgspec.Raw(msgspec.json.encode({"text": text})), nonce=uuid4().hex)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def url(bucket: Bucket) -> str:
    """Of a mailbox."""
    prefix = f"m{uuid4().hex[:10]}"
    bucket.write(f"{prefix}/{MARKER}", encode(Marker(id=uuid4().hex), nonce=""))
    return bucket.url(prefix)


def below(bucket: Bucket, url: str) -> list[str]:
    """Keys of what is there, but for the marker."""
    prefix = re.match(r"s3://[^/]+/([^?]*)", url)[1]
    return [key.removeprefix(f"{prefix}/") for key in bucket.objects() if key.startswith(f"{prefix}/") and MARKER not in key]


# init


async def test_a_prefix_becomes_a_mailbox_once(bucket: Bucket):
    url = bucket.url("people/home")
    ids = await asyncio.gather(*(init_mailbox(url) for _ in range(3)))
    assert len(set(ids)) == 1
    assert await init_mailbox(url) == ids[0] == await open_mailbox(url).open()
    assert [key for key in bucket.objects() if key.startswith("people/home")] == [f"people/home/{MARKER}"]


async def test_what_is_not_empty_becomes_no_mailbox(bucket: Bucket):
    bucket.write("photos/2026/a.jpg", b"x")
    with pytest.raises(UsageError, match="not empty: 2026; add a prefix"):
        await init_mailbox(bucket.url("photos"))
    assert f"photos/{MARKER}" not in bucket.objects()


async def test_a_bucket_that_is_not_there_is_said_to_be_missing(bucket: Bucket):
    nowhere = bucket.url("x").replace(bucket.name, "nowhere-at-all")
    with pytest.raises(UsageError, match=r"no such bucket: .* make it first"):
        await init_mailbox(nowhere)
    with pytest.raises(MailboxAway, match="no such bucket"):
        await open_mailbox(nowhere).open()
    with pytest.raises(MailboxAway, match="no mailbox there"):
        await open_mailbox(bucket.url("empty")).open()


# Stores that do not keep their word


async def test_a_store_that_pays_no_heed_to_the_condition_becomes_no_mailbox(bucket: Bucket):
    bucket.deaf = True
    with pytest.raises(UsageError, match="lets two machines win the same record"):
        await init_mailbox(bucket.url("liar"))
    assert not [key for key in bucket.objects() if key.startswith("liar")]


@pytest.mark.parametrize("skip", [0, 4, 8])  # 8: the one that comes late
async def test_a_lost_reply_does_not_make_a_store_a_liar(bucket: Bucket, skip: int):
    bucket.mishaps = [Mishap("PUT .*/tmp/", "lose", skip=skip)]
    await init_mailbox(bucket.url(f"honest{skip}"))


async def test_one_in_which_a_mailbox_is_already_is_not_opened(bucket: Bucket, url: str):
    bucket.deaf = True
    mailbox = open_mailbox(url)
    with pytest.raises(MailboxCorrupt, match="lets two machines win the same record"):
        await mailbox.open()
    with pytest.raises(MailboxCorrupt, match="lets two machines win the same record"):
        await mailbox.create(ROUND, record())
    assert below(bucket, url) == []
    bucket.deaf = False
    assert await mailbox.create(ROUND, record())


async def test_a_marker_deleted_while_the_store_is_tried_does_not_make_it_a_liar(bucket: Bucket, url: str):
    marker = f"{url.partition('?')[0].partition(bucket.name + '/')[2]}/{MARKER}"
    bucket.mishaps = [Mishap(f"GET .*{MARKER}", "then", then=lambda: bucket.ask("DELETE", marker))]
    await open_mailbox(url).open()


async def test_a_store_that_lets_two_through_at_once_is_found_out_by_reading_back(bucket: Bucket, url: str):
    mailbox = open_mailbox(url)
    await mailbox.open()
    key = f"{url.partition('?')[0].partition(bucket.name + '/')[2]}/{ROUND}"
    bucket.mishaps = [Mishap(f"PUT .*{ROUND}", "then", then=lambda: bucket.write(key, record("another's, accepted as well")))]
    with pytest.raises(MailboxCorrupt, match="lets two machines win the same record"):
        await mailbox.create(ROUND, record())


async def test_a_record_deleted_before_it_could_be_read_back_was_won(bucket: Bucket, url: str):
    mailbox = open_mailbox(url)
    await mailbox.open()
    key = f"{url.partition('?')[0].partition(bucket.name + '/')[2]}/{ROUND}"
    bucket.mishaps = [Mishap(f"PUT .*{ROUND}", "then", then=lambda: bucket.ask("DELETE", key))]
    assert await mailbox.create(ROUND, record()) is True


# Lost replies


@pytest.mark.parametrize("lost", [1, 4])  # 4: obstore's own tries, too
async def test_who_won_without_a_reply_finds_out(bucket: Bucket, url: str, lost: int):
    a, b = open_mailbox(url), open_mailbox(url)
    await a.open()
    await b.open()
    bucket.mishaps = [Mishap(f"PUT .*{ROUND}", "lose", count=lost)]
    mine = record()
    assert await a.create(ROUND, mine) is True
    assert await b.create(ROUND, record()) is False
    assert await a.read(ROUND) == mine


async def test_who_lost_without_a_reply_finds_out(bucket: Bucket, url: str):
    a, b = open_mailbox(url), open_mailbox(url)
    await a.open()
    await b.open()
    await b.create(ROUND, record())
    bucket.mishaps = [Mishap(f"PUT .*{ROUND}", count=4)]
    assert await a.create(ROUND, record()) is False


async def test_what_never_arrived_is_to_be_tried_again(bucket: Bucket, url: str):
    mailbox = open_mailbox(url)
    await mailbox.open()
    bucket.mishaps = [Mishap(f"PUT .*{ROUND}", count=4)]
    mine = record()
    with pytest.raises(MailboxUnavailable, match="500"):
        await mailbox.create(ROUND, mine)
    assert await mailbox.create(ROUND, mine) is True


async def test_a_record_that_another_is_creating_is_waited_for(bucket: Bucket, url: str):
    """Amazon's answer to two writers at the same time is a 409, whoever wins then."""
    mailbox = open_mailbox(url)
    await mailbox.open()
    bucket.mishaps = [Mishap(f"PUT .*{ROUND}", status="409 Conflict", code="ConditionalRequestConflict")]
    assert await mailbox.create(ROUND, record()) is True


# Errors


@pytest.mark.parametrize(
    ("request_", "status", "code", "error", "words"),
    [
        ("PUT", "403 Forbidden", "AccessDenied", MailboxReadOnly, "may not write there"),
        ("GET", "403 Forbidden", "AccessDenied", MailboxUnavailable, "may not read or list there"),
        (
            "GET",
            "403 Forbidden",
            "InvalidAccessKeyId",
            MailboxUnavailable,
            "refuses these credentials .InvalidAccessKeyId.: see AWS_",
        ),
        ("PUT", "403 Forbidden", "SignatureDoesNotMatch", MailboxUnavailable, "refuses these credentials"),
        ("PUT", "400 Bad Request", "ExpiredToken", MailboxUnavailable, "refuses these credentials"),
        ("PUT", "403 Forbidden", "RequestTimeTooSkewed", MailboxUnavailable, "clock"),
        ("PUT", "403 Forbidden", "QuotaExceeded", MailboxFull, "no room left"),
        ("PUT", "507 Insufficient Storage", "XMinioStorageFull", MailboxFull, "no room left"),
        ("PUT", "501 Not Implemented", "NotImplemented", MailboxCorrupt, "cannot do what a mailbox needs"),
        ("PUT", "404 Not Found", "NoSuchBucket", MailboxAway, "no such bucket"),
        ("GET", "404 Not Found", "NoSuchBucket", MailboxAway, "no such bucket"),
        ("GET", "400 Bad Request", "AuthorizationHeaderMalformed", MailboxUnavailable, "another region"),
        ("GET", "503 Slow Down", "SlowDown", MailboxUnavailable, "answers 503 .SlowDown."),
    ],
)
async def test_errors_of_the_store_say_what_to_do(
    bucket: Bucket, url: str, request_: str, status: str, code: str, error: type[MailboxError], words: str
):
    mailbox = open_mailbox(url)
    await mailbox.open()
    bucket.mishaps = [Mishap(f"{request_} .*{BLOB}", status=status, code=code, count=9)]
    with pytest.raises(error, match=words) as raised:
        await (mailbox.put(BLOB, [b"x"]) if request_ == "PUT" else mailbox.read(BLOB))
    assert str(raised.value).startswith(mailbox.location)
    assert "\n" not in str(raised.value)
    assert "not-a-secret" not in str(raised.value)


async def test_credentials_that_are_written_anew_are_used_without_a_new_start(
    bucket: Bucket, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = not-a-secret\n")

    file, clock = tmp_path / "credentials", Clock()
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    write("morning")
    bucket.known = {"morning", "noon"}
    mailbox = ObjectMailbox(url, now=clock, guard_s=10)
    await mailbox.open()
    await mailbox.put(BLOB, [b"x"])
    bucket.known = {"noon"}
    with pytest.raises(MailboxUnavailable, match=r"refuses these credentials \(InvalidAccessKeyId\)"):
        await mailbox.read(BLOB)
    clock.now_s += 10
    with pytest.raises(MailboxUnavailable, match=r"refuses these credentials \(InvalidAccessKeyId\)"):
        await mailbox.read(BLOB)
    write("noon")
    assert await mailbox.read(BLOB) == b"x"


CALLS: dict[str, Callable[[Mailbox], Awaitable[object]]] = {
    "create": lambda mailbox: mailbox.create(ROUND, record()),
    "put": lambda mailbox: mailbox.put(BLOB, [b"x"]),
    "put in parts": lambda mailbox: mailbox.put(BLOB, chunks(LARGE)),
    "read": lambda mailbox: mailbox.read(BLOB),
    "read_part": lambda mailbox: mailbox.read_part(BLOB, 0, bytearray(4)),
    "list": lambda mailbox: mailbox.list("runs/"),
    "names": lambda mailbox: mailbox.names("runs/"),
    "staged": lambda mailbox: mailbox.sizes(STAGED),
    "delete": lambda mailbox: mailbox.delete([BLOB]),
    "sweep": lambda mailbox: mailbox.sweep(0),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", ["404 Not Found", pytest.param("409 Conflict", marks=pytest.mark.slow)])
async def test_an_answer_that_does_not_fit_is_an_error_of_ours(bucket: Bucket, url: str, call: str, status: str):
    """Those of proxies, and of S3 to a write beside another one."""
    mailbox = open_mailbox(url)
    await mailbox.open()
    for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        for skip in range(4):  # at most so many requests of one kind are made
            bucket.calm()
            await mailbox.put(BLOB, [b"data"])
            bucket.mishaps = [Mishap(f"^{method} ", status=status, code="Odd", skip=skip)]
            with suppress(MailboxError):
                await CALLS[call](mailbox)


async def test_an_upload_that_another_machine_ended_is_written_again(bucket: Bucket, url: str):
    """One that is so slow that it passes for a dead writer's."""
    mailbox = open_mailbox(url)
    await mailbox.open()
    other = ObjectMailbox(url)

    async def source():
        for chunk in chunks(3 * LARGE):
            yield chunk
            await other.sweep(0)

    with pytest.raises(MailboxUnavailable):
        await mailbox.put(BLOB, source())
    assert await mailbox.read(BLOB) is None
    assert await mailbox.put(BLOB, chunks(LARGE)) == BLOB
    assert await mailbox.read(BLOB) == b"".join(chunks(LARGE))


async def test_what_is_over_at_once_is_tried_again_on_the_spot(bucket: Bucket, url: str):
    mailbox = open_mailbox(url)
    await mailbox.open()
    bucket.mishaps = [Mishap("PUT", status="503 Slow Down", code="SlowDown"), Mishap("GET", status="500 x")]
    await mailbox.put(BLOB, [b"x"])
    assert await mailbox.read(BLOB) == b"x"


async def test_a_store_that_is_not_there_says_so_soon(bucket: Bucket):
    with pytest.raises(MailboxUnavailable, match="does not answer: the connection is refused"):
        await open_mailbox(f"s3://{bucket.name}?endpoint=http://127.0.0.1:1").open()


async def test_a_store_that_hangs_holds_up_nothing(bucket: Bucket, url: str):
    clock = Clock()
    mailbox = ObjectMailbox(url, now=clock)
    await mailbox.open()
    assert mailbox.outstanding_s() == 0
    bucket.held = threading.Event()
    try:
        reading = asyncio.create_task(mailbox.read(BLOB))
        while not any(BLOB in request for request in bucket.requests):  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # a thread of the server's
        clock.now_s += 7
        assert mailbox.outstanding_s() == 7
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    finally:
        bucket.held.set()


async def test_another_mailbox_in_its_place_is_noticed(bucket: Bucket, url: str):
    clock = Clock()
    mailbox = ObjectMailbox(url, now=clock, guard_s=10)
    await mailbox.open()
    marker = f"{url.partition('?')[0].partition(bucket.name + '/')[2]}/{MARKER}"
    bucket.ask("DELETE", marker)
    clock.now_s += 10
    for attempt in (mailbox.put(BLOB, [b"x"]), mailbox.create(ROUND, record()), mailbox.list("runs/")):
        with pytest.raises(MailboxAway, match="no mailbox there"):
            await attempt
    assert below(bucket, url) == []
    bucket.write(marker, encode(Marker(id=uuid4().hex), nonce=""))
    with pytest.raises(MailboxMoved, match="another mailbox than before"):
        await mailbox.read(BLOB)


# Listing


async def test_a_long_listing_comes_in_pages(bucket: Bucket, url: str):
    bucket.page = 3
    mailbox = open_mailbox(url)
    await mailbox.open()
    keys = [f"runs/r/{n // 4}/{n:02d}" for n in range(10)]
    await asyncio.gather(*(mailbox.put(key, [b"x"]) for key in keys))
    assert await mailbox.list("runs/") == keys
    assert await mailbox.list("runs/r/", after=keys[4]) == keys[5:]
    assert await mailbox.names("runs/r/") == ["0", "1", "2"]
    await mailbox.delete(keys)
    assert await mailbox.list("runs/") == []


async def test_a_listing_begins_where_it_is_asked_to(bucket: Bucket, url: str):
    """What a poll costs does not grow with what lies before it."""
    mailbox = open_mailbox(url)
    await mailbox.open()
    await mailbox.put("runs/r/2", [b"x"])
    bucket.requests.clear()
    assert await mailbox.list("runs/r/", after="runs/r/1") == ["runs/r/2"]
    assert re.search(r"start-after=[^&]*runs%2Fr%2F1", bucket.requests[-1])


async def test_foreign_names_are_left_out(bucket: Bucket, url: str):
    prefix = url.partition("?")[0].partition(bucket.name + "/")[2]
    for key in ("runs/R/x", "runs/r/Thumbs.db", "runs/r/.hidden", "notes.txt", "runs/r/a b"):
        bucket.write(f"{prefix}/{key.replace(' ', '%20')}", b"x")
    mailbox = open_mailbox(url)
    await mailbox.open()
    assert await mailbox.list("") == [MARKER]
    assert await mailbox.names("") == ["mailbox", "runs"]
    assert await mailbox.names("runs/") == ["r"]
    assert await mailbox.names("runs/r/") == []


# Large payloads


def chunks(size: int) -> list[bytes]:
    return [bytes([n % 251]) * min(5000, size - at) for n, at in enumerate(range(0, size, 5000))]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swarm.mailbox.objects_put.PART_BYTES", PART_BYTES)


async def test_a_large_payload_goes_in_parts_and_is_whole(bucket: Bucket, url: str):
    mailbox = open_mailbox(url)
    await mailbox.open()
    source = chunks(LARGE)
    assert await mailbox.put(lambda: BLOB, source) == BLOB
    assert sum("uploadId=" in request and request.startswith("PUT") for request in bucket.requests) == 3
    buffer = bytearray(LARGE + 1)
    assert await mailbox.read_part(BLOB, 0, buffer) == LARGE
    assert buffer[:LARGE] == b"".join(source)
    assert below(bucket, url) == [BLOB]
    assert bucket.uploads() == []


async def test_a_large_source_that_fails_leaves_nothing(bucket: Bucket, url: str):
    def torn():
        yield from chunks(LARGE)
        raise ZeroDivisionError("mine")

    async def torn_slowly():
        for chunk in torn():
            yield chunk

    mailbox = open_mailbox(url)
    await mailbox.open()
    for source in (torn(), torn_slowly()):
        with pytest.raises(ZeroDivisionError, match="mine"):
            await mailbox.put(lambda: BLOB, source)
        assert below(bucket, url) == []
        assert bucket.uploads() == []


@pytest.mark.parametrize("request_", ["PUT .*partNumber=2", r"POST .*tmp/\w+\?uploadId", "PUT .*blobs/x", "HEAD .*blobs/x"])
async def test_a_large_put_that_fails_midway_can_be_repeated(bucket: Bucket, url: str, request_: str):
    mailbox = open_mailbox(url)
    await mailbox.open()
    bucket.mishaps = [Mishap(request_, count=4)]
    source = chunks(LARGE)
    with pytest.raises(MailboxUnavailable, match="500"):
        await mailbox.put(lambda: BLOB, source)
    assert await mailbox.put(lambda: BLOB, source) == BLOB
    assert (await mailbox.read(BLOB)) == b"".join(source)
    assert await mailbox.list("runs/") == [BLOB]


async def test_what_a_store_cannot_copy_goes_through_this_machine(bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("swarm.mailbox.objects_put.COPY_BYTES", PART_BYTES)
    mailbox = open_mailbox(url)
    await mailbox.open()
    source = chunks(LARGE)
    await mailbox.put(BLOB, source)
    assert (await mailbox.read(BLOB)) == b"".join(source)
    assert below(bucket, url) == [BLOB]


# What dead writers leave


async def test_what_dead_writers_left_is_swept(bucket: Bucket, url: str):
    clock = Clock()
    mailbox = ObjectMailbox(url, now=clock)
    await mailbox.open()
    prefix = url.partition("?")[0].partition(bucket.name + "/")[2]
    dead, alive = (f"{prefix}/tmp/{uuid4().hex}" for _ in range(2))
    bucket.write(f"{prefix}/tmp/{uuid4().hex}", b"not copied any more")
    bucket.write(f"{prefix}/tmp/notes", b"somebody's")
    ids = [re.search(r"<UploadId>(.*?)<", bucket.ask("POST", f"{key}?uploads").decode())[1] for key in (dead, alive)]
    assert await mailbox.sweep(600) == 0
    clock.now_s += 599
    assert await mailbox.sweep(600) == 0
    bucket.ask("PUT", f"{alive}?partNumber=1&uploadId={ids[1]}", b"x")  # it goes on
    clock.now_s += 1
    assert await mailbox.sweep(600) == 2
    assert below(bucket, url) == ["tmp/notes"]
    assert bucket.uploads() == [alive]
    clock.now_s += 600
    assert await mailbox.sweep(600) == 1
    assert bucket.uploads() == []


async def test_what_this_process_is_writing_is_not_swept(bucket: Bucket, url: str):
    mailbox = open_mailbox(url)
    await mailbox.open()

    async def source():
        for chunk in chunks(LARGE):
            yield chunk
        assert await mailbox.sweep(0) == 0

    await mailbox.put(BLOB, source())
    assert await mailbox.list("runs/") == [BLOB]


async def test_a_sweep_that_may_not_list_uploads_still_sweeps(bucket: Bucket, url: str):
    mailbox = open_mailbox(url)
    await mailbox.open()
    prefix = url.partition("?")[0].partition(bucket.name + "/")[2]
    bucket.write(f"{prefix}/tmp/{uuid4().hex}", b"x")
    bucket.mishaps = [Mishap("GET .*uploads", status="403 Forbidden", code="AccessDenied")]
    assert await mailbox.sweep(0) == 1
