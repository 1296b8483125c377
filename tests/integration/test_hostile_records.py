"""What a peer with access to the folder may write leads to no other run, and reaches a terminal as text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarm import api
from swarm.cli import run
from swarm.cli.common import put
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.manifest import Manifest
from swarm.tape import nonce
from swarm.worker import harmless
from tests.integration.handmade import make_mailbox, make_run


@pytest.fixture
def location(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    place = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", place)
    return place


def plant(location: str, key: str, data: bytes) -> None:
    path = Path(location, key)
    path.parent.mkdir(parents=True)
    path.write_bytes(data)


def test_a_manifest_leads_to_no_other_run(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Else deleting the one would delete the other."""
    good = make_run(location, "good", "good1234")
    forged = json.loads(Path(location, RunKeys("good1234").manifest).read_bytes().split(b"\n")[0]) | {"name": "evil"}
    plant(location, RunKeys("evil1234").manifest, encode(msgspec.convert(forged, Manifest), nonce=nonce()))
    for argv in (["evil", "--force"], ["evil1234"]):
        assert run(["rm", *argv, "--yes"]) == 1
    assert "evil1234/manifest/record.json: is the manifest of run good1234" in capsys.readouterr().err
    assert run(["rm", "evil1234", "--yes", "--force"]) == 0
    assert not [path for path in Path(location, "runs/evil1234").rglob("*") if path.is_file()]
    assert asyncio.run(api.find_run(location, "good")) == good


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def test_json_tells_what_a_peer_wrote_without_controls(capsys: pytest.CaptureFixture[str]) -> None:
    put({"device": HOSTILE + "é🦊\U000e0001"})
    line = capsys.readouterr().out
    assert line.rstrip("\n").isprintable()
    assert json.loads(line) == {"device": HOSTILE + "é🦊\U000e0001"}


def pieces(text: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_what_a_model_writes_reaches_the_terminal_as_text(size: int) -> None:
    told = b"".join(harmless(pieces(f"And it\tcame\n{HOSTILE}é…🦊".encode() + b"\xff\xc3", size))).decode()
    assert told.startswith("And it\tcame\n·]0;owned··[2J·31m·é…🦊")
    assert all(c.isprintable() or c in "\n\t" for c in told)
