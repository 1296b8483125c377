"""Where a mailbox is on this machine: known folders and mounts, some of which hang."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.core.mounting import Way
from swarm.host import mounts as module
from swarm.host.mounts import Finder, desktop, mailboxes_in, may_hold, mount, mounts_here
from swarm.mailbox.folder_init import init_folder

SMB = ("//nas/swarm", "cifs")


@pytest.fixture
def shares(tmp_path: Path) -> Path:
    """Three mounts: a mailbox at the top, one in a folder, and one without any."""
    for name in ("top", "deep/a/inner", "deep/b", "bare/x/y"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def table(*points: Path) -> dict[str, tuple[str, str]]:
    return {str(point): SMB for point in points}


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, threading.Event]]:
    """Paths that hang whoever looks there, until their event is set."""
    held: dict[str, threading.Event] = {}
    real = module.mailboxes_in

    def look(path: str, *, deep: bool) -> dict[str, str]:
        if path in held:
            held[path].wait(60)
        return real(path, deep=deep)

    monkeypatch.setattr(module, "mailboxes_in", look)
    yield held
    for event in held.values():
        event.set()


async def test_at_the_top_of_a_mount_and_one_folder_below_and_no_deeper(shares: Path) -> None:
    top = init_folder(str(shares / "top"))
    inner = init_folder(str(shares / "deep/b"))
    hidden = init_folder(str(shares / "bare/x/y"))
    finder = Finder(mounts=lambda: table(shares / "top", shares / "deep", shares / "bare"), mounted=(), again_s=0.0)
    assert (await finder.find(top)).location == str(shares / "top")
    assert (await finder.find(inner)).location == str(shares / "deep/b")
    assert (await finder.find(hidden)).location is None
    assert (await finder.find(hidden, below="x/y")).location == str(shares / "bare/x/y")  # what the URL tells
    assert (await finder.find("0" * 32)).looked == 3


async def test_known_folders_come_first_and_need_no_mount(shares: Path) -> None:
    ident = init_folder(str(shares / "top"))
    finder = Finder(mounts=lambda: table(shares / "top"), mounted=())
    (shares / "link").symlink_to(shares / "top")
    assert (await finder.find(ident, (str(shares / "link"), "s3://bucket/x"))).location == str(shares / "link")
    assert (await Finder(mounts=dict, mounted=()).find(ident, (str(shares / "gone"), str(shares / "top")))).location == str(
        shares / "top"
    )


async def test_a_mailbox_of_another_id_is_not_taken(shares: Path) -> None:
    init_folder(str(shares / "top"))
    found = await Finder(mounts=lambda: table(shares / "top"), mounted=()).find("0" * 32, (str(shares / "top"),))
    assert found.location is None
    assert found.hanging == ()


async def test_gnomes_mounts_are_folders_in_one(shares: Path) -> None:
    (shares / "gvfs/smb-share:server=nas,share=swarm").mkdir(parents=True)
    ident = init_folder(str(shares / "gvfs/smb-share:server=nas,share=swarm"))
    finder = Finder(mounts=lambda: {str(shares / "gvfs"): ("gvfsd-fuse", "fuse.gvfsd-fuse")}, mounted=(str(shares / "gvfs"),))
    assert (await finder.find(ident)).location == str(shares / "gvfs/smb-share:server=nas,share=swarm")


async def test_a_mount_that_hangs_holds_up_no_other_one_and_is_named(shares: Path, stuck: dict[str, threading.Event]) -> None:
    dead, top = str(shares / "bare"), str(shares / "top")
    stuck[dead] = threading.Event()
    ident = init_folder(top)
    finder = Finder(mounts=lambda: table(shares / "bare", shares / "top"), mounted=(), timeout_s=0.1, again_s=0.0)
    found = await finder.find(ident)
    assert found.location == top
    found = await finder.find("0" * 32)
    assert found == module.Found(None, looked=1, hanging=(dead,))


async def test_one_that_hangs_is_asked_once_and_counts_again_when_it_answers(
    shares: Path, stuck: dict[str, threading.Event]
) -> None:
    dead = str(shares / "bare")
    stuck[dead] = threading.Event()
    ident = init_folder(dead + "/new")
    finder = Finder(mounts=lambda: table(shares / "bare"), mounted=(), timeout_s=0.05, again_s=0.0)
    before = threading.active_count()
    for _ in range(5):
        assert (await finder.find(ident)).hanging == (dead,)
    assert threading.active_count() <= before + 1  # one thread waits there, however often it is looked for
    stuck[dead].set()
    for _ in range(1000):
        if (found := await finder.find(ident)).location is not None:
            break
        await asyncio.sleep(0.01)
    assert found.location == dead + "/new"


async def test_it_is_found_when_it_is_mounted_at_last_and_lost_when_it_goes(shares: Path) -> None:
    ident = init_folder(str(shares / "top"))
    mounted: dict[str, tuple[str, str]] = {}
    finder = Finder(mounts=lambda: mounted, mounted=())
    assert (await finder.find(ident)).location is None
    mounted.update(table(shares / "top"))
    assert (await finder.find(ident)).location == str(shares / "top")
    mounted.clear()
    assert (await finder.find(ident)).location is None


def test_links_and_files_are_no_folders_and_nothing_is_written(shares: Path) -> None:
    init_folder(str(shares / "top"))
    (shares / "deep/link").symlink_to(shares / "top")
    (shares / "deep/file").touch()
    before = sorted(shares.rglob("*"))
    assert mailboxes_in(str(shares / "deep"), deep=True) == {}
    assert mailboxes_in(str(shares / "nowhere"), deep=True) == {}
    assert sorted(shares.rglob("*")) == before


@pytest.mark.parametrize(
    ("point", "kind", "expected"),
    [
        ("/home/ann/nas", "cifs", True),
        ("/srv/nfs", "nfs4", True),
        ("/Volumes/swarm", "smbfs", True),
        ("/Volumes/disk", "apfs", True),
        ("/home/ann/x", "fuse.sshfs", True),
        ("/mnt/disk", "ext4", True),
        ("/media/ann/stick", "vfat", True),
        ("/", "ext4", False),
        ("/boot", "vfat", False),
        ("/proc", "proc", False),
        ("/sys/fs/fuse/connections", "fusectl", False),
        ("/run/user/1000/doc", "fuse.portal", False),
        ("/mnt/auto", "autofs", False),
        ("/Volumes/.timemachine/x", "apfs", False),
    ],
)
def test_what_may_be_a_share(point: str, kind: str, expected: bool) -> None:
    assert may_hold(point, kind) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="needs a mount namespace")
def test_a_mailbox_that_is_mounted_elsewhere_is_found_by_the_systems_own_table(tmp_path: Path) -> None:
    served, point = tmp_path / "served", tmp_path / "mnt"
    for folder in (served, point):
        folder.mkdir()
    ident = init_folder(str(served))
    code = (
        "import asyncio, sys; from swarm.host import mounts; mounts._BESIDE = (sys.argv[2],)\n"
        "print(asyncio.run(mounts.Finder(mounted=()).find(sys.argv[1])).location)"
    )
    script = f'mkdir -p "$1" && mount --bind "$2" "$1" && exec "{sys.executable}" -c "$3" "$4" "$5"'
    argv = ["unshare", "--mount", "--map-root-user", "sh", "-c", script, "sh"]
    done = subprocess.run(
        [*argv, str(point / "nas"), str(served), code, ident, str(point)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode and ("unshare" in done.stderr or "mount:" in done.stderr):
        pytest.skip(f"no mounts here: {done.stderr.strip()}")
    assert done.stdout.strip() == str(point / "nas"), done.stderr


def test_this_systems_own_table_and_desktop() -> None:
    assert "/" in mounts_here()
    assert desktop().system == sys.platform


def test_mounting_runs_one_command_without_a_shell_and_tells_its_last_words(tmp_path: Path) -> None:
    touched = tmp_path / "a b;$(c)"
    assert mount(Way(words=(), argv=("touch", str(touched))), quiet=True) == ""
    assert touched.exists()
    failing = (sys.executable, "-c", "import sys; print('first', file=sys.stderr); print('last', file=sys.stderr); sys.exit(3)")
    assert mount(Way(words=(), argv=failing), quiet=True) == "last"
    assert "no-such-command" in mount(Way(words=(), argv=("no-such-command",)), quiet=True)
    assert mount(Way(words=()), quiet=True) != ""
