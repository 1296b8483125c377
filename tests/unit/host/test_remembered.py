"""What a form held the last time: bounded, and never in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.host import remembered
from swarm.host.remembered import FILE, MAX_BYTES, MAX_FIELDS, MAX_TEXT, Remembered


def test_nothing_is_remembered_at_first(state_dir: Path) -> None:
    assert remembered.load() == Remembered()


def test_each_method_keeps_its_own(state_dir: Path) -> None:
    remembered.save("diloco", {"spec.sync_every": "50", "run.rounds": "7"})
    remembered.save("fedavg", {"spec.clients": "20"})
    remembered.save("diloco", {"spec.sync_every": "60"})
    assert remembered.load() == Remembered(
        method="diloco", values={"diloco": {"spec.sync_every": "60"}, "fedavg": {"spec.clients": "20"}}
    )
    assert [each.name for each in state_dir.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"values": []}', b"[" * 5000, b'{"method": "' + b"x" * MAX_BYTES + b'"}'],
)
def test_a_damaged_file_is_no_failure(state_dir: Path, data: bytes) -> None:
    state_dir.mkdir(parents=True)
    (state_dir / FILE).write_bytes(data)
    assert remembered.load() == Remembered()
    remembered.save("diloco", {"a": "1"})
    assert remembered.load().values == {"diloco": {"a": "1"}}


def test_a_value_that_is_none_takes_no_other_along(state_dir: Path) -> None:
    state_dir.mkdir(parents=True)
    text = '{"method": 3, "values": {"diloco": {"a": "1", "b": 2, "c": null, "d": ""}, "fedavg": 7}}'
    (state_dir / FILE).write_text(text)
    assert remembered.load() == Remembered(values={"diloco": {"a": "1"}})


def test_it_is_bounded(state_dir: Path) -> None:
    remembered.save("diloco", {f"field{n}": "x" for n in range(2 * MAX_FIELDS)} | {"long": "x" * (MAX_TEXT + 1)})
    assert len(remembered.load().values["diloco"]) == MAX_FIELDS
    remembered.save("fedavg", {f"field{n}": "x" * MAX_TEXT for n in range(MAX_FIELDS)})  # too much: it is left out
    assert remembered.load().method == "diloco"
    assert (state_dir / FILE).stat().st_size <= MAX_BYTES


def test_a_folder_that_cannot_be_written_ends_nothing(state_dir: Path) -> None:
    state_dir.write_text("a file where the folder should be")
    remembered.save("diloco", {"a": "1"})
    assert remembered.load() == Remembered()
