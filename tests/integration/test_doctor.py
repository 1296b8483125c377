"""`swarm doctor` in this process: everything at once, whatever hangs or breaks. What takes seconds is faked."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from swarm.api import doctor
from swarm.cli import run
from swarm.core.adverts import PeerAdvert
from swarm.core.diagnosis import TOPICS, Carrier, Multicast, Tried, TriedDevice
from swarm.core.fitness import conclusion
from swarm.core.sightings import SeenPeer, Sightings
from swarm.core.ticks import Tick, checking
from swarm.host import keyfile, settings, trial
from swarm.host.paths import settings_file
from swarm.mailbox import probe
from swarm.mailbox import trial as trial_of_share
from swarm.mailbox.trial import Extent
from swarm.network import multicast
from tests.integration.handmade import make_mailbox

PEER = SeenPeer(
    advert=PeerAdvert(peer="a" * 32, name="studio", boot="b" * 8, version="0.1.0"), how=("network",), addresses=("10.0.0.9",)
)
HERE = Carrier(name="eth0", address="10.0.0.2", v4=("10.0.0.2",), kind="ethernet")
HEARD = Multicast(interface="eth0", address="10.0.0.2", sent=True, own=True, packets=3, others=1)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    """No framework is loaded, and nothing is sent; no share is tried out, but where a test asks for it."""
    monkeypatch.setattr(trial_of_share, "trial", looked_at_only)
    monkeypatch.setattr(doctor, "installed_frameworks", lambda: ("torch",))
    monkeypatch.setattr(
        trial, "tried", lambda framework, *, limit_s: Tried(framework=framework, devices=(TriedDevice(name="cpu"),))
    )
    monkeypatch.setattr(doctor, "carriers", lambda names: (HERE,))
    monkeypatch.setattr(doctor, "HEARD_S", 0.0)
    monkeypatch.setattr(multicast, "listen", lambda used, *, own: (HEARD,))


REALLY = trial_of_share.trial


async def looked_at_only(location: str, **_: object) -> list[Tick]:
    found = await probe.probe(location)
    return [*found, conclusion(found)]


@pytest.fixture
def tried_out(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are tried out, a little."""
    monkeypatch.setattr(trial_of_share, "trial", REALLY)
    monkeypatch.setattr(doctor, "EXTENT", Extent(processes=2, records=10, names=20, speed_s=0.1))


@pytest.fixture
def mailbox(tmp_path: Path) -> str:
    return make_mailbox(tmp_path / "mailbox")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., object]]:
    """A call that does not return before the test is over."""
    over = threading.Event()
    yield lambda *_, **__: over.wait(60)
    over.set()


def examined(*locations: str, sight: doctor.Sight | None = None, told: Callable[[doctor.Examination], object] | None = None):
    return asyncio.run(doctor.examine(locations, sight=sight, told=told or (lambda found: None)))


def verdicts(found: doctor.Examination) -> dict[tuple[str, str], str]:
    return {(tick.topic, tick.name): tick.verdict for tick in found.ticks}


async def sees_studio() -> Sightings:
    return Sightings(peers=(PEER,))


def test_a_healthy_machine_is_found_healthy(mailbox: str) -> None:
    found = examined(mailbox, sight=sees_studio)
    assert found.done
    assert "failed" not in verdicts(found).values()
    assert [topic for topic, _ in found.topics()] == list(TOPICS)
    assert verdicts(found)["framework", "torch cpu"] == "ok"
    assert verdicts(found)["network", "multicast eth0"] == "ok"
    assert ("peers", "studio") in verdicts(found)
    assert found.sightings.peers == (PEER,)


def test_what_is_known_is_told_as_it_comes(mailbox: str) -> None:
    seen: list[doctor.Examination] = []
    last = examined(mailbox, told=seen.append)
    assert {tick.verdict for tick in seen[0].ticks} == {"checking"}
    assert [found.done for found in seen] == [False] * (len(seen) - 1) + [True]
    assert seen[-1] == last
    assert len(seen) > 2


