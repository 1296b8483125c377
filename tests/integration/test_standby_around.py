"""A machine that stands by finds the mailboxes that the network tells of, wherever they are mounted here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from pathlib import Path

import msgspec
import pytest

from swarm import api
from swarm.core.adverts import RunAdvert
from swarm.core.errors import SwarmError
from swarm.core.sightings import SeenRun, Sightings
from swarm.core.standby import Rules
from swarm.host.keyfile import keep
from swarm.host.mounts import Finder
from swarm.mailbox import open_mailbox
from swarm.standby import keeping
from swarm.standby.around import Around
from swarm.standby.machine import Standby, candidate
from tests.integration.handmade import make_mailbox, make_run


class Near:
    """What the network tells, as Neighbourhood does."""

    told: tuple[RunAdvert, ...] = ()

    def __init__(self, **how: object) -> None:
        self.states: list[str] = []

    def start(self) -> None:
        pass

    def tell(self, state: str) -> None:
        self.states.append(state)

    def poll(self, home: api.Home) -> Sightings:
        places = {view.id: view.location for view in home.mailboxes if view.id}
        return Sightings(
            runs=tuple(SeenRun(advert=run, how=("network",), location=places.get(run.mailbox)) for run in self.told)
        )


@pytest.fixture
def mounted(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mount with a mailbox in it, that no settings know, and what the network tells of a run there."""
    (tmp_path / "nas").mkdir()
    location = make_mailbox(tmp_path / "nas" / "swarm")
    make_run(location, "far-away", "farrun1")
    ident = asyncio.run(open_mailbox(location).open())
    advert = RunAdvert(
        run="farrun1",
        peer="ab" * 16,
        name="far-away",
        method="diloco",
        task="mlp",
        mailbox=ident,
        phase="running",
        share="smb://nas/swarm",
    )
    monkeypatch.setattr(
        Near, "told", (advert, msgspec.structs.replace(advert, run="elsewhere1", name="elsewhere", mailbox="cd" * 16))
    )
    monkeypatch.setattr(api, "Neighbourhood", Near)
    return tmp_path / "nas"


def test_a_run_of_the_network_is_joined_where_its_mailbox_is_mounted(mounted: Path) -> None:
    mounts = {str(mounted): ("//nas/swarm", "cifs")}
    around = Around(None, finder=Finder(mounts=lambda: mounts, mounted=()))
    around.start()

    async def looked() -> tuple[list[str], list[str]]:
        seen = await around.look()
        if not any(view.runs for view in seen.home.mailboxes):
            seen = await around.look()
        runs = [candidate(v.location, state) for v in seen.home.mailboxes for state in v.runs]
        return [f"{run.name} in {run.mailbox}" for run in runs], [run.advert.name for run in seen.elsewhere]

    runs, elsewhere = asyncio.run(looked())
    assert runs == [f"far-away in {mounted / 'swarm'}"]
    assert elsewhere == ["elsewhere"]


def test_what_is_not_mounted_is_told_with_its_share(mounted: Path) -> None:
    told: list[object] = []
    machine = Standby(Rules(), {}, mailbox=None, tell=told.append, heard=lambda run, event: None)
    machine._around = Around(None, finder=Finder(mounts=dict, mounted=()))
    machine._around.start()
    seen = asyncio.run(machine._around.look())
    assert [run.advert.name for run in seen.elsewhere] == ["far-away", "elsewhere"]

    async def chosen() -> object:
        return machine._chosen(seen)

    assert asyncio.run(chosen()) is None
    [nothing] = told
    assert nothing.refused == (  # type: ignore[attr-defined]
        "elsewhere: its mailbox is not mounted here (smb://nas/swarm)",
        "far-away: its mailbox is not mounted here (smb://nas/swarm)",
    )


def test_a_mailbox_that_was_named_is_the_only_one(mounted: Path, tmp_path: Path) -> None:
    other = make_mailbox(tmp_path / "other")
    around = Around(other, finder=Finder(mounts=lambda: {str(mounted): ("//nas/swarm", "cifs")}, mounted=()))
    around.start()
    seen = asyncio.run(around.look())
    assert [view.location for view in seen.home.mailboxes] == [other]
    assert seen.elsewhere == ()


def test_a_passphrase_that_is_taken_over_meanwhile_counts(
    state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_DISCOVERY", "0")
    monkeypatch.delenv("SWARM_KEY_FILE", raising=False)
    around = Around(make_mailbox(tmp_path / "share"))
    around.start()
    try:
        asyncio.run(around.look())
        key = keep("correct horse battery staple")
        asyncio.run(around.look())
        assert around._near is not None
        found = around._near._telling._key
        assert found is not None
        assert found.fingerprint == key.fingerprint
    finally:
        around.close()


def test_a_service_tries_again_where_its_folder_cannot_be_written(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "standby").touch()
    for begin in (keeping.Log().open, keeping.alone().__enter__):
        with pytest.raises(SwarmError, match="cannot be written") as refused:
            begin()
        assert refused.value.exit_code == 1


def test_of_two_that_begin_together_one_stands_by(state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_DISCOVERY", "0")
    monkeypatch.setattr(keeping, "note_process", lambda folder, pid: None)  # neither has come so far
    begun = asyncio.Event()
    ending = False
    share = make_mailbox(tmp_path / "share")
    first, second, third = (
        Standby(Rules(), {}, mailbox=share, tell=lambda event: begun.set(), heard=lambda run, event: None) for _ in range(3)
    )

    async def main() -> None:
        nonlocal ending
        running = asyncio.ensure_future(first.run(lambda: int(ending)))
        await asyncio.wait_for(begun.wait(), 60)
        with pytest.raises(SwarmError, match="stands by already") as refused:
            await second.run(lambda: 1)
        assert refused.value.exit_code == 1  # a service tries again: code 2 would end it for good
        ending = True
        await running
        await third.run(lambda: 1)  # the place is free again

    asyncio.run(main())


def test_a_child_that_is_being_started_keeps_nobody_from_the_place(state_dir: Path) -> None:
    """Until it runs its own program, it has every file that this process had open."""
    waits, go = os.pipe()
    there, say = os.pipe()

    def before() -> None:
        os.write(say, b"x")
        os.read(waits, 1)

    starting = threading.Thread(target=lambda: subprocess.run(["true"], preexec_fn=before, check=True))
    with keeping.alone():
        starting.start()
        os.read(there, 1)
    try:
        with keeping.alone():
            pass
    finally:
        os.write(go, b"x")
        starting.join()
        for fd in (waits, go, there, say):
            os.close(fd)
