"""What somebody with access to the share may have put there: it must neither hide a run nor reach the terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from swarm.cli import run
from swarm.core.keys import MARKER, RunKeys
from swarm.core.lines import encode
from swarm.core.records import EvalRecord, LearnerRecord
from swarm.watch import RunWatch
from tests.integration.handmade import beat, make_mailbox, make_run, write_rounds
from tests.process.terminal import BARE

RUN = "aaaa1111"
ESCAPE = "\x1b]0;mine\x07\x1b[2J"


@pytest.fixture
def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> str:
    location = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    monkeypatch.setenv("PYTHONPATH", BARE)  # of the processes in which the doctor tries a framework
    return location


def overwrite(location: str, key: str, data: bytes) -> None:
    path = Path(location, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def tampered(data: bytes, old: bytes, new: str) -> bytes:
    """The record with `old` in its body replaced by `new` as JSON, under an envelope that fits."""
    line = data.split(b"\n")[0]
    assert old in line
    return encode(msgspec.Raw(line.replace(old, msgspec.json.encode(new))), nonce="0" * 32)


@pytest.mark.parametrize("junk", [b"", b"\0\xff" * 500, b"{}\n{}\n"], ids=["empty", "binary", "hashless"])
def test_a_record_that_is_only_shown_does_not_hide_the_run(mailbox: str, junk: bytes) -> None:
    keys = RunKeys(RUN)
    write_rounds(mailbox, make_run(mailbox, "mlp-one", RUN), 2)
    for learner in ("a", "b"):
        beat(mailbox, RUN, learner, 0)
    overwrite(mailbox, keys.learner("a", 1), junk)
    overwrite(mailbox, keys.eval(0), junk)
    overwrite(mailbox, keys.eval(1), encode(EvalRecord(round=1, learner="b", loss=2.0), nonce="0" * 32))
    now = asyncio.run(RunWatch(mailbox, RUN).poll())
    assert now.lost is None
    assert [(v.learner, v.live, v.record is not None) for v in now.learners] == [("a", True, False), ("b", True, True)]
    assert [e.round for e in now.evals] == [1]


def test_a_record_says_nothing_of_another_key(mailbox: str) -> None:
    keys = RunKeys(RUN)
    write_rounds(mailbox, make_run(mailbox, "mlp-one", RUN), 2)
    for learner in ("a", "b"):
        beat(mailbox, RUN, learner, 0)
    of_b = msgspec.json.decode(Path(mailbox, keys.learner("b", 1)).read_bytes().split(b"\n")[0], type=LearnerRecord)
    for forged in (msgspec.structs.replace(of_b, incarnation=9), msgspec.structs.replace(of_b, learner="phantom")):
        overwrite(mailbox, keys.learner("a", 1), encode(forged, nonce="0" * 32))
        overwrite(mailbox, keys.eval(0), encode(EvalRecord(round=1, learner="b", loss=2.0), nonce="0" * 32))
        now = asyncio.run(RunWatch(mailbox, RUN).poll())
        assert [(v.learner, v.incarnation) for v in now.learners] == [("a", 1), ("b", 1)]
        assert (now.lost, now.evals) == (None, ())


@pytest.mark.parametrize(
    "argv", [("status", "mlp-one"), ("join", "mlp-one"), ("join",), ("runs",), ("stop", "mlp-one"), ("rm", "mlp-one", "--yes")]
)
def test_no_escape_sequence_of_a_manifest_gets_to_the_terminal(
    mailbox: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(mailbox, "mlp-one", RUN)
    path = Path(mailbox, RunKeys(RUN).manifest)
    path.write_bytes(tampered(path.read_bytes(), b'"diloco"', ESCAPE + "x" * 100_000))
    run(list(argv))
    out, err = capsys.readouterr()
    assert "mine" in err or argv == ("join",)
    assert not any(c in out + err for c in "\x1b\x07")
    assert len(err) < 2000


@pytest.mark.parametrize("argv", [("runs",), ("doctor",), ("init", ".")])
def test_no_escape_sequence_of_a_marker_gets_to_the_terminal(
    mailbox: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mailbox)
    path = Path(mailbox, MARKER)
    ident = msgspec.json.decode(path.read_bytes().split(b"\n")[0])["id"]
    path.write_bytes(tampered(path.read_bytes(), msgspec.json.encode(ident), ESCAPE))
    assert run(list(argv)) != 0
    out, err = capsys.readouterr()
    assert not any(c in out + err for c in "\x1b\x07")


def test_a_bad_beat_does_not_hide_the_good_ones_before_it(mailbox: str) -> None:
    keys = RunKeys(RUN)
    make_run(mailbox, "mlp-one", RUN)
    beat(mailbox, RUN, "a", 0)

    async def main() -> None:
        follower = RunWatch(mailbox, RUN)
        overwrite(mailbox, keys.beat("a", 9, 0), b"junk")
        [first] = (await follower.poll()).learners
        assert (first.live, first.incarnation) == (True, 1)
        await asyncio.to_thread(beat, mailbox, RUN, "a", 1)
        [second] = (await follower.poll()).learners
        assert second.beat is not None
        assert (second.beat.step, second.incarnation) == (1, 1)
        assert (await follower.poll()).learners[0].beat is second.beat

    asyncio.run(main())
