"""What a person reads of a worker's events."""

from __future__ import annotations

import contextlib
import io
import typing

import pytest

from swarm.cli import narrate
from swarm.cli.common import plain, table
from swarm.core.events import (
    Building,
    Created,
    Ended,
    Evaluated,
    Failed,
    Freed,
    Gathering,
    GenerationOver,
    Held,
    JobReported,
    JobSaved,
    JobStepped,
    JobValidated,
    Joined,
    Mended,
    OwnerFirst,
    Paused,
    Published,
    RankPlaced,
    Restored,
    Resumed,
    RoundClosed,
    ShareBack,
    ShareLost,
    Stepped,
    Trained,
    Training,
    Transfer,
    Trouble,
    Waiting,
    WorkerEvent,
)
from swarm.core.sentences import amount, number, sentence

CLOSED = RoundClosed(round=2, rounds=9, participants=("a", "b"), rejected=(), train_loss=0.5, closer="a")
FETCHING = Transfer(file="a.txt", how="fetch", done_bytes=450_000, size_bytes=1_000_000, line=False)
STEPPED = Stepped(round=3, step=4, steps_before=10, loss=0.5, tokens_per_s=1234.5)
SAID: list[tuple[WorkerEvent, str | None]] = [
    (Building(what="mlp for a new run"), "preparing mlp for a new run …"),
    (Created(run="aaaa1111", name="mlp-one"), "made run mlp-one (aaaa1111)"),
    (
        Joined(run="aaaa1111", name="mlp-one", learner="studio", incarnation=2, round=7, device="torch cpu"),
        "joined mlp-one as studio, incarnation 2 on torch cpu, at round 7",
    ),
    (
        Joined(run="aaaa1111", name="mlp-one", learner="nas", incarnation=1, round=7, role="syncer"),
        "joined mlp-one as nas to close its rounds, at round 7",
    ),
    (
        Restored(round=7, step=3, what="3 local steps and the inner optimizer"),
        "goes on at round 7, step 3, with 3 local steps and the inner optimizer",
    ),
    (OwnerFirst(words="its owner comes first: nice level 10"), "its owner comes first: nice level 10"),
    (Held(reason="it runs on battery\x1b"), "paused here: it runs on battery·"),
    (Freed(), "goes on here"),
    (Paused(round=3, by="studio"), "round 3: the run is paused by studio, until somebody resumes it"),
    (Paused(round=3), "round 3: the run is paused, until somebody resumes it"),
    (Resumed(round=3), "round 3: the run goes on"),
    (Waiting(round=0, reason="waiting for 1 more learner"), "round 0: waiting for 1 more learner"),
    (Waiting(round=0, reason="1 of 2 have reported"), None),
    (CLOSED, "round 2 closed (3 of 9) with a, b  train loss 0.5000"),
    (
        RoundClosed(round=2, rounds=None, participants=(), rejected=("a: norm",), train_loss=None, closer="b"),
        "round 2 closed unchanged: nothing that counts was reported  rejected: a: over max_delta_norm, or too large to add",
    ),
    (Evaluated(round=2, loss=None, metrics={"r2": 0.5}), "round 2: validation loss –  r2 0.500"),
    (ShareLost(reason="no answer"), "the mailbox does not answer (no answer): training goes on, and it is tried again"),
    (
        ShareLost(reason="ENOSPC", how="full"),
        "the mailbox is full (ENOSPC): training goes on, and it is tried again",
    ),
    (
        ShareLost(reason="EROFS", how="read-only"),
        "the mailbox is read-only (EROFS): training goes on, and it is tried again",
    ),
    (
        ShareLost(reason="no folder runs/", how="gone"),
        "the mailbox is not there (no folder runs/): training goes on, and it is tried again",
    ),
    (Mended(what="goes on with round 3", after_s=61.2), "goes on with round 3 after 61 s"),
    (ShareBack(after_s=61.2), "the mailbox is back after 61 s"),
    (Transfer(file="a.txt", how="attach", done_bytes=0, size_bytes=999), "attaching a.txt, 999 bytes …"),
    (Transfer(file="a.txt", how="attach", done_bytes=999, size_bytes=999), "attached a.txt, 999 bytes"),
    (Transfer(file="a.txt", how="fetch", done_bytes=0, size_bytes=4_351_186), "fetching a.txt, 4.35 MB …"),
    (Transfer(file="a.txt", how="fetch", done_bytes=45, size_bytes=100), "fetching a.txt  45 % of 100 bytes"),
    (FETCHING, None),
    (Transfer(file="a.txt", how="fetch", done_bytes=9, size_bytes=9), "fetched a.txt, 9 bytes"),
    (
        Transfer(file="a\x1b.txt", how="have", done_bytes=9, size_bytes=9),
        "a·.txt, 9 bytes, is on this machine already: nothing to fetch",
    ),
    (Trouble(message="odd"), "odd"),
    (Gathering(generation=2, reason="waiting for 1 more machine"), "generation 2: waiting for 1 more machine"),
    (
        RankPlaced(generation=2, rank=1, size=2, backend="ring", address="10.0.0.5", machines=("a", "b"), step=7),
        "generation 2: rank 1 of 2 at 10.0.0.5 over ring, which knows no passwords, with a, b, after step 7",
    ),
    (
        RankPlaced(generation=0, rank=0, size=1, backend="ring", address="10.0.0.5", machines=("a",), refused=("b: no mlx",)),
        "generation 0: trains alone  without b: no mlx",
    ),
    (JobStepped(step=3, steps=10, iteration=3, loss=1.0, tokens_per_s=100.0), None),
    (
        JobReported(
            iteration=10,
            iters=600,
            train_loss=1.25,
            learning_rate=1e-5,
            tokens_per_s=1234.0,
            trained_tokens=5000,
            memory_bytes=2_500_000_000,
        ),
        "iteration 10 of 600: train loss 1.250, learning rate 1.000e-05, 1,234 tokens/s, 5,000 tokens, 2.50 GB",
    ),
    (JobValidated(part="valid", iteration=20, loss=None, seconds_s=1.5), "iteration 20: validation loss –, in 1.5 s"),
    (JobSaved(iteration=20, size_bytes=2_000_000), "iteration 20: checkpoint, 2.00 MB, is in the mailbox"),
    (JobSaved(iteration=20, size_bytes=1, adapter="/a\x1b"), "iteration 20: saved the adapter to /a·"),
    (GenerationOver(generation=2, ending="lost", reason="b: gone\n"), "generation 2 is over (lost): b: gone·"),
    (
        Ended(reason="done", rounds=0, iterations=600, adapter="/adapters", chat="mlx_lm.chat --model m"),
        "the run is done after 600 iterations; the adapter is in /adapters\n  mlx_lm.chat --model m",
    ),
    (Ended(reason="done", rounds=1), "the run is done after 1 round"),
    (Ended(reason="stopped", rounds=2), "the run was stopped after 2 rounds"),
    (Ended(reason="left", rounds=2), "left the run after 2 rounds"),
    (Failed(error="X", message="no such thing"), "swarm: no such thing"),
    (Training(round=3, unit="client-0002", claim=0, samples=84), None),
    (
        Training(round=3, unit="client-0002", claim=1, samples=84),
        "round 3: takes over client-0002, 84 samples: whoever had begun with it is gone",
    ),
    (Trained(round=3, unit="client-0002", claim=0, samples=84, steps=3, train_loss=0.5, seconds_s=1.0), None),
    (
        Trained(round=3, unit="client-0002", claim=0, samples=84, steps=1, train_loss=None, seconds_s=1.0, given_up=True),
        "round 3: client-0002 is given up, half trained",
    ),
    (Published(round=1, size_bytes=1), None),
    (STEPPED, None),
]


