"""An object store, through obstore: how it is reached, and what its errors mean for a mailbox, the one place where they are
mapped. obstore comes with the extra `s3`, and is imported when the first mailbox in an object store is opened.
"""

from __future__ import annotations

import atexit
import configparser
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from swarm.core.buckets import CREDENTIALS, NO_BUCKET, ObjectPlace, endpoint_of
from swarm.core.errors import (
    MailboxAway,
    MailboxCorrupt,
    MailboxError,
    MailboxFull,
    MailboxReadOnly,
    MailboxUnavailable,
    NotInstalled,
    UsageError,
)
from swarm.core.plaintext import plain

CONNECT_S = 5.0
SMALL_S = 20.0  # for an answer to all but transfers of a part of a payload
PART_S = 180.0  # for one of those: PART_BYTES, three at once, over a line of 1 Mbit/s
EXIT_S = 1.0  # that the end of the process waits for calls under way
RETRIES, RETRY_S = 3, 10.0  # on the spot, of what is often over within a second; the rest is the caller's to retry

_ELSEWHERE = (  # where obstore finds credentials by itself
    "AWS_SKIP_SIGNATURE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
)
_NONE = f"no credentials for it: set {CREDENTIALS}, or put them into ~/.aws/credentials"
_RIGHTS = f"the bucket's owner gives the rights to list, read, write and delete; or see {CREDENTIALS}"
_METADATA = "169.254.169.254"  # what obstore asks last, on Amazon's machines: elsewhere there are none
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*(\w{1,80})\s*</Code>")
_FULL = re.compile(r"StorageFull|Quota|InsufficientStorage|TooManyKeys")
_REFUSED = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "ExpiredToken",
        "InvalidToken",
        "TokenRefreshRequired",
        "InvalidTokenId",
        "Unauthorized",
    }
)


@dataclass(frozen=True)
class Credentials:
    key: str
    secret: str
    token: str = ""

    def __repr__(self) -> str:
        return "Credentials(…)"  # they reach no log


@dataclass(frozen=True)
class Stores:
    """One place with two patiences. `obstore`: the module. `credentials`: None: whatever obstore finds by itself."""

    obstore: Any
    small: Any
    parts: Any
    endpoint: str  # '': Amazon's
    region: str
    credentials: Credentials | None
    where: str  # as errors say it: also which server was asked, where the URL does not tell


def connect(place: ObjectPlace, environ: Mapping[str, str] | None = None) -> Stores:
    """Reads the environment and perhaps ~/.aws/credentials; asks nobody. Raises UsageError."""
    environ = os.environ if environ is None else environ
    try:
        import obstore
        from obstore.store import S3Store
    except ImportError as error:
        raise NotInstalled("a mailbox in an object store needs obstore", remedy="pip install 'homeswarm[s3]'") from error
    named = next((name for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") if environ.get(name)), "")
    try:
        endpoint = place.endpoint or endpoint_of(environ.get(named, "").strip())
    except UsageError as error:
        raise UsageError(f"{named}: {error}") from error
    region = place.region or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    credentials = _credentials(place, endpoint, environ)
    options: dict[str, Any] = {"region": region}
    if endpoint:
        options["endpoint"] = endpoint
        if environ.get("AWS_ENDPOINT_URL_S3"):  # it would come before that; older versions of obstore do not know it
            options["aws_endpoint_url_s3"] = endpoint
    if credentials is not None:
        options |= {"access_key_id": credentials.key, "secret_access_key": credentials.secret}
        if credentials.token:
            options["session_token"] = credentials.token

    def store(timeout_s: float) -> Any:
        return S3Store(
            place.bucket,
            prefix=place.prefix or None,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=timeout_s),
            },
            retry_config={
                "max_retries": RETRIES,
                "retry_timeout": timedelta(seconds=RETRY_S),
                "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=1), "base": 2},
            },
            **options,
        )

    try:
        return Stores(obstore, store(SMALL_S), store(PART_S), endpoint, region, credentials, _where(place, endpoint))
    except (obstore.exceptions.BaseError, ValueError) as error:
        raise UsageError(f"{place.url}: {_words(str(error))}") from error


def renewed(stores: Stores, place: ObjectPlace, environ: Mapping[str, str] | None = None) -> Stores:
    """`stores`, or new ones if other credentials are there by now: whoever hands out some that last for hours writes them into
    their file again and again. Asks nobody."""
    environ = os.environ if environ is None else environ
    try:
        if _credentials(place, stores.endpoint, environ) != stores.credentials:
            return connect(place, environ)
    except UsageError:  # just being written
        pass
    return stores


def _where(place: ObjectPlace, endpoint: str) -> str:
    return place.url if place.endpoint else f"{place.url} at {endpoint or 'Amazon S3'}"


