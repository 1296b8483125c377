"""What a peer with access to the folder may write: it neither leads anywhere else, nor hides the run, nor reaches the
terminal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm import api
from swarm.cli import run
from swarm.cli.common import put
from swarm.core.errors import MailboxCorrupt
from swarm.core.keys import RunKeys
from swarm.core.records import Beat, EvalRecord, LearnerRecord, Manifest, encode
from swarm.tape import Tape, nonce
from swarm.worker import harmless
from tests.integration.handmade import beat, make_mailbox, make_run, on, write_rounds


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
    plant(location, RunKeys("evil1234").manifest, encode(_manifest(forged), nonce=nonce()))
    for text in ("evil", "evil1234"):
        assert run(["rm", text, "--yes", "--force"]) == 1
    assert "evil1234/manifest/record.json: is the manifest of run good1234" in capsys.readouterr().err
    with pytest.raises(MailboxCorrupt):
        asyncio.run(api.remove_run(location, "evil1234"))
    assert asyncio.run(api.find_run(location, "good")) == good


def _manifest(fields: dict[str, object]) -> Manifest:
    import msgspec

    return msgspec.convert(fields, Manifest)


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def test_a_message_that_quotes_a_peer_reaches_the_terminal_as_text(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = make_run(location, "good", "good1234")
    path = Path(location, RunKeys("good1234").manifest)
    fields = json.loads(path.read_bytes().split(b"\n")[0])
    fields["algorithm"]["method"] = HOSTILE
    body = json.dumps(fields).encode()
    import hashlib

    path.write_bytes(body + b"\n" + json.dumps({"nonce": "0", "sha256": hashlib.sha256(body).hexdigest()}).encode() + b"\n")
    for argv in (["status", manifest.name], ["join", manifest.name], ["runs"]):
        run(argv)
        told = capsys.readouterr()
        assert "owned" in told.err
        assert all(c.isprintable() or c == "\n" for c in told.err + told.out)


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


def test_bad_records_of_learners_and_evaluations_hide_no_run(location: str) -> None:
    run_id = make_run(location, "good", "good1234").run
    manifest = asyncio.run(api.find_run(location, "good"))
    write_rounds(location, manifest, 4)
    beat(location, run_id, "a", 0)
    keys = RunKeys(run_id)
    for n, data in enumerate([b"no record", encode(EvalRecord(round=3, learner="x", loss=9.0), nonce=nonce())]):
        plant(location, keys.eval(n), data)
    plant(location, keys.eval(2), encode(EvalRecord(round=2, learner="a", loss=2.0), nonce=nonce()))
    posing = LearnerRecord(
        learner="a", incarnation=7, machine="m", machine_name="m", boot="b", pid=1, process="p", version="0", device="posing"
    )
    plant(location, keys.learner("b", 1), encode(posing, nonce=nonce()))

    async def beat_b(tape: Tape) -> None:
        await tape.beat("b", 1, 0, Beat(phase="train"))

    on(location, run_id, beat_b)
    now = asyncio.run(api.RunWatch(location, run_id).poll())
    assert now.lost is None
    assert [(e.round, e.loss) for e in now.evals] == [(2, 2.0)]
    assert [(v.learner, v.record.incarnation if v.record else None) for v in now.learners] == [("a", 1), ("b", None)]
