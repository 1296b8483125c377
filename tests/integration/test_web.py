"""Who is let in where the screens are served to browsers, and what becomes of their processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterable

import pytest
from click.testing import CliRunner

pytest.importorskip("textual_serve")
from aiohttp import ClientResponse, ClientSession, ClientWebSocketResponse, CookieJar, WSMsgType, WSServerHandshakeError, web

from swarm.cli import screen
from tui.web import MOST_CELLS, MOST_SCREENS, WebServer, host_name, listen, main, names_of

TOKEN = "t0k3n-of-this-start-and-of-no-other"
# A screen in the words of Textual's web driver: it repeats what it is told, and ends when it is asked to.
ECHO = """
import os, struct, sys
def packet(kind, data): os.write(1, kind + struct.pack(">I", len(data)) + data)
os.write(1, b"__GANGLION__\\n")
packet(b"D", b"home of %d" % os.getpid())
while head := sys.stdin.buffer.read(5):
    data = sys.stdin.buffer.read(struct.unpack(">I", head[1:])[0])
    if b"quit" in data and MEEK: break
    if b"quit" not in data: packet(b"D", head[:1] + data)
while not MEEK: __import__("time").sleep(60)
"""
FAILS = "print('no screen, but a line'); raise SystemExit(3)"


def program(text: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", text)


@contextlib.asynccontextmanager
async def served(text: str = "MEEK = True" + ECHO) -> AsyncIterator[tuple[WebServer, str, list[str]]]:
    """A server on loopback, its address, and its routes."""
    at = listen("127.0.0.1", 0)
    port = at.getsockname()[1]
    server = WebServer(program(text), names=names_of("127.0.0.1", "127.0.0.1"), any_address=False, token=TOKEN, port=port)
    app = await server._make_app()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.SockSite(runner, at).start()
    try:
        yield server, f"http://127.0.0.1:{port}", sorted({r.canonical for r in app.router.resources()})
    finally:
        await runner.cleanup()


def browser(base: str = "", *, token: str = TOKEN) -> ClientSession:
    """With the cookie that a visit has left, if `base` is given."""
    cookies = {f"swarm-{base.rpartition(':')[2]}": token} if base else {}
    return ClientSession(cookies=cookies, cookie_jar=CookieJar(unsafe=True))  # unsafe: kept for an address, too


async def refused(response: ClientResponse, words: str) -> None:
    text = await response.text()
    assert response.status == 403, text
    assert words in text
    assert text.count("\n") == 1
    kept_safe(response)


def kept_safe(response: ClientResponse) -> None:
    headers = response.headers
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    assert not any(name.lower().startswith("access-control") for name in headers)


PATHS = ("/", "/ws", "/download/abc", "/static", "/static/js/textual.js", "/static/../web.py", "/nowhere", "//", "/?fontsize=9")


async def test_nothing_is_served_without_the_token() -> None:
    async with served() as (server, base, routes):
        assert routes == ["/", "/download/{key}", "/static", "/ws"]  # a new one has to be among those that are tried
        for cookie in ("", "wrong", TOKEN[:-1], TOKEN + "x", "é"):
            async with browser(base if cookie else "", token=cookie) as tab:
                for path in PATHS:
                    for method in ("GET", "POST", "OPTIONS"):
                        headers = {"Origin": base}
                        await refused(await tab.request(method, base + path, headers=headers), "whole address")
        assert not server._open


async def test_the_token_is_shown_once_and_then_kept_in_a_cookie() -> None:
    async with served() as (_, base, _), browser() as tab:
        found = await tab.get(f"{base}/?token={TOKEN}&fontsize=20", allow_redirects=False)
        assert (found.status, found.headers["Location"]) == (303, "/?fontsize=20")
        kept_safe(found)
        cookie = found.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Path=/" in cookie
        assert "Max-Age" not in cookie
        found = await tab.get(f"{base}/?fontsize=20")
        page = await found.text()
        assert found.status == 200
        assert 'data-font-size="20"' in page
        assert f'"ws://{base[7:]}/ws"' in page
        assert TOKEN not in page
        kept_safe(found)
        await refused(await tab.get(f"{base}/?token=wrong", allow_redirects=False), "whole address")  # the cookie is right
        await refused(await tab.get(f"{base}/?token={TOKEN}x", allow_redirects=False), "whole address")
    async with served() as (_, base, _), browser() as tab:
        for path in ("/ws", "/static/js/textual.js", "/download/abc", "/nowhere"):  # only the page takes it from the URL
            await refused(await tab.get(f"{base}{path}?token={TOKEN}", headers={"Origin": base}), "whole address")


async def test_with_the_cookie_all_routes_answer() -> None:
    async with served() as (_, base, _), browser(base) as tab:
        wanted = {"/": 200, "/static/js/textual.js": 200, "/static/css/xterm.css": 200, "/download/abc": 404, "/nowhere": 404}
        for path, status in wanted.items():
            found = await tab.get(base + path)
            assert found.status == status, path
            kept_safe(found)
        page = await (await tab.get(f"{base}/?fontsize=</script>")).text()
        assert 'data-font-size="14"' in page
        assert "http" not in page  # nothing is fetched from elsewhere


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "127.0.0.2:{port}", "[::1]"])
async def test_a_name_that_somebody_pointed_here_is_refused(host: str) -> None:
    async with served() as (_, base, _), browser(base) as tab:
        headers = {"Host": host.format(port=base.rpartition(":")[2])}
        for path in ("/", f"/?token={TOKEN}", "/static/js/textual.js", "/ws"):
            await refused(await tab.get(base + path, headers=headers, allow_redirects=False), "another name")


async def test_localhost_is_a_name_of_this_server_by_whatever_port_a_tunnel_has() -> None:
    async with served() as (_, base, _), browser(base) as tab:
        found = await tab.get(f"{base}/", headers={"Host": "LOCALHOST:9000"})
        assert found.status == 200
        assert "connect-src 'self' ws://LOCALHOST:9000;" in found.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("", "another server"),
        ("null", "another server"),
        ("http://evil.example", "another server"),
        ("http://127.0.0.1", "another server"),  # another port is another server
        ("http://127.0.0.1:1", "another server"),
        ("http://localhost:{port}", "another server"),
        ("https://127.0.0.1:{port}", "another server"),
        ("http://127.0.0.1:{port}/", "another server"),
    ],
)
async def test_a_page_of_another_server_opens_no_screen(origin: str, words: str) -> None:
    async with served() as (server, base, _), browser(base) as tab:
        headers = {"Origin": origin.format(port=base.rpartition(":")[2])} if origin else {}
        await refused(await tab.get(f"{base}/ws", headers=headers), words)
        with pytest.raises(WSServerHandshakeError) as error:
            await tab.ws_connect(f"{base}/ws", headers=headers)
        assert error.value.status == 403
        if origin:
            for path in ("/", "/static/js/textual.js", "/download/abc"):
                await refused(await tab.get(base + path, headers=headers), words)
        assert not server._open


async def test_a_web_socket_needs_the_cookie_too() -> None:
    async with served() as (server, base, _):
        for token in ("", "wrong"):
            async with browser(base if token else "", token=token) as tab:
                with pytest.raises(WSServerHandshakeError) as error:
                    await tab.ws_connect(f"{base}/ws?token={TOKEN}", headers={"Origin": base})
                assert error.value.status == 403
        assert not server._open


RAW = {
    "no host": b"GET / HTTP/1.0\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "two origins": b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n\r\n",
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "elsewhere": b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
}


@pytest.mark.parametrize("request_", RAW.values(), ids=RAW)
async def test_what_no_browser_sends_is_refused(request_: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    async with served() as (_, base, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
        writer.write(request_)
        answer = await reader.readline()
        writer.close()
    assert answer.split()[1] in (b"400", b"403")
    assert "Traceback" not in capfd.readouterr().err


async def opened(tab: ClientSession, base: str, size: str = "width=100&height=30") -> tuple[ClientWebSocketResponse, bytes]:
    """A screen, and what it shows first."""
    socket = await tab.ws_connect(f"{base}/ws?{size}", headers={"Origin": base})
    return socket, await socket.receive_bytes(timeout=60)


async def until_free(server: WebServer, most: int = 0) -> None:
    async with asyncio.timeout(60):
        while len(server._open) > most:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_a_tab_has_a_screen_of_its_own_that_ends_with_it() -> None:
    async with served() as (server, base, _), browser(base) as tab:
        one, first = await opened(tab, base)
        two, second = await opened(tab, base)
        assert first.startswith(b"home of ")
        assert first != second
        await one.send_str(json.dumps(["stdin", "jé"]))
        assert (await one.receive_bytes(timeout=60)).decode() == "Djé"
        await one.send_str(json.dumps(["resize", {"width": 132, "height": 10**9}]))
        told = json.loads((await one.receive_bytes(timeout=60))[1:])
        assert told == {"type": "resize", "width": 132, "height": MOST_CELLS}
        await one.send_str(json.dumps(["ping", "7"]))
        assert (await one.receive_json(timeout=60)) == ["pong", "7"]
        await one.close()
        await until_free(server, 1)
        await two.send_str(json.dumps(["focus"]))
        assert b'"focus"' in await two.receive_bytes(timeout=60)
        await two.close()
        await until_free(server)


async def test_screens_are_counted_and_one_that_is_closed_makes_room() -> None:
    async with served() as (server, base, _), browser(base) as tab:
        sockets = [await opened(tab, base) for _ in range(MOST_SCREENS)]
        found = await tab.get(base)
        assert found.status == 503
        assert await found.text() == (
            f"swarm: {MOST_SCREENS} screens are open here, as many as there may be: close one, then load this page again\n"
        )
        with pytest.raises(WSServerHandshakeError) as error:
            await opened(tab, base)
        assert error.value.status == 503
        await sockets[3][0].close()
        await until_free(server, MOST_SCREENS - 1)
        assert (await tab.get(base)).status == 200
        socket, _ = await opened(tab, base)
        assert not socket.closed


@pytest.mark.parametrize("text", ["[]", "{", "7", '["stdin"]', '["stdin", 7]', '["resize", []]', "[" * 100_000], ids=range(7))
async def test_a_tab_that_sends_nonsense_loses_its_screen(text: str) -> None:
    async with served() as (server, base, _), browser(base) as tab:
        socket, _ = await opened(tab, base)
        await socket.send_str(text)
        assert (await socket.receive(timeout=60)).type is WSMsgType.CLOSE
        await until_free(server)


async def test_a_screen_that_hangs_is_made_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.web.STOP_S", 0.05)
    async with served("MEEK = False" + ECHO) as (server, base, _), browser(base) as tab:
        socket, first = await opened(tab, base)
        await socket.close()
        await until_free(server)
        with pytest.raises(ProcessLookupError):
            os.kill(int(first.split()[-1]), 0)


async def test_a_program_that_shows_no_screen_ends_its_tab() -> None:
    async with served(FAILS) as (server, base, _), browser(base) as tab:
        socket = await tab.ws_connect(f"{base}/ws", headers={"Origin": base})
        assert (await socket.receive(timeout=60)).type is WSMsgType.CLOSE
        await until_free(server)


async def test_the_server_takes_its_screens_along() -> None:
    async with served() as (_, base, _):
        tab = browser(base)
        socket, first = await opened(tab, base)
    assert (await socket.receive(timeout=60)).type is WSMsgType.CLOSE
    with pytest.raises(ProcessLookupError):
        os.kill(int(first.split()[-1]), 0)
    await tab.close()


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8000", "localhost"),
        ("[::1]:8000", "::1"),
        ("studio.local", "studio.local"),
        ("", ""),
        ("ann@localhost", ""),
        ("localhost:8000:8000", ""),
        ("localhost/x", ""),
        ("localhost\t", ""),
        ("localhost;evil", ""),
        ("::1", ""),
    ],
)
def test_the_name_in_a_host_header(host: str, name: str) -> None:
    assert host_name(host) == name


def test_what_a_server_may_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Studio.local")
    assert names_of("127.0.0.1", "127.0.0.1") == {"127.0.0.1", "localhost"}
    assert names_of("[::1]", "::1") == {"::1", "localhost"}
    assert names_of("nas.home", "10.0.0.7") == {"nas.home", "10.0.0.7", "studio.local"}
    assert names_of("0.0.0.0", "0.0.0.0") == {"0.0.0.0", "localhost", "studio.local"}


async def test_a_server_at_all_addresses_goes_by_each_of_them() -> None:
    at = listen("127.0.0.1", 0)
    base = f"http://127.0.0.1:{at.getsockname()[1]}"
    server = WebServer(program(FAILS), names=names_of("0.0.0.0", "0.0.0.0"), any_address=True, token=TOKEN, port=0)
    runner = web.AppRunner(await server._make_app(), access_log=None)
    await runner.setup()
    await web.SockSite(runner, at).start()
    try:
        async with ClientSession(cookies={"swarm-0": TOKEN}, cookie_jar=CookieJar(unsafe=True)) as tab:
            for host, status in (("192.168.1.7:8000", 200), ("[fe80::1]", 200), ("evil.example", 403), ("1.2.3", 403)):
                assert (await tab.get(base, headers={"Host": host})).status == status, host
    finally:
        await runner.cleanup()


def said(arguments: Iterable[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    shown = capsys.readouterr()
    return ended.value.code, shown.out + shown.err


def test_a_port_that_is_taken_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with listen("127.0.0.1", 0) as at:
        port = at.getsockname()[1]
        code, shown = said(["--port", str(port)], capsys)
    assert code == f"swarm: cannot listen at 127.0.0.1, port {port}: Address already in use; --port 0 takes any that is free"
    assert not shown
    name = "x" * 64 + ".invalid"  # too long a label to be looked up
    code, _ = said(["--bind", name], capsys)
    assert str(code).startswith(f"swarm: cannot listen at {name}, port 8000: ")
    assert "\n" not in str(code)
    code, shown = said(["--port", "70000"], capsys)
    assert code == 2
    assert "from 0 to 65535" in shown


@pytest.mark.parametrize(("bind", "warns"), [("127.0.0.1", False), ("localhost", False), ("0.0.0.0", True), ("10.0.0.7", True)])
def test_whoever_listens_elsewhere_is_warned(
    bind: str, warns: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class At:
        def getsockname(self) -> tuple[str, int]:
            return ("127.0.0.1" if bind == "localhost" else bind, 8000)

    async def ended(server: WebServer, at: object) -> int:
        return 130

    monkeypatch.setattr("tui.web.listen", lambda bind, port: At())
    monkeypatch.setattr("tui.web.serve", ended)
    monkeypatch.setattr(socket, "gethostname", lambda: "studio")
    with pytest.raises(SystemExit) as error:
        main([f"--bind={bind}", "--", "python", "-m", "tui"])
    shown = capsys.readouterr()
    assert error.value.code == 130
    assert ("not encrypted" in shown.err) is warns
    start, _, token = shown.out.strip().partition("/?token=")
    assert start == f"http://{'studio' if bind == '0.0.0.0' else bind}:8000"
    assert len(token) >= 43  # 256 bits
    assert shown.out.count("\n") == 1


def test_each_start_has_a_token_of_its_own(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def ended(server: WebServer, at: socket.socket) -> int:
        at.close()
        return 130

    monkeypatch.setattr("tui.web.serve", ended)
    tokens = {said(["--port", "0"], capsys)[1].partition("token=")[2].split()[0] for _ in range(3)}
    assert len(tokens) == 3


class Became(Exception):
    pass


def became(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> list[str]:
    def execv(path: str, command: list[str]) -> None:
        raise Became(*command)

    monkeypatch.setattr("os.execv", execv)
    error = CliRunner().invoke(screen.tui, arguments).exception
    assert isinstance(error, Became), error
    return list(error.args)


def test_the_command_serves_the_same_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    command = became(monkeypatch, "--web", "--mailbox", "/mnt/a b", "--ascii", "--port", "0", "--bind", "::1")
    at = command.index("tui.web")
    assert command[at + 1 : at + 5] == ["--port", "0", "--bind=::1", "--"]
    served = command[at + 5 :]
    assert served[0] == sys.executable
    assert served[-3:] == ["tui", "--mailbox=/mnt/a b", "--ascii"]
    assert became(monkeypatch, "--web")[at + 1 : at + 2] == ["--"]


def test_what_the_command_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (["--port", "8000"], ["--bind", "::1"]):
        assert "go with --web" in str(CliRunner().invoke(screen.tui, wrong).exception)
    monkeypatch.setattr("swarm.cli.screen.find_spec", lambda name: None)
    error = CliRunner().invoke(screen.tui, ["--web"]).exception
    assert "pip install 'homeswarm[web]'" in str(error)