def test_several_mailboxes_have_a_heading_each(mailbox: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    found = examined(mailbox, missing)
    headings = [topic for topic, _ in found.topics() if topic.startswith("share")]
    assert headings == [f"share {mailbox}", f"share {missing}"]
    assert verdicts(found)[f"share {missing}", "folder"] == "failed"
    assert verdicts(found)[f"share {mailbox}", "folder"] == "ok"


def test_everything_that_hangs_is_named_and_holds_nothing_up(
    mailbox: str, monkeypatch: pytest.MonkeyPatch, stuck: Callable[..., object]
) -> None:
    for name in ("QUICK_S", "FRAMEWORK_S", "SHARE_S", "ONE_CALL_S", "LIMIT_S", "INTERFACES_S"):
        monkeypatch.setattr(doctor, name, 0.2)
    monkeypatch.setattr(trial, "tried", stuck)
    monkeypatch.setattr(doctor, "carriers", stuck)
    monkeypatch.setattr(settings, "load", stuck)
    monkeypatch.setattr(doctor.machine, "machine", stuck)
    monkeypatch.setattr(probe, "_mailbox", stuck)
    monkeypatch.setattr(doctor, "passphrase", stuck)

    async def sees_nothing() -> Sightings:
        await asyncio.Event().wait()
        raise AssertionError

    found = examined(mailbox, sight=sees_nothing)
    failed = {(tick.topic, tick.name): tick for tick in found.ticks if tick.verdict == "failed"}
    assert set(failed) == {
        ("this machine", "this machine"), ("framework", "torch"), ("network", "interfaces"), ("network", "multicast"),
        ("peers", "peers"), ("share", "mailbox"), ("settings", "settings"), ("settings", "passphrase"),
    }  # fmt: skip
    assert all("no answer for" in tick.detail and tick.remedy for tick in failed.values())
    assert verdicts(found)["share", "folder"] == "ok", "what was found before stays"


def test_a_check_that_breaks_hides_no_other(mailbox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(names: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(doctor, "carriers", broken)
    found = examined(mailbox)
    assert verdicts(found)["network", "interfaces"] == "failed"
    assert "ZeroDivisionError: by nothing" in next(tick.detail for tick in found.ticks if tick.name == "interfaces")
    assert verdicts(found)["share", "timings"] != "checking"


def test_the_machines_are_those_that_are_seen_by_now(mailbox: str) -> None:
    found = examined(mailbox, sight=sees_studio)
    now = doctor.refreshed(found, Sightings(), found.now_s)
    assert [tick.name for tick in now.ticks if tick.topic == "peers"] == ["peers"]
    assert [tick for tick in now.ticks if tick.topic != "peers"] == [tick for tick in found.ticks if tick.topic != "peers"]
    assert [topic for topic, _ in now.topics()] == list(TOPICS)
    again = doctor.refreshed(now, Sightings(peers=(PEER, msgspec.structs.replace(PEER, doubled=True))), found.now_s)
    assert [tick.name for tick in again.ticks if tick.topic == "peers"] == ["studio", "studio"]
    unknown = doctor.Examination(ticks=(checking("peers", topic="peers"),))
    assert doctor.refreshed(unknown, Sightings(peers=(PEER,)), 0.0) == unknown


# The command


def swarm(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = run(["doctor", *argv])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


def test_json_has_a_line_for_each_check(mailbox: str, tried_out: None, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = swarm(capsys, "--json", "--mailbox", mailbox)
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {f["check"] for f in found} >= {
        "system",
        "torch cpu",
        "folder",
        "mailbox",
        "writable",
        "exclusive creation",
        "timings",
        "race",
        "verdict",
    }
    for each in found:
        assert set(each) == {"topic", "check", "ok", "verdict", "detail", "remedy"}
        assert each["ok"] == (each["verdict"] != "failed")
        assert bool(each["remedy"]) == (each["verdict"] != "ok")


def test_for_people_it_is_grouped_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = str(tmp_path / "missing")
    code, out, err = swarm(capsys, "--mailbox", missing)
    assert code == 1
    headings = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert headings == [*TOPICS, f"{missing} is not fit for a swarm: {missing} is not there"]
    assert f"  FAILED   folder: {missing} is not there\n           → mount the share" in out
    assert err.splitlines()[-1].startswith("1 failed, ")


def test_without_any_mailbox_the_rest_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = swarm(capsys)
    assert code == 1
    assert "torch cpu" in out
    assert "which mailbox?" in out


def test_a_mailbox_of_the_settings_is_taken(mailbox: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings.remember_mailbox(mailbox)
    code, out, _ = swarm(capsys)
    assert code == 0
    assert mailbox in out


def test_a_fault_in_the_settings_fails(mailbox: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text("ascii = 'perhaps'\n")
    code, out, _ = swarm(capsys, "--mailbox", mailbox)
    assert code == 1
    assert "FAILED   settings: " in out


def test_the_passphrase_is_looked_at(mailbox: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "warning  passphrase: none: the swarm is open" in swarm(capsys, "--mailbox", mailbox)[1]
    key = keyfile.keep("correct horse battery")
    code, out, _ = swarm(capsys, "--mailbox", mailbox)
    assert code == 0
    assert f"ok       passphrase: fingerprint {key.fingerprint}" in out
    assert "horse" not in out
    path = keyfile.key_file()
    assert path is not None
    path.chmod(0o644)
    code, out, _ = swarm(capsys, "--mailbox", mailbox)
    assert code == 1
    assert f"FAILED   passphrase: {path} can be read by others (mode 0644)" in out
    path.chmod(0o600)
    path.write_text("no passphrase")
    code, out, _ = swarm(capsys, "--mailbox", mailbox)
    assert code == 1
    assert "holds no passphrase" in out


def test_a_key_file_that_was_asked_for_and_is_not_there(
    mailbox: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWARM_KEY_FILE", "/nowhere/key")
    assert "FAILED   passphrase: SWARM_KEY_FILE names /nowhere/key" in swarm(capsys, "--mailbox", mailbox)[1]
    monkeypatch.setenv("SWARM_KEY_FILE", "")
    assert "warning  passphrase: none" in swarm(capsys, "--mailbox", mailbox)[1]


@pytest.mark.parametrize("location", ["smb://nas/swarm", "~nobody-of-that-name/x", "\udc80"])
def test_what_is_no_folder_is_told(location: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = swarm(capsys, "--mailbox", location)
    assert code != 0
    assert out or err.startswith("swarm: ")


def test_report_and_json_are_two_things(capsys: pytest.CaptureFixture[str]) -> None:
    assert swarm(capsys, "--json", "--report")[0] == 2


def test_the_report_shows_no_secret(mailbox: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("USER", "annabel")
    monkeypatch.setenv("HOME", str(Path(mailbox).parent))
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdefghij")
    monkeypatch.setenv("SWARM_SECRET", "swordfish-and-chips")
    monkeypatch.setattr(doctor.identity, "machine_name", lambda: "annabels-studio")
    settings_file().parent.mkdir(parents=True)
    settings_file().write_text('passphrase = "correct horse battery"\nascii = "open-sesame"\n')
    key = keyfile.keep("battery staple correct")
    trouble = "//annabel@nas: EHOSTUNREACH: battery staple correct"

    async def sees() -> Sightings:
        return Sightings(peers=(PEER,), trouble=(trouble,))

    monkeypatch.setattr(doctor, "sight_for", lambda locations: sees)
    code, out, _ = swarm(capsys, "--report", "--mailbox", mailbox)
    assert code == 1
    assert out.startswith("swarm doctor: ")
    assert "SWARM_SECRET" in out
    assert "EHOSTUNREACH" in out
    for secret in (
        "swordfish",
        "hf_0",
        "horse",
        "sesame",
        "annabel",
        "staple",
        key.fingerprint,
        str(Path(mailbox).parent),
        "studio",
    ):
        assert secret not in out, secret
    assert "~/mailbox" in out
    assert len(out) < 20_000
    assert os.environ["USER"] == "annabel"