def _credentials(place: ObjectPlace, endpoint: str, environ: Mapping[str, str]) -> Credentials | None:
    key, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if key and secret:
        return Credentials(key, secret, environ.get("AWS_SESSION_TOKEN", "") or environ.get("AWS_TOKEN", ""))
    if key or secret:
        missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        raise UsageError(f"{place.url}: {missing} is not set")
    if any(environ.get(name) for name in _ELSEWHERE):
        return None
    found = _from_file(environ)
    if found is None and (endpoint or environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"):
        raise UsageError(f"{place.url}: {_NONE}")
    return found


def _from_file(environ: Mapping[str, str]) -> Credentials | None:
    """What the file of Amazon's own tools says, which obstore does not read."""
    path = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    profile = environ.get("AWS_PROFILE") or "default"
    try:
        parser = configparser.ConfigParser(interpolation=None)
        parser.read_string(path.expanduser().read_text())
        section = parser[profile]
        return Credentials(section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token", ""))
    except FileNotFoundError:
        return None
    except KeyError:
        if environ.get("AWS_PROFILE"):
            raise UsageError(f"{path} has no credentials for the profile {plain(profile, 60)!r}") from None
        return None
    except (OSError, RuntimeError, UnicodeDecodeError, configparser.Error) as error:
        kind = (isinstance(error, OSError) and error.strerror) or "it is no file of credentials"  # its text may hold a secret
        raise UsageError(f"{path} cannot be read: {kind}") from None


class _Inside:
    """How many threads are in obstore's calls.

    A thread that comes back from one while the interpreter is being taken down is ended in the middle of foreign code, which
    aborts the process. So at exit those that are about to come back are waited for, and no other call begins. One that hangs
    is not waited for: it does not come back just then.
    """

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._calls = 0
        self._ending = self._watched = False

    def enter(self) -> None:
        with self._turn:
            if not self._watched:
                self._watched = True
                atexit.register(self._end)
            while self._ending:
                self._turn.wait()
            self._calls += 1

    def leave(self) -> None:
        with self._turn:
            self._calls -= 1
            self._turn.notify_all()

    def _end(self) -> None:
        with self._turn:
            self._ending = True
            self._turn.wait_for(lambda: not self._calls, EXIT_S)


_inside = _Inside()


@contextmanager
def foreign(location: str, *, writing: bool = False, answers: tuple[type[OSError], ...] = ()) -> Iterator[None]:
    """No error of obstore gets out of this block, only its meaning. `answers`: FileNotFoundError or FileExistsError, where it
    is an answer that an object is not there, or is there already. Elsewhere they mean neither: stores say 404, too, when an
    upload was ended, and 409 when somebody else writes just then."""
    _inside.enter()
    try:
        yield
    except MailboxError:
        raise
    except Exception as error:
        if FileExistsError in answers and type(error).__name__ == "AlreadyExistsError":
            raise FileExistsError from error
        if FileNotFoundError in answers and isinstance(error, FileNotFoundError) and _code(error) != "NoSuchBucket":
            raise
        if isinstance(error, (FileNotFoundError, OSError)) or type(error).__module__.startswith("obstore"):
            raise mapped(error, location, writing=writing) from error
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        # A fault in obstore itself, of what it was not made for; it is no Exception.
        raise MailboxUnavailable(f"{location}: obstore cannot do that: {plain(str(error), 160)}") from error
    finally:
        _inside.leave()


def mapped(error: Exception, location: str, *, writing: bool = False) -> MailboxError:
    """The error of ours that says what to do about `error`. Whatever is not known to be lasting counts as transient."""
    text, code, status = str(error), _code(error), _status(error)
    if _METADATA in text:
        return MailboxUnavailable(f"{location}: {_NONE}")
    if code == "NoSuchBucket":
        return MailboxAway(f"{location}: {NO_BUCKET}")
    if status == 507 or _FULL.search(code):
        return MailboxFull(f"{location}: no room left ({code or status})")
    if code in _REFUSED or status == 401:
        more = " (and AWS_SESSION_TOKEN)" if "Token" in code else ""
        words = f"the store refuses these credentials ({code or status}): see {CREDENTIALS}{more}, or ~/.aws/credentials"
        return MailboxUnavailable(f"{location}: {words}")
    if code == "RequestTimeTooSkewed":
        return MailboxUnavailable(f"{location}: this machine's clock is too far from the store's: set it right")
    if status == 403 or type(error).__name__ == "PermissionDeniedError":
        # Amazon says so, too, of an object that is not there, to whoever may not list.
        may_not, kind = ("write", MailboxReadOnly) if writing else ("read or list", MailboxUnavailable)
        return kind(f"{location}: these credentials may not {may_not} there ({code or status}): {_RIGHTS}")
    if status == 501 or code == "NotImplemented":
        return MailboxCorrupt(f"{location}: this store cannot do what a mailbox needs (conditional writes, multipart uploads)")
    if status in (301, 307) or code in ("PermanentRedirect", "AuthorizationHeaderMalformed") or "LOCATION" in text:
        return MailboxUnavailable(f"{location}: the bucket is in another region: add region=… to the URL")
    if status is None:
        return MailboxUnavailable(f"{location}: the store does not answer: {_words(text)}")
    return MailboxUnavailable(f"{location}: the store answers {status}" + (f" ({code})" if code else ""))


def out_of_range(error: Exception) -> bool:
    """Whether a part was asked for that begins at the object's end or beyond it."""
    return _status(error) == 416


def _code(error: Exception) -> str:
    found = _CODE.search(str(error))
    return found[1] if found else ""


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _words(text: str) -> str:
    """The end of what obstore says in its first line: there the cause stands, after addresses and times."""
    line = text.partition("\n")[0]
    if "timed out" in text or "operation timed out" in text or "TimedOut" in text:
        return "no answer in time"
    for sign, words in (
        ("Connection refused", "the connection is refused"),
        ("ConnectionRefused", "the connection is refused"),
        ("dns error", "its name is not known"),
        ("certificate", "its certificate is not trusted"),
        ("Network is unreachable", "the network is unreachable"),
        ("Connection reset", "the connection broke"),
    ):
        if sign in text:
            return words
    return plain(line.rpartition(" - ")[2], 160)
