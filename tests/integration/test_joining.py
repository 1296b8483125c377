"""`swarm join`: which run, where its mailbox is, and what keeps a machine out of it. No worker is started."""

from __future__ import annotations

import asyncio
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from swarm.api import fitness, offers
from swarm.api import joining as api_joining
from swarm.api.fitness import check_named, check_task, passphrase_of
from swarm.api.joining import JoinWatch, settled_joining
from swarm.cli import joining as cli_joining
from swarm.cli import narrate
from swarm.core.adverts import Hello, PeerAdvert, RunAdvert
from swarm.core.jobs import Learn
from swarm.core.joining import PASSPHRASE
from swarm.core.keys import RunKeys
from swarm.core.lines import Envelope, encode
from swarm.core.manifest import DataRef, Manifest, TaskRef
from swarm.core.mounting import Desktop
from swarm.core.sightings import SeenRun, Sightings
from swarm.core.specs import FedAvg
from swarm.core.ticks import Tick, failed, ok, warning
from swarm.core.trust import SwarmKey, stretched
from swarm.host import mounts
from swarm.host.keyfile import keep
from swarm.host.mounts import Finder
from swarm.mailbox import open_mailbox
from tests.integration.handmade import make_mailbox, make_run, manifest_of_another_format, stop
from tests.integration.test_commands import Swarm

PLAIN = Desktop(system="linux", user="ann", uid=1000)


@pytest.fixture
def swarm(capsys: pytest.CaptureFixture[str], state_dir: Path) -> Swarm:
    return Swarm(capsys)


