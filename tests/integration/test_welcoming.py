"""The first start: a folder is looked at without a trace, and what a person agrees to is done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm.api import look_at_folder, look_at_machine, set_up
from swarm.core.errors import UsageError
from swarm.core.mounts import Mount
from swarm.host import keyfile, settings
from swarm.host.identity import host_name, machine_name
from swarm.mailbox import init_mailbox
from swarm.mailbox.probe import look


def tree(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.mark.parametrize(
    ("place", "words", "good"),
    [
        ("new", "a new folder", True),
        ("empty", "an empty folder", True),
        ("mailbox", "a mailbox already", True),
        ("full", "is not empty: notes.txt", False),
        ("full/notes.txt", "is not a folder", False),
        ("none/new", "there is no folder", False),
        ("Dropbox/new", "is in a folder of Dropbox", False),
        ("gs://bucket", "gs:// is no mailbox: mount the share", False),
        ("s3:home", "one is written s3://bucket/prefix", False),
    ],
)
async def test_a_folder_is_looked_at_and_left_as_it_was(tmp_path: Path, place: str, words: str, good: bool) -> None:
    for name in ("empty", "full", "Dropbox"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    await init_mailbox(tmp_path / "mailbox")
    before = tree(tmp_path)
    found = await look_at_folder(place if ":" in place else str(tmp_path / place))
    assert tree(tmp_path) == before
    assert (found.fault is None) is good
    assert found.is_mailbox is (place == "mailbox")
    assert words in (found.fault or found.ticks[0]).detail
    assert found.fault is None or found.fault.remedy


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
async def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    found = await look_at_folder(str(tmp_path / "new"))
    tmp_path.chmod(0o700)
    assert found.fault is not None
    assert "cannot be written" in found.fault.detail


async def test_a_mount_that_will_not_do_is_told(tmp_path: Path) -> None:
    found, _ = await look(tmp_path / "new", mounts=lambda: [Mount(point=str(tmp_path), device="rclone:x", kind="fuse.rclone")])
    assert [tick.verdict for tick in found] == ["ok", "failed"]


async def test_setting_up_makes_the_mailbox_and_remembers_it(tmp_path: Path, state_dir: Path) -> None:
    assert settings.first_start()
    assert (await look_at_machine()).name == host_name()
    begun = await set_up(name="desk", folder=str(tmp_path / "swarm"), signed=True, train=False)
    assert (begun.mailbox, begun.run) == (str(tmp_path / "swarm"), "")
    found = settings.load()[0]
    assert (found.name, found.mailboxes) == ("desk", (begun.mailbox,))
    assert machine_name() == "desk"
    assert (await look_at_folder(begun.mailbox)).is_mailbox
    kept = keyfile.kept()
    assert kept is not None
    assert kept.passphrase == begun.passphrase
    again = await set_up(name="desk", folder=begun.mailbox, signed=True, train=False)
    assert again.passphrase == ""  # it has one
    machine = await look_at_machine()
    assert machine.fingerprint == kept.key.fingerprint
    assert not settings.first_start()


async def test_a_name_that_is_the_hosts_own_is_no_setting(tmp_path: Path, state_dir: Path) -> None:
    await set_up(name=host_name(), folder=str(tmp_path / "swarm"), signed=False, train=False)
    assert settings.load()[0].name == ""


async def test_a_folder_that_will_not_do_writes_nothing(tmp_path: Path, state_dir: Path) -> None:
    (tmp_path / "Dropbox").mkdir()
    before = tree(tmp_path)
    with pytest.raises(UsageError, match="Dropbox"):
        await set_up(name="desk", folder=str(tmp_path / "Dropbox" / "x"), signed=True, train=True)
    assert tree(tmp_path) == before
