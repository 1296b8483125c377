"""Network: what its keys do, and what it says."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swarm.core.ticks import checking, failed, ok, warning
from tests.screens import surroundings
from tests.screens.surroundings import ALONE, network_shown, peer, sightings
from tui import view_network
from tui.app import SwarmApp
from tui.messages import NetworkShown
from tui.screens.dialogs import Page
from tui.screens.home import HomeScreen
from tui.screens.network import NetworkScreen
from tui.widgets.keybar import KeyBar
from tui.widgets.table import Table
from tui.widgets.toned import Line, Lines, Words

SIZE = (120, 36)


@pytest.fixture
def app(fixed: SimpleNamespace) -> SwarmApp:
    return fixed.app_over(fixed.home_shown(fixed.home(fixed.run_state())), network=network_shown())


def plain(lines: Any) -> list[str]:
    return ["".join(words for words, _ in line) for line in lines]


def head(app: SwarmApp) -> str:
    return str(app.screen.query_one("#head", Words).content)


async def test_d_opens_it_and_has_everything_looked_at_and_esc_comes_back(app: SwarmApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("d")
        assert isinstance(app.screen, NetworkScreen)
        assert ("examine", None) in app.feed.asked
        assert [row.cells[0].text for row in app.screen.query_one("#peers", Table).rows] == [
            "linux-3090",
            "mbp",
            "nas",
            "studio*",
        ]
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_before_anything_is_known_it_says_so_and_offers_nothing(fixed: SimpleNamespace) -> None:
    app = fixed.app_over(fixed.home_shown(fixed.home()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("d")
        assert "looking" in head(app)
        assert not {item.key for _, item in app.screen.query_one(KeyBar).items} & {"r", "c", "s"}
        app.feed.tell(network_shown(found=surroundings.looking(), seen=ALONE))
        await pilot.pause()
        assert "2 checks left" in head(app)
        await pilot.press("r", "c")
        assert app.feed.asked.count(("examine", None)) == 1
        app.feed.tell(network_shown())
        await pilot.pause()
        assert "2 failed" in head(app)
        assert "looked at 12 s ago" in head(app)


async def test_r_looks_again_and_c_copies_the_report(app: SwarmApp, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[str] = []
    monkeypatch.setattr(app, "copy", copied.append)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("d", "r")
        assert app.feed.asked.count(("examine", None)) == 2
        await pilot.press("c")
        assert copied == ["swarm doctor: 2 failed\n"]


async def test_the_page_of_facts_carries_the_report(app: SwarmApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("d", "f12")
        assert isinstance(app.screen, Page)
        assert app.screen.text.rstrip().endswith("swarm doctor: 2 failed")


async def test_peers_are_live(app: SwarmApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("d", "1")
        table = app.screen.query_one("#peers", Table)
        await pilot.press("j")
        assert str(app.screen.query_one("#detail", Words).content).startswith(" mbp: 10.0.0.9, port 27273")
        found = network_shown()
        app.feed.tell(NetworkShown(found.found, ALONE, 101.0))
        await pilot.pause()
        assert [row.cells[0].text for row in table.rows] == ["studio*"]
        assert "No other machine is seen" in str(app.screen.query_one("#alone", Words).content)


async def test_the_checks_are_wrapped_anew_in_another_width(app: SwarmApp) -> None:
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("d")
        pane = app.screen.query_one("#checks", Lines)
        wide = pane.virtual_size.height
        await pilot.resize_terminal(60, 36)
        await pilot.pause()
        await pilot.pause()
        assert pane.virtual_size.height > wide


@pytest.mark.parametrize("size", [(30, 10), (50, 16), (80, 24), (200, 60)])
async def test_any_size_will_do(app: SwarmApp, size: tuple[int, int], tmp_path: Path) -> None:
    async with app.run_test(size=size) as pilot:
        await pilot.press("d", "j", "G", "1", "s", "s", "g", "escape")
        assert isinstance(app.screen, HomeScreen)


# What it says


def test_each_check_has_its_mark_and_what_to_do() -> None:
    ticks = (
        ok("memory", "much", topic="this machine"),
        warning("mbp", "does not see this machine", "open the port", topic="peers"),
        failed("folder", "gone " * 30, "mount it", topic="share"),
        checking("multicast", topic="share"),
    )
    found = surroundings.Examination(ticks=ticks)
    lines = plain(view_network.check_lines(found, 60))
    assert lines[:3] == ["this machine", "  ✓ memory              much", ""]
    assert "  ! mbp                 does not see this machine" in lines
    assert "    → open the port" in lines
    assert "  ✗ folder              gone gone gone gone gone gone gone" in lines
    assert "  ◌ multicast           …" in lines
    assert max(map(len, lines)) <= 60
    short = plain(view_network.check_lines(found, 60, short=True))
    assert short[0] == "✓ this machine: memory"
    assert "" not in short


def test_what_a_peer_says_of_itself_is_plain_text() -> None:
    evil = peer("\x1b[31mred\n[bold]", version="\x07", accelerators=("\x1b]0;x\x07gpu",), unreachable="\x1b[2J")
    seen = sightings()
    seen = msgspec.structs.replace(seen, peers=(evil,))
    [row] = view_network.peer_rows(seen, 100.0)
    words = [*(cell.text for cell in row.cells), *plain(view_network.peer_detail(evil))]
    assert not any(c in word for word in words for c in "\x1b\x07\n")
    assert row.cells[0].text == "red [bold]"


@pytest.mark.parametrize(
    ("more", "sees", "reached"),
    [
        ({"sees_us": True, "reached_ms": 1.0}, "✓ yes", "1.0 ms"),
        ({"sees_us": False}, "! no", "—"),
        ({}, "◌ wait", "—"),
        ({"unreachable": "no route"}, "◌ wait", "✗ no"),
        ({"ours": False, "sees_us": True}, "✗ other", "—"),
        ({"itself": True}, "—", "—"),
    ],
)
def test_how_a_peer_is_seen(more: dict[str, Any], sees: str, reached: str) -> None:
    [row] = view_network.peer_rows(msgspec.structs.replace(sightings(), peers=(peer("mbp", **more),)), 100.0)
    assert (row.cells[4].text, row.cells[5].text) == (sees, reached)


def test_an_old_advert_is_marked() -> None:
    ages = [view_network.peer_rows(sightings(), now_s)[0].cells[2] for now_s in (100.0, 130.0)]
    assert [(cell.text, cell.tone) for cell in ages] == [("3.0 s", ""), ("33 s", "warn")]


def test_all_is_well() -> None:
    found = surroundings.Examination(ticks=(ok("memory", topic="this machine"),), now_s=99.0, done=True)
    line: Line = view_network.headline(NetworkShown(found, ALONE, 100.0))
    assert "all is well" in "".join(words for words, _ in line)
