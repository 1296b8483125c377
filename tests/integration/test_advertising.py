"""What a process tells of this machine, and that nothing that goes wrong with it disturbs what the process is for."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from swarm import advertising
from swarm.advertising import Advertising, advertised, discovers
from swarm.core.adverts import PeerAdvert, RunAdvert, ours
from swarm.core.errors import UsageError
from swarm.core.events import Ended, Joined, WorkerEvent
from swarm.core.manifest import Manifest
from swarm.core.telling import Part, after, boot_digits
from swarm.core.trust import SwarmKey
from swarm.host.identity import boot_id, identity, machine_id
from swarm.neighbours import Neighbourhood, look_around
from swarm.network.discovery import Discovery
from swarm.network.links import Links
from swarm.network.words import no_links
from swarm.watch import Home, HomeWatch
from tests.unit.test_telling import manifest

pytestmark = pytest.mark.usefixtures("state_dir")
RUN = RunAdvert(run="kx7k2m", peer="0" * 32, name="tiny", method="diloco", task="mlp", mailbox="b" * 32)
JOINED = Joined(run="abcd1234", name="tiny", learner="a", incarnation=1, round=4)


def settings(text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "settings.toml"
    place.write_text(text)
    monkeypatch.setenv("SWARM_CONFIG", str(place))


def test_discovery_is_off_in_tests_and_where_a_person_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not discovers()
    monkeypatch.delenv("SWARM_DISCOVERY")
    assert discovers()
    settings("discovery = false\n", monkeypatch, tmp_path)
    assert not discovers()


def test_what_is_told_of_this_machine() -> None:
    key = SwarmKey(b"k" * 32)
    telling = Advertising("idle", key=key, network=False)
    telling.start()
    telling.tell("training")
    telling.open_mailboxes(["b" * 32])
    telling.tell_runs([RUN])
    told = telling._told("10.0.0.1", 27273)
    assert told.peer is not None
    assert (told.peer.peer, told.peer.boot) == (machine_id(), boot_digits(boot_id()))
    assert (told.peer.state, told.peer.mailboxes, told.peer.address, told.peer.port) == (
        "training", ("b" * 32,), "10.0.0.1", 27273,
    )  # fmt: skip
    assert told.runs[0].peer == told.peer.peer  # whoever it was made for
    assert ours(told.peer, key)
    assert ours(told.runs[0], key)
    (here,) = telling.seen().peers
    assert here.itself
    telling.close()


def test_who_only_listens_tells_nothing() -> None:
    telling = Advertising(None, network=False)
    telling.start()
    telling.tell("training")
    assert telling._told("", 0).peer is None
    assert telling.seen().peers[0].itself


def test_of_two_machines_with_one_id_the_one_with_the_lower_boot_takes_another() -> None:
    me = identity()
    for boot, renews in (("ffffffff", True), ("00000000", False)):
        telling = Advertising("idle", key=None, network=False)
        telling.start()
        old = telling.peer
        with telling.sighted() as sighted:
            copy = PeerAdvert(peer=old, name="copy", boot=boot)
            sighted.heard(copy, source="copy", how="network", now_s=0.0)
            sighted.lives_s = float("inf")
        seen = telling.seen()
        assert (telling.peer != old) == renews
        assert any("has a new id" in line for line in seen.trouble) == renews
        assert [p.doubled for p in seen.peers] == ([False, False] if renews else [True, True])
        assert machine_id() == telling.peer
        assert len(telling.seen().trouble) == len(seen.trouble)  # told once
    assert identity().machine != me.machine


def test_whoever_takes_each_new_id_makes_a_machine_renew_it_once() -> None:
    telling = Advertising("idle", key=None, network=False)
    telling.start()
    ids = [telling.peer]
    for n in range(4):
        with telling.sighted() as sighted:
            sighted.heard(PeerAdvert(peer=telling.peer, name="copy", boot="ffffffff"), source=f"{n}", how="network", now_s=0.0)
            sighted.lives_s = float("inf")
        seen = telling.seen()
        ids.append(telling.peer)
    assert len(set(ids)) == 2
    assert machine_id() == ids[-1]
    assert len([line for line in seen.trouble if "keeps it" in line]) == 1


def test_a_machine_that_can_keep_no_id_sees_the_others_and_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_id() -> None:
        raise UsageError("the state folder cannot be written")

    monkeypatch.setattr(advertising, "identity", no_id)
    telling = Advertising("training", network=False)
    telling.start()
    assert telling._told("", 0).peer is None
    assert telling.seen().trouble == ("the state folder cannot be written",)


def test_addresses_that_are_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no address"):
        Advertising(None, peers=["a b"], network=False).start()
    settings('peers = ["a b", "studio"]\n', monkeypatch, tmp_path)
    telling = Advertising(None, network=False)
    telling.start()
    (line,) = telling.seen().trouble
    assert "settings" in line
    with pytest.raises(UsageError, match="no port"):
        telling.ask("studio:x")


def told_by_worker(made: Manifest, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[Advertising]]:
    """Its complaints, and what it advertised with."""
    every: list[Advertising] = []
    monkeypatch.setenv("SWARM_DISCOVERY", "1")

    class Silent(Advertising):
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **(more | {"network": False}))  # type: ignore[arg-type]
            every.append(self)

        @property
        def unheard(self) -> str:
            return "no multicast here"

    monkeypatch.setattr(advertising, "Advertising", Silent)
    complaints: list[str] = []
    with advertised(made, mailbox="b" * 32, trouble=complaints.append) as on:
        on(JOINED)
        assert [run.phase for run in every[0]._runs] == ["running"]
        on(JOINED)
        on(Ended(reason="done", rounds=40))
        assert [run.phase for run in every[0]._runs] == ["done"]
    return complaints, every


def test_a_worker_tells_what_happens_and_complains_once(monkeypatch: pytest.MonkeyPatch) -> None:
    complaints, (telling,) = told_by_worker(manifest(), monkeypatch)
    assert complaints == ["other machines may not see this one: no multicast here"]
    assert telling._mailboxes == ("b" * 32,)


def test_a_worker_tells_over_the_interface_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Links] = []
    every: list[Discovery] = []
    monkeypatch.setenv("SWARM_DISCOVERY", "1")
    monkeypatch.setattr(Discovery, "start", lambda self: (every.append(self), used.append(self._links)))
    with advertised(manifest(), mailbox="b" * 32, trouble=pytest.fail, interfaces=["no-such0"]) as on:
        assert used[0].names == ("no-such0",)
    complaints: list[str] = []
    with advertised(manifest(), mailbox="b" * 32, trouble=complaints.append, interfaces=["no-such0"]) as on:
        found = used[1].look()
        assert found == ()
        every[1]._note("links", no_links(used[1], found))
        on(JOINED)
    (line,) = complaints
    assert "no interface no-such0 is up here" in line


def test_what_two_threads_tell_at_once_is_told_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits until the first is done, and goes on from there."""
    began, over = threading.Event(), threading.Event()

    def slow(part: Part, event: WorkerEvent) -> Part:
        if isinstance(event, Joined):
            began.set()
            over.wait(0.2)  # in which the other one would be done, if nothing held it
        return after(part, event)

    every: list[Advertising] = []
    monkeypatch.setenv("SWARM_DISCOVERY", "1")
    monkeypatch.setattr(advertising, "after", slow)

    class Silent(Advertising):
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **(more | {"network": False}))  # type: ignore[arg-type]
            every.append(self)

    monkeypatch.setattr(advertising, "Advertising", Silent)
    with advertised(manifest(), mailbox="b" * 32, trouble=pytest.fail) as on:
        first = threading.Thread(target=on, args=(JOINED,))
        first.start()
        assert began.wait(30)
        on(Ended(reason="done", rounds=40))
        over.set()
        first.join(30)
        assert [run.phase for run in every[0]._runs] == ["done"]


