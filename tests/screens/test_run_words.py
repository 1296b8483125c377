"""What the Run screen says of a state."""

from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from swarm.core.records import Control, RejectReason
from swarm.core.sentences import REASONS
from swarm.core.specs import DiLoCo
from swarm.core.state import ControlRead, ManifestRead, RoundRead, ShareLost, TrustRead, apply
from swarm.core.trust import Foreign, Forged, Trust
from tui import view_home, view_rounds, view_run
from tui.transitions import run_notes


def said(line: Any) -> str:
    return "".join(words for words, _ in line)


def banner(shown: Any) -> list[str]:
    return [said(line) for line in view_run.banner(shown)]


def test_a_late_snapshot_stands_with_its_own_round(fixed: SimpleNamespace) -> None:
    lines = [said(line) for line in view_rounds.closed_round_lines(fixed.run_state(closed=6), width=56)]
    assert lines[0].startswith("r5 ✓ 4/4")
    assert lines[1].startswith("r4 ✓ 4/4")
    assert lines[2].startswith("r3 ◐ 3/4")
    assert lines[3] == "  air: came after the round had closed"


def test_a_round_without_participants(fixed: SimpleNamespace) -> None:
    refused = fixed.api.Rejected(learner="air", unit="air", reason="nonfinite", round=0)
    state = apply(
        apply(fixed.api.RunState(run=fixed.AT.run), ManifestRead(fixed.manifest())),
        RoundRead(fixed.round_record(0, (), (refused,))),
    )
    lines = [said(line) for line in view_rounds.closed_round_lines(state, width=56)]
    assert lines == ["r0 ✗ 0/1  0.4 s  unchanged  val —", "  air: holds NaN or infinite numbers"]


@pytest.mark.parametrize("reason", get_args(RejectReason))
def test_every_reason_of_a_rejection_is_shown_in_words(fixed: SimpleNamespace, reason: str) -> None:
    refused = fixed.api.Rejected(learner="air", unit="air", reason=reason, round=12)
    before = fixed.run_state()
    state = apply(before, RoundRead(fixed.round_record(12, ("studio",), (refused,))))
    words = f"air: {REASONS[reason]}"
    first, second, *_ = (said(line) for line in view_rounds.closed_round_lines(state, width=56))
    assert first.startswith("r12 ◐ 1/2")
    assert second == f"  {words}"
    assert len(second.replace("air", "linux-3090")) <= 56  # what the pane holds at 120 columns
    assert said(view_rounds.rounds_summary(fixed.run_shown(state))).endswith(words)
    (note,) = run_notes(before, state)
    assert note.text.endswith(f"; {words}")
    assert note.severity == "warning"


def test_a_small_screen_says_why_too(fixed: SimpleNamespace) -> None:
    refused = fixed.api.Rejected(learner="air", unit="air", reason="norm", round=12)
    state = apply(fixed.run_state(), RoundRead(fixed.round_record(12, (), (refused,))))
    since_s = state.polled_at_s - 41.0
    line = said(view_rounds.rounds_summary(fixed.run_shown(state, round_since_s=since_s)))
    assert line.startswith("r13 UPLOAD  0/4 reported  41 s  r12 ✗ 0/1  unchanged  air: over max_del")
    assert said(view_rounds.rounds_summary(fixed.run_shown(fixed.run_state()))).startswith("r12 train ▸ UPLOAD ▸ ")


def test_many_rejections_of_a_round_are_cut(fixed: SimpleNamespace) -> None:
    refused = [fixed.api.Rejected(learner=f"m{n}", unit=f"m{n}", reason="stale", round=12) for n in range(9)]
    state = apply(fixed.run_state(), RoundRead(fixed.round_record(12, ("studio",), refused)))
    lines = [said(line) for line in view_rounds.closed_round_lines(state, width=56)]
    assert lines[4] == "  m3: started from other parameters"
    assert lines[5] == "  and 5 more"
    assert lines[6].startswith("r11")


