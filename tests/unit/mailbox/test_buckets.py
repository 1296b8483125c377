"""URLs of mailboxes in object stores, the credentials for them, and the requests that are signed here."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.buckets import (
    NO_BUCKET,
    ObjectPlace,
    canonical,
    is_objects,
    masked,
    place_of,
    where_gone,
    where_lost,
    where_silent,
)
from swarm.core.errors import MailboxUnavailable, UsageError
from swarm.core.mounting import objects_in_words, told_of, told_place
from swarm.host.service import environment
from swarm.host.settings import mailbox_location
from swarm.mailbox import init_mailbox, open_mailbox
from swarm.mailbox.objects_probe import probe_objects
from swarm.mailbox.objects_store import Credentials, connect, foreign, renewed
from swarm.mailbox.objects_sweep import signed_request
from swarm.watch import known_mailboxes


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://bucket", ObjectPlace("bucket")),
        ("S3://bucket/", ObjectPlace("bucket")),
        ("s3://my.bucket/a/b/", ObjectPlace("my.bucket", "a/b")),
        ("s3://b-1/x?endpoint=http://127.0.0.1:9000", ObjectPlace("b-1", "x", "http://127.0.0.1:9000")),
        ("s3://b-1/x?region=auto&endpoint=https%3A%2F%2FNAS.local%2F", ObjectPlace("b-1", "x", "https://nas.local", "auto")),
        ("s3://b-1?endpoint=nas.local:9000", ObjectPlace("b-1", "", "https://nas.local:9000")),
        ("s3://b-1?endpoint=https://[::1]:9000/s3", ObjectPlace("b-1", "", "https://[::1]:9000/s3")),
    ],
)
def test_a_url_is_read_and_written_in_one_way(text: str, place: ObjectPlace) -> None:
    assert place_of(text) == place
    assert place_of(place.url) == place
    assert canonical(text) == place.url


@pytest.mark.parametrize("path", ["/mnt/share", "relative", "~/swarm", "C:\\share", "./s3:home", "s3", "s3-files/a b"])
def test_a_path_is_no_url(path: str) -> None:
    assert not is_objects(path)
    assert canonical(path) == path


@pytest.mark.parametrize(
    "url",
    [
        "s3://hunter2:hunter2@bucket/x",
        "s3://hunter2@bucket/x",
        "s3://bucket?access_key_id=hunter2",
        "s3://bucket/x?secret=hunter2",
        "s3://bucket/x?AWS_SECRET_ACCESS_KEY=hunter2&endpoint=http://nas",
        "s3://bucket/x?session_token=hunter2",
        "s3://bucket/x?X-Amz-Signature=hunter2",
        "s3://bucket/x?endpoint=http://hunter2:hunter2@nas",
        "s3://bucket/x?endpoint=http://nas%3Fkey=hunter2",
        "s3://bucket/x?endpoint=nas/%23hunter2",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") as raised:
        open_mailbox(url)
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///x",
        "s3://b",
        "s3://bucket:9000/x",
        "s3://bucket/../x",
        "s3://bucket/a//b",
        "s3://bucket/a b",
        "s3://bucket/%00",
        "s3://bucket/x#y",
        "s3://bucket/x?endpoint",
        "s3://bucket/x?endpoint=ftp://nas",
        "s3://bucket/x?endpoint=http://nas:99999999",
        "s3://bucket/x?endpoint=http://na s",
        "s3://bucket/x?endpoint=http://[::1",
        "s3://bucket/x?region=eu/west",
        "s3://bucket/x?colour=red",
        "s3://bucket/x?region=a&region=b",
        "s3://[bucket/x",
        "s3://bucket/" + "x" * 3000,
    ],
)
def test_what_is_no_url_of_a_mailbox_is_said_in_one_line(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        open_mailbox(url)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 250


@given(st.text(max_size=60))
def test_nothing_else_comes_of_any_text(text: str) -> None:
    try:
        place = place_of(f"s3://{text}")
    except UsageError:
        return
    assert place_of(place.url) == place


@pytest.mark.parametrize("other", ["gs://bucket", "smb://nas/swarm", "az://x", "http://x"])
def test_other_urls_are_refused(other: str) -> None:
    with pytest.raises(UsageError, match="is no mailbox: mount the share"):
        open_mailbox(other)


@pytest.mark.parametrize(
    "text", ["s3:home", "S3:/bucket/x", "s3:", " s3:home", "s3:hunter2@bucket", "", " ", "\t\n", "nfs://nas/x"]
)
def test_what_was_mistyped_becomes_no_folder(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for take in (open_mailbox, canonical, lambda text: mailbox_location(text or " ")):
        with pytest.raises(UsageError, match=r"s3://bucket/prefix\?endpoint=https://nas\.local:9000$") as raised:
            take(text)
        assert "hunter2" not in str(raised.value)
        assert "\n" not in str(raised.value)
    monkeypatch.setenv("SWARM_MAILBOX", text or " ")
    with pytest.raises(UsageError, match=r"^SWARM_MAILBOX: .*s3://bucket/prefix"):
        environment()


async def test_a_mailbox_is_not_made_where_none_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("s3:home", " ", "smb://nas/swarm"):
        with pytest.raises(UsageError):
            await init_mailbox(text)
    with pytest.raises(UsageError):
        await init_mailbox(Path("s3://bucket/x"))  # which loses a slash
    assert [*tmp_path.iterdir()] == []


def test_spaces_around_a_url_do_not_count() -> None:
    assert open_mailbox(" s3://bucket/x\n").location == "s3://bucket/x"


# What is shown, and told to others


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:hunter2@bucket/x",
        "s3://bucket?secret=hunter2&endpoint=http://nas",
        "s3://bucket?endpoint=http://k:hunter2@nas",
    ],
)
def test_what_is_refused_for_its_secret_is_shown_without_it(url: str) -> None:
    assert "hunter2" not in masked(url)
    with pytest.raises(UsageError, match=r"must not hold a secret|neither a user nor options"):
        place_of(masked(url))


def test_what_holds_no_secret_is_shown_as_it_is() -> None:
    for text in ("/mnt/share@home", "s3://bucket/x?endpoint=http://nas:9000&region=auto"):
        assert masked(text) == text


def test_settings_and_commands_take_one_writing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_MAILBOX", "S3://bucket/home/?endpoint=https://NAS:9000/")
    assert mailbox_location(None) == "s3://bucket/home?endpoint=https://nas:9000"
    assert known_mailboxes()[0] == mailbox_location(None)
    monkeypatch.setenv("SWARM_MAILBOX", "s3://key:hunter2@bucket/home")
    assert "hunter2" not in known_mailboxes()[0]


def test_others_are_told_of_a_place_that_means_the_same_to_them() -> None:
    url = "s3://bucket/home?endpoint=https://nas.local:9000"
    assert told_of(url) == url
    for alone in (
        "/mnt/share",
        "s3://b-1?endpoint=http://127.0.0.1:9000",
        "s3://b-1?endpoint=http://localhost",
        "s3://b-1?endpoint=http://[::1]:1",
    ):
        assert told_of(alone) == ""
    assert told_of("s3://bucket/" + "x" * 120 + "/" + "y" * 119) == ""
    assert told_place(url + "/") == url
    assert told_place("SMB://nas/swarm") == "smb://nas/swarm"


def test_how_a_run_in_a_store_is_joined_is_said_in_a_command_that_can_be_pasted() -> None:
    words = objects_in_words("s3://bucket/home?endpoint=https://nas.local&region=auto", "one; rm -rf /")
    assert words[-1] == "  swarm join 'one; rm -rf /' --mailbox 's3://bucket/home?endpoint=https://nas.local&region=auto'"
    for told in ("", "smb://nas/swarm", "s3://key:hunter2@bucket", "s3://$(reboot)"):
        assert objects_in_words(told, "one") == ()


def test_what_to_do_fits_the_kind_of_mailbox() -> None:
    assert "mounted" in where_gone("/mnt/x")
    assert "mounted" not in where_gone("s3://bucket") + where_lost("s3://bucket") + where_silent("s3://bucket")
    assert (
        where_gone("s3://bucket?endpoint=http://nas") == "`swarm init 's3://bucket?endpoint=http://nas'` makes a mailbox there"
    )
    assert "swarm init" not in where_gone("s3://bucket", f"s3://bucket: {NO_BUCKET}"), "it makes no buckets"


# Credentials

PLACE = place_of("s3://bucket/x?endpoint=http://127.0.0.1:9")


def test_credentials_come_from_the_environment() -> None:
    stores = connect(PLACE, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_SESSION_TOKEN": "t"})
    assert stores.credentials == Credentials("k", "hunter2", "t")
    assert "hunter2" not in repr(stores)


def test_credentials_come_from_the_file_of_amazons_tools(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = k\naws_secret_access_key = 50%s\n"
        "[nas]\naws_access_key_id=n\naws_secret_access_key=m\naws_session_token=t\n[empty]\n"
    )
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    assert connect(PLACE, environ).credentials == Credentials("k", "50%s")
    assert connect(PLACE, environ | {"AWS_PROFILE": "nas"}).credentials == Credentials("n", "m", "t")
    for profile in ("empty", "none"):
        with pytest.raises(UsageError, match=f"no credentials for the profile '{profile}'"):
            connect(PLACE, environ | {"AWS_PROFILE": profile})
    file.write_text("aws_secret_access_key = hunter2\n")
    with pytest.raises(UsageError, match="it is no file of credentials") as raised:
        connect(PLACE, environ)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "no credentials for it: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or put them into ~/.aws/credentials"),
        ({"AWS_ACCESS_KEY_ID": "k"}, "AWS_SECRET_ACCESS_KEY is not set"),
        ({"AWS_SECRET_ACCESS_KEY": "s"}, "AWS_ACCESS_KEY_ID is not set"),
    ],
)
def test_missing_credentials_are_said_in_one_line(environ: dict[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        connect(PLACE, {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"), **environ})


def test_credentials_may_be_left_to_the_machine(tmp_path: Path) -> None:
    """An instance, a container or a public bucket: obstore finds them, or needs none."""
    nowhere = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none")}
    assert connect(place_of("s3://bucket"), nowhere).credentials is None
    assert connect(PLACE, nowhere | {"AWS_SKIP_SIGNATURE": "true"}).credentials is None
    with pytest.raises(UsageError, match="no credentials"):
        connect(place_of("s3://bucket"), nowhere | {"AWS_EC2_METADATA_DISABLED": "true"})


def test_endpoint_and_region_come_from_the_url_or_else_the_environment() -> None:
    environ = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": "http://nas/", "AWS_REGION": "eu-1"}
    stores = connect(place_of("s3://bucket"), environ)
    assert (stores.endpoint, stores.region) == ("http://nas", "eu-1")
    stores = connect(place_of("s3://bucket?endpoint=https://other&region=auto"), environ)
    assert (stores.endpoint, stores.region) == ("https://other", "auto")
    assert connect(place_of("s3://bucket"), {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}).region == "us-east-1"


def test_errors_say_which_server_was_asked() -> None:
    known = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    bare, full = "s3://bucket/x", "s3://bucket/x?endpoint=https://nas"
    assert connect(place_of(full), known).where == full
    assert connect(place_of(bare), known | {"AWS_ENDPOINT_URL": "https://nas"}).where == f"{bare} at https://nas"
    assert connect(place_of(bare), known).where == f"{bare} at Amazon S3"


def test_credentials_that_were_written_anew_are_used(tmp_path: Path) -> None:
    file, environ = tmp_path / "credentials", {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
    text = "[default]\naws_access_key_id=k\naws_secret_access_key=s\naws_session_token="
    file.write_text(f"{text}old\n")
    stores = connect(PLACE, environ)
    assert renewed(stores, PLACE, environ) is stores
    file.write_text("[default")  # half of it
    assert renewed(stores, PLACE, environ) is stores
    file.unlink()
    assert renewed(stores, PLACE, environ) is stores
    file.write_text(f"{text}new\n")
    assert renewed(stores, PLACE, environ).credentials == Credentials("k", "s", "new")


def test_without_obstore_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    with pytest.raises(UsageError, match=r"pip install 'homeswarm\[s3\]'"):
        connect(PLACE, {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"})


async def test_the_trial_says_what_to_install_and_not_to_set_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore", None)
    [tick] = await probe_objects(PLACE.url, timeout_s=5.0)
    assert (tick.verdict, tick.remedy) == ("failed", "pip install 'homeswarm[s3]'")


def test_requests_are_signed_as_amazon_does_it() -> None:
    """The example of Amazon's own documentation of the header Authorization: GET Bucket Lifecycle."""
    request = signed_request(
        "GET",
        "https://examplebucket.s3.amazonaws.com",
        {"lifecycle": ""},
        region="us-east-1",
        credentials=Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
        now=datetime(2013, 5, 24, tzinfo=UTC),
    )
    authorization = request.get_header("Authorization") or ""
    assert authorization.endswith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")
    assert "SignedHeaders=host;x-amz-content-sha256;x-amz-date" in authorization


