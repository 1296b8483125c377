"""What `swarm doctor` and the screen find out about a mailbox in an object store, and what others are told of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from swarm.core.ticks import Tick
from swarm.host.mounts import Finder
from swarm.mailbox import init_mailbox, speed
from swarm.mailbox.probe import look, probe
from tests.integration.bucket import Bucket, Mishap


@pytest.fixture
async def url(bucket: Bucket) -> str:
    found = bucket.url(f"p{uuid4().hex[:10]}")
    await init_mailbox(found)
    return found


def verdicts(ticks: list[Tick]) -> dict[str, str]:
    return {tick.name: tick.verdict for tick in ticks}


async def test_a_store_that_will_do_passes_and_is_left_as_it_was(bucket: Bucket, url: str):
    before = bucket.objects()
    found = await probe(url)
    assert verdicts(found) | {"timings": "ok"} == dict.fromkeys(
        ("store", "mailbox", "writable", "exclusive creation", "seen at once", "unfinished uploads", "timings"), "ok"
    )
    assert "not encrypted on the way" in found[0].detail
    assert bucket.objects() == before


async def test_a_store_that_pays_no_heed_to_the_condition_fails(bucket: Bucket, url: str):
    bucket.deaf = True
    found = await probe(url)
    assert found[-1].name == "exclusive creation"
    assert found[-1].verdict == "failed"
    assert "lets two machines win the same record" in found[-1].detail


async def test_what_keeps_a_store_from_use_is_named_with_a_remedy(bucket: Bucket, url: str, monkeypatch: pytest.MonkeyPatch):
    missing = await probe(bucket.url("nothing-here"))
    assert verdicts(missing)["mailbox"] == "failed"
    [mailbox] = [tick for tick in missing if tick.name == "mailbox"]
    assert "swarm init" in mailbox.remedy
    [no_bucket] = await probe(url.replace(bucket.name, "no-such-bucket"))
    assert "no such bucket" in no_bucket.detail
    assert "make it first" in no_bucket.remedy
    bucket.mishaps = [Mishap(".", status="403 Forbidden", code="InvalidAccessKeyId", count=99)]
    [refused] = await probe(url)
    assert (refused.name, refused.verdict) == ("store", "failed")
    assert "refuses these credentials (InvalidAccessKeyId): see AWS_ACCESS_KEY_ID" in refused.detail
    bucket.calm()
    bucket.mishaps = [Mishap("PUT", status="403 Forbidden", code="AccessDenied", count=99)]
    read_only = await probe(url)
    assert (read_only[-1].name, read_only[-1].verdict) == ("writable", "failed")
    assert "may not write there" in read_only[-1].detail
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    [unset] = await probe(url)
    assert "AWS_SECRET_ACCESS_KEY is not set" in unset.detail
    [silent] = await probe("s3://bucket/x?endpoint=http://127.0.0.1:1")
    assert silent.verdict == "failed"


async def test_a_look_writes_nothing(bucket: Bucket, url: str):
    bucket.write("photos/2026/a.jpg", b"x")
    bucket.requests.clear()
    ticks, is_mailbox = await look(url)
    assert (is_mailbox, {tick.verdict for tick in ticks}) == (True, {"ok"})
    ticks, is_mailbox = await look(bucket.url("empty"))
    assert (is_mailbox, {tick.verdict for tick in ticks}) == (False, {"ok"})
    [tick], is_mailbox = await look(bucket.url("photos"))
    assert (is_mailbox, tick.verdict) == (False, "failed")
    assert "not empty: 2026" in tick.detail
    assert not [request for request in bucket.requests if not request.startswith(("GET", "HEAD"))]


async def test_a_mailbox_is_found_by_its_id(bucket: Bucket, url: str, tmp_path: Path):
    id = await init_mailbox(url)
    finder = Finder(mounts=dict, mounted=())
    assert (await finder.find(id, [str(tmp_path), url])).location == url
    assert (await finder.find("0" * 32, [url])).location is None


async def test_a_stores_speed_is_measured_and_nothing_left(bucket: Bucket, url: str):
    before = bucket.objects()
    link = await asyncio.to_thread(speed.measure, url, limit_s=0.01)
    assert link.write_bytes_per_s > 0
    assert link.read_bytes_per_s > 0
    assert bucket.objects() == before