@pytest.mark.parametrize(("event", "line"), SAID, ids=lambda value: type(value).__name__)
def test_an_event_in_words(event: WorkerEvent, line: str | None) -> None:
    assert sentence(event) == line


def test_there_is_no_event_without_a_test() -> None:
    assert {type(event) for event, _ in SAID} == set(typing.get_args(WorkerEvent))


def test_text_of_other_machines_cannot_paint_the_terminal() -> None:
    event = RoundClosed(round=0, rounds=None, participants=("a\x1b[31m\n",), rejected=("x\r\x07",), train_loss=1.0, closer="")
    assert (sentence(event) or "").isprintable()
    assert plain("a\x1b[2Jb\nc\u202e") == "a·[2Jb·c·"
    assert plain("x" * 100) == "x" * 79 + "…"


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes"), (999, "999 bytes"), (1000, "1.00 kB"), (9994, "9.99 kB"),
     (9996, "10.0 kB"), (99_960, "100 kB"),
     (999_400, "999 kB"), (999_600, "1.00 MB"), (1 << 30, "1.07 GB"), (20 << 30, "21.5 GB"), (1 << 40, "1.10 TB")],
)  # fmt: skip
def test_a_size_in_three_digits(size: int, words: str) -> None:
    assert amount(size) == words