@pytest.mark.parametrize(
    "endpoint", ["me:hush-hush@nas", "http://me:hush-hush@nas:9000", "http://nas:99999", "http://[::1", "ftp://nas"]
)
def test_an_endpoint_in_the_environment_is_as_good_as_one_in_the_url(endpoint: str) -> None:
    known = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    bare = place_of("s3://bucket")
    with pytest.raises(UsageError, match=r"^AWS_ENDPOINT_URL: ") as raised:
        connect(bare, known | {"AWS_ENDPOINT_URL": endpoint})
    assert "hush-hush" not in str(raised.value)
    assert connect(bare, known | {"AWS_ENDPOINT_URL": "NAS.local:9000/"}).endpoint == "https://nas.local:9000"


def test_a_fault_of_obstores_own_is_an_error_of_ours() -> None:
    """It is raised as an exception that is no Exception."""
    known = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "no\nregion"}
    stores = connect(place_of("s3://bucket?endpoint=http://127.0.0.1:1"), known)
    with pytest.raises(MailboxUnavailable, match="s3://bucket: obstore cannot"), foreign("s3://bucket"):
        stores.obstore.get(stores.small, "key")
    with pytest.raises(KeyboardInterrupt), foreign("s3://bucket"):
        raise KeyboardInterrupt
