"""`swarm tui --web` in a real browser: it shows Home, answers keys, and ends with the server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import shutil
import signal
import struct
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("textual_serve")
from aiohttp import ClientSession, ClientWebSocketResponse

from tests.process.terminal import HANG_S, Terminal

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


class Tab:
    """A page, by the DevTools protocol."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._n = 0
        self.shown = ""  # what the screen wrote to its terminal
        self.complaints: list[str] = []

    async def call(self, method: str, **values: object) -> dict[str, Any]:
        self._n += 1
        await self._socket.send_json({"id": self._n, "method": method, "params": values})
        while True:
            told = await self._socket.receive_json(timeout=HANG_S)
            if told.get("id") == self._n:
                return told["result"]  # type: ignore[no-any-return]
            if told.get("method") == "Network.webSocketFrameReceived":
                frame = told["params"]["response"]
                if frame["opcode"] == 2:
                    self.shown += base64.b64decode(frame["payloadData"]).decode(errors="replace")
            elif told.get("method") == "Log.entryAdded":
                entry = told["params"]["entry"]
                # Browsers look for an icon where a page names none, as that of a refusal.
                if entry["level"] == "error" and not entry.get("url", "").endswith("/favicon.ico"):
                    self.complaints.append(f"{entry['text']} {entry.get('url')}")
            elif told.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))

    async def said(self, expression: str) -> Any:
        return (await self.call("Runtime.evaluate", expression=expression))["result"].get("value")

    async def until(self, wanted: str | Callable[[], bool]) -> None:
        """`wanted`: an expression in the page, or something about what was shown."""
        async with asyncio.timeout(HANG_S):
            while not (await self.said(wanted) if isinstance(wanted, str) else await self.said("1") and wanted()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def colours(self) -> set[bytes]:
        """Those of the picture, near its upper left corner."""
        clip = {"x": 0, "y": 0, "width": 300, "height": 30, "scale": 1}
        taken = await self.call("Page.captureScreenshot", clip=clip)
        return {pixel for row in pixels(base64.b64decode(taken["data"])) for pixel in row}

    @property
    def words(self) -> str:
        """Without the control sequences."""
        return re.sub(r"\x1b\[[0-9;?$<>=]*[a-zA-Z]", "", self.shown)


@contextlib.asynccontextmanager
async def browser(place: Path) -> AsyncIterator[Tab]:
    """An empty page of a browser without windows."""
    assert CHROMIUM is not None
    options = (
        "--headless",
        "--no-sandbox",
        "--enable-unsafe-swiftshader",
        "--remote-debugging-port=0",
        "--window-size=1000,700",
    )
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *options, f"--user-data-dir={place}", "about:blank", stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(HANG_S):
            while b"DevTools listening on" not in (line := await process.stderr.readline()):
                assert line, "the browser does not start"
        base = line.split()[-1].decode().replace("ws://", "http://").partition("/devtools")[0]
        async with ClientSession() as session:
            (page,) = (each for each in await (await session.get(f"{base}/json")).json() if each["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                for part in ("Network", "Log", "Runtime", "Page"):
                    await tab.call(f"{part}.enable")
                yield tab
    finally:
        tree = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        await process.communicate()
        for child in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def pixels(png: bytes) -> list[list[bytes]]:
    """Row by row, of a picture as Chromium writes it: 8 bits, three or four channels, not interlaced."""
    data, at = b"", 8
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        body = png[at + 8 : at + 8 + size]
        at += 12 + size
        if kind == b"IHDR":
            width, _, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert (depth, interlaced) == (8, 0)
            step = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += body
    raw, stride, found = zlib.decompress(data), width * step, []
    above = bytes(stride + step)
    for start in range(0, len(raw), stride + 1):
        row = bytearray(step) + raw[start + 1 : start + 1 + stride]  # after a pixel of zeros
        for n in range(step, len(row)):
            left, up, corner = row[n - step], above[n], above[n - step]
            paeth = min((left, up, corner), key=lambda v, all=left + up - corner: abs(all - v))  # type: ignore[misc]
            row[n] = (row[n] + (0, left, up, (left + up) // 2, paeth)[raw[start]]) & 255
        found.append([bytes(row[n : n + step]) for n in range(step, len(row), step)])
        above = bytes(row)
    return found


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: the page is not tried in a browser")
async def test_a_browser_shows_home_and_takes_keys(swarm: Terminal, mailbox: str, tmp_path: Path) -> None:
    server = swarm.start("tui", "--web", "--port", "0")
    address = await asyncio.to_thread(server.until, "?token=")
    async with browser(tmp_path / "browser") as tab:
        await tab.call("Page.navigate", url=address.partition("/?")[0])
        await tab.until("document.body?.innerText.includes('with its token')")  # not without it
        assert tab.complaints  # the 403
        tab.complaints.clear()
        await tab.call("Page.navigate", url=address)
        await tab.until("document.body?.classList.contains('-first-byte')")
        assert await tab.said("location.href") == address.partition("?")[0]
        await tab.until(lambda: "home" in tab.words and "1 mailbox" in tab.words)
        await tab.press("?")
        await tab.until(lambda: "All keys, on one page." in tab.words)
        async with asyncio.timeout(HANG_S):
            while len(await tab.colours()) < 10:  # noqa: ASYNC110  # words on the screen, and not only on their way to it
                await asyncio.sleep(0.05)
        assert await tab.said("document.fonts.check('14px Roboto Mono')")
        assert not tab.complaints, tab.complaints  # nothing that the policy refuses
        screens = psutil.Process(server.process.pid).children(recursive=True)
        assert len(screens) == 1
        server.signal(signal.SIGINT)
        assert await asyncio.to_thread(server.wait) == 130
        assert not any(each.is_running() for each in screens)
        await tab.until("document.body.classList.contains('-closed')")
        assert "This screen has ended" in await tab.said("document.body.innerText")
    assert len(server.out) == 1, str(server)


async def test_a_screen_ends_when_its_server_is_killed(swarm: Terminal) -> None:
    server = swarm.start("tui", "--web", "--port", "0")
    base, _, token = (await asyncio.to_thread(server.until, "?token=")).partition("/?token=")
    headers = {"Origin": base, "Cookie": f"swarm-{base.rpartition(':')[2]}={token}"}
    async with ClientSession() as session, session.ws_connect(f"{base}/ws", headers=headers) as socket:
        await socket.receive_bytes(timeout=HANG_S)
        (screen,) = psutil.Process(server.process.pid).children(recursive=True)
        server.signal(signal.SIGKILL)
        await asyncio.to_thread(screen.wait, HANG_S)