@pytest.mark.parametrize(
    ("value", "words"), [(None, "–"), (2.30259, "2.303"), (-999999.0, "-999999.000"), (1e308, "1.000e+308")]
)
def test_a_number_however_large_is_short(value: float | None, words: str) -> None:
    assert number(value) == words


def test_columns_are_aligned_and_bounded() -> None:
    assert table(("A", "LONG"), [("1", "2"), ("333", "")]) == "A    LONG\n1    2\n333"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def painted(*events: WorkerEvent, who: str = "") -> str:
    with contextlib.redirect_stderr(Terminal()) as terminal:
        progress = narrate.Progress()
        for event in events:
            narrate.tell(event, progress, who)
    return terminal.getvalue()


@pytest.fixture
def xterm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return monkeypatch


def test_the_progress_line_is_painted_over(xterm: pytest.MonkeyPatch) -> None:
    assert painted(FETCHING) == "\r\x1b[Kfetching a.txt  45 % of 1.00 MB"
    first, second = painted(STEPPED, CLOSED).split("round 3")
    assert first == "\r\x1b[K"
    assert second.startswith("  step 4/10  loss 0.500  1,23")
    assert "\r\x1b[Kround 2 closed" in second


def test_the_progress_line_names_the_client(xterm: pytest.MonkeyPatch) -> None:
    line = painted(Training(round=3, unit="client-0002", claim=0, samples=84), STEPPED, who="studio")
    assert line == "\r\x1b[Kstudio: round 3  client-0002  step 4/10  loss 0.500  1,234 samples/s"


@pytest.mark.parametrize("columns", ["20", "1"])
def test_the_progress_line_never_wraps(xterm: pytest.MonkeyPatch, columns: str) -> None:
    xterm.setenv("COLUMNS", columns)
    assert len(painted(STEPPED, who="studio")) - len("\r\x1b[K") == int(columns) - 1


def test_there_is_none_on_a_dumb_terminal_or_in_a_file(xterm: pytest.MonkeyPatch) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as file:
        narrate.tell(STEPPED, narrate.Progress())
        narrate.tell(CLOSED, narrate.Progress())
    assert file.getvalue() == "round 2 closed (3 of 9) with a, b  train loss 0.5000\n"
    xterm.setenv("TERM", "dumb")
    assert not painted(STEPPED)


ENDED = {reason: Ended(reason=reason, rounds=3) for reason in ("done", "stopped", "left")}
NO_DATA = Failed(error="DataMissing", message="no data\x1b", exit_code=1)


@pytest.mark.parametrize(
    ("last", "failed", "code", "words"),
    [
        ("done", None, 0, "run otter is done"),
        ("stopped", None, 0, "run otter was stopped"),
        ("left", None, 0, "run otter was left"),
        (None, NO_DATA, 1, "run otter has lost this machine: no data·"),
        (None, None, 1, "run otter has lost this machine: its worker ended"),
    ],
)
def test_whoever_is_told_of_the_end_reads_how_it_came(last: str | None, failed: Failed | None, code: int, words: str) -> None:
    team = narrate._Team(named=False, as_json=False)
    member = narrate._Member(None, "studio")  # type: ignore[arg-type]
    member.last, member.failed = ENDED.get(last or ""), failed
    team._members.append(member)
    team._codes += [(code, False)] if code else []
    assert team.news("otter") == words
