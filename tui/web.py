"""`swarm tui --web`: the screens in a browser, by textual-serve, behind a token.

textual-serve asks nobody who they are: whoever reaches its port has the screen, and so has any page that a browser on this
machine shows, for a page may open a WebSocket to anywhere. So every request, whatever it asks for, has to

* name this server in its `Host`: a name that some page has pointed at this address is not this server's (DNS rebinding);
* come from a page of this server, if it comes from a page (`Origin`); one for the WebSocket has to say so;
* hold the token of this start: once in the URL, from then on in a cookie that no script reads and no other site sends along.

The token is 256 bits from the system's generator, and compared in constant time.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import errno
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import Awaitable, Callable
from pathlib import Path
from string import Template

from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.typedefs import Handler
from textual_serve.app_service import AppService
from textual_serve.server import Server

LOOPBACK, PORT = "127.0.0.1", 8000
MOST_SCREENS = 8  # each is a process with a connection to the mailbox of its own
STOP_S = 5.0  # what a screen that is asked to end may take
MOST_CELLS = 1000  # on either side of a screen
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?")
# After textual.js, which has made its terminal by then, but leaves it to a click to give it the keys.
SCRIPT = 'addEventListener("load", () => document.querySelector(".xterm-helper-textarea").focus())'
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
PAGE = Template(Path(__file__).with_name("web.html").read_text(encoding="utf-8"))

FULL = f"swarm: {MOST_SCREENS} screens are open here, as many as there may be: close one, then load this page again"
UNKNOWN = "swarm: open the whole address that `swarm tui --web` printed, with its token"
MISNAMED = "swarm: this server has another name: open the address that `swarm tui --web` printed"
FOREIGN = "swarm: this was asked for by a page of another server"

_FIXED = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Server": "swarm",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def policy(host: str) -> str:
    """The Content-Security-Policy. xterm.js writes style elements; not every browser counts a WebSocket as `'self'`."""
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{_SCRIPT_HASH}'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
        f"img-src 'self' data:; connect-src 'self' ws://{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def host_name(host: str) -> str:
    """The name or address in a `Host` header, in lower case and without brackets; '' if it is none."""
    found = _HOST.fullmatch(host.lower())
    return found[1].strip("[]") if found else ""


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Screen(AppService):
    """One process of the app, for one tab."""

    program: tuple[str, ...] = ()

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """Without a shell, unlike the one that this overrides."""
        environment = self._build_environment(width=width, height=height)
        process = await create_subprocess_exec(*self.program, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environment)
        self._process, self._stdin = process, process.stdin
        return process

    async def run(self) -> None:
        """A program that never got as far as a screen says no goodbye."""
        try:
            await super().run()
        finally:
            await self.remote_close()

    async def stop(self) -> None:
        """It is asked to, then made to."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(super().stop(), STOP_S)
        if (process := self._process) is not None:
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


class WebServer(Server):
    """textual-serve's, with a guard before each of its routes."""

    def __init__(self, program: tuple[str, ...], *, names: frozenset[str], any_address: bool, token: str, port: int) -> None:
        """`program`: the app's command line. `names`: what this server is called, in lower case; `any_address`: also by any
        address, where it listens on all. `port`: for the cookie's name, as browsers keep one jar for all ports of a host."""
        super().__init__(" ".join(program), title="swarm")
        self.program, self.names, self.any_address = program, names, any_address
        self._token, self._cookie = token.encode(), f"swarm-{port}"
        self._open: set[web.WebSocketResponse] = set()

    async def _make_app(self) -> web.Application:
        app = await super()._make_app()
        app.middlewares.append(self.guard)
        app.on_response_prepare.append(self.headers)
        return app

    async def on_startup(self, app: web.Application) -> None:
        """No banner."""

    async def on_shutdown(self, app: web.Application) -> None:
        await asyncio.gather(*(each.close(code=WSCloseCode.GOING_AWAY) for each in tuple(self._open)))

    # Who may come in

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        problem = self._problem(request)
        if problem:
            return web.Response(status=403, text=f"{problem}\n")
        if request.path == "/" and "token" in request.query:
            rest = request.rel_url.without_query_params("token")
            response = web.Response(status=303, headers={"Location": rest.raw_path_qs})
            response.set_cookie(self._cookie, self._token.decode(), httponly=True, samesite="Strict", path="/")
            return response
        return await handler(request)

    def _problem(self, request: web.Request) -> str:
        """Why a request is refused, in one line; '' if it is not."""
        hosts = request.headers.getall("Host", [])
        name = host_name(hosts[0]) if len(hosts) == 1 else ""
        if name not in self.names and not (self.any_address and is_address(name)):
            return MISNAMED
        origins = request.headers.getall("Origin", [])
        if (origins or request.path == "/ws") and [o.lower() for o in origins] != [f"http://{hosts[0].lower()}"]:
            return FOREIGN
        known = request.cookies.get(self._cookie, "")
        if request.path == "/":
            known = request.query.get("token", known)
        return "" if hmac.compare_digest(known.encode(errors="replace"), self._token) else UNKNOWN

    async def headers(self, request: web.Request, response: web.StreamResponse) -> None:
        host = request.headers.get("Host", "")
        response.headers.update({**_FIXED, "Content-Security-Policy": policy(host if host_name(host) else "")})

    # What they find

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page, in place of textual-serve's, which takes its font from elsewhere."""
        if len(self._open) >= MOST_SCREENS:
            return web.Response(status=503, text=f"{FULL}\n")
        size = _number(request.query.get("fontsize"), 14, at_most=60)
        page = PAGE.substitute(websocket=f"ws://{request.headers['Host']}/ws", font_size=size, script=SCRIPT)
        return web.Response(text=page, content_type="text/html")

    async def handle_websocket(self, request: web.Request) -> web.StreamResponse:  # type: ignore[override]
        if len(self._open) >= MOST_SCREENS:
            return web.Response(status=503, text=f"{FULL}\n")
        websocket = web.WebSocketResponse(heartbeat=15, timeout=2, max_msg_size=1 << 20)
        self._open.add(websocket)
        try:
            await websocket.prepare(request)
            screen = Screen(
                self.command,
                write_bytes=websocket.send_bytes,
                write_str=websocket.send_str,
                close=_closing(websocket),
                download_manager=self.download_manager,
            )
            screen.program = self.program
            try:
                await screen.start(_number(request.query.get("width"), 80), _number(request.query.get("height"), 24))
                await self._listen(websocket, screen)
            finally:
                await screen.stop()
        finally:
            self._open.discard(websocket)
        return websocket

    async def _listen(self, websocket: web.WebSocketResponse, screen: Screen) -> None:
        """Until the tab is closed, or sends what textual.js would not."""
        async for message in websocket:
            if message.type is not WSMsgType.TEXT:
                continue
            try:
                kind, *values = json.loads(message.data)
                if kind == "stdin":
                    await screen.send_bytes(values[0].encode())
                elif kind == "resize":
                    width, height = values[0]["width"], values[0]["height"]
                    await screen.set_terminal_size(_number(width, 80), _number(height, 24))
                elif kind == "ping":
                    await websocket.send_json(["pong", values[0]])
                elif kind == "blur":
                    await screen.blur()
                elif kind == "focus":
                    await screen.focus()
            except (ValueError, TypeError, LookupError, AttributeError):
                await websocket.close(code=WSCloseCode.UNSUPPORTED_DATA)


