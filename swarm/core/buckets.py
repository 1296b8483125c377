"""Where a mailbox in an object store lies: `s3://bucket/prefix?endpoint=https://…&region=…`, as people write it.

Such a URL is shown, recorded and told to other machines. So no secret may stand in it, and what is refused is never repeated.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from swarm.core.errors import UsageError
from swarm.core.plaintext import plain

SCHEME = "s3"
NO_BUCKET = "there is no such bucket"
BUCKET_FIRST = "see its name and the endpoint, or make it first, with the store's own tools"
CREDENTIALS = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_EXAMPLE = "s3://bucket/prefix?endpoint=https://nas.local:9000"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_COMPONENT = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,119}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_SECRET = re.compile(r"key|secret|token|pass|sign|credential|user", re.IGNORECASE)
_SHOWN_OPTION = re.compile(r"(?i)([?&])(?!(?:endpoint|region)=)([^=&#]*)=[^&#]*")
_ANY_USER = re.compile(r"(?i)((?://|%2f%2f|=))[^/?&#]*(?:@|%40)")
MAX_CHARACTERS = 2000


@dataclass(frozen=True)
class ObjectPlace:
    """A part of a bucket. `prefix`: '' or components joined by '/'. `endpoint`, `region`: '': what the environment says, else
    Amazon's, and us-east-1."""

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    region: str = ""

    @property
    def url(self) -> str:
        """The one way in which it is written: two texts that mean one place are equal then."""
        options = [("endpoint", self.endpoint), ("region", self.region)]
        query = "&".join(f"{name}={quote(value, safe=':/[]')}" for name, value in options if value)
        return f"{SCHEME}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "") + (f"?{query}" if query else "")


def scheme_of(location: str) -> str:
    """In lower case; '' for what is no URL, hence a folder's path."""
    found = _URL.match(location)
    return found[1].lower() if found else ""


def is_objects(location: str) -> bool:
    """Whether `location` is meant as a place in an object store."""
    return scheme_of(location) == SCHEME


def canonical(location: str) -> str:
    """A URL of an object store as `ObjectPlace.url` writes it, a folder's path as it is. Raises UsageError for what can be
    neither, of which a folder would be made by mistake: what is blank, begins like such a URL, or is another one."""
    text = location.strip()
    if not text:
        raise UsageError(f"no mailbox given: pass the path of the shared folder, or the URL of an object store, as {_EXAMPLE}")
    if is_objects(text):
        return place_of(text).url
    if text[:3].lower() == f"{SCHEME}:":  # what follows may hold a secret
        raise UsageError(f"{SCHEME}: without // is no URL of a mailbox: one is written {_EXAMPLE}")
    if scheme := scheme_of(text):
        raise UsageError(f"{scheme}:// is no mailbox: mount the share and pass its folder, or pass a URL as {_EXAMPLE}")
    return location


def masked(location: str) -> str:
    """As it may be shown: of a URL that is refused because it holds a secret, without that, and refused all the same."""
    if not scheme_of(location):
        return location
    return plain(_ANY_USER.sub(r"\1…@", _SHOWN_OPTION.sub(r"\1\2=…", location)), MAX_CHARACTERS)


def where_gone(location: str, said: str = "") -> str:
    """What to do when there is no mailbox at `location`. `said`: the error that says so."""
    if is_objects(location):
        if NO_BUCKET in said:
            return BUCKET_FIRST
        return f"`swarm init {shlex.quote(location)}` makes a mailbox there"
    return f"is the share mounted? `swarm init {location}` makes a mailbox there"


def with_init(said: str, location: str) -> str:
    """An error of a mailbox that is not there, and what makes one."""
    if is_objects(location) and NO_BUCKET in said:
        return f"{said}: {BUCKET_FIRST}"
    return f"{said}{'' if said.endswith('?') else ':'} `swarm init {shlex.quote(location)}` makes one there"


def where_silent(location: str) -> str:
    """What to look at when the mailbox at `location` does not answer."""
    return "is the store reachable?" if is_objects(location) else "is the share reachable?"


def where_lost(location: str) -> str:
    """What to look at when the mailbox at `location` cannot be used just now."""
    if is_objects(location):
        return "is the store reachable, and are the credentials right? It is tried again"
    return "is the share mounted and reachable? It is tried again"


def place_of(url: str) -> ObjectPlace:
    """Raises UsageError for what is no such URL, or holds a secret, which the message does not repeat."""
    if len(url) > MAX_CHARACTERS:
        raise UsageError(f"a mailbox's URL has at most {MAX_CHARACTERS} characters")
    try:
        split = urlsplit(url)
        options = parse_qsl(split.query, keep_blank_values=True, strict_parsing=bool(split.query))
    except ValueError as error:
        raise UsageError(f"no URL of a mailbox, as {_EXAMPLE}") from error
    if "@" in split.netloc or any(_SECRET.search(name) for name, _ in options):
        raise UsageError(f"a mailbox's URL must not hold a secret: it is shown to others; set {CREDENTIALS} instead")
    bucket, prefix = split.netloc, unquote(split.path).strip("/")
    if split.scheme.lower() != SCHEME or split.fragment or not _BUCKET.fullmatch(bucket):
        raise UsageError(f"{plain(url.partition('?')[0], 100)} is no URL of a mailbox, as {_EXAMPLE}")
    for part in prefix.split("/") if prefix else ():
        if not _COMPONENT.fullmatch(part):
            raise UsageError(
                f"{plain(part, 60) or '//'!r} in a mailbox's URL: letters, digits, '.', '_' and '-' are allowed there"
            )
    given = dict(options)
    if len(given) != len(options) or not given.keys() <= {"endpoint", "region"}:
        wrong = next((name for name, _ in options if name not in ("endpoint", "region")), "")
        what = f"{plain(wrong, 60)!r}" if wrong else "an option twice"
        raise UsageError(f"{what} in a mailbox's URL: endpoint and region are known, as {_EXAMPLE}")
    region = given.get("region", "")
    if region and not _REGION.fullmatch(region):
        raise UsageError("the region in a mailbox's URL holds letters, digits and '-'")
    return ObjectPlace(bucket, prefix, endpoint_of(given.get("endpoint", "")), region)


def endpoint_of(text: str) -> str:
    """The address of a server, as a URL says it; '' for ''. Raises UsageError for what is none, or holds a user."""
    if not text:
        return ""
    text = text if "://" in text else f"https://{text}"
    try:
        split = urlsplit(text)
        port = split.port
    except ValueError as error:
        raise UsageError(f"the endpoint in a mailbox's URL is no address of a server, as {_EXAMPLE}") from error
    if "@" in split.netloc or split.query or split.fragment:
        raise UsageError(f"a mailbox's endpoint holds neither a user nor options; set {CREDENTIALS} instead")
    host = split.netloc.removesuffix(f":{port}" if port is not None else ":")
    path = split.path.strip("/")
    known = split.scheme in ("http", "https") and _HOST.fullmatch(host)
    if not known or not all(_COMPONENT.fullmatch(part) for part in path.split("/") if path):
        raise UsageError(f"{plain(text, 100)} is no address of an object store: https://HOST:PORT or http://HOST:PORT")
    return f"{split.scheme}://{host.lower()}" + (f":{port}" if port is not None else "") + (f"/{path}" if path else "")
