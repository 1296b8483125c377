"""What a worker tells reaches its files, whatever else listens."""

from __future__ import annotations

from pathlib import Path

import msgspec

from swarm.core.events import Failed, GenerationOver, Joined, RoundClosed, Trouble, WorkerEvent
from swarm.worker import EventFile

JOINED = Joined(run="abcd1234", name="tiny", learner="a", incarnation=1, round=4)


def test_who_listens_and_breaks_is_noted_once_and_left_out(tmp_path: Path) -> None:
    emit = EventFile(tmp_path)
    heard: list[WorkerEvent] = []

    def breaks(event: WorkerEvent) -> None:
        raise RuntimeError("boom")

    emit.also += [breaks, heard.append]
    for _ in range(2):
        emit(JOINED)
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [("Joined" in line, "boom" in line) for line in lines] == [(True, False), (False, True), (True, False)]
    assert [event for event in heard if event == JOINED] == [JOINED, JOINED]


def test_the_log_marks_warnings_and_errors(tmp_path: Path) -> None:
    emit = EventFile(tmp_path)
    closed = RoundClosed(round=3, rounds=None, participants=("a",), rejected=(), train_loss=1.5, closer="a", reason="")
    for event in (
        JOINED,
        closed,
        msgspec.structs.replace(closed, rejected=("b: late",)),
        Trouble(message="a disk is full"),
        Failed(error="UsageError", message="no data"),
        GenerationOver(generation=1, ending="regroup", reason="b has come"),
        GenerationOver(generation=2, ending="lost", reason="b is gone"),
    ):
        emit(event)
    marks = [line.split()[1] for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert marks == ["joined", "round", "WARN", "WARN", "ERROR", "generation", "WARN"]
