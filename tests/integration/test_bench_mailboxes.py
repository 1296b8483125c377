"""The measurement of mailboxes, on little: that it measures everything, and leaves nothing. How fast they are is nobody's
business here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import mailboxes


@pytest.mark.parametrize("place", ["folder", pytest.param("moto", marks=pytest.mark.slow)])
def test_it_measures_everything_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "moto":
        pytest.importorskip("moto")
        pytest.importorskip("obstore")
    monkeypatch.setattr(mailboxes, "SMALL", 3)
    monkeypatch.setattr(mailboxes, "NAMES", 20)
    location = str(tmp_path) if place == "folder" else "moto"
    assert mailboxes.main(["--bytes", "300000", "--times", "2", location]) in (0, 1)
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])[location]
    assert (figures.pop("cp", 0.0) > 0) == (place == "folder")
    assert len(figures) == 6
    assert all(figure["mailbox"] > 0 and figure["plain"] > 0 for figure in figures.values())
    assert list(tmp_path.iterdir()) == []


def test_a_bound_that_does_not_hold_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailboxes, "SMALL", 1)
    monkeypatch.setattr(mailboxes, "NAMES", 1)
    for bound, code in ((0.0, 0), (1e9, 1)):
        monkeypatch.setattr(mailboxes, "BOUND", bound)
        assert mailboxes.main(["--bytes", "1000", "--times", "1", str(tmp_path)]) == code
