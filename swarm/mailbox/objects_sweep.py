"""What dead writers left in tmp/ of a bucket: objects that were not copied to their keys any more, and uploads that nobody
ended, which no listing shows and the bucket's owner pays for.

obstore can neither list nor abort uploads: these three requests are made and signed here (AWS Signature Version 4), where the
credentials are known. Where they are not (an instance's role), a rule of the bucket has to do it; so says the README.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree

from swarm.core.buckets import ObjectPlace
from swarm.mailbox.objects_put import TMP
from swarm.mailbox.objects_store import SMALL_S, Credentials, Stores

_OURS = re.compile(r"[0-9a-f]{32}")
_MOST_BYTES = 4 << 20  # of an answer
Like = tuple[int, str]
"""Of something in tmp/: its bytes, and what changes with its content."""
_PAGES = 11  # of the parts of one upload, 1,000 each: no upload has more


class ObjectSweeper:
    """Judges by this process's clock alone: from when it first saw something as it still is."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, Like]] = {}  # (key, upload or '') → since when, and what it is like

    def sweep(self, stores: Stores, place: ObjectPlace, older_than_s: float, *, now_s: float, staging: Collection[str]) -> int:
        """Remove what has been the same for `older_than_s`; how many. Raises what obstore raises."""
        uploads = _Uploads.of(stores, place)
        seen = {}
        for what, like in lying(stores, place).items():
            if what[0] not in staging:
                since_s, before = self._seen.get(what, (now_s, like))
                seen[what] = (since_s if before == like else now_s, like)
        removed = 0
        for (key, upload), (since_s, _) in list(seen.items()):
            if now_s - since_s < older_than_s:
                continue
            if not upload:
                with suppress(FileNotFoundError):
                    stores.obstore.delete(stores.small, key)
            elif uploads is None or not uploads.abort(key, upload):
                continue
            removed += 1
            del seen[key, upload]
        self._seen = seen
        return removed


def lying(stores: Stores, place: ObjectPlace) -> dict[tuple[str, str], Like]:
    """What is in tmp/: (key, '') of an object, (key, upload) of an upload that nobody has ended. Raises what obstore raises."""
    found: dict[tuple[str, str], Like] = {}
    for page in stores.obstore.list(stores.small, f"{TMP}/", chunk_size=1000):
        for each in page:
            found[each["path"], ""] = (each["size"], f"{each['e_tag']} {each['last_modified']}")
    uploads = _Uploads.of(stores, place)
    if uploads is not None:
        found |= uploads.found()
    return {what: like for what, like in found.items() if _OURS.fullmatch(what[0].removeprefix(f"{TMP}/"))}


class _Uploads:
    """Not every user may list uploads, and not every store can: then there are none to be seen."""

    def __init__(self, stores: Stores, place: ObjectPlace, credentials: Credentials) -> None:
        endpoint = stores.endpoint or f"https://s3.{stores.region}.amazonaws.com"
        self._bucket = f"{endpoint}/{place.bucket}"
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._region, self._credentials = stores.region, credentials

    @classmethod
    def of(cls, stores: Stores, place: ObjectPlace) -> _Uploads | None:
        """None: the credentials are not known here."""
        return None if stores.credentials is None else cls(stores, place, stores.credentials)

    def found(self) -> dict[tuple[str, str], Like]:
        """(key, upload), of the first thousand below tmp/."""
        found: dict[tuple[str, str], Like] = {}
        with suppress(OSError, http.client.HTTPException, ElementTree.ParseError):
            for each in self._ask("GET", "", {"uploads": "", "prefix": f"{self._prefix}{TMP}/"}).findall("{*}Upload"):
                key, upload = each.findtext("{*}Key", ""), each.findtext("{*}UploadId", "")
                if key.startswith(self._prefix) and upload:
                    key = key.removeprefix(self._prefix)
                    with suppress(urllib.error.HTTPError):  # ended just now
                        found[key, upload] = self._progress(key, upload)
        return found

    def _progress(self, key: str, upload: str) -> Like:
        size, parts, marker = 0, 0, "0"
        for _ in range(_PAGES):
            page = self._ask("GET", key, {"uploadId": upload, "part-number-marker": marker})
            sizes = [part.findtext("{*}Size", "0") for part in page.findall("{*}Part")]
            size, parts = size + sum(int(each) for each in sizes if each.isdecimal()), parts + len(sizes)
            if page.findtext("{*}IsTruncated") != "true":
                break
            marker = page.findtext("{*}NextPartNumberMarker", "0")
        return size, f"{parts} parts"

    def abort(self, key: str, upload: str) -> bool:
        with suppress(OSError, http.client.HTTPException, ElementTree.ParseError):
            self._ask("DELETE", key, {"uploadId": upload})
            return True
        return False

    def _ask(self, method: str, key: str, query: Mapping[str, str]) -> ElementTree.Element:
        url = f"{self._bucket}/{quote(self._prefix + key)}" if key else self._bucket
        signed = signed_request(method, url, query, region=self._region, credentials=self._credentials, now=datetime.now(UTC))
        with urllib.request.urlopen(signed, timeout=SMALL_S) as answer:  # an address of http or https: core/buckets.py
            data = answer.read(_MOST_BYTES)
        return ElementTree.fromstring(data) if data else ElementTree.Element("none")


def signed_request(
    method: str, url: str, query: Mapping[str, str], *, region: str, credentials: Credentials, now: datetime
) -> urllib.request.Request:
    """A request without a body, signed for S3 (AWS Signature Version 4). `url`: without a query, its path quoted."""
    at, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    split, empty = urlsplit(url), hashlib.sha256(b"").hexdigest()
    asked = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(query.items()))
    headers = {"host": split.netloc, "x-amz-content-sha256": empty, "x-amz-date": at}
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    canonical = f"{method}\n{split.path or '/'}\n{asked}\n{lines}\n{names}\n{empty}"
    scope = f"{day}/{region}/s3/aws4_request"
    key = f"AWS4{credentials.secret}".encode()
    for word in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, word.encode(), "sha256")
    to_sign = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return urllib.request.Request(f"{url}?{asked}" if asked else url, method=method, headers=headers)
