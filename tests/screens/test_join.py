"""Join: what its keys do, and what it says."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from swarm import api
from swarm.core.joining import Fault
from tui import view_home, view_join
from tui.app import SwarmApp
from tui.messages import CommandEnded
from tui.screens.dialogs import Ask
from tui.screens.home import HomeScreen
from tui.screens.join import JoinScreen
from tui.screens.run import RunScreen
from tui.widgets.table import Table
from tui.widgets.toned import Words

SIZE = (120, 36)


@pytest.fixture
def near(fixed: SimpleNamespace) -> Any:
    """One run in a mailbox, one on the network, and two other machines."""
    return fixed.home_shown(fixed.home(fixed.run_state()), sightings=fixed.sightings(fixed.seen_run()))


def drawn(app: SwarmApp) -> str:
    return "\n".join("".join(segment.text for segment in line) for line in app.screen._compositor.render_strips())


def words(app: SwarmApp, selector: str) -> str:
    return str(app.screen.query_one(selector, Words).content)


def names(app: SwarmApp, table: str) -> list[str]:
    return [row.cells[0].text for row in app.screen.query_one(table, Table).rows]


# Home, with the network


async def test_home_shows_the_networks_runs_and_machines(fixed: SimpleNamespace, near: Any) -> None:
    app = fixed.app_over(near)
    async with app.run_test(size=SIZE) as pilot:
        assert names(app, "#runs") == ["charlm-brave-otter", "digits-far-heron"]
        assert names(app, "#peers") == ["linux-3090", "mbp ⚠", "studio*"]
        assert "2 other machines" in words(app, "#head")
        assert "smb://nas/swarm" in drawn(app)
        await pilot.press("j")
        assert "heard from linux-3090" in words(app, "#detail")
        await pilot.press("3", "j")
        assert "does not hear this machine" in words(app, "#detail")
        await pilot.press("enter", "w", "J", "S")  # a machine is no run
        assert isinstance(app.screen, HomeScreen)
        assert app.feed.asked == []


async def test_a_run_that_is_in_a_mailbox_too_is_shown_once(fixed: SimpleNamespace) -> None:
    known = fixed.seen_run(run=fixed.AT.run)
    assert [
        entry.at
        for entry in view_home.entries(fixed.home_shown(fixed.home(fixed.run_state()), sightings=fixed.sightings(known)))
    ] == [fixed.AT]


async def test_what_is_over_or_of_another_swarm_comes_last(fixed: SimpleNamespace) -> None:
    done = fixed.seen_run(phase="done", run="done0001", name="a-done")
    foreign = fixed.seen_run(ours=False, run="fore0001", name="b-foreign")
    shown = fixed.home_shown(fixed.home(), sightings=fixed.sightings(done, foreign, fixed.seen_run()))
    rows = view_home.run_rows(shown)
    assert [(row.cells[0].text, row.quiet) for row in rows] == [
        ("digits-far-heron", False),
        ("a-done", True),
        ("b-foreign", True),
    ]
    assert rows[2].cells[-1].text == "another swarm's"


async def test_without_a_mailbox_a_run_of_the_network_is_there_to_be_joined(fixed: SimpleNamespace) -> None:
    shown = fixed.home_shown(fixed.api.Home(), sightings=fixed.sightings(fixed.seen_run()))
    app = fixed.app_over(shown, joining=fixed.not_mounted())
    async with app.run_test(size=SIZE) as pilot:
        assert names(app, "#runs") == ["digits-far-heron"]
        assert not app.screen.query_one("#empty").display
        await pilot.press("enter")
        assert isinstance(app.screen, JoinScreen)
        assert app.feed.asked == [("check", fixed.FAR)]


async def test_p_adds_a_machine_by_its_address(fixed: SimpleNamespace, near: Any) -> None:
    app = fixed.app_over(near)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("p")
        assert isinstance(app.screen, Ask)
        await pilot.press("escape", "p", "enter")
        assert app.feed.asked == []
        await pilot.press("p", *"nas.local:27273", "enter")
        assert app.feed.asked == [("add the peer", "nas.local:27273")]
        app.feed.tell(CommandEnded("add the peer", "nas.local:27273"))
        app.feed.tell(CommandEnded("add the peer", "[b]", "no address: [b]"))
        await pilot.pause()
        said = [n.message for n in app._notifications]
        assert "nas.local:27273 is asked from now on" in said
        assert "could not add the peer: no address: [b]" in said


# The way in


async def test_enter_joins_when_all_is_well_and_the_run_is_shown_when_it_takes_part(fixed: SimpleNamespace, near: Any) -> None:
    app = fixed.app_over(near, fixed.run_shown(fixed.run_state()), joining=fixed.join_shown(at=fixed.AT))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter")
        assert isinstance(app.screen, JoinScreen)
        assert "enter trains digits-far-heron on this machine" in words(app, "#outlook")
        await pilot.press("enter")
        assert app.feed.asked == [("check", fixed.AT), ("join", fixed.AT)]
        doing = "fetching my.txt: 12% of 30.0 MB"
        starting = fixed.job(state="starting", doing=doing)
        app.feed.tell(fixed.join_shown(at=fixed.AT, job=starting))
        await pilot.pause()
        assert f"joining digits-far-heron: {doing}" in words(app, "#outlook")
        await pilot.press("enter")  # once is enough
        assert len(app.feed.asked) == 2
        app.feed.tell(fixed.join_shown(at=fixed.AT, job=fixed.job()))
        await pilot.pause()
        assert isinstance(app.screen, RunScreen)
        assert app.feed.asked[2:] == [("check", None), ("show", fixed.AT)]
        await pilot.press("escape")
        assert isinstance(app.screen, HomeScreen)


async def test_a_worker_that_failed_says_why_and_enter_tries_again(fixed: SimpleNamespace, near: Any) -> None:
    failed = fixed.job(state="failed", message="my.txt is attached, but not whole")
    app = fixed.app_over(near, joining=fixed.join_shown(at=fixed.AT, job=failed))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter")
        assert "not whole" in words(app, "#outlook")
        assert "log.txt" in words(app, "#outlook")
        await pilot.press("enter")
        assert app.feed.asked[-1] == ("join", fixed.AT)


async def test_what_fails_keeps_enter_from_joining(fixed: SimpleNamespace, near: Any) -> None:
    fault = Fault("no task 'protein' is installed here", "install the package")
    app = fixed.app_over(near, joining=fixed.join_shown(at=fixed.AT, task_fault=fault))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter", "enter", "m")
        assert isinstance(app.screen, JoinScreen)
        assert app.feed.asked == [("check", fixed.AT)]
        assert "✗ task installed" in drawn(app)
        assert "→ install the package" in drawn(app)
        app.feed.tell(fixed.join_shown(at=fixed.AT))  # it was installed
        await pilot.pause()
        await pilot.press("enter")
        assert app.feed.asked[-1] == ("join", fixed.AT)


async def test_m_mounts_and_goes_on_when_the_share_appears(fixed: SimpleNamespace, near: Any) -> None:
    app = fixed.app_over(near, joining=fixed.not_mounted())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("j", "enter")
        assert "gio mount smb://nas/swarm" in drawn(app)
        assert "m runs gio mount smb://nas/swarm" in words(app, "#outlook")
        await pilot.press("enter", "w")  # nothing to join or to watch yet
        await pilot.press("m")
        assert app.feed.asked == [("check", fixed.FAR), ("mount", fixed.FAR)]
        app.feed.tell(fixed.not_mounted(mounting=True))
        await pilot.pause()
        await pilot.press("m")
        assert len(app.feed.asked) == 2
        assert "mounting" in words(app, "#outlook")
        app.feed.tell(CommandEnded("mount", fixed.FAR.run, "Password required"))
        app.feed.tell(fixed.join_shown())
        await pilot.pause()
        assert "could not mount: Password required" in [n.message for n in app._notifications]
        await pilot.press("enter")
        assert app.feed.asked[-1] == ("join", fixed.AT._replace(run=fixed.FAR.run))


async def test_m_asks_first_where_anybody_may_have_said_where_the_share_is(fixed: SimpleNamespace, near: Any) -> None:
    app = fixed.app_over(near, joining=fixed.not_mounted(unsure="linux-3090 says so on the network: look at it"))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("j", "enter", "m")
        assert "Run gio mount smb://nas/swarm?" in drawn(app)
        assert "linux-3090 says so on the network" in drawn(app)
        await pilot.press("enter")  # the focus is on what does nothing
        assert app.feed.asked == [("check", fixed.FAR)]
        await pilot.press("m", "up", "enter")
        assert app.feed.asked == [("check", fixed.FAR), ("mount", fixed.FAR)]


@pytest.mark.parametrize("problem", ["", "wrong password"])
async def test_what_may_ask_for_a_password_gets_the_terminal(
    fixed: SimpleNamespace, near: Any, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    app = fixed.app_over(near, joining=fixed.not_mounted())
    given: list[object] = []

    @contextlib.contextmanager
    def suspended() -> Iterator[None]:
        given.append("terminal")
        yield
        given.append("screen")

    def mount(way: Any, *, quiet: bool) -> str:
        given.append((way.argv, quiet))
        return problem

    monkeypatch.setattr(app, "suspend", suspended)
    monkeypatch.setattr(api, "mount", mount)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("j", "enter", "m")
        assert given == ["terminal", (("gio", "mount", "smb://nas/swarm"), False), "screen"]
        assert app.feed.asked == [("check", fixed.FAR)]
        assert [n.message for n in app._notifications] == ([f"could not mount: {problem}"] if problem else [])


async def test_watching_without_joining(fixed: SimpleNamespace, near: Any) -> None:
    app = fixed.app_over(near, fixed.run_shown(fixed.run_state()), joining=fixed.join_shown(at=fixed.AT))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter", "w")
        assert isinstance(app.screen, RunScreen)
        await pilot.press("escape", "w")
        assert isinstance(app.screen, RunScreen)
        await pilot.press("J")
        assert isinstance(app.screen, JoinScreen)
        await pilot.press("w")
        assert isinstance(app.screen, RunScreen)


async def test_esc_goes_back_and_r_looks_again(fixed: SimpleNamespace, near: Any) -> None:
    app = fixed.app_over(near, joining=fixed.join_shown(at=fixed.AT))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("J", "r", "escape")
        assert isinstance(app.screen, HomeScreen)
        assert app.feed.asked == [("check", fixed.AT), ("check", fixed.AT), ("check", None)]


async def test_a_late_answer_about_another_run_is_not_shown(fixed: SimpleNamespace, near: Any) -> None:
    app = fixed.app_over(near)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("enter")
        app.feed.tell(fixed.join_shown(at=fixed.FAR, job=fixed.job()))
        await pilot.pause()
        assert isinstance(app.screen, JoinScreen)
        assert "looking" in drawn(app)


async def test_a_run_that_ended_or_is_trained_here_is_opened_instead(fixed: SimpleNamespace) -> None:
    for shown in (
        fixed.home_shown(fixed.home(fixed.run_state(closed=40))),
        fixed.home_shown(fixed.home(fixed.run_state(), jobs=(fixed.job(),))),
        fixed.home_shown(fixed.home(fixed.run_state(task="library"))),
    ):
        app = fixed.app_over(shown, fixed.run_shown(fixed.run_state()))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.press("enter")
            assert isinstance(app.screen, RunScreen)


@pytest.mark.parametrize("size", [(120, 36), (80, 24), (40, 12), (20, 6)])
async def test_no_size_is_refused_and_nothing_is_cut(fixed: SimpleNamespace, near: Any, size: tuple[int, int]) -> None:
    app = fixed.app_over(near, joining=fixed.not_mounted())
    async with app.run_test(size=size) as pilot:
        await pilot.press("j", "enter")
        await pilot.press(*"jjjkk")
        assert isinstance(app.screen, JoinScreen)
        width = max(20, size[0] - 4)
        for line in view_join.tick_lines(app.join_shown, width=width):
            assert sum(len(piece) for piece, _ in line) <= max(width, 30)


async def test_what_peers_wrote_is_harmless_here_too(fixed: SimpleNamespace) -> None:
    nasty = "[red]x[/red]\x1b[31m\u202e"
    run = fixed.seen_run(name=nasty, task=nasty, share=nasty, phase=nasty[:9])
    peer = fixed.seen_peer("mbp", unreachable=nasty)
    shown = fixed.home_shown(fixed.api.Home(), sightings=fixed.sightings(run, peers=(peer,)))
    fault = Fault(nasty, nasty)
    app = fixed.app_over(shown, joining=fixed.join_shown(task_fault=fault))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("3")
        assert "\x1b" not in drawn(app)
        assert "\u202e" not in drawn(app)
        assert "[red]x[/red]" in drawn(app)
        await pilot.press("1", "enter")
        assert isinstance(app.screen, JoinScreen)
        assert "[red]x[/red]" in drawn(app)
        assert "\x1b" not in drawn(app)