def test_a_round_that_changed_nothing_says_so(fixed: SimpleNamespace) -> None:
    same = fixed.msgspec.structs.replace(fixed.round_record(12, ("studio", "mbp")), version=11)
    before = fixed.run_state()
    state = apply(before, RoundRead(same))
    assert said(view_rounds.closed_round_lines(state, width=56)[0]).startswith("r12 ✗ 2/2  7.0 s  unchanged  train ")
    assert [note.text.partition(", train")[0] for note in run_notes(before, state)] == ["round 12 closed: 2/2, unchanged"]


def test_bytes_and_norms_stand_where_there_is_room(fixed: SimpleNamespace) -> None:
    state = apply(fixed.run_state(), RoundRead(fixed.round_record(12, ("studio", "mbp"), norm=0.125)))
    wide, middle, narrow = (said(view_rounds.closed_round_lines(state, width=width)[0]) for width in (76, 56, 40))
    assert wide.endswith("  ↑2.00M  Δ 0.125–0.25")
    assert middle.endswith("  ↑2.00M")
    assert narrow.endswith("  val —")


def test_who_is_silent_and_since_when(fixed: SimpleNamespace) -> None:
    (line,) = banner(fixed.run_shown(fixed.run_state(silent=("air", "linux-3090"))))
    assert line == "⚠ air silent 38 s, linux-3090 silent 38 s; the round closes with the 2 still live"


def test_what_is_waited_for(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.run_state(learners=("studio",), closed=0, start_learners=3))
    assert banner(shown) == ["◌ waiting for 2 more learners; join it here: J"]
    joined = fixed.run_shown(shown.state, job=fixed.job())
    assert banner(joined) == ["◌ waiting for 2 more learners"]


def test_a_lost_share_says_how_old_everything_is(fixed: SimpleNamespace) -> None:
    (line,) = banner(fixed.run_shown(fixed.lost(fixed.run_state()), age_s=34))
    assert line == "✗ share lost: the share does not answer; what is shown is 34 s old; trying again"
    hanging = fixed.run_shown(fixed.run_state(), age_s=7.0)
    assert banner(hanging)[0] == "✗ the share does not answer; what is shown is 7.0 s old"
    assert said(view_run.headline(hanging, width=120)).endswith("share ✗ 7.0 s")


def test_idle_done_and_stopped(fixed: SimpleNamespace) -> None:
    gone = ("studio", "mbp")
    idle = fixed.run_state(learners=gone, left=gone, closed=7)
    assert banner(fixed.run_shown(idle)) == ["○ idle since round 6: no learner is live; join it here: J"]
    done = fixed.run_state(learners=gone, left=gone, closed=40)
    assert banner(fixed.run_shown(done)) == ["✓ done: 40 rounds, loss 1.850 (validation)"]
    stopped = fixed.run_state(learners=gone, left=gone, closed=7, stop=True)
    assert banner(fixed.run_shown(stopped))[0].startswith("■ stopped by studio: 7 rounds, loss ")


