"""One learner in a screen of its own: what it says, and where its keys go."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swarm.core.records import JoinRefusal
from swarm.core.state import RefusalsRead, apply
from swarm.core.trust import Trust
from tui import view_learner, view_ranks, view_refused, view_run
from tui.messages import Answered
from tui.screens.dialogs import Choice
from tui.screens.learner import LearnerScreen
from tui.screens.log import LogOf, LogScreen
from tui.screens.run import RunScreen
from tui.widgets.toned import Lines, Words

SIZE = (80, 24)  # without a plot, which takes its time


def over(fixed: SimpleNamespace, shown: Any) -> Any:
    jobs = (shown.job,) if shown.job else ()
    return fixed.app_over(fixed.home_shown(fixed.home(shown.state, jobs=jobs)), shown)


def said(lines: Any) -> list[str]:
    return ["".join(words for words, _ in line).rstrip() for line in lines]


def told(fixed: SimpleNamespace, shown: Any, learner: str, **more: Any) -> list[str]:
    return said(view_learner.learner_lines(shown, learner, width=116, **more))


def of(app: Any, pane: str) -> str:
    return "\n".join(said(app.screen.query_one(pane, Lines)._lines))


def changed(state: Any, learner: str, *, record: dict[str, Any] | None = None, **beat: Any) -> Any:
    """`state` with other values in what this learner told."""

    def other(view: Any) -> Any:
        if view.learner != learner:
            return view
        told = msgspec.structs.replace(view.record, **(record or {}))
        return msgspec.structs.replace(view, record=told, beat=msgspec.structs.replace(view.beat, **beat))

    return msgspec.structs.replace(state, learners=tuple(map(other, state.learners)))


async def test_enter_opens_the_learner_under_the_cursor(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_shown(fixed.run_state(), job=fixed.job()))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "enter")
        assert isinstance(app.screen, LearnerScreen)
        assert app.screen.learner == "air"
        assert "its log lies on its machine, air: swarm logs there" in of(app, "#log")
        await pilot.press("l")  # it is not on this machine
        assert isinstance(app.screen, LearnerScreen)
        for key, learner in (("right", "linux-3090"), ("right_square_bracket", "mbp"), ("h", "linux-3090"), ("left", "air")):
            await pilot.press(key)
            assert app.screen.learner == learner
        await pilot.press("left")
        assert app.screen.learner == "studio"
        assert "on this machine" in str(app.screen.query_one("#head", Words).content)
        asked = LogOf(fixed.job().id, 200)
        assert app.feed.asked[-1] == ("ask", asked)
        app.feed.tell(Answered(asked, ("12:00:00 joined", "12:00:01 WARN slow")))
        await pilot.pause()
        assert of(app, "#log") == "12:00:00 joined\n12:00:01 WARN slow"
        await pilot.press("j", "k", "pagedown", "pageup", "G", "g", "l")
        assert isinstance(app.screen, LogScreen)
        await pilot.press("escape", "x")
        assert isinstance(app.screen, Choice)
        await pilot.press("up", "enter")
        assert ("drop", (fixed.AT, "studio")) in app.feed.asked
        await pilot.press("escape")
        assert isinstance(app.screen, RunScreen)
        for _ in range(2):  # a click chooses, another one opens
            await pilot.click("#learners", offset=(5, 4))
            await pilot.pause()
        assert isinstance(app.screen, LearnerScreen)
        assert app.screen.learner == "mbp"


def test_what_a_learner_says(fixed: SimpleNamespace) -> None:
    state = changed(
        fixed.run_state(),
        "air",
        record={"memory_bytes": 64 << 30},
        alive_s=1000.0,
        trained_s=930.0,
        power_w=38.4,
        energy_wh=210.0,
    )
    lines = told(fixed, fixed.run_shown(state), "air", price_per_kwh=0.30, currency="€")
    assert "device   mlx metal  memory 1.3/64G" in lines
    assert "machine  air  swarm 0.1.0  incarnation 1  pid 4003" in lines
    assert "goodput  93%, 15m30 of 16m40 went into steps" in lines
    assert "traffic  ↑ 12.0M sent  ↓ 11.0M received" in lines
    assert "power    38 W  energy 210.0 Wh  cost 0.063 €" in lines
    assert any(line.startswith("work     r12 66/100, 1,266 steps by this incarnation  144 tok/s  loss 2.103") for line in lines)
    assert "Rounds  counted in 10 of 12" in lines
    [late] = [line for line in lines if line.strip().startswith("r8 ")]
    assert "✗ came after the round had closed" in late
    [newest] = [line.split() for line in lines if line.strip().startswith("r11 ")]
    assert newest[:5] == ["r11", "✓", "counts", "25", "%"]
    assert any(line.startswith("tok/s") for line in lines)
    assert any(line.startswith("loss by round") for line in lines)


def test_what_is_not_known_is_a_dash(fixed: SimpleNamespace) -> None:
    lines = told(fixed, fixed.run_shown(fixed.run_state()), "air", price_per_kwh=0.30)
    assert "power    –  energy –  cost –  its machine does not tell" in lines
    assert "goodput  —" in lines
    assert "device   mlx metal  memory 1.30G" in lines


@pytest.mark.parametrize(
    ("more", "learner", "words"),
    [
        ({"silent": ("air",)}, "air", "? silent: no beat for"),
        ({"left": ("air",)}, "air", "○ left the run"),
        ({"syncers": ("nas",)}, "nas", "role     closes rounds"),
    ],
)
def test_the_silent_the_gone_and_a_syncer(fixed: SimpleNamespace, more: Any, learner: str, words: str) -> None:
    lines = told(fixed, fixed.run_shown(fixed.run_state(**more)), learner)
    assert any(line.startswith(words) for line in lines), lines
    if learner == "nas":
        assert not any(line.startswith(("goodput", "tok/s")) for line in lines)


def test_a_dropped_learner_says_by_whom(fixed: SimpleNamespace) -> None:
    drop = fixed.Control(action="drop", by="mbp", learner="air", incarnation=1)
    lines = told(fixed, fixed.run_shown(fixed.run_state(left=("air",), controls=(drop,))), "air")
    assert lines[0] == "○ was dropped by mbp: it may join again"


def test_a_rank_shows_what_its_steps_are_made_of(fixed: SimpleNamespace) -> None:
    lines = told(fixed, fixed.run_shown(fixed.job_state()), "linux-3090")
    assert any(line.startswith("rank     0 of 3 in generation 2, at 192.168.1.22:21000  49 % of each batch") for line in lines)
    assert any(line.startswith("compute  ██") and line.endswith("65 %") for line in lines)
    assert any(line.startswith("waiting  ░") for line in lines)
    assert not any(line.startswith("Rounds") for line in lines)


def test_a_refused_machine_says_why(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.job_state())
    assert told(fixed, shown, "air")[0] == "✗ has no rank: has mlx 0.31.2, the others 0.32.0"
    assert "✗ refused" in said([view_learner.heading(shown, "air")])[0]
    assert told(fixed, shown, "mini")[0] == "◌ waits for the next generation"


def test_one_that_is_not_in_the_run(fixed: SimpleNamespace) -> None:
    assert told(fixed, fixed.run_shown(fixed.run_state()), "nobody") == ["nobody is not in this run"]


def test_a_private_client_shows_counts_alone(fixed: SimpleNamespace) -> None:
    lines = told(fixed, fixed.run_shown(fixed.fed_state(private=True)), "mbp")
    assert not any(line.startswith("loss by round") for line in lines)
    assert all("loss" not in line for line in lines if line.startswith("work"))


def test_memory_goodput_and_traffic_in_the_table(fixed: SimpleNamespace) -> None:
    state = changed(
        fixed.run_state(), "air", record={"memory_bytes": 64 << 30}, rss_bytes=38 << 30, alive_s=100.0, trained_s=93.0
    )
    [air] = [row for row in view_run.learner_rows(fixed.run_shown(state)) if row.key == "air"]
    titles = [column.title for column in view_run.LEARNER_COLUMNS]
    cells = dict(zip(titles, (cell.text for cell in air.cells), strict=True))
    assert (cells["memory"], cells["traffic"], cells["good"]) == ("38/64G", "↑12M ↓11M", "93%")
    on_card = changed(fixed.run_state(), "linux-3090", record={"memory_bytes": 24 << 30})  # its beats tell of the host's memory
    [row] = [row for row in view_run.learner_rows(fixed.run_shown(on_card)) if row.key == "linux-3090"]
    assert dict(zip(titles, row.cells, strict=True))["memory"].text == "—/24G"


def test_the_first_line_tells_eta_share_and_network(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state(), poll_s=0.0412, heard=True)
    line = "".join(words for words, _ in view_run.headline(shown, width=160))
    assert "ETA 4m08" in line
    assert line.rstrip().endswith("share ✓ 41 ms  mDNS ✓")
    assert "↑48M ↓44M" in line
    off = "".join(words for words, _ in view_run.headline(fixed.run_shown(fixed.run_state(), heard=False), width=160))
    assert off.rstrip().endswith("mDNS ✗")
    endless = "".join(words for words, _ in view_run.headline(fixed.run_shown(fixed.run_state(rounds=None)), width=160))
    assert "ETA" not in endless


def test_a_machine_that_would_train_and_cannot_stays_in_the_table(fixed: SimpleNamespace) -> None:
    old = fixed.seen_peer("mbp")
    advert = msgspec.structs.replace(old.advert, name="air", state="idle", format=0, mailboxes=(fixed.MAILBOX,))
    state = fixed.run_state(learners=("studio", "mbp"))
    seen = fixed.Sightings(peers=(msgspec.structs.replace(old, advert=advert),))
    why = view_refused.refused(state, seen, fixed.MAILBOX)
    assert why == (("air", "format 0 ≠ 1: upgrade swarm on air"),)
    shown = fixed.run_shown(state, refused=why)
    row = view_run.learner_rows(shown)[-1]
    assert [cell.text for cell in row.cells[:3]] == ["air", "✗ refused", why[0][1]]
    assert told(fixed, shown, "air") == [f"✗ it would train this run, and cannot: {why[0][1]}"]
    assert "✗ refused" in said([view_learner.heading(shown, "air")])[0]


def refusing(state: Any, *machines: tuple[str, str]) -> Any:
    told = [JoinRefusal(machine=f"id-{name}", machine_name=name, version="1", reason=reason) for name, reason in machines]
    return apply(state, RefusalsRead(tuple(told)))


def test_what_a_machine_told_in_the_mailbox_comes_before_its_advert(fixed: SimpleNamespace) -> None:
    state = refusing(fixed.run_state(learners=("studio",)), ("air", "no torch"), ("nas", "no data\x1b[31m"))
    peer = fixed.seen_peer("mbp")
    told = {"state": "idle", "format": 0, "mailboxes": (fixed.MAILBOX,)}
    adverts = [
        msgspec.structs.replace(peer.advert, **told, name=name, peer=ident)
        for name, ident in (("air", "other"), ("renamed", "id-nas"), ("mini", "id-mini"))
    ]
    seen = fixed.Sightings(peers=tuple(msgspec.structs.replace(peer, advert=advert) for advert in adverts))
    expected = (("air", "no torch"), ("mini", "format 0 ≠ 1: upgrade swarm on mini"), ("nas", "no data"))
    assert view_refused.refused(state, seen, fixed.MAILBOX) == expected
    assert view_refused.refused(state, seen, "") == (expected[0], expected[2])


@pytest.mark.parametrize("kind", ["run", "fed", "job"])
def test_one_that_took_part_before_and_cannot_now_says_so_in_its_row(fixed: SimpleNamespace, kind: str) -> None:
    """One that takes part has its own row, and no other."""
    makers = {"run": fixed.run_state, "fed": fixed.fed_state, "job": fixed.job_state}
    left = {"left": ("air",)} if kind == "run" else {}
    state = refusing(makers[kind](**left), ("studio", "no room"), ("nas", "no torch"), *([("air", "no data")] if left else []))
    shown = fixed.run_shown(state, refused=view_refused.refused(state, fixed.Sightings(), ""))
    rows = view_ranks.rank_rows(shown) if kind == "job" else view_run.learner_rows(shown)
    columns = view_ranks.RANK_COLUMNS if kind == "job" else view_run.LEARNER_COLUMNS
    assert all(len(row.cells) == len(columns) for row in rows)
    by_name = {row.key: [cell.text for cell in row.cells] for row in rows}
    assert len(by_name) == len(rows)
    assert by_name["nas"][:3] == ["nas", "✗ refused", "no torch"]
    assert by_name["studio"][1] != "✗ refused"
    if left:
        assert by_name["air"][:3] == ["air", "✗ refused", "no data"]
        assert told(fixed, shown, "air")[0] == "✗ it would train this run, and cannot: no data"
        assert len(told(fixed, shown, "air")) > 3
        assert "✗ refused" in said([view_learner.heading(shown, "air")])[0]


@pytest.mark.parametrize(
    ("peer", "advert", "words"),
    [
        ({}, {}, None),
        ({}, {"format": 2}, "format 2 ≠ 1: this run is older than swarm on air"),
        ({}, {"format": 2, "state": "watching"}, None),
        ({}, {"format": 2, "mailboxes": ()}, None),
        ({"itself": True}, {"format": 2}, None),
        ({"ours": False}, {}, "another passphrase, or none: swarm key import on air"),
    ],
)
def test_who_is_kept_out(fixed: SimpleNamespace, peer: Any, advert: Any, words: str | None) -> None:
    seen = fixed.seen_peer("mbp")
    told = msgspec.structs.replace(seen.advert, **{"name": "air", "state": "idle", "mailboxes": (fixed.MAILBOX,), **advert})
    state = msgspec.structs.replace(fixed.run_state(learners=("studio",)), trust=Trust(signed=True, fingerprint="1a2b3c4d"))
    found = view_refused.refused(
        state, fixed.Sightings(peers=(msgspec.structs.replace(seen, advert=told, **peer),)), fixed.MAILBOX
    )
    assert [reason for _, reason in found] == ([words] if words else [])


def test_a_reason_takes_the_room_of_the_columns_after_it(fixed: SimpleNamespace) -> None:
    rows = {row.key: row for row in view_ranks.rank_rows(fixed.run_shown(fixed.job_state()))}
    assert rows["air"].spill == [c.title for c in view_ranks.RANK_COLUMNS].index("█ compute ▓ comm ░ wait")
    assert rows["studio"].spill is None