@pytest.fixture
def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    location = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    return location


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> list[Learn]:
    """What workers were told to do; none is started."""
    orders: list[Learn] = []

    def note(told: list[Learn], **_: object) -> int:
        orders[:] = told
        return 0

    monkeypatch.setattr(narrate, "follow", note)
    return orders


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets the network tell of runs."""
    told: list[SeenRun] = []

    async def listen(enough: Callable[[Sightings], bool], **_: object) -> Sightings:
        return Sightings(runs=tuple(told))

    monkeypatch.setattr(offers, "listen", listen)
    return lambda *runs: told.extend(runs)


@pytest.fixture
def no_mounts(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """What is mounted: nothing, but what a test puts here."""
    table: dict[str, tuple[str, str]] = {}
    monkeypatch.setattr(api_joining, "Finder", lambda: Finder(mounts=lambda: table, mounted=(), again_s=0.0, timeout_s=0.3))
    monkeypatch.setattr(api_joining, "desktop", lambda: PLAIN)
    return table


def id_of(location: str) -> str:
    return asyncio.run(open_mailbox(location).open())


def seen(manifest: Manifest, location: str, *, ours: bool = True, **more: Any) -> SeenRun:
    advert = RunAdvert(
        run=manifest.run, peer="0" * 32, name=manifest.name, method="diloco", task=manifest.task.name, mailbox=id_of(location)
    )
    return SeenRun(
        advert=msgspec.structs.replace(advert, **{"phase": "running", **more}), how=("network",), peers=("studio",), ours=ours
    )


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """A mailbox that no settings name."""
    return make_mailbox(tmp_path / "elsewhere")


def verdicts(swarm: Swarm) -> dict[str, str]:
    return {line["check"]: line["verdict"] for line in map(json.loads, swarm.out.splitlines())}


# Which run


def test_a_run_is_found_in_any_mailbox_that_is_known(
    swarm: Swarm,
    mailbox: str,
    elsewhere: str,
    ordered: list[Learn],
    tmp_path: Path,
) -> None:
    make_run(elsewhere, "far", "aaaa1111")
    assert swarm("init", elsewhere) == 0  # SWARM_MAILBOX names the other one
    assert swarm("join", "far") == 0, swarm.err
    assert [(order.mailbox, order.run) for order in ordered] == [(elsewhere, "aaaa1111")]


def test_the_interface_that_is_named_is_the_workers(swarm: Swarm, mailbox: str, ordered: list[Learn]) -> None:
    make_run(mailbox, "near", "aaaa1111")
    for command in (["join", "near"], ["start", "diloco", "--task", "mlp"], ["start", "fedavg", "--task", "lenet5"]):
        assert swarm(*command, "--interface", "en7") == 0, swarm.err
        assert ordered[0].interface == "en7"


def test_two_runs_of_one_name_are_told_apart_by_their_ids(
    swarm: Swarm,
    mailbox: str,
    elsewhere: str,
    ordered: list[Learn],
) -> None:
    make_run(mailbox, "twin", "aaaa1111")
    make_run(elsewhere, "twin", "bbbb1111")
    assert swarm("init", elsewhere) == 0
    assert "fits several runs: twin (aaaa1111), twin (bbbb1111)" in swarm.fails(1, "join", "twin")
    assert swarm("join", "bbbb1111") == 0, swarm.err
    assert ordered[0].mailbox == elsewhere


def test_one_mailbox_mounted_twice_is_one(
    swarm: Swarm,
    mailbox: str,
    ordered: list[Learn],
    tmp_path: Path,
) -> None:
    make_run(mailbox, "one", "aaaa1111")
    (tmp_path / "again").symlink_to(mailbox)
    assert swarm("init", str(tmp_path / "again")) == 0
    assert swarm("join", "one") == 0, swarm.err
    assert ordered[0].mailbox == mailbox
    assert swarm("join") == 0, swarm.err


def test_a_mailbox_that_is_away_hides_no_other_one(
    swarm: Swarm,
    mailbox: str,
    elsewhere: str,
    ordered: list[Learn],
    tmp_path: Path,
) -> None:
    make_run(mailbox, "one", "aaaa1111")
    assert swarm("init", elsewhere) == 0
    Path(elsewhere).rename(tmp_path / "gone")
    assert swarm("join") == 0, swarm.err
    assert ordered[0].run == "aaaa1111"


def test_without_a_name_the_network_counts_too(
    swarm: Swarm,
    mailbox: str,
    elsewhere: str,
    ordered: list[Learn],
    heard: Callable[..., None],
    no_mounts: object,
) -> None:
    far = make_run(elsewhere, "far", "bbbb1111")
    heard(seen(far, elsewhere, phase="done"))
    assert "no run to join" in swarm.fails(3, "join")
    heard(seen(far, elsewhere, ours=False))
    told = swarm.fails(3, "join")
    assert "no run to join" in told
    assert "of another swarm, with another passphrase or none: far (`swarm key --help`)" in told
    near = make_run(mailbox, "near", "aaaa1111")
    heard(seen(near, mailbox))
    assert swarm("join") == 0, swarm.err  # the mailbox says the same, and more
    assert ordered[0].run == "aaaa1111"
    make_run(elsewhere, "third", "cccc1111")
    heard(seen(msgspec.structs.replace(far, run="dddd1111", name="fourth"), elsewhere))
    assert swarm("join") == 3
    assert "fourth  dddd1111  (on the network)" in swarm.err
    assert "near  aaaa1111" in swarm.err
    assert "third" not in swarm.err


def test_with_a_mailbox_given_the_network_is_not_asked(
    swarm: Swarm,
    mailbox: str,
    elsewhere: str,
    heard: Callable[..., None],
) -> None:
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere))
    assert swarm("join", "far", "--mailbox", mailbox) == 1
    assert swarm("join", "--mailbox", mailbox) == 3


# Where its mailbox is


def test_a_run_of_the_network_is_joined_where_its_mailbox_is_mounted(
    swarm: Swarm,
    elsewhere: str,
    ordered: list[Learn],
    heard: Callable[..., None],
    no_mounts: dict[str, tuple[str, str]],
) -> None:
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere))
    no_mounts[str(Path(elsewhere).parent)] = ("//nas/swarm", "cifs")  # the mailbox is one folder below
    assert swarm("join", "far") == 0, swarm.err
    assert (ordered[0].mailbox, ordered[0].run) == (elsewhere, "bbbb1111")
    ordered.clear()
    no_mounts.clear()
    assert swarm("join", "far") == 0, swarm.err  # it is remembered
    assert ordered[0].mailbox == elsewhere


@pytest.fixture
def studio(elsewhere: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Address of a machine, here, that tells of the run `far` to whoever asks."""
    told = seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere).advert
    said = msgspec.json.encode(Hello(peer=PeerAdvert(peer="0" * 32, name="studio", boot="0badcafe"), runs=(told,)))
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    (tmp_path / "settings.toml").write_text(f'interfaces = ["{loopback}"]\n')
    monkeypatch.setenv("SWARM_CONFIG", str(tmp_path / "settings.toml"))
    monkeypatch.setenv("SWARM_DISCOVERY", "1")

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(said)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_machine_that_is_named_is_asked_for_runs(swarm: Swarm, studio: str, no_mounts: object) -> None:
    assert swarm("join", "far", "--peer", studio) == 1
    assert "far: mailbox" in swarm.err
    assert "is not mounted here" in swarm.err
    assert swarm("runs", "--json", "--peer", studio) == 0, swarm.err
    (row,) = map(json.loads, swarm.out.splitlines())
    assert (row["name"], row["how"], row["peers"]) == ("far", ["address"], ["studio"])


