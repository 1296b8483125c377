"""An object store on this machine: moto's, in this process, which may be told to misbehave.

moto looks and then writes: of two conditional writes at the same time both may pass, and listings break beside deletions. So
requests take turns here, and it keeps its word; `deaf` it does not.
"""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "learner", "AWS_SECRET_ACCESS_KEY": "not-a-secret"}
_SOMEBODY = {"Authorization": "AWS4-HMAC-SHA256 Credential=somebody/20260101/us-east-1/s3/aws4_request"}
Respond = Callable[..., Any]


@dataclass
class Mishap:
    """What goes wrong with a request whose 'METHOD /path?query' matches `request`.

    refuse  it is answered with `status` and `code`, and has no effect
    lose    it has its effect, and is then answered so
    then    it has its effect, `then` is done, and it is answered as ever
    """

    request: str
    kind: str = "refuse"
    status: str = "500 Internal Server Error"
    code: str = "InternalError"
    count: int = 1  # requests that it hits
    skip: int = 0  # matching requests that it lets pass first
    then: Callable[[], object] = int


class Bucket:
    """A server with one bucket in it at first. What it holds outlasts its being stopped."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self.endpoint = ""
        self._server: Any = None
        self._connections: set[socket.socket] = set()
        self.name = f"b{uuid4().hex[:12]}"
        self.calm()

    def calm(self) -> None:
        """Let it behave again."""
        self.deaf = False
        self.mishaps: list[Mishap] = []
        self.requests: list[str] = []
        self.held: threading.Event | None = None  # requests wait for it
        self.known: set[str] = set()  # access keys that it takes; none: any
        self.page = 0  # keys in one answer to a listing; 0: as many as ever

    def start(self) -> None:
        """Serve, on the port that was ours before if it was stopped."""
        if self._server is not None:
            return
        from werkzeug.serving import WSGIRequestHandler, make_server

        connections = self._connections

        class Handler(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"  # connections are kept

            def setup(self) -> None:
                super().setup()
                connections.add(self.connection)

            def finish(self) -> None:
                connections.discard(self.connection)
                with contextlib.suppress(OSError):  # broken from here
                    super().finish()

            def log(self, type: str, message: str, *args: Any) -> None: ...

        port = int(self.endpoint.rpartition(":")[2] or 0)
        self._server = make_server("127.0.0.1", port, self, threaded=True, request_handler=Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        """As a machine that is switched off: connections break, others are refused."""
        if self._server is None:
            return
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self._server = None
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def url(self, prefix: str = "") -> str:
        place = f"s3://{self.name}/{prefix}" if prefix else f"s3://{self.name}"
        return f"{place}?endpoint={self.endpoint}"

    def write(self, key: str, data: bytes) -> None:
        """Put an object there, as somebody else's program would."""
        self.ask("PUT", key, data)

    def ask(self, method: str, key: str, data: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"))
        connection.request(method, f"/{self.name}/{key}".rstrip("/"), body=data, headers=_SOMEBODY)
        answer = connection.getresponse()
        assert answer.status < 300, answer.read()
        found = answer.read()
        connection.close()
        return found

    def objects(self) -> list[str]:
        """Of all objects in it."""
        return re.findall(r"<Key>(.*?)</Key>", self.ask("GET", "?list-type=2").decode())

    def uploads(self) -> list[str]:
        """Keys of the uploads that nobody has ended."""
        return re.findall(r"<Key>(.*?)</Key>", self.ask("GET", "?uploads").decode())

    def __call__(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        query = environ.get("QUERY_STRING", "")
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}" + (f"?{query}" if query else "")
        with self._lock:
            self.requests.append(request)
            mishap = self._mishap(request)
        held = self.held
        if held is not None:
            held.wait()
        if mishap is None and self.known and not self._knows(environ.get("HTTP_AUTHORIZATION", "")):
            mishap = Mishap(".", status="403 Forbidden", code="InvalidAccessKeyId")
        if mishap is not None and mishap.kind == "refuse":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _answer(respond, mishap)
        if self.deaf:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        if self.page and "list-type=2" in query:
            environ["QUERY_STRING"] = f"{query}&max-keys={self.page}"
        if mishap is None:
            return self._asked(environ, respond)
        if mishap.kind == "then":
            answer = self._asked(environ, respond)
            mishap.then()
            return answer
        self._asked(environ, lambda *args: lambda data: None)
        return _answer(respond, mishap)

    def _knows(self, authorization: str) -> bool:
        return any(f"Credential={key}/" in authorization for key in (*self.known, "somebody"))

    def _asked(self, environ: dict[str, Any], respond: Respond) -> list[bytes]:
        with self._turn:
            return [*self._app(environ, respond)]

    def _mishap(self, request: str) -> Mishap | None:
        for mishap in self.mishaps:
            if mishap.count and re.search(mishap.request, request):
                if mishap.skip:
                    mishap.skip -= 1
                    continue
                mishap.count -= 1
                return mishap
        return None


def _answer(respond: Respond, mishap: Mishap) -> list[bytes]:
    body = f'<?xml version="1.0"?><Error><Code>{mishap.code}</Code><Message>as planned</Message></Error>'.encode()
    respond(mishap.status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def give_credentials(patch: pytest.MonkeyPatch) -> None:
    """The right to use it, and nothing else of what this machine has for object stores."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        patch.delenv(name)
    for name, value in CREDENTIALS.items():
        patch.setenv(name, value)


@contextlib.contextmanager
def serve() -> Iterator[Bucket]:
    os.environ["S3_UPLOAD_PART_MIN_SIZE"] = "1"  # so that a payload in parts need not be large
    from moto.moto_server.werkzeug_app import create_backend_app

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    bucket = Bucket(create_backend_app("s3"))
    bucket.start()
    bucket.write("", b"")  # makes the bucket
    try:
        yield bucket
    finally:
        bucket.stop()
