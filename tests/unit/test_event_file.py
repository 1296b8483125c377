"""What a worker tells reaches its files, whatever else listens."""

from __future__ import annotations

from pathlib import Path

from swarm.core.events import Joined, WorkerEvent
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