def test_a_machine_that_is_named_and_tells_nothing_is_named(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    async def listen(enough: object, *, peers: tuple[str, ...], interfaces: tuple[str, ...]) -> Sightings:
        assert (peers, interfaces) == (("studio", "10.0.0.7:1"), ("en7",))
        return Sightings(trouble=("studio: it is off", "deaf", "10.0.0.7: no"))

    monkeypatch.setattr(offers, "listen", listen)
    monkeypatch.setenv("SWARM_DISCOVERY", "1")
    for named in ((), ("far",)):
        assert swarm("join", *named, "--peer", "studio", "--peer", "10.0.0.7:1", "--interface", "en7") != 0
        assert "studio: it is off" in swarm.err
        assert "deaf" not in swarm.err
        assert "10.0.0.7: no" not in swarm.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--peer", "a b"), "is no address"),
        (("--peer", "studio", "--mailbox", "x"), "give one of them"),
        (("--peer", "studio"), "discovery is off"),
        (("--peer", "studio", "--wait"), "do not go together"),
    ],
)
def test_peers_that_nobody_would_ask(swarm: Swarm, argv: tuple[str, ...], words: str) -> None:
    assert words in swarm.fails(2, "join", *argv)
    if "--wait" not in argv:
        assert words in swarm.fails(2, "runs", *argv)


def test_what_is_not_mounted_is_told_how(
    swarm: Swarm,
    elsewhere: str,
    ordered: list[Learn],
    heard: Callable[..., None],
    no_mounts: object,
) -> None:
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere, share="smb://nas/swarm"))
    assert swarm("join", "far") == 1
    assert f"far: mailbox {id_of(elsewhere)[:8]}… is not mounted here" in swarm.err
    assert "sudo mount -t cifs //nas/swarm /mnt/swarm -o username=ann,uid=1000" in swarm.err
    assert ordered == []


def test_a_mount_that_hangs_is_named_and_holds_nobody_up(
    swarm: Swarm,
    elsewhere: str,
    heard: Callable[..., None],
    no_mounts: dict[str, tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere))
    dead, over, real = str(tmp_path / "dead"), threading.Event(), mounts.mailboxes_in
    monkeypatch.setattr(mounts, "mailboxes_in", lambda path, **how: over.wait(60) if path == dead else real(path, **how))
    no_mounts[dead] = ("nas:/gone", "nfs4")
    try:
        assert swarm("join", "far") == 1
        assert f"is not mounted here; {dead} does not answer" in swarm.err
        no_mounts[elsewhere] = ("nas:/swarm", "nfs4")
        assert swarm("join", "far", "--check") == 0, swarm.out
    finally:
        over.set()


