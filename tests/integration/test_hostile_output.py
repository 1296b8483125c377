"""Every command, on runs whose every text is nasty: what reaches the terminal is plain, and its lines are bounded."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from swarm.cli import run
from swarm.core.adverts import MAX_HELLO_BYTES, Hello, PeerAdvert, RunAdvert
from swarm.core.events import Failed, Joined
from swarm.core.jobs import Learn
from swarm.core.keys import RunKeys
from swarm.core.records import Control, Rejected
from swarm.host.paths import jobs_dir
from tests.fuzz.mutations import RIGHT_TO_LEFT
from tests.fuzz.poison import PRINTABLE, SHORT, WORST, poison, unseemly
from tests.integration import handmade_job
from tests.integration.handmade import (
    FEDERATED,
    QUICK,
    beat,
    evaluate,
    make_mailbox,
    make_run,
    on,
    write_fed_rounds,
    write_rounds,
)
from tests.process.terminal import BARE

DILOCO, FEDAVG, JOB = "aaaa1111", "bbbb2222", "cccc3333"
RUNS = (DILOCO, FEDAVG, JOB)
LONGEST_LINE = 2000


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    location = make_mailbox(folder / "mailbox")
    made = make_run(location, "one", DILOCO, rounds=9, algorithm=msgspec.structs.replace(QUICK, quorum_size=2))
    write_rounds(location, made, 4)
    fed = make_run(location, "two", FEDAVG, rounds=9, algorithm=FEDERATED, task="lenet5")
    rejected = Rejected(learner="mbp", unit="client-0001", reason="duplicate", round=3, differs=True)
    write_fed_rounds(location, fed, 4, rejected=(rejected,), reason="the deadline is over: 1 of 2 clients")
    for name in (DILOCO, FEDAVG):
        for learner in ("studio", "mbp"):
            beat(location, name, learner, 0)
        evaluate(location, name, 3)
        on(location, name, lambda tape: tape.control(Control(action="pause", by="mbp")))
    handmade_job.write(location, handmade_job.manifest(run=JOB, name="three"), handmade_job.job(upto=600))
    assert poison(location) > 20
    return folder


@pytest.fixture
def mailbox(hostile: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    location = str(hostile / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    monkeypatch.setenv("PYTHONPATH", BARE)  # of the processes in which the doctor tries a framework
    return location


def job() -> None:
    """One that failed, as its worker may have written it."""
    folder = jobs_dir() / "20250301-120000-000a1b2"
    folder.mkdir(parents=True)
    order = Learn(mailbox="/m", run=DILOCO, run_name=WORST[:200], learner="studio", may_rename=True)
    told = (
        Joined(run=DILOCO, name=WORST, learner="studio", incarnation=1, device=WORST, round=1),
        Failed(error="RuntimeError", message=WORST),
    )
    (folder / "order.json").write_bytes(msgspec.json.encode(order))
    (folder / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in told))
    (folder / "process.json").write_bytes(b'{"pid":1,"process":"","boot":""}')
    (folder / "log.txt").write_text("12:00:00 begins\n" + WORST.replace("\n", "") + "\n")


READ = (
    ("runs",),
    ("jobs", "--all"),
    *(("status", name) for name in RUNS),
    *(("compare", name, other) for name in RUNS for other in RUNS if name < other),
    *(("compare", name, name, "--all") for name in RUNS),
    ("doctor",),
)
OTHER = (
    ("logs",),
    ("peers",),
    *(("join", name, "--check") for name in RUNS),
    ("join", DILOCO, "--no-mount", "--role", "syncer", "--threads", "0"),
    ("status", "nothing"),
    ("status", ""),
    ("join",),
    ("join", "nothing"),
    ("leave", "nothing"),
    ("stop", "nothing"),
    ("drop", DILOCO, "nothing"),
    ("export", "nothing", "x.safetensors"),
    ("generate", "nothing", "--prompt", "x"),
    ("rm", "nothing", "--yes"),
)


@pytest.mark.parametrize("argv", [*READ, *OTHER], ids=" ".join)
def test_what_a_command_prints_is_plain(mailbox: str, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> None:
    job()
    assert run(list(argv)) in (0, 1, 2, 3)
    out, err = capsys.readouterr()
    assert out or err
    assert unseemly(out) == unseemly(err) == set()
    assert "Traceback" not in err
    assert max(map(len, [*out.splitlines(), *err.splitlines()])) <= LONGEST_LINE


@pytest.mark.parametrize("argv", READ, ids=" ".join)
def test_what_a_command_tells_programs_is_ascii(
    mailbox: str, capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    job()
    assert run([*argv, "--json"]) in (0, 1)
    out, err = capsys.readouterr()
    assert unseemly(err) == set()
    assert all(" " <= char <= "~" or char == "\n" for char in out)
    assert [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def liar() -> Iterator[int]:
    """The port of a machine here that answers whoever asks with the worst that a Hello may hold."""
    peer = PeerAdvert(
        peer="a" * 32,
        name=WORST[:9000],
        boot="0badcafe",
        version=WORST[:200],
        accelerators=(WORST[:900], PRINTABLE, RIGHT_TO_LEFT),
        state="training",
        address="fe80::1",
        tag=SHORT,
    )
    names = (WORST[:9000], PRINTABLE, SHORT)
    runs = tuple(
        RunAdvert(
            run=f"kx7k{n}m",
            peer="a" * 32,
            name=name,
            method=name[:300],
            task=name[:300],
            mailbox="b" * 32,
            phase=name[:300],
            share=f"smb://{name}"[:100],
            tag=SHORT,
        )
        for n, name in enumerate(names)
    )
    said = msgspec.json.encode(Hello(peer=peer, runs=runs, clock_s=1e11))
    assert len(said) < MAX_HELLO_BYTES

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(said)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
def test_what_a_machine_answers_is_shown_plain(
    mailbox: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, liar: int, as_json: bool
) -> None:
    monkeypatch.setenv("SWARM_DISCOVERY", "1")
    assert run(["peers", "--peer", f"127.0.0.1:{liar}", "--interface", "lo", *(["--json"] if as_json else [])]) == 0
    out, err = capsys.readouterr()
    assert "mine" in out
    assert unseemly(out) == unseemly(err) == set()
    assert max(map(len, [*out.splitlines(), *err.splitlines()])) <= LONGEST_LINE
    if as_json:
        assert [json.loads(line) for line in out.splitlines()]


def test_the_runs_are_as_nasty_as_they_may_be(mailbox: str) -> None:
    """Else the tests above would show nothing."""
    text = "".join(path.read_text(encoding="utf-8") for path in Path(mailbox).rglob("*.json"))
    assert text.count("FORGED LINE") > 50
    assert not unseemly(json.dumps(text))
    assert len(Path(mailbox, RunKeys(DILOCO).manifest).read_text(encoding="utf-8")) > 20_000


def test_a_history_holds_no_formula(mailbox: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (DILOCO, FEDAVG):
        assert run(["export", name, "--history", str(tmp_path / f"{name}.csv")]) == 0
        assert unseemly(capsys.readouterr().err) == set()
