"""The list of rounds, and the screen of one round: where its keys go, and what it says."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swarm.api import ClosedRound, held_round, train_loss
from swarm.core.manifest import PayloadRef
from swarm.core.state import EvalRead, RoundRead, apply
from tui import view_ranks, view_round, view_rounds
from tui.messages import Answered
from tui.screens.dialogs import Ask
from tui.screens.round import RoundOf, RoundScreen
from tui.screens.run import RunScreen
from tui.widgets.rounds import RoundsPane
from tui.widgets.toned import Lines, Words, folded

LARGE, SIZE = (120, 36), (80, 24)  # the small one has no plot, which takes its time


def over(fixed: SimpleNamespace, state: Any, **more: Any) -> Any:
    shown = fixed.run_shown(state, **more)
    return fixed.app_over(fixed.home_shown(fixed.home(state)), shown)


def head(app: Any) -> str:
    return str(app.screen.query_one("#head", Words).content)


def body(app: Any) -> str:
    return "\n".join("".join(words for words, _ in line) for line in app.screen.query_one("#text", Lines)._lines)


def said(lines: Any) -> list[str]:
    return ["".join(words for words, _ in line) for line in lines]


def rich(fixed: SimpleNamespace) -> Any:
    """A run whose last round tells all that a record can."""
    spec = fixed.DiLoCo(fragments=4, in_flight=2, quorum_size=2)
    state = fixed.run_state(algorithm=spec)
    late = fixed.api.Rejected(learner="air", unit="air", reason="late", round=11)
    norm = fixed.api.Rejected(learner="mbp", unit="mbp", reason="norm", round=12)
    record = fixed.round_record(12, ("studio", "linux-3090"), (late, norm), norm=0.25)
    parts = tuple(
        msgspec.structs.replace(p, weight=w, cosine=c, metrics={"accuracy": 0.5})
        for p, w, c in zip(record.participants, (3.0, 1.0), (0.5, 0.92), strict=True)
    )
    record = msgspec.structs.replace(
        record,
        fragment=0,
        participants=parts,
        outer=PayloadRef(round=8, sha256="2" * 64, size_bytes=3 << 20),
        update=PayloadRef(round=12, sha256="3" * 64, size_bytes=1 << 18),
        waited_s=6.2,
        quorum_waited_s=2.5,
        reason="the grace is over",
        control=2,
    )
    state = apply(state, RoundRead(record))
    found = fixed.api.EvalRecord(
        round=12, learner="studio", loss=2.5, metrics={"perplexity": 12.2}, sample="Once upon\n\x1b[31ma time", seconds_s=1.5
    )
    return apply(state, EvalRead(found))


async def test_the_rounds_are_a_list_from_which_enter_opens_one(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_state())
    async with app.run_test(size=LARGE) as pilot:
        await pilot.press("w", "3")
        pane = app.screen.query_one(RoundsPane)
        assert pane.at == 11
        await pilot.press("j", "j")
        assert pane.at == 9
        app.feed.tell(fixed.run_shown(fixed.run_state(closed=14)))
        await pilot.pause()
        assert pane.at == 9, "the cursor stays on its round"
        await pilot.press("G")
        assert pane.at == 0
        await pilot.press("g")
        assert pane.at == 13
        app.feed.tell(fixed.run_shown(fixed.run_state(closed=15)))
        await pilot.pause()
        assert pane.at == 14, "on the newest it goes along"
        await pilot.press("k", "pagedown", "pageup", "j", "enter")
        assert isinstance(app.screen, RoundScreen)
        assert "round 13 of 0 to 14" in head(app)
        await pilot.press("escape")
        assert isinstance(app.screen, RunScreen)
        for _ in range(2):  # a click chooses, another one opens
            await pilot.click(RoundsPane, offset=(5, 6))  # the border, the open round, its quorum, r14, r13, why one was late
            await pilot.pause()
            assert pane.at == 12
        assert isinstance(app.screen, RoundScreen)
        assert "round 12" in head(app)


async def test_where_the_rounds_are_one_line_enter_opens_the_newest(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_state())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "3", "enter")
        assert isinstance(app.screen, RoundScreen)
        assert "round 11 of 0 to 11  the newest" in head(app)
        app.feed.tell(fixed.run_shown(fixed.run_state(closed=13)))
        await pilot.pause()
        assert "round 12 of 0 to 12  the newest" in head(app)


async def test_from_round_to_round(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.run_state())
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "3", "enter")
        for keys, number in (
            (("left",), 10),
            (("h", "left_square_bracket"), 8),
            (("right", "l", "right_square_bracket"), 11),
            (("right",), 11),
            (("g",), 0),
            (("left",), 0),
            (("G",), 11),
            (("r", "7", "enter"), 7),
            (("r", "9", "9", "enter"), 7),
            (("r", "escape"), 7),
            (("r", "enter"), 7),
            (("j", "k", "pagedown", "pageup", "space"), 7),
        ):
            await pilot.press(*keys)
            assert f"round {number} of 0 to 11" in head(app), keys
        assert any("99 is no number from 0 to 11" in n.message for n in app._notifications)
        await pilot.press("r")
        assert isinstance(app.screen, Ask)


async def test_a_round_that_is_held_no_more_is_read_from_the_mailbox(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    newest_only = msgspec.structs.replace(state, rounds=state.rounds[-4:])
    app = over(fixed, newest_only)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w", "3", "enter", "r", "3", "enter")
        asked = RoundOf(fixed.AT, 3)
        assert app.feed.asked[-1] == ("ask", asked)
        assert "reading it" in body(app)
        app.feed.tell(fixed.run_shown(newest_only, age_s=1.4))
        await pilot.pause()
        assert app.feed.asked.count(("ask", asked)) == 1
        app.feed.tell(Answered(RoundOf(fixed.AT, 2), held_round(state, 2)))  # of a round that was left
        await pilot.pause()
        assert "reading it" in body(app)
        app.feed.tell(Answered(asked, held_round(state, 3)))
        await pilot.pause()
        assert "air: came after the round had closed" in body(app)
        await pilot.press("left")
        app.feed.tell(Answered(RoundOf(fixed.AT, 2), None, "the share does not answer"))
        await pilot.pause()
        assert "✗ the share does not answer" in body(app)
        await pilot.press("left", "question_mark")
        app.feed.tell(Answered(RoundOf(fixed.AT, 1), held_round(state, 1)))  # under a dialog
        await pilot.press("escape")
        await pilot.pause()
        assert "reading it" not in body(app)
        await pilot.press("G")
        assert "Participants 4" in body(app)


def test_what_a_round_says(fixed: SimpleNamespace) -> None:
    state = rich(fixed)
    found = held_round(state, 12)
    assert found is not None
    lines = said(view_round.round_lines(state, found, width=116))
    assert lines[0] == "◐ 2/3  fragment 0 of 4  step 1,300  version 12"
    assert "closed   by studio: the grace is over" in lines
    assert "waited   6.2 s from the first snapshot on, 2.5 s of it from the quorum to the last one" in lines
    assert "control  2 commands in effect from here on" in lines
    assert "payloads theta 1.00M  outer state 3.00M of r8  update 256k  snapshots ↑2.00M" in lines
    assert f"Participants 2  training loss {train_loss(found.record):.3f}  mean cosine .71  accuracy 0.500" in lines
    [studio] = [line.split() for line in lines if line.startswith("  studio")]
    loss = f"{found.record.participants[0].train_loss:.3f}"
    assert studio == ["studio", "75", "%", "102k", "100", loss, "5.6", "s", "18.3k", "1.00M", "0.25", ".50", "0.500"]
    assert "  ✗ mbp: over max_delta_norm, or too large to add" in lines
    assert "  r11  air: came after the round had closed" in lines
    assert "  loss 2.500  perplexity 12.20" in lines
    assert lines[-2:] == ["  │ Once upon", "  │ a time"]


def test_a_narrow_round_keeps_who_and_weight(fixed: SimpleNamespace) -> None:
    state = rich(fixed)
    lines = said(view_round.round_lines(state, held_round(state, 12), width=46))
    [studio] = [line for line in lines if line.startswith("  studio")]
    assert len(studio) <= 46
    assert studio.split()[:3] == ["studio", "75", "%"]


def test_a_private_round_shows_counts_alone(fixed: SimpleNamespace) -> None:
    state = fixed.fed_state(private=True)
    lines = said(view_round.round_lines(state, held_round(state, 11), width=116))
    [mbp] = [line.split() for line in lines if line.startswith("  mbp")]
    assert mbp == ["mbp", "50", "%", "100", "6", "—", "—", "—", "240k"]
    assert not any("training loss" in line for line in lines)


def test_who_trained_which_client_and_what_the_classifier_mistakes(fixed: SimpleNamespace) -> None:
    state = fixed.fed_state()
    lines = said(view_round.round_lines(state, held_round(state, 11), width=116))
    assert [line.split()[:2] for line in lines if line.startswith("  client-")] == [
        ["client-0001", "studio"],
        ["client-0005", "mbp"],
        ["client-0006", "linux-3090"],
    ]
    assert any("two learners trained it to different bytes" in line for line in lines)
    assert "  Confusion  rows: labels, columns: answers" in lines


def test_an_unchanged_round_says_whose_parameters_stay(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(closed=3)
    state = apply(state, RoundRead(fixed.round_record(3, ())))
    lines = said(view_round.round_lines(state, held_round(state, 3), width=80))
    assert lines[0].endswith("unchanged: Θ is that of the beginning")
    assert "Evaluation  none yet, or none was asked for" in lines


def test_held_rounds_come_with_the_one_before_and_what_came_late(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    found = held_round(state, 3)
    assert isinstance(found, ClosedRound)
    assert (found.record.round, found.before.round if found.before else None) == (3, 2)
    assert [r.reason for r in found.refused] == ["late"]
    assert found.evaluated is not None
    assert found.evaluated.round == 3
    cut = msgspec.structs.replace(state, rounds=state.rounds[4:])
    assert held_round(cut, 4) is None, "without the one before it is read from the mailbox"
    assert held_round(cut, 5) is not None
    assert held_round(state, 12) is None
    assert held_round(state, -1) is None


def test_ten_thousand_rounds_list_the_newest_and_say_how_to_reach_the_others(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(closed=12)
    far = tuple(msgspec.structs.replace(r, round=r.round + 9988, version=r.round + 9988) for r in state.rounds)
    state = msgspec.structs.replace(state, rounds=far)
    entries = view_rounds.closed_rounds(state, width=57)
    assert [number for number, _ in entries][:2] == [9999, 9998]
    assert said(view_rounds.older_line(state, len(entries))) == ["and 9988 before: open one, then ← or r"]


async def test_a_generation_of_a_data_parallel_job(fixed: SimpleNamespace) -> None:
    app = over(fixed, fixed.job_state())
    async with app.run_test(size=LARGE) as pilot:
        await pilot.press("w", "3", "j", "enter")
        assert "generation 2 of 0 to 3" in head(app)
        assert "trained  iterations 210 to 600" in body(app)
        assert "has mlx 0.31.2, the others 0.32.0" in body(app)
        await pilot.press("left")
        assert "generation 1 of 0 to 3" in head(app)
        assert "ended    " in body(app)
        await pilot.press("right", "right")
        assert "mini" in body(app)


def test_a_generation_that_nobody_knows(fixed: SimpleNamespace) -> None:
    assert said(view_ranks.generation_details(fixed.job_state(), 77)) == ["nothing is known of it any more"]


@pytest.mark.parametrize(
    ("quorum_since_s", "words"),
    [(None, "quorum ✓ 2/2  closes at 4/4"), (50.0, "quorum ✓ 2/2  closes at 4/4 or in 22 s"), (1.0, "any moment now")],
)
def test_the_quorum_and_what_is_left_of_the_grace(fixed: SimpleNamespace, quorum_since_s: float | None, words: str) -> None:
    state = fixed.run_state(algorithm=fixed.DiLoCo(quorum_size=2, grace_s=30.0), beat_every_s=2.5)
    shown = fixed.run_shown(state, age_s=0.5, quorum_since_s=quorum_since_s)
    assert words in "".join(piece for piece, _ in view_rounds.closing_line(shown))


def test_rounds_in_flight_by_fragment(fixed: SimpleNamespace) -> None:
    from swarm.core.state import SnapshotRead

    state = fixed.run_state(algorithm=fixed.DiLoCo(fragments=4, in_flight=2, quorum_size=2))
    state = apply(state, SnapshotRead(msgspec.structs.replace(fixed.snapshot(13, "mbp"), fragment=1)))
    line = "".join(piece for piece, _ in view_rounds.in_flight_line(state))
    assert line == "in flight, of 4 fragments  r12 f0 2/4  r13 f1 1/4"


def test_a_long_line_is_folded_between_words() -> None:
    line = (("waited   ", "dim"), ("6.2 s from the first snapshot on,", ""), (" 2.5 s of it", "dim"))
    lines = folded(line, 30)
    assert said(lines) == ["waited   6.2 s from the first", "         snapshot on, 2.5 s of", "         it"]
    assert [words for words, tone in lines[1] if tone == "dim"] == [" 2.5", " s", " of"]
    assert folded(line, 80) == (line,)
    assert said(folded((("x" * 25, ""),), 20)) == ["x" * 20, " " * 9 + "x" * 5]
    assert folded(line, 9) == (line,), "nothing would be left beside the indent"