def test_a_mailbox_that_hangs_is_not_waited_for_once_another_has_the_run(
    mailbox: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(mailbox, "one", "aaaa1111")
    monkeypatch.setattr(offers, "PATIENCE_S", 0.05)
    real = offers.find_run

    async def find(location: str, text: str) -> Manifest:
        if location == "/dead":
            await asyncio.Event().wait()  # for ever
        return await real(location, text)

    monkeypatch.setattr(offers, "find_run", find)
    found = asyncio.run(offers.offered("one", ("/dead", mailbox), network=False))
    assert (found.run, found.location) == ("aaaa1111", mailbox)


def test_a_hostile_share_url_becomes_no_command(
    swarm: Swarm,
    elsewhere: str,
    heard: Callable[..., None],
    no_mounts: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere, share="smb://nas/$(reboot);x"))
    monkeypatch.setattr(cli_joining, "mount", lambda *a, **k: pytest.fail("nothing may be run"))
    monkeypatch.setattr(cli_joining, "MOUNTED_S", 0.0)
    assert swarm("join", "far", "--mount") == 1
    assert "reboot" not in swarm.err
    assert "whoever started the run knows" in swarm.err


def test_mount_runs_the_command_waits_and_goes_on(
    swarm: Swarm,
    elsewhere: str,
    ordered: list[Learn],
    heard: Callable[..., None],
    no_mounts: dict[str, tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("SWARM_KEY_FILE", str(tmp_path / "passphrase.toml"))
    key = keep("correct horse battery staple")
    heard(seen(make_run(elsewhere, "far", "bbbb1111", key=key), elsewhere, share="smb://nas/swarm", signed=True, tag="c" * 16))
    monkeypatch.setattr(api_joining, "desktop", lambda: Desktop(system="darwin", user="ann", uid=501))
    monkeypatch.setattr(cli_joining, "LOOK_S", 0.01)
    ran: list[object] = []

    def mount(way: Any, *, quiet: bool) -> str:
        ran.append(way.argv)
        no_mounts[elsewhere] = ("//nas/swarm", "smbfs")
        return ""

    monkeypatch.setattr(cli_joining, "mount", mount)
    assert swarm("join", "far") == 1  # nobody agreed
    assert "--mount does it, and goes on" in swarm.err
    assert "vouches" not in swarm.err
    assert swarm("join", "far", "--no-mount") == 1
    assert ran == []
    assert swarm("join", "far", "--mount") == 0, swarm.err
    assert ran == [("open", "smb://nas/swarm")]
    assert ordered[0].mailbox == elsewhere


@pytest.mark.parametrize("has_key", [True, False])
def test_what_anybody_may_have_said_is_not_mounted_without_a_person(
    swarm: Swarm,
    elsewhere: str,
    heard: Callable[..., None],
    no_mounts: object,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    has_key: bool,
) -> None:
    """In an open swarm a person is asked, even with --mount; with a passphrase, what another swarm says is never run."""
    if has_key:
        monkeypatch.setenv("SWARM_KEY_FILE", str(tmp_path / "passphrase.toml"))
        keep("correct horse battery staple")
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere, ours=not has_key, share="smb://10.0.0.66/x"))
    monkeypatch.setattr(api_joining, "desktop", lambda: Desktop(system="darwin", user="ann", uid=501))
    monkeypatch.setattr(cli_joining, "mount", lambda *a, **k: pytest.fail("nothing may be run"))
    monkeypatch.setattr(cli_joining, "MOUNTED_S", 0.0)
    assert swarm("join", "far", "--mount") == 1
    assert "studio says so on the network, " in swarm.err
    assert ("is not of this swarm" if has_key else "no passphrase vouches for") in swarm.err
    asked: list[str] = []
    monkeypatch.setattr(cli_joining.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(cli_joining.click, "confirm", lambda question, **_: asked.append(question))
    assert swarm("join", "far", "--mount") == 1
    assert asked == ([] if has_key else ["Mount it now?"])


@pytest.mark.parametrize("agrees", [True, False])
def test_on_a_terminal_a_person_is_asked(
    swarm: Swarm,
    elsewhere: str,
    ordered: list[Learn],
    heard: Callable[..., None],
    no_mounts: dict[str, tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    agrees: bool,
) -> None:
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere, share="smb://nas/swarm"))
    monkeypatch.setattr(api_joining, "desktop", lambda: Desktop(system="linux", gio=True, user="ann", uid=1000))
    monkeypatch.setattr(cli_joining.sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(cli_joining.click, "confirm", lambda question, **_: agrees)
    ran: list[object] = []

    def mount(way: Any, *, quiet: bool) -> str:
        ran.append((way.argv, quiet))
        no_mounts[elsewhere] = ("gvfsd-fuse", "cifs")
        return "it asked, and was told nothing"

    monkeypatch.setattr(cli_joining, "mount", mount)
    assert swarm("join", "far") == (0 if agrees else 1)
    assert "gio mount smb://nas/swarm" in swarm.err
    assert ran == ([(("gio", "mount", "smb://nas/swarm"), False)] if agrees else [])  # it may ask for a password
    assert len(ordered) == agrees
    assert ("it could not be mounted: it asked" in swarm.err) == agrees


def test_mount_without_a_command_waits_for_the_person(
    swarm: Swarm,
    elsewhere: str,
    ordered: list[Learn],
    heard: Callable[..., None],
    no_mounts: dict[str, tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere, share="nfs://nas/export/swarm"))
    monkeypatch.setattr(cli_joining, "say", lambda text: no_mounts.update({elsewhere: ("nas:/export/swarm", "nfs4")}))
    assert swarm("join", "far", "--mount") == 0, swarm.err
    assert ordered[0].mailbox == elsewhere


# What keeps it out


def test_check_prints_ticks_and_joins_nothing(swarm: Swarm, mailbox: str, ordered: list[Learn]) -> None:
    make_run(mailbox, "one", "aaaa1111")
    assert swarm("join", "one", "--check", "--json") == 0, swarm.err
    found = verdicts(swarm)
    assert {"share mounted here", "share writable", "task installed", "schema matches", "version matches"} <= set(found)
    assert set(found.values()) <= {"ok", "warning"}
    assert swarm("join", "--check") == 0
    assert "ok     share mounted here: " + mailbox in swarm.out
    assert ordered == []


def test_check_of_an_unmounted_run_fails_with_the_way_to_it(
    swarm: Swarm,
    elsewhere: str,
    heard: Callable[..., None],
    no_mounts: object,
) -> None:
    heard(seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere, share="smb://nas/swarm"))
    assert swarm("join", "far", "--check", "--json") == 1
    assert verdicts(swarm)["share mounted here"] == "failed"
    assert verdicts(swarm)["task installed"] == "ok"
    assert "mount -t cifs" in swarm.out


