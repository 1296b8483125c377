"""Commands over a mailbox in an object store, in this process, against a server on this machine: a store that refuses, and
looking after a mailbox there."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from swarm import api
from swarm.audit import gc as collecting
from swarm.core.keys import MARKER
from swarm.core.lines import encode
from swarm.core.manifest import Marker
from swarm.mailbox.memory import MemoryStore
from tests.integration.audited import KEYS, done, flip, half_done, newest
from tests.integration.bucket import CREDENTIALS, Bucket, Mishap, give_credentials, serve
from tests.integration.test_commands import Swarm

pytestmark = pytest.mark.usefixtures("state_dir")


@pytest.fixture(scope="module")
def serving() -> Iterator[Bucket]:
    with serve() as found:
        yield found


@pytest.fixture
def bucket(serving: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    give_credentials(monkeypatch)
    serving.calm()
    return serving


@pytest.fixture
def swarm(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Swarm:
    monkeypatch.setenv("SWARM_KEY_FILE", "")
    return Swarm(capsys)


class Laid:
    """A mailbox in a bucket."""

    def __init__(self, bucket: Bucket, store: MemoryStore | None = None) -> None:
        self.prefix, self.bucket = f"m{uuid4().hex[:10]}", bucket
        self.url = bucket.url(self.prefix)
        self.lay(MARKER, encode(Marker(id=uuid4().hex), nonce=""))
        for key, data in store.objects.items() if store else ():
            if key.startswith("runs/"):
                self.lay(key, data)

    def lay(self, key: str, data: bytes) -> None:
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(self.bucket.name, f"{self.prefix}/{key}", data)

    def objects(self) -> set[str]:
        return {key for key in self.bucket.objects() if key.startswith(f"{self.prefix}/")}


# A store that refuses

COMMANDS = {
    "init": ("init", "{url}"),
    "start": ("start", "diloco", "--task", "mlp", "--mailbox", "{url}"),
    "join": ("join", "one", "--mailbox", "{url}"),
    "runs": ("runs", "--mailbox", "{url}"),
    "status": ("status", "one", "--mailbox", "{url}"),
    "verify": ("mailbox", "verify", "--mailbox", "{url}"),
    "gc": ("mailbox", "gc", "--now", "--mailbox", "{url}"),
    "size": ("mailbox", "size", "--mailbox", "{url}"),
}
REFUSED = {
    "InvalidAccessKeyId": "403 Forbidden",
    "SignatureDoesNotMatch": "403 Forbidden",
    "ExpiredToken": "400 Bad Request",
    "AccessDenied": "403 Forbidden",
}


@pytest.mark.parametrize("code", REFUSED)
def test_credentials_that_a_store_refuses_are_told_by_every_command(swarm: Swarm, bucket: Bucket, code: str) -> None:
    mailbox = Laid(bucket)
    for words in COMMANDS.values():
        bucket.requests.clear()
        bucket.mishaps = [Mishap(".", status=REFUSED[code], code=code, count=10**6)]
        said = swarm.fails(1, *(word.format(url=mailbox.url) for word in words))
        assert said.strip().count("\n") == 0, said
        assert said.startswith(f"swarm: {mailbox.url}: ")
        assert f"({code})" in said
        assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in said
        assert ("AWS_SESSION_TOKEN" in said) == (code == "ExpiredToken")
        assert ("rights to list, read, write and delete" in said) == (code == "AccessDenied")
        assert CREDENTIALS["AWS_SECRET_ACCESS_KEY"] not in said
        assert len(bucket.requests) <= 2, "asked once or twice, and then told"


def test_a_key_that_the_store_does_not_know_and_a_secret_that_is_wrong(
    swarm: Swarm, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server says it that checks them."""
    from moto.core import DEFAULT_ACCOUNT_ID, responses
    from moto.core.responses import ActionAuthenticatorMixin
    from moto.iam.models import iam_backends

    mailbox = Laid(bucket)
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    iam.create_user("us-east-1", "ann", "/")
    key = iam.create_access_key("ann")
    monkeypatch.setattr(responses.settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
    monkeypatch.setattr(ActionAuthenticatorMixin, "request_count", 0)
    said = swarm.fails(1, "mailbox", "size", "--mailbox", mailbox.url)
    assert "refuses these credentials (InvalidAccessKeyId)" in said
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key.access_key_id)
    said = swarm.fails(1, "mailbox", "size", "--mailbox", mailbox.url)
    assert "refuses these credentials (SignatureDoesNotMatch)" in said


def test_credentials_that_may_only_read(swarm: Swarm, bucket: Bucket) -> None:
    mailbox = Laid(bucket, done())
    bucket.mishaps = [Mishap("^(PUT|POST|DELETE) ", status="403 Forbidden", code="AccessDenied", count=10**6)]
    assert swarm("mailbox", "size", "--mailbox", mailbox.url) == 0
    assert "may not write there (AccessDenied)" in swarm.fails(1, "mailbox", "gc", "--now", "--mailbox", mailbox.url)
    empty = bucket.url("nothing")
    assert "may not write there (AccessDenied)" in swarm.fails(1, "init", empty)