def _closing(websocket: web.WebSocketResponse) -> Callable[[], Awaitable[None]]:
    async def close() -> None:
        await websocket.close()

    return close


def _number(value: object, default: int, *, at_most: int = MOST_CELLS) -> int:
    try:
        return min(max(1, int(value)), at_most)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return default


def listen(bind: str, port: int) -> socket.socket:
    """Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def names_of(bind: str, address: str) -> frozenset[str]:
    """What a server may be called that was asked to listen at `bind`, and does so at `address`."""
    names = {bind.strip("[]").lower(), address}
    found = ipaddress.ip_address(address)
    if found.is_loopback or found.is_unspecified:
        names.add("localhost")
    if not found.is_loopback:
        machine = socket.gethostname().lower()
        names |= {machine, f"{machine.removesuffix('.local')}.local"}
    return frozenset(names)


async def serve(server: WebServer, at: socket.socket) -> int:
    """Until a signal comes; returns the exit code."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end, number)
    runner = web.AppRunner(await server._make_app(), access_log=None, shutdown_timeout=2 * STOP_S)
    await runner.setup()
    try:
        await web.SockSite(runner, at).start()
        return await ended
    finally:
        await runner.cleanup()


def main(arguments: list[str] | None = None) -> None:
    own = sys.argv[1:] if arguments is None else arguments
    own, program = (own[: own.index("--")], own[own.index("--") + 1 :]) if "--" in own else (own, [])
    parser = argparse.ArgumentParser(
        prog="swarm tui --web", description="Serve the screens to a browser. After --, the command line that opens them."
    )
    parser.add_argument("--bind", metavar="ADDRESS", default=LOOPBACK, help="where to listen")
    parser.add_argument("--port", metavar="N", type=int, default=PORT, help="0: any that is free")
    given = parser.parse_args(own)
    if not 0 <= given.port <= 65535:
        parser.error(f"a port is a number from 0 to 65535, not {given.port}")
    try:
        at = listen(given.bind, given.port)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        words = os.strerror(number) if number and number > 0 else getattr(error, "strerror", None) or str(error)
        advice = "; --port 0 takes any that is free" if number == errno.EADDRINUSE else ""
        sys.exit(f"swarm: cannot listen at {given.bind}, port {given.port}: {words}{advice}")
    address, port = at.getsockname()[:2]
    where = ipaddress.ip_address(address)
    token = secrets.token_urlsafe(32)
    server = WebServer(
        tuple(program) or (sys.executable, "-P", "-m", "tui"),
        names=names_of(given.bind, address),
        any_address=where.is_unspecified,
        token=token,
        port=port,
    )
    if not where.is_loopback:
        print("swarm: the connection is not encrypted: who is on its way can read it, the token too", file=sys.stderr)
    name = socket.gethostname() if where.is_unspecified else given.bind.strip("[]")
    print(f"http://{f'[{name}]' if ':' in name else name}:{port}/?token={token}", flush=True)
    print("swarm: the screen is at this address, for whoever has it; Ctrl-C ends it", file=sys.stderr, flush=True)
    with contextlib.redirect_stdout(sys.stderr):  # textual-serve repeats there what a screen's process complained of
        code = asyncio.run(serve(server, at))
    sys.exit(code)


if __name__ == "__main__":
    main()