def test_an_ended_run_fails_its_check(swarm: Swarm, mailbox: str) -> None:
    make_run(mailbox, "one", "aaaa1111")
    stop(mailbox, "aaaa1111")
    assert swarm("join", "one", "--check", "--json") == 1
    assert [name for name, verdict in verdicts(swarm).items() if verdict == "failed"] == ["run open"]
    assert "was stopped" in swarm.fails(1, "join", "one")


def test_a_task_that_is_not_installed_keeps_it_out(swarm: Swarm, mailbox: str, ordered: list[Learn]) -> None:
    make_run(mailbox, "one", "aaaa1111", task="protein")
    assert swarm("join", "one") == 1
    assert "task installed: no task 'protein' is installed here" in swarm.err
    assert "pip install" in swarm.err
    assert ordered == []
    assert swarm("join", "one", "--role", "syncer") == 0, swarm.err  # closing rounds needs none


def test_too_little_memory_keeps_it_out(
    swarm: Swarm,
    mailbox: str,
    ordered: list[Learn],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_run(mailbox, "one", "aaaa1111")

    class Memory:
        available, total = 1 << 20, 2 << 20

    monkeypatch.setattr(api_joining.psutil, "virtual_memory", Memory)
    assert swarm("join", "one") == 1
    assert "enough memory: about" in swarm.err
    assert ordered == []
    Memory.total = 1 << 40
    assert swarm("join", "one") == 0
    assert "close other programs" in swarm.err


def test_a_share_that_cannot_be_written_keeps_it_out(
    swarm: Swarm,
    mailbox: str,
    ordered: list[Learn],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_run(mailbox, "one", "aaaa1111")
    found = [ok("folder", mailbox), failed("writable", "Read-only file system", "mount it with the right to write")]

    async def read_only(location: str) -> list[Tick]:
        return found

    monkeypatch.setattr(api_joining, "probe", read_only)
    assert swarm("join", "one") == 1
    assert "share writable: Read-only file system" in swarm.err
    assert "; mount it with the right to write" in swarm.err
    found[1:] = [warning("free space", "2 MB free", "make room")]
    assert swarm("join", "one") == 0
    assert "2 MB free" in swarm.err


def test_data_that_is_nowhere_keeps_it_out(swarm: Swarm, mailbox: str, ordered: list[Learn], tmp_path: Path) -> None:
    manifest = make_run(mailbox, "one", "aaaa1111", task="charlm")
    away = DataRef(name="novel.txt", sha256="1" * 64, size_bytes=9)
    found = check_task(msgspec.structs.replace(manifest, task=TaskRef(name="charlm", data=(away,))))
    assert "novel.txt" in found.data
    assert check_task(manifest).data == ""
    make_run(mailbox, "hush", "bbbb1111", algorithm=FedAvg(private=True, beat_s=0.2, lease_s=2.0))
    assert "are private" in swarm.fails(2, "join", "hush")
    assert swarm("join", "hush", "--check") == 1
    assert "FAULT  data: its clients are private" in swarm.out


def test_options_that_the_task_has_not_here_are_told(mailbox: str) -> None:
    manifest = make_run(mailbox, "one", "aaaa1111", task="charlm")
    odd = msgspec.structs.replace(manifest, task=TaskRef(name="charlm", options={"wings": 2}))
    assert "wings" in check_task(odd).options


@pytest.mark.parametrize("task", ["charlm", "mlp", "lenet5", "lora"])
def test_no_built_in_task_refuses_its_own_options(task: str, mailbox: str) -> None:
    from swarm.tasks import registry

    options = registry.get(task).options({})
    manifest = msgspec.structs.replace(
        make_run(mailbox, "one", "aaaa1111", task=task), task=TaskRef(name=task, options=options)
    )
    assert check_task(manifest).options == ""


def test_a_task_that_breaks_as_it_is_asked_is_told(mailbox: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(mailbox, "one", "aaaa1111")
    monkeypatch.setattr(api_joining, "check_task", lambda manifest, **how: 1 / 0)
    found = asyncio.run(polled(JoinWatch("aaaa1111", location=mailbox, finder=no_finder({}))))
    assert "ZeroDivisionError" in found["task installed"].detail
    assert found["task installed"].verdict == "failed"


def test_what_mlx_lm_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitness, "_installed", lambda name: name != "mlx_lm")
    found = check_named("mlx-lm", "mlx-lm")
    assert found.fault is not None
    assert "mlx_lm is not installed" in found.fault.detail
    assert "homeswarm[mlx-lm]" in found.fault.remedy


def test_a_run_of_a_program_says_how_it_is_joined() -> None:
    found = check_named("library", "diloco")
    assert found.fault is not None
    assert "program" in found.fault.remedy


# The watch, as a screen polls it


def ticks_of(found: api_joining.Joining) -> dict[str, Tick]:
    return {tick.name: tick for tick in found.ticks}


async def polled(watch: JoinWatch, sightings: Sightings | None = None) -> dict[str, Tick]:
    return ticks_of(await settled_joining(watch, sightings))


def no_finder(table: dict[str, tuple[str, str]]) -> Finder:
    return Finder(mounts=lambda: table, mounted=(), again_s=0.0, timeout_s=0.3)


def test_it_goes_on_when_the_share_appears_and_back_when_it_goes(elsewhere: str, tmp_path: Path, state_dir: Path) -> None:
    run = seen(make_run(elsewhere, "far", "bbbb1111"), elsewhere, share="smb://nas/swarm")
    table: dict[str, tuple[str, str]] = {}
    watch = JoinWatch("bbbb1111", known=(), finder=no_finder(table), system=PLAIN)

    async def play() -> None:
        found = await watch.poll(Sightings(runs=(run,)))
        assert found.unmounted
        assert found.way is not None
        assert not found.passed
        table[elsewhere] = ("//nas/swarm", "cifs")
        found = await settled_joining(watch, Sightings(runs=(run,)))
        assert found.passed, found.ticks
        assert found.location == elsewhere
        Path(elsewhere).rename(tmp_path / "away")
        table.clear()
        for _ in range(3):  # the watch notices, and looks for it anew
            found = await watch.poll(Sightings(runs=(run,)))
        assert not found.passed

    asyncio.run(play())


def test_an_advert_does_not_move_a_mailbox_that_is_known(mailbox: str, elsewhere: str, state_dir: Path) -> None:
    manifest = make_run(mailbox, "one", "aaaa1111")
    lying = seen(manifest, elsewhere)
    watch = JoinWatch("aaaa1111", location=mailbox, known=(), finder=no_finder({}))
    found = asyncio.run(polled(watch, Sightings(runs=(lying,))))
    assert found["share mounted here"].detail == mailbox
    assert found["share mounted here"].verdict == "ok"


def test_an_advert_that_names_another_mailbox_finds_no_run_there(elsewhere: str, tmp_path: Path, state_dir: Path) -> None:
    other = make_mailbox(tmp_path / "other")
    lying = seen(make_run(elsewhere, "far", "bbbb1111"), other)
    watch = JoinWatch("bbbb1111", known=(other,), finder=no_finder({}))
    found = asyncio.run(polled(watch, Sightings(runs=(lying,))))
    assert found["schema matches"].verdict == "failed"
    assert "no run" in found["schema matches"].detail


def test_another_format_names_both(mailbox: str, state_dir: Path) -> None:
    manifest = make_run(mailbox, "one", "aaaa1111")
    manifest_of_another_format(mailbox, manifest)
    found = asyncio.run(polled(JoinWatch("aaaa1111", location=mailbox, finder=no_finder({}))))
    assert found["version matches"].verdict == "failed"
    assert found["schema matches"].verdict == "checking"  # what keeps this machine out is said once
    assert "upgrade swarm" in found["version matches"].remedy


def test_a_run_that_is_gone(mailbox: str, state_dir: Path) -> None:
    found = asyncio.run(polled(JoinWatch("cccc1111", location=mailbox, finder=no_finder({}))))
    assert "no run" in found["schema matches"].detail


def test_the_manifest_that_is_shown_is_the_one_whose_signature_was_checked(
    mailbox: str, monkeypatch: pytest.MonkeyPatch, state_dir: Path
) -> None:
    """Somebody puts another one there for a moment."""
    make_run(mailbox, "good", "aaaa1111")
    keep("correct horse battery")
    key, place = SwarmKey(stretched("correct horse battery")), RunKeys("aaaa1111").manifest
    body, envelope, _ = Path(mailbox, place).read_bytes().split(b"\n")
    told = msgspec.structs.replace(
        msgspec.json.decode(envelope, type=Envelope), signature=key.signature("aaaa1111", place, body)
    )
    Path(mailbox, place).write_bytes(b"%b\n%b\n" % (body, msgspec.json.encode(told)))
    evil = msgspec.structs.replace(msgspec.json.decode(body, type=Manifest), name="evil")
    box, swapped = open_mailbox(mailbox), [encode(evil, nonce="n")]
    real = box.read

    async def read(key: str) -> bytes | None:
        return swapped.pop() if key == place and swapped else await real(key)

    monkeypatch.setattr(box, "read", read)
    monkeypatch.setattr(api_joining, "open_mailbox", lambda _: box)
    found = asyncio.run(settled_joining(JoinWatch("aaaa1111", location=mailbox, finder=no_finder({})), at_most_s=5.0))
    verdict = next(tick.verdict for tick in found.ticks if tick.name == PASSPHRASE)
    assert found.manifest is not None
    assert (found.manifest.name, verdict) in (("good", "ok"), ("evil", "failed"))


def test_the_passphrase_is_told_from_the_manifests_signature(mailbox: str) -> None:
    make_run(mailbox, "one", "aaaa1111")
    key, other = (SwarmKey(stretched(words)) for words in ("correct horse battery", "another one entirely"))
    place = RunKeys("aaaa1111").manifest
    data = Path(mailbox, place).read_bytes()
    body, envelope, _ = data.split(b"\n")
    signed = msgspec.structs.replace(
        msgspec.json.decode(envelope, type=Envelope), signature=key.signature("aaaa1111", place, body)
    )
    data_signed = b"%b\n%b\n" % (body, msgspec.json.encode(signed))
    assert passphrase_of("aaaa1111", data, None) == ("open", "")
    assert passphrase_of("aaaa1111", data, key) == ("unasked", key.fingerprint)
    assert passphrase_of("aaaa1111", data_signed, None) == ("missing", "")
    assert passphrase_of("aaaa1111", data_signed, key) == ("right", key.fingerprint)
    assert passphrase_of("aaaa1111", data_signed, other) == ("wrong", other.fingerprint)
    assert passphrase_of("bbbb1111", data_signed, key) == ("wrong", key.fingerprint)  # of another run


def test_a_signed_run_is_joined_with_its_passphrase_alone(
    swarm: Swarm, mailbox: str, ordered: list[Learn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_KEY_FILE", str(tmp_path / "passphrase.toml"))
    key = keep("correct horse battery staple")
    signed = make_run(mailbox, "sealed", "aaaa1111", key=key)
    assert swarm("join", "sealed", "--check") == 0, swarm.out
    assert f"passphrase right: signed with this machine's passphrase ({key.fingerprint})" in swarm.out
    assert swarm("join", "sealed") == 0, swarm.err
    watch = JoinWatch("aaaa1111", location=mailbox, finder=no_finder({}))
    assert asyncio.run(settled_joining(watch)).manifest == signed
    other = keep("another one entirely, no?")
    found = asyncio.run(polled(JoinWatch("aaaa1111", location=mailbox, finder=no_finder({}))))
    assert found["passphrase right"].verdict == "failed"
    assert other.fingerprint in found["passphrase right"].detail
    assert [name for name, tick in found.items() if tick.verdict == "failed"] == ["passphrase right"]
    make_run(mailbox, "plain", "bbbb1111")
    found = asyncio.run(polled(JoinWatch("bbbb1111", location=mailbox, finder=no_finder({}))))
    assert "open" in found["passphrase right"].detail
    assert found["passphrase right"].verdict == "failed"
    (tmp_path / "passphrase.toml").chmod(0o644)
    found = asyncio.run(polled(JoinWatch("aaaa1111", location=mailbox, finder=no_finder({}))))
    assert "others can read" in found["passphrase right"].detail
    monkeypatch.setenv("SWARM_KEY_FILE", "")
    found = asyncio.run(polled(JoinWatch("aaaa1111", location=mailbox, finder=no_finder({}))))
    assert "no passphrase" in found["passphrase right"].detail
    assert "swarm key import" in found["passphrase right"].remedy
    ordered.clear()
    assert swarm("join", "sealed") == 1
    assert "swarm key import" in swarm.err
    assert ordered == []


# Where it is told


@pytest.mark.parametrize("method", ["diloco", "fedavg"])
def test_the_share_is_checked_and_goes_into_the_run(
    swarm: Swarm,
    mailbox: str,
    ordered: list[Learn],
    method: str,
) -> None:
    assert swarm("start", method, "--task", "mlp", "--share", "SMB://NAS/My Data") == 0, swarm.err
    assert ordered[0].create is not None
    assert ordered[0].create.share == "smb://nas/My%20Data"
    assert "leave out the user" in swarm.fails(2, "start", method, "--task", "mlp", "--share", "smb://ann@nas/x")
    assert "no URL of a share" in swarm.fails(2, "start", method, "--task", "mlp", "--share", "/mnt/x")


def test_the_share_of_a_fine_tuning(swarm: Swarm, mailbox: str, ordered: list[Learn], tmp_path: Path) -> None:
    argv = ("start", "mlx-lm", "--model", str(tmp_path), "--data", str(tmp_path))
    assert swarm(*argv, "--share", "nfs://nas/export/swarm") == 0, swarm.err
    assert ordered[0].create is not None
    assert ordered[0].create.share == "nfs://nas/export/swarm"
    assert "no URL" in swarm.fails(2, *argv, "--share", "ftp://nas/x")