def test_a_bucket_that_is_not_there_is_told_by_every_command(swarm: Swarm, bucket: Bucket) -> None:
    url = bucket.url("home").replace(bucket.name, "nowhere-at-all")
    for name, words in COMMANDS.items():
        said = swarm.fails(2 if name == "init" else 1, *(word.format(url=url) for word in words))
        assert said.strip().count("\n") == 0, said
        assert said.startswith(f"swarm: {url}: there is no such bucket: see its name and the endpoint, or make it first")
        assert "swarm init" not in said, "which makes no buckets"


def seen(location: str) -> api.MailboxView:
    """Of that mailbox, on the screen."""
    [view] = asyncio.run(api.HomeWatch((location,)).poll()).mailboxes
    return view


def test_the_screen_says_what_is_refused_and_what_to_do(bucket: Bucket) -> None:
    url = Laid(bucket).url
    missing = url.replace(bucket.name, "nowhere-at-all")
    view = seen(missing)
    assert (view.problem, "make it first" in view.remedy) == (f"{missing}: there is no such bucket", True)
    bucket.mishaps = [Mishap(".", status="403 Forbidden", code="InvalidAccessKeyId", count=10**6)]
    view = seen(url)
    assert "refuses these credentials (InvalidAccessKeyId): see AWS_ACCESS_KEY_ID" in view.problem
    assert "are the credentials right?" in view.remedy
    bucket.calm()
    assert seen(url).problem == ""
    assert "one is written s3://bucket/prefix" in seen("s3:home").problem


def test_mistyped_places_are_refused_by_every_command(
    swarm: Swarm, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(os.listdir())
    for words in COMMANDS.values():
        for text in ("s3:home", " "):
            said = swarm.fails(2, *(word.format(url=text) for word in words))
            assert "s3://bucket/prefix" in said
    assert sorted(os.listdir()) == before
    assert bucket.requests == []


# Looking after a mailbox


def test_a_mailbox_in_a_bucket_is_verified(swarm: Swarm, bucket: Bucket) -> None:
    store = done()
    mailbox = Laid(bucket, store)
    before = mailbox.objects()
    assert swarm("mailbox", "verify", "--mailbox", mailbox.url) == 0
    assert swarm.out == ""
    assert swarm.err.startswith(f"whole: 1 run, {len(before) - 1} objects, ")
    (summary,) = swarm.objects("mailbox", "verify", "--mailbox", mailbox.url)
    assert (summary["faults"], summary["runs"], summary["notes"]) == (0, 1, [])
    assert mailbox.objects() == before


def test_what_is_damaged_or_missing_in_a_bucket_is_told(swarm: Swarm, bucket: Bucket) -> None:
    store = half_done()
    flip(store, theta := KEYS.round_blob(newest(store).theta.round, newest(store).theta.sha256))
    gone = next(key for key in sorted(store.objects) if "/blobs/init/" in key)
    del store.objects[gap := KEYS.round(1)]
    del store.objects[gone]
    mailbox = Laid(bucket, store)
    assert swarm("mailbox", "verify", "--mailbox", mailbox.url) == 1
    lines = swarm.out.splitlines()
    for key, fault in ((theta, "damaged"), (gap, "gap"), (gone, "missing")):
        [line] = [line for line in lines if key in line]
        assert line.startswith(f"{fault}: "), line
    assert f"{len(lines)} faults" in swarm.err


def test_gc_in_a_bucket_shows_first_and_frees_what_it_showed(
    swarm: Swarm, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "STAGED_S", 0.05)
    mailbox = Laid(bucket, done())
    mailbox.lay(staged := f"tmp/{uuid4().hex}", b"x" * 500)
    before = mailbox.objects()
    shown = swarm.objects("mailbox", "gc", "--dry-run", "--mailbox", mailbox.url)
    assert shown[-1] | {"freed": True} == shown[-1] | {"what": "staged", "objects": 1, "bytes": 500, "freed": True}
    assert mailbox.objects() == before
    freed = swarm.objects("mailbox", "gc", "--now", "--mailbox", mailbox.url)
    assert freed == [{**row, "freed": True} for row in shown]
    after = mailbox.objects()
    assert len(before) - len(after) == sum(int(str(row["objects"])) for row in freed) > 1
    assert not any(staged in key for key in after)
    assert swarm("mailbox", "gc", "--now", "--mailbox", mailbox.url) == 0
    assert "0 objects, 0 bytes freed" in swarm.err


def test_sizes_in_a_bucket_are_told_per_run(swarm: Swarm, bucket: Bucket) -> None:
    store = done()
    for key in [key for key in store.objects if key.startswith(f"{KEYS.root}/")]:
        if "/manifest/" in key or "/blobs/init/" in key:
            store.objects[key.replace("testrun1", "other111")] = store.objects[key]
    mailbox = Laid(bucket, store)
    mailbox.lay(f"tmp/{uuid4().hex}", b"x")
    large, small, outside = swarm.objects("mailbox", "size", "--mailbox", mailbox.url)
    runs = {key: len(data) for key, data in store.objects.items() if key.startswith("runs/")}
    for row, run in ((large, "testrun1"), (small, "other111")):
        assert (row["run"], row["bytes"]) == (run, sum(n for key, n in runs.items() if key.startswith(f"runs/{run}/")))
    assert (outside["run"], outside["gc_bytes"]) == ("", 1)
    assert swarm("mailbox", "size", "--mailbox", mailbox.url) == 0
    assert re.search(r"\b1 byte\b", swarm.out)
    assert swarm.objects("mailbox", "size", "--run", "other111", "--mailbox", mailbox.url) == [small]