def test_a_stop_that_is_not_in_effect_yet(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(stop=True)
    state = fixed.msgspec.structs.replace(state, rounds=fixed.run_state().rounds)
    assert banner(fixed.run_shown(state)) == ["■ stop was asked for by studio: it takes effect at the next round"]
    assert not view_run.stoppable(state)


def test_nobody_is_called_live_or_gone_before_it_is_certain(fixed: SimpleNamespace) -> None:
    first = fixed.run_shown(fixed.run_state(polls=1))
    assert "◌ CHECKING" in said(view_run.headline(first, width=120))
    assert banner(first) == ["◌ watching for signs of life"]


@pytest.mark.parametrize("width", [120, 80, 60, 50, 40])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_headline_fits_and_keeps_state_and_share(fixed: SimpleNamespace, width: int, frozen: bool) -> None:
    line = said(view_run.headline(fixed.run_shown(fixed.run_state(name="a" * 60)), width=width, frozen=frozen))
    assert len(line) <= max(width - 2, 60)
    assert "● RUNNING" in line
    assert "r12/40" in line
    assert line.endswith("share ✓ 0.4 s")
    assert ("FROZEN" in line) == frozen


def test_a_gone_run_says_why(fixed: SimpleNamespace) -> None:
    shown = fixed.run_shown(fixed.api.RunState(run=fixed.AT.run), problem="no run k4m7q2xw")
    assert banner(shown) == ["✗ no run k4m7q2xw; nothing was read yet"]


def test_a_share_lost_before_the_learners_were_read_does_not_deny_the_rounds_that_are_shown(fixed: SimpleNamespace) -> None:
    before = apply(fixed.run_state(), ShareLost(now_s=1.0, reason="no answer"))
    [line, *_] = banner(fixed.run_shown(msgspec.structs.replace(before, polled_at_s=None)))
    assert line == "✗ share lost: no answer; its learners were not read yet; trying again"


def test_the_rates_show_a_stall_and_not_the_noise() -> None:
    assert view_run._rate_bars((100.0,) * 10) == "▄▄▄▄▄▄▄▄"
    assert view_run._rate_bars((100.0, 0.0, 100.0)).endswith("█▁█")
    assert "▁" not in view_run._rate_bars((100.0, 97.0, 99.0, 101.0))


# Steering


def test_a_pause_before_and_after_it_is_in_effect(fixed: SimpleNamespace) -> None:
    pause = Control(action="pause", by="mbp")
    asked = apply(fixed.run_state(), ControlRead(1, pause))
    assert banner(fixed.run_shown(asked)) == ["‖ a pause was asked for by mbp: it begins after the next round"]
    paused = fixed.run_state(controls=(pause,))
    assert banner(fixed.run_shown(paused)) == ["‖ paused by mbp: P lets it go on; join it here: J"]
    line = said(view_run.headline(fixed.run_shown(paused), width=120))
    assert "‖ PAUSED" in line
    assert "tok/s" not in line  # what was measured before the pause
    assert said(view_rounds.open_round_line(fixed.run_shown(paused))) == "r12 ‖ paused"
    assert "charlm-brave-otter is paused by mbp" in [note.text for note in run_notes(fixed.run_state(), paused)]
    (row,) = view_home.run_rows(fixed.home_shown(fixed.home(paused)))
    assert "‖ paused" in [cell.text for cell in row.cells]
    assert [said(line) for line in view_home.run_detail(paused)] == ["‖ charlm-brave-otter is paused by mbp: P lets it go on"]


def test_who_dropped_whom(fixed: SimpleNamespace) -> None:
    drop = Control(action="drop", by="mbp", learner="air", incarnation=1)
    asked = fixed.run_state(controls=(drop,))
    assert banner(fixed.run_shown(asked)) == ["○ air was dropped by mbp, and is about to leave"]
    assert "air" not in view_run.droppable(asked)
    gone = fixed.run_state(controls=(drop,), left=("air",))
    assert banner(fixed.run_shown(gone)) == []
    assert "air was dropped by mbp" in [note.text for note in run_notes(asked, gone)]
    row = view_run.learner_rows(fixed.run_shown(gone))[-1]
    assert row.key == "air"
    assert {"○ dropped", "by mbp"} <= {cell.text for cell in row.cells}
    assert "3/3 learners" in said(view_run.headline(fixed.run_shown(gone), width=120))


# Roles


def test_a_syncer_is_no_learner(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(learners=("studio", "mbp"), syncers=("nas",))
    assert "2/2 learners +1 syncer" in said(view_run.headline(fixed.run_shown(state), width=120))
    assert said(view_rounds.open_round_line(fixed.run_shown(state))).endswith("1/2 reported")
    rested = fixed.run_state(syncers=("nas",), controls=(Control(action="pause"),))
    assert [row.cells[1].text for row in view_run.learner_rows(fixed.run_shown(rested))] == ["‖ paused"] * 4 + ["◆ syncer"]
    rows = view_run.learner_rows(fixed.run_shown(state))
    assert [row.key for row in rows] == ["mbp", "studio", "nas"]
    assert [cell.text for cell in rows[-1].cells[1:4]] == ["◆ syncer", "r12", "—"]
    assert view_home.run_rows(fixed.home_shown(fixed.home(state)))[0].cells[5].text == "2"
    silent = fixed.run_state(learners=("studio", "mbp"), syncers=("nas",), silent=("nas",))
    assert "? silent" in [cell.text for cell in view_run.learner_rows(fixed.run_shown(silent))[-1].cells]


def test_learners_without_a_syncer_wait_for_one(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    views = tuple(
        fixed.msgspec.structs.replace(v, beat=fixed.msgspec.structs.replace(v.beat, role="learner")) for v in state.learners
    )
    waiting = fixed.msgspec.structs.replace(state, learners=views)
    assert banner(fixed.run_shown(waiting)) == ["◌ waiting for a syncer; join it here: J"]
    assert [said(line) for line in view_home.run_detail(waiting)] == ["◌ charlm-brave-otter waits for a syncer"]


# Options, and programs of one's own


def test_the_headline_names_the_options_that_tell_runs_apart(fixed: SimpleNamespace) -> None:
    algorithm = DiLoCo(sync_every=100, fragments=4, in_flight=2, quorum_size=2, delta_dtype="F8_E4M3", merge="rda")
    shown = fixed.run_shown(fixed.run_state(algorithm=algorithm))
    assert "  DiLoCo  H=100 P=4 q=2 rda F8+ef  " in said(view_run.headline(shown, width=140))
    assert "F8" not in said(view_run.headline(shown, width=80))


def test_a_run_of_a_program_says_how_it_is_joined(fixed: SimpleNamespace) -> None:
    state = fixed.run_state(task="library", left=("studio", "mbp", "linux-3090", "air"))
    words = "charlm-brave-otter trains a program's own model: it is joined by starting that program here (swarm.Session)"
    assert view_run.program_words(state) == words
    assert banner(fixed.run_shown(state)) == ["○ idle since round 11: no learner is live"]
    assert [said(line) for line in view_home.run_detail(state)] == [words]
    assert "library" in [cell.text for cell in view_home.run_rows(fixed.home_shown(fixed.home(state)))[0].cells]
    assert view_run.program_words(fixed.run_state()) == ""


def trusted(state: Any, **fields: Any) -> Any:
    return apply(state, TrustRead(Trust(**fields)))


def test_the_title_says_who_may_write(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    for width in (80, 120):
        assert "  open  share ✓" in said(view_run.headline(fixed.run_shown(state), width=width))
    signed = trusted(state, signed=True, fingerprint="1a2b3c4d")
    assert "  signed 1a2b3c4d  share ✓" in said(view_run.headline(fixed.run_shown(signed), width=120))
    assert "  signed  share ✓" in said(view_run.headline(fixed.run_shown(signed), width=80))
    watched = trusted(state, signed=True)
    assert "  signed  share ✓" in said(view_run.headline(fixed.run_shown(watched), width=120))
    home = fixed.msgspec.structs.replace(fixed.home(signed), fingerprint="1a2b3c4d")
    assert said(view_home.headline(fixed.home_shown(home))).endswith("  signed 1a2b3c4d")
    assert said(view_home.headline(fixed.home_shown(fixed.home(state)))).endswith("  open")


def test_forged_records_are_told_with_the_newest_key(fixed: SimpleNamespace) -> None:
    before, key = fixed.run_state(), "runs/k4m7q2xw/control/000001/record.json"
    state = trusted(before, signed=True, fingerprint="1a2b3c4d", forged=Forged({"claim": 2, "control": 1}, key))
    words = f"3 forged records ignored, newest: {key}"
    assert f"⚠ {words}" in banner(fixed.run_shown(state))
    assert any(said(line).endswith(words) for line in view_home.banner(fixed.home_shown(fixed.home(state))))
    (note,) = run_notes(before, state)
    assert (note.text, note.severity) == (words, "warning")
    assert not [note for note in run_notes(state, state) if "forged" in note.text]


def test_a_forged_round_is_no_lost_share(fixed: SimpleNamespace) -> None:
    before, key = fixed.run_state(), "runs/k4m7q2xw/rounds/00000000/0000000012/record.json"
    state = apply(before, ShareLost(now_s=before.polled_at_s + 3.0, reason=f"{key}: is not signed", halted=True))
    first, second, *_ = banner(fixed.run_shown(state))
    assert first.startswith("✗ a forged record: the run cannot go on")
    assert key in second
    assert any(
        "cannot go on" in said(line) and key in said(line) for line in view_home.banner(fixed.home_shown(fixed.home(state)))
    )
    assert not any("share lost" in said(line) for line in view_home.banner(fixed.home_shown(fixed.home(state))))
    (note,) = run_notes(before, state)
    assert note.text.startswith("a forged record: runs/")
    (note,) = run_notes(state, before)
    assert note.text == "the forged record is gone"


def test_runs_of_others_are_counted_at_home(fixed: SimpleNamespace) -> None:
    home = fixed.home(fixed.run_state())
    [view] = home.mailboxes
    view = fixed.msgspec.structs.replace(view, foreign=Foreign(unsigned=2, otherwise=1))
    home = fixed.msgspec.structs.replace(home, mailboxes=(view,))
    [line] = [said(line) for line in view_home.banner(fixed.home_shown(home))]
    assert "2 unsigned runs ignored, 1 run of another passphrase ignored" in line


def test_who_holds_still_for_an_owner_is_named_and_this_machine_first(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    why = "somebody is at the keyboard\x1b[2J"

    def held(view: Any) -> Any:
        beat = fixed.msgspec.structs.replace(view.beat, phase="paused", held=why)
        return fixed.msgspec.structs.replace(view, beat=beat)

    learners = tuple(held(view) if view.learner in ("studio", "mbp") else view for view in state.learners)
    state = fixed.msgspec.structs.replace(state, learners=learners)
    mine = fixed.msgspec.structs.replace(fixed.job(), held=why)
    assert mine.learner == "studio"
    lines = banner(fixed.run_shown(state, job=mine))
    assert "‖ paused here: somebody is at the keyboard; it goes on by itself" in lines
    assert "‖ mbp is not waited for: somebody is at the keyboard" in lines
    assert not any(line.startswith("‖ studio") for line in lines)


def test_a_mailbox_that_takes_nothing_from_this_machine_is_said_by_the_run_and_on_home(fixed: SimpleNamespace) -> None:
    state = fixed.run_state()
    full = "the mailbox is full (/mnt/swarm: ENOSPC\x1b[2J)"
    job = fixed.msgspec.structs.replace(fixed.job(), trouble=full)
    words = "the mailbox is full (/mnt/swarm: ENOSPC); tried again"
    assert banner(fixed.run_shown(state, job=job))[0] == f"✗ studio on this machine: {words}"
    lost = banner(fixed.run_shown(fixed.lost(state), job=job))
    assert [line for line in lost if "full" in line] == [], "one word about one share"

    def home_lines(state: Any) -> list[str]:
        shown = fixed.home_shown(fixed.home(state, jobs=(job,)))
        return [said(line) for line in view_home.banner(shown)]

    assert home_lines(state) == [f"✗ charlm-brave-otter on this machine: {words}"]
    assert not any("full" in line for line in home_lines(fixed.lost(state)))
    [row] = view_home.job_rows((job,))
    assert row.cells[-1].text.startswith("the mailbox is full")
