"""The cache on this machine: bounded, the oldest-used goes first, and never what somebody uses."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.core.errors import CacheUnusable
from swarm.core.manifest import FileRef
from swarm.files.cache import SPARE_BYTES, Cache
from swarm.host.paths import cache_dir

ROOT = Path(__file__).parents[3]
KB = 1000


def content(name: str, size: int = KB) -> bytes:
    return (name * size).encode()[:size]


def ref_of(name: str, size: int = KB) -> FileRef:
    return FileRef(
        name=f"{name}.txt",
        kind="data",
        sha256=hashlib.sha256(content(name, size)).hexdigest(),
        size_bytes=size,
        chunk_bytes=KB,
        hashes_sha256="0" * 64,
    )


class Disk:
    """A cache folder, a clock that ticks with every use, and a disk with room."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s, self.free_bytes = root, 1000.0, 1 << 40

    def _now(self) -> float:
        self.now_s += 1
        return self.now_s

    def cache(self, limit_bytes: int = 3 * KB) -> Cache:
        return Cache(self.root, limit_bytes=limit_bytes, free_bytes=lambda _: self.free_bytes, now=self._now)

    def add(self, cache: Cache, name: str, size: int = KB) -> Path:
        """As a fetch does it."""
        ref = ref_of(name, size)
        partial = cache.begin(ref)
        assert partial is not None
        with partial:
            cache.make_room(ref, partial.path, 0)
            partial.write(0, memoryview(content(name, size)))
            return partial.finish()

    def kept(self, *names: str) -> str:
        return "".join(name for name in names if (self.root / "files" / ref_of(name).sha256).exists())


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path / "cache")


def test_making_one_touches_nothing(disk: Disk) -> None:
    with disk.cache() as cache:
        assert cache.find(ref_of("a")) is None
        assert cache.partial_bytes(ref_of("a")) == 0
    assert not disk.root.exists()


def test_it_is_where_the_environment_says(state_dir: Path) -> None:
    assert Cache().root == cache_dir() == state_dir.parent / "cache"


def test_the_oldest_used_goes_first(disk: Disk) -> None:
    for name in "abc":
        with disk.cache() as cache:
            disk.add(cache, name)
    with disk.cache() as cache:
        assert cache.find(ref_of("a")) is not None  # used once more
    with disk.cache() as cache:
        disk.add(cache, "d")
        assert disk.kept(*"abcd") == "acd"
        disk.add(cache, "e")
        assert disk.kept(*"abcde") == "ade"


def test_what_is_in_use_stays(disk: Disk) -> None:
    with disk.cache() as user, disk.cache() as other:
        disk.add(user, "a")
        with disk.cache() as cache:
            disk.add(cache, "b")
        assert other.find(ref_of("b")) is not None
        with disk.cache() as cache:
            disk.add(cache, "c")
        with disk.cache() as cache:
            disk.add(cache, "d")
            assert disk.kept(*"abcd") == "abd"
            with pytest.raises(CacheUnusable, match="in use included"):
                disk.add(cache, "e")
            assert disk.kept(*"abcde") == "abd"
    with disk.cache() as cache:
        disk.add(cache, "e")


def test_what_could_never_fit_throws_nothing_away(disk: Disk) -> None:
    with disk.cache() as cache:
        disk.add(cache, "a")
    with disk.cache() as cache, pytest.raises(CacheUnusable, match=r"'x\.txt', 3\.00 kB"):
        disk.add(cache, "x", 3 * KB + 1)
    assert disk.kept("a") == "a"


def test_a_full_disk_is_made_room_on(disk: Disk) -> None:
    for name in "ab":
        with disk.cache() as cache:
            disk.add(cache, name)
    disk.free_bytes = SPARE_BYTES + KB - 1
    with disk.cache() as cache, pytest.raises(CacheUnusable, match="are free"):
        disk.add(cache, "c")
    assert disk.kept(*"ab") == ""  # it has tried
    disk.free_bytes = SPARE_BYTES + KB
    with disk.cache() as cache:
        disk.add(cache, "c")


def test_one_that_is_being_fetched_counts_with_what_it_will_need(disk: Disk) -> None:
    with disk.cache() as one, disk.cache() as other:
        partial = one.begin(ref_of("a", 2 * KB))
        assert partial is not None
        with partial:
            with pytest.raises(CacheUnusable):
                disk.add(other, "b", 2 * KB)
            disk.add(other, "b")
        disk.add(other, "c", 2 * KB)  # nobody fetches the first any more
        assert list((disk.root / "partial").iterdir()) == []


def test_one_at_a_time_fetches_a_file(disk: Disk) -> None:
    ref = ref_of("a")
    with disk.cache() as one, disk.cache() as other:
        partial = one.begin(ref)
        assert partial is not None
        with partial:
            assert other.begin(ref) is None
            partial.write(0, memoryview(content("a")[:10]))
            assert other.partial_bytes(ref) == 10
            second = other.begin(ref, 1)
            assert second is not None
            with second:
                second.write(0, memoryview(content("a")))
                there = second.finish()
            partial.write(10, memoryview(content("a")[10:]))
            assert partial.finish() == there
        assert there.read_bytes() == content("a")
        assert one.find(ref) == other.find(ref) == there


def test_a_process_that_was_killed_gives_its_locks_back(disk: Disk) -> None:
    ref = ref_of("a")
    code = (
        "import os, sys; from pathlib import Path; from tests.unit.files.test_cache import *\n"
        "cache = Disk(Path(sys.argv[1])).cache()\n"
        "partial = cache.begin(ref_of('a')); partial.write(0, memoryview(content('a')[:500])); print(flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(disk.root)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with disk.cache() as cache:
            assert cache.begin(ref) is None
            process.kill()
            process.wait()
            partial = cache.begin(ref)
            assert partial is not None
            with partial:
                assert partial.read(0, KB) == content("a")[:500]


def test_files_are_the_users_own_and_never_executable(disk: Disk) -> None:
    before = os.umask(0)
    try:
        with disk.cache() as cache:
            there = disk.add(cache, "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE(there.stat().st_mode) == 0o600
    assert "." not in there.name
    assert stat.S_IMODE(there.parent.stat().st_mode) == 0o700


def test_links_and_strangers_in_it_are_let_alone(disk: Disk, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(content("a"))
    with disk.cache() as cache:
        disk.add(cache, "b")
    (disk.root / "files" / "notes.txt").write_bytes(bytes(100 * KB))
    (disk.root / "files" / ref_of("a").sha256).symlink_to(outside)
    with disk.cache() as cache:
        with pytest.raises(CacheUnusable):
            cache.find(ref_of("a"))
        (disk.root / "files" / ref_of("a").sha256).unlink()
        disk.add(cache, "c")
    assert disk.kept(*"bc") == "bc"
    assert outside.read_bytes() == content("a")
    assert (disk.root / "files" / "notes.txt").exists()


def test_a_models_folder_goes_with_its_files(disk: Disk) -> None:
    refs = (ref_of("a"), ref_of("b"))
    with disk.cache() as cache:
        for name in "ab":
            disk.add(cache, name)
        folder = cache.folder(refs)
        assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "b.txt"]
        assert (folder / "a.txt").read_bytes() == content("a")
        assert cache.folder(refs[::-1]) == folder
        assert cache.folder(refs[:1]) != folder
    with disk.cache() as cache:
        for name in "cde":
            disk.add(cache, name)
        assert disk.kept(*"abcde") == "cde"
        assert list((disk.root / "folders").iterdir()) == []