def test_a_worker_that_cannot_tell_trains_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Advertising) -> None:
        raise RuntimeError("no thread can be started")

    monkeypatch.setenv("SWARM_DISCOVERY", "1")
    monkeypatch.setattr(Advertising, "start", broken)
    complaints: list[str] = []
    with advertised(manifest(), mailbox="b" * 32, trouble=complaints.append) as on:
        on(JOINED)
    (line,) = complaints
    assert "no thread can be started" in line
    monkeypatch.setenv("SWARM_DISCOVERY", "0")
    with advertised(manifest(), mailbox="b" * 32, trouble=complaints.append) as on:
        on(JOINED)
    assert len(complaints) == 1


async def test_without_a_network_mailboxes_tell(tmp_path: Path) -> None:
    from swarm.mailbox import init_mailbox

    share = str(tmp_path / "share")
    await init_mailbox(share)
    near = Neighbourhood(advertises="watching", network=False)
    near.start()
    seen = await look_around(near, HomeWatch((share, str(tmp_path / "none"))), 0.5)
    assert [peer.itself for peer in seen.peers] == [True]
    assert seen.runs == ()
    assert len(near.poll(Home()).peers) == 1
    near.close()
    assert msgspec.json.decode(msgspec.json.encode(seen), type=type(seen)) == seen
