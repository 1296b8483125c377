"""Commands and screens on machines with a passphrase, without one, and with another one. Machines differ by their key file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from swarm import api, worker
from swarm.api.joining import JoinWatch, settled_joining
from swarm.cli import run
from swarm.core.errors import PassphraseError, RecordForged, RunSigned
from swarm.core.keys import RunKeys
from swarm.core.lines import encode
from swarm.core.records import Control
from swarm.core.trust import SwarmKey, stretched
from swarm.exchange import create_run
from swarm.host import keyfile
from swarm.host.mounts import Finder
from swarm.host.opening import mailbox_at
from swarm.learners.numpy import NumpyAdapter
from swarm.library.place import found
from swarm.tape import Tape, nonce
from swarm.watch import HomeWatch, RunWatch
from tests.integration.handmade import QUICK, beat, make_mailbox, make_run, round_records
from tests.integration.simulation import draft_of, model

OURS, THEIRS = "the passphrase of this swarm", "another swarm's passphrase"
FINGERPRINT = SwarmKey(stretched(OURS)).fingerprint
Machine = Callable[[str], None]


@pytest.fixture
def machine(tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Which machine this is from now on, by its passphrase; '': one without."""

    def use(passphrase: str) -> None:
        monkeypatch.setenv("SWARM_KEY_FILE", "" if not passphrase else str(tmp_path / passphrase[:3]))
        if passphrase and not (tmp_path / passphrase[:3]).exists():
            keyfile.keep(passphrase)

    use("")
    return use


@pytest.fixture
def location(tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> str:
    place = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", place)
    return place


def new_run(location: str, name: str, run: str) -> api.Manifest:
    """A run of one round, made and closed on this machine."""

    async def write() -> api.Manifest:
        mailbox = mailbox_at(location)
        await mailbox.open()
        draft = draft_of(NumpyAdapter(model(7)), QUICK, run=run, name=name)
        manifest = (await create_run(mailbox, *draft))[0]
        await mailbox.create(RunKeys(run).round(0), round_records(manifest, 1)[0])
        return manifest

    return asyncio.run(write())


@pytest.fixture
def three(location: str, machine: Machine) -> str:
    """A mailbox with an open run, one of ours and one of theirs."""
    for passphrase, name in (("", "open"), (OURS, "ours"), (THEIRS, "theirs")):
        machine(passphrase)
        new_run(location, f"mlp-{name}", f"{name}1111")
    return location


def objects(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    assert run([*argv, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def forge(location: str, key: str, data: bytes | None = None) -> None:
    path = Path(location, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data or encode(Control(action="stop"), nonce=nonce()))


def test_each_machine_sees_its_own_runs(three: str, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine(OURS)
    [ours] = objects(capsys, "runs")
    assert (ours["name"], ours["signed"], ours["fingerprint"]) == ("mlp-ours", True, FINGERPRINT)
    assert run(["runs"]) == 0
    out, err = capsys.readouterr()
    assert FINGERPRINT in out
    assert "1 unsigned run ignored, 1 run of another passphrase ignored" in err
    machine("")
    everything = objects(capsys, "runs")
    assert [(r["name"], r["signed"], r["fingerprint"]) for r in everything] == [
        ("mlp-open", False, None),
        ("mlp-ours", True, None),
        ("mlp-theirs", True, None),
    ]


def test_home_leaves_out_what_is_not_ours_and_counts_it(three: str, machine: Machine) -> None:
    async def main() -> None:
        watch = HomeWatch((three,))
        machine(OURS)
        home = await watch.poll()
        [view] = home.mailboxes
        assert home.fingerprint == FINGERPRINT
        assert [state.name for state in view.runs] == ["mlp-ours"]
        assert view.foreign.words == "1 unsigned run ignored, 1 run of another passphrase ignored"
        machine("")  # the passphrase was forgotten while the screen was open
        home = await watch.poll()
        [view] = home.mailboxes
        assert home.fingerprint == ""
        assert sorted(state.trust.word for state in view.runs) == ["open", "signed", "signed"]
        assert view.foreign.words == ""

    asyncio.run(main())


def test_a_machine_without_the_passphrase_watches_and_takes_no_part(
    three: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine("")
    assert run(["status", "mlp-ours"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("  signed")
    for argv in (
        ["join", "mlp-ours"],
        ["stop", "mlp-ours", "--yes"],
        ["pause", "mlp-ours"],
        ["extend", "mlp-ours", "--rounds", "9"],
    ):
        assert run(argv) == 1, argv
        [line] = capsys.readouterr().err.splitlines()
        assert "swarm key import" in line
        assert "swarm key show" in line
    order = api.learn_order(three, "ours1111")
    with pytest.raises(RunSigned):
        asyncio.run(api.check_joinable(three, asyncio.run(api.find_run(three, order.run))))
    with pytest.raises(RunSigned):
        asyncio.run(found(mailbox_at(three), "mlp-ours"))
    assert not [path for path in Path(three).rglob("*") if "control" in str(path)]


def test_the_worker_refuses_too(three: str, machine: Machine, tmp_path: Path) -> None:
    machine("")
    (tmp_path / "order.json").write_bytes(msgspec.json.encode(api.learn_order(three, "ours1111")))
    assert worker.main([str(tmp_path)]) == 1
    assert "RunSigned" in (tmp_path / "events.jsonl").read_text()


def test_the_only_run_being_signed_is_said_instead_of_nothing_to_join(
    location: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(OURS)
    new_run(location, "mlp-ours", "ours1111")
    machine("")
    assert run(["join"]) == 1
    assert "run mlp-ours is signed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"), [("open1111", "is not signed"), ("theirs1111", "is signed with another passphrase")]
)
def test_a_run_that_is_ignored_is_named_by_its_id(
    three: str, machine: Machine, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(OURS)
    for argv in (["status", text], ["join", text], ["stop", text, "--yes"]):
        assert run(argv) == 1
        [line] = capsys.readouterr().err.splitlines()
        assert f"run {text} {words}" in line
    assert run(["status", "mlp-open"]) == 1
    assert "1 unsigned run ignored" in capsys.readouterr().err
    with pytest.raises(RecordForged):
        asyncio.run(RunWatch(three, text).poll())


def test_forged_records_are_counted_in_status_and_on_screens(
    three: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(OURS)
    keys = RunKeys("ours1111")
    for key in (keys.control_record(1), keys.eval(0), keys.beat("evil", 1, 0)):
        forge(three, key)
    [found] = objects(capsys, "status", "mlp-ours")
    forged = found["forged"]
    assert isinstance(forged, dict)
    assert (forged["count"], forged["kinds"]) == (3, {"control": 1, "evaluation": 1, "beat": 1})
    assert (found["state"], found["round"], found["members"]) == ("idle", 1, [])
    assert run(["status", "mlp-ours"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].endswith(f"  signed {FINGERPRINT}")
    assert f"3 forged records ignored, newest: {forged['newest']}" in err


def test_a_forged_round_is_told_and_never_a_traceback(three: str, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine(OURS)
    key = RunKeys("ours1111").round(1)
    forge(three, key)
    assert run(["status", "mlp-ours"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("mlp-ours (ours1111)  halted  round 1  ")
    [line] = err.splitlines()
    assert f"{key}: is not signed" in line
    assert run(["runs"]) == 0
    assert "halted" in capsys.readouterr().out
    assert run(["join", "mlp-ours"]) == 1
    assert key in capsys.readouterr().err
    [view] = asyncio.run(HomeWatch((three,)).poll()).mailboxes
    [state] = view.runs
    assert state.halted


def test_new_runs_are_signed_when_there_is_a_passphrase(location: str, machine: Machine) -> None:
    machine(OURS)
    new_run(location, "mlp-ours", "ours1111")
    records = list(Path(location, "runs").rglob("*.json"))
    assert len(records) == 2
    for path in records:
        body, envelope = path.read_bytes().splitlines()
        key = str(path.relative_to(location))
        assert json.loads(envelope)["signature"] == SwarmKey(stretched(OURS)).signature("ours1111", key, body)


def test_a_key_file_that_others_can_read_keeps_the_screen_alive(three: str, machine: Machine, tmp_path: Path) -> None:
    machine(OURS)
    (tmp_path / OURS[:3]).chmod(0o644)
    home = asyncio.run(HomeWatch((three,)).poll())
    assert "chmod 600" in home.mailboxes[0].problem
    with pytest.raises(PassphraseError):
        asyncio.run(RunWatch(three, "ours1111").poll())


def test_controls_of_people_are_signed(three: str, machine: Machine) -> None:
    machine(OURS)
    assert run(["stop", "mlp-ours", "--yes"]) == 0

    async def controls() -> list[Control]:
        mailbox = mailbox_at(three)
        await mailbox.open()
        return await Tape(mailbox, await api.find_run(three, "mlp-ours")).controls(())

    assert [c.action for c in asyncio.run(controls())] == ["stop"]


def test_an_open_machine_works_as_ever(location: str, machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(location, "mlp-one", "aaaa1111")
    beat(location, "aaaa1111", "studio", 0)
    [found] = objects(capsys, "runs")
    assert (found["signed"], found["forged"]) == (False, {"count": 0, "kinds": {}, "newest": None})
    assert run(["stop", "mlp-one", "--yes"]) == 0


def test_the_ticks_before_joining_tell_of_the_passphrase(three: str, machine: Machine, tmp_path: Path) -> None:
    def tick(run_id: str) -> tuple[str, str, str]:
        watch = JoinWatch(run_id, location=three, known=(), finder=Finder(mounts=dict, mounted=(), timeout_s=0.3))
        found = asyncio.run(settled_joining(watch))
        [passphrase] = [t for t in found.ticks if t.name == "passphrase right"]
        return passphrase.verdict, passphrase.detail, passphrase.remedy

    machine("")
    assert tick("open1111")[0] == "ok"
    verdict, _, remedy = tick("ours1111")
    assert verdict == "failed"
    assert "swarm key import" in remedy
    machine(OURS)
    assert tick("ours1111") == ("ok", f"signed with this machine's passphrase ({FINGERPRINT})", "")
    for other in ("open1111", "theirs1111"):
        verdict, detail, _ = tick(other)
        assert verdict == "failed"
        assert FINGERPRINT in detail
    (tmp_path / OURS[:3]).chmod(0o644)
    watch = JoinWatch("ours1111", location=three, known=(), finder=Finder(mounts=dict, mounted=(), timeout_s=0.3))
    found = asyncio.run(settled_joining(watch))
    assert any("chmod 600" in t.detail for t in found.ticks)
    assert not found.passed
