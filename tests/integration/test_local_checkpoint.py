"""A learner's local checkpoint over real folders: killed anywhere, damaged anyhow, of somebody else."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import stat
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from swarm.core.errors import CheckpointUnsaved, UsageError
from swarm.runtime.local import Loaded, LocalCheckpoint, Unusable, folder_of, forget_old

DIGEST, MANIFEST = "ab" * 32, "cd" * 32
GROUP = folder_of("abcd1234", MANIFEST)
Sections = dict[str, dict[str, np.ndarray]]


def checkpoint(base: Path, **other: Any) -> LocalCheckpoint:
    who: dict[str, Any] = {
        "run": "abcd1234",
        "manifest_sha256": MANIFEST,
        "learner": "studio",
        "incarnation": 1,
        "schema_sha256": DIGEST,
    }
    return LocalCheckpoint(base, **(who | other))


def content(seed: int) -> tuple[Sections, dict[str, Any]]:
    rng = np.random.default_rng(seed)
    sections = {
        "params": {"fc1.weight": rng.standard_normal((3, 5)).astype(np.float32), "fc1.bias": np.zeros(0, np.float32)},
        "anchor.0": {"fc1.weight": rng.standard_normal((3, 5)).astype(ml_dtypes.bfloat16)},
        "optimizer": {"step": np.array(seed, np.uint64), "order": rng.permutation(7).astype(np.uint8)},
        "pending": {},
    }
    return sections, {"seed": seed, "random": {"state": 2**127 + seed}, "loss": [1.5, None]}


def save(local: LocalCheckpoint, seed: int) -> None:
    local.save(*content(seed))


def seed_of(found: Loaded | Unusable | None) -> int | None:
    """Which one it is: every byte of it."""
    if found is None:
        return None
    assert isinstance(found, Loaded), found
    seed = int(found.values["seed"])
    sections, values = content(seed)
    assert found.values == values
    assert_equal(found.sections, sections)
    return seed


def assert_equal(found: Sections, wanted: Sections) -> None:
    assert found.keys() == wanted.keys()
    for section, arrays in wanted.items():
        assert found[section].keys() == arrays.keys()
        for name, array in arrays.items():
            got = found[section][name]
            assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes()), (section, name)
            assert not got.flags.writeable


def on_disk(local: LocalCheckpoint) -> list[str]:
    """What a learner's folder holds: whole ones, and those being written or removed."""
    return sorted(os.listdir(local.folder)) if os.path.isdir(local.folder) else []


def files(local: LocalCheckpoint) -> tuple[Path, Path]:
    (name,) = on_disk(local)
    folder = Path(local.folder, name)
    assert sorted(os.listdir(folder)) == ["arrays.safetensors", "values.json"]
    return folder / "arrays.safetensors", folder / "values.json"


# What is saved


def test_there_is_none_at_first_and_asking_makes_nothing(tmp_path: Path) -> None:
    local = checkpoint(tmp_path / "state" / "checkpoints")
    assert local.load() is None
    local.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_last_one_is_loaded_by_the_next_incarnation(tmp_path: Path) -> None:
    local = checkpoint(tmp_path / "state" / "checkpoints")
    for seed in range(3):
        save(local, seed)
        assert len(on_disk(local)) == 1
    later = checkpoint(tmp_path / "state" / "checkpoints", incarnation=2)
    found = later.load()
    assert seed_of(found) == 2
    assert isinstance(found, Loaded)
    assert (found.incarnation, found.passed_over) == (1, None)
    save(later, 3)
    assert on_disk(later) == ["00000002-0000000001"]
    assert seed_of(later.load()) == 3


numbers = st.sampled_from(["<f4", "<f2", "<f8", ">f4", "<i8", "<u8", "|u1", "|b1", "<c8", ml_dtypes.bfloat16])
arrays = numbers.flatmap(
    lambda dtype: hnp.arrays(np.uint8, st.just(16 * np.dtype(dtype).itemsize)).flatmap(
        lambda raw: st.sampled_from(
            [
                raw.view(dtype)[:9].reshape(3, 3),
                raw.view(dtype)[::3],
                raw.view(dtype)[:8].reshape(2, 4).T,
                raw.view(dtype)[:5],
                raw.view(dtype)[:0],
                raw.view(dtype)[3].reshape(()),
            ]
        )
    )
)
names = st.text(st.characters(codec="utf-8"), max_size=8)
sections_of = st.dictionaries(st.from_regex(r"[a-z0-9._-]{1,6}", fullmatch=True), st.dictionaries(names, arrays, max_size=4))
values_of = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=8,
    ),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sections=sections_of, values=values_of)
def test_sections_and_values_come_back_as_they_were(tmp_path: Path, sections: Sections, values: dict[str, Any]) -> None:
    local = checkpoint(tmp_path)
    local.save(sections, values)
    found = local.load()
    assert isinstance(found, Loaded)
    assert_equal(found.sections, sections)
    assert repr(found.values) == repr(values)  # tells −0.0, NaN and True from 0.0, itself and 1


def test_the_arrays_are_a_safetensors_file(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    local = checkpoint(tmp_path)
    theta = np.arange(6, dtype=np.float32).reshape(2, 3)
    local.save({"params": {"w": theta}}, {})
    found = safetensors.load_file(files(local)[0])
    assert list(found) == ["params/w"]
    assert np.array_equal(found["params/w"], theta)


@pytest.mark.parametrize(
    ("sections", "values", "message"),
    [
        ({}, {1: "x"}, "1 is no text"),
        ({}, {"x": {"y": [{2: 0}]}}, "2 is no text"),
        ({}, {"x": (1, 2)}, "type tuple"),
        ({}, {"x": np.int64(3)}, "type int64"),
        ({}, {"x": b""}, "type bytes"),
        ({"Params": {}}, {}, "'Params' cannot name a section"),
        ({"a/b": {}}, {}, "cannot name a section"),
        ({"": {}}, {}, "cannot name a section"),
        ({"a": {"x": np.array([object()])}}, {}, "a/x: arrays of object"),
        ({"a": {"x": np.array(["text"])}}, {}, "a/x: arrays of <U4"),
        ({"a": {"x": np.zeros(2, "M8[s]")}}, {}, "a/x: arrays of datetime64"),
        ({"a": {"\ud800": np.zeros(1)}}, {}, "surrogates"),
    ],
)
def test_what_could_not_be_given_back_is_refused(tmp_path: Path, sections: Any, values: Any, message: str) -> None:
    local = checkpoint(tmp_path)
    save(local, 0)
    with pytest.raises(CheckpointUnsaved, match=message):
        local.save(sections, values)
    assert seed_of(local.load()) == 0


def test_names_that_could_leave_the_folder_are_refused(tmp_path: Path) -> None:
    for wrong in ({"run": "../abcd"}, {"learner": ".."}, {"learner": "a/b"}, {"run": ""}):
        with pytest.raises(UsageError):
            checkpoint(tmp_path, **wrong)


def test_saving_copies_nothing_and_loading_once(tmp_path: Path) -> None:
    local = checkpoint(tmp_path)
    theta = np.zeros(4 << 20, np.float32)
    moments = np.zeros(1 << 20, np.int64)
    tracemalloc.start()
    try:
        local.save({"params": {"w": theta}, "optimizer": {"m": moments}}, {})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.reset_peak()
        found = local.load()
        assert tracemalloc.get_traced_memory()[1] < theta.nbytes + moments.nbytes + (1 << 20)
        assert isinstance(found, Loaded)
        del found.sections["optimizer"]  # what was used is given back, section by section
        assert tracemalloc.get_traced_memory()[0] < theta.nbytes + (1 << 20)
    finally:
        tracemalloc.stop()


def test_remove_leaves_nothing(tmp_path: Path) -> None:
    local, other = checkpoint(tmp_path), checkpoint(tmp_path, learner="book")
    save(local, 0)
    save(other, 1)
    local.remove()
    assert local.load() is None
    assert seed_of(other.load()) == 1
    other.remove()
    assert list(tmp_path.iterdir()) == []


# Killed anywhere

CALLS = (
    "mkdir",
    "open",
    "write",
    "fsync",
    "close",
    "rename",
    "unlink",
    "rmdir",
    "lstat",
    "listdir",
    "scandir",
    "chmod",
    "utime",
)


class Killed(BaseException):
    """Not an Exception: nothing handles a kill."""


@contextmanager
def killed_after(monkeypatch: pytest.MonkeyPatch, calls: float) -> Iterator[list[str]]:
    """All system calls from that one on fail, those of handlers too; a write is cut in its middle. Yields the calls made."""
    made: list[str] = []

    def patched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(made) >= calls:
                if name == "close":
                    with suppress(OSError):  # a handler tries once more
                        real(*args)  # the system does so
                elif name == "write" and len(made) == calls:
                    real(args[0], bytes(args[1])[: len(args[1]) // 2])
                made.append(name)
                raise Killed
            made.append(name)
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, patched(name, getattr(os, name)))
        yield made


def how_many_calls(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None]) -> int:
    with killed_after(monkeypatch, float("inf")) as made:
        call()
    return len(made)


def kill(monkeypatch: pytest.MonkeyPatch, call: Callable[[], None], after: int) -> None:
    with killed_after(monkeypatch, after), pytest.raises(Killed):
        call()


def test_a_kill_during_the_first_save_leaves_it_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = how_many_calls(monkeypatch, lambda: save(checkpoint(tmp_path / "whole"), 0))
    assert total > 20
    outcomes = []
    for after in range(total):
        local = checkpoint(tmp_path / str(after))
        kill(monkeypatch, lambda local=local: save(local, 0), after)
        outcomes.append(seed_of(local.load()))
        assert len(on_disk(local)) <= 1
        save(local, 1)
        assert seed_of(local.load()) == 1
        assert len(on_disk(local)) == 1
    assert set(outcomes) == {None, 0}
    assert outcomes == sorted(outcomes, key=lambda seed: seed is not None)  # once it is there, it stays


def test_a_kill_during_a_later_save_leaves_that_or_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checkpoint(tmp_path / "whole")
    save(whole, 0)
    total = how_many_calls(monkeypatch, lambda: save(whole, 1))
    outcomes = []
    for after in range(total):
        local = checkpoint(tmp_path / str(after))
        save(local, 0)
        kill(monkeypatch, lambda local=local: save(local, 1), after)
        outcomes.append(seed_of(local.load()))
        assert len(on_disk(local)) <= 2
        later = checkpoint(tmp_path / str(after), incarnation=2)
        assert seed_of(later.load()) == outcomes[-1]
        save(later, 2)
        assert seed_of(later.load()) == 2
        assert len(on_disk(later)) == 1
    assert set(outcomes) == {0, 1}
    assert outcomes == sorted(outcomes)


@pytest.mark.parametrize("seed", range(3))
def test_one_kill_after_another_never_leaves_more_than_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    local = checkpoint(tmp_path)
    save(local, 0)
    last = 0
    for attempt in range(1, 60):
        local = checkpoint(tmp_path, incarnation=1 + attempt // 7)
        with killed_after(monkeypatch, rng.randrange(60)), suppress(Killed):
            save(local, attempt)
        found = seed_of(local.load())
        assert found in (last, attempt)
        last = found
        assert len(on_disk(local)) <= 2
        assert os.listdir(tmp_path) == [GROUP]


def test_a_kill_while_it_is_removed_leaves_it_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = checkpoint(tmp_path / "whole")
    save(whole, 0)
    for after in range(how_many_calls(monkeypatch, whole.remove)):
        base = tmp_path / str(after)
        local = checkpoint(base)
        save(local, 0)
        kill(monkeypatch, local.remove, after)
        assert seed_of(local.load()) in (None, 0)
        forget_old(base, keep=(), now_s=10**10)
        assert os.listdir(base) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says which file a descriptor is")
def test_a_whole_one_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of the calls that a power cut would tell apart."""
    local = checkpoint(tmp_path)
    save(local, 0)
    order: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else args[0]
            tail = str(path).removeprefix(local.folder).strip("/")
            order.append(
                f"{name} {'staged' if tail.startswith('new-') else tail}{'/' * tail.count('/')}{tail.partition('/')[2]}"
            )
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("fsync", "rename"):
            patch.setattr(os, name, noted(name, getattr(os, name)))
        save(local, 1)
    assert order == [
        "fsync staged/arrays.safetensors",
        "fsync staged/values.json",
        "fsync staged",
        "rename staged",
        "fsync ",
        "rename 00000001-0000000001",
    ]


# A disk that is full


@pytest.mark.parametrize("call", ["mkdir", "open", "write", "fsync", "close", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_fails_keeps_the_one_before_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    local = checkpoint(tmp_path)
    save(local, 0)
    real = getattr(os, call)

    def fail(*args: Any, **kwargs: Any) -> Any:
        if call == "close":
            real(*args)
        if call == "write" and written:
            real(args[0], bytes(args[1])[: written.pop()])
        raise OSError(number, os.strerror(number))

    written = [3]
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(CheckpointUnsaved, match=f"{local.folder}: cannot be saved: {os.strerror(number)}"):
            save(local, 1)
    assert seed_of(local.load()) == 0
    assert len(on_disk(local)) <= 2
    if call in ("write", "fsync", "mkdir", "open"):  # what could be taken back was, or the disk would stay full
        assert len(on_disk(local)) == 1 or call == "open"
    save(local, 2)
    assert seed_of(local.load()) == 2
    assert len(on_disk(local)) == 1


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    local = checkpoint(tmp_path / "file" / "checkpoints")
    with pytest.raises(CheckpointUnsaved, match="Not a directory"):
        save(local, 0)
    assert isinstance(local.load(), Unusable)
    local.remove()


# Damage


def reason(local: LocalCheckpoint) -> str:
    found = local.load()
    assert isinstance(found, Unusable), found
    assert found.reason
    assert "\n" not in found.reason
    return found.reason


def test_every_flipped_bit_and_every_cut_is_noticed(tmp_path: Path) -> None:
    local = checkpoint(tmp_path)
    save(local, 0)
    rng = random.Random(0)
    for path in files(local):
        whole = path.read_bytes()
        for at in range(len(whole)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            reason(local)
        for size in {0, 1, 7, 8, 9, len(whole) // 2, len(whole) - 1}:
            path.write_bytes(whole[:size])
            reason(local)
        for more in (b"\0", b"\n", b"{}", whole):
            path.write_bytes(whole + more)
            reason(local)
        path.write_bytes(whole)
        assert seed_of(local.load()) == 0


def test_a_damaged_one_is_saved_over(tmp_path: Path) -> None:
    local = checkpoint(tmp_path)
    save(local, 0)
    files(local)[1].write_bytes(b"")
    assert reason(local) == "its values are damaged"
    save(local, 1)
    assert seed_of(local.load()) == 1


def test_half_of_one_is_none(tmp_path: Path) -> None:
    for which in (0, 1):
        local = checkpoint(tmp_path / str(which))
        save(local, 0)
        files(local)[which].unlink()
        assert reason(local) == "it cannot be read: No such file or directory"


def test_the_one_before_is_taken_if_the_newest_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = checkpoint(tmp_path)
    save(local, 0)
    with monkeypatch.context() as patch:
        patch.setattr(LocalCheckpoint, "_tidy", lambda self: self._generations()[-1])
        save(local, 1)
    assert len(on_disk(local)) == 2
    newest = Path(local.folder, on_disk(local)[-1], "arrays.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1])
    found = local.load()
    assert seed_of(found) == 0
    assert isinstance(found, Loaded)
    assert found.passed_over is not None
    assert "bytes, and should have" in found.passed_over


def rewrite(local: LocalCheckpoint, change: Callable[[dict[str, Any]], Any]) -> None:
    """Values that are whole, and not what they should be."""
    path = files(local)[1]
    fields = json.loads(path.read_bytes().partition(b"\n")[0])
    changed = change(fields)
    line = json.dumps(fields if changed is None else changed).encode()
    path.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(format=2), "it has format 2, and this swarm reads format 1"),
        (lambda f: f.update(format=None), "it has format None"),
        (lambda f: [], "not what they should be"),
        (lambda f: "text", "not what they should be"),
        (lambda f: {}, "not what they should be"),
        (lambda f: {"format": 1}, "not what they should be"),
        (lambda f: f.update(values=[]), "not what they should be"),
        (lambda f: f.update(incarnation="1"), "not what they should be"),
        (lambda f: f.update(incarnation=7), "it is of incarnation 7, not 1"),
        (lambda f: f.update(run="other123"), "it is of run other123, not abcd1234"),
        (lambda f: f.update(learner="book"), "it is of learner book, not studio"),
        (lambda f: f.update(sections=["params"]), "it has no section"),
        (lambda f: f.update(sha256="0" * 64), "its arrays are damaged"),
        (lambda f: f["plain"]["optimizer/order"].update(dtype="O"), "no array of object"),
        (lambda f: f["plain"]["optimizer/order"].update(dtype="huh"), "is not what it should be"),
        (lambda f: f["plain"]["optimizer/order"].update(shape=[70]), "is not what it should be"),
        (lambda f: f["plain"]["optimizer/order"].update(shape=[-1]), "is not what it should be"),
        (lambda f: f["plain"]["optimizer/step"].update(shape=[2**62]), "is not what it should be"),
    ],
)
def test_what_is_whole_and_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    local = checkpoint(tmp_path)
    save(local, 0)
    rewrite(local, change)
    assert message in reason(local)


# Somebody else's


def test_one_of_another_model_is_refused(tmp_path: Path) -> None:
    save(checkpoint(tmp_path), 0)
    other = checkpoint(tmp_path, schema_sha256="cd" * 32)
    assert reason(other) == "it is of a model with the schema abababababab, not cdcdcdcdcdcd"


def test_runs_and_learners_do_not_see_each_others(tmp_path: Path) -> None:
    save(checkpoint(tmp_path), 0)
    assert checkpoint(tmp_path, run="other123").load() is None
    assert checkpoint(tmp_path, learner="book").load() is None


def test_one_that_was_copied_from_another_learner_is_refused(tmp_path: Path) -> None:
    save(checkpoint(tmp_path), 0)
    (tmp_path / GROUP / "studio").rename(tmp_path / GROUP / "book")
    assert reason(checkpoint(tmp_path, learner="book")) == "it is of learner studio, not book"


def test_an_earlier_incarnation_never_replaces_what_a_later_one_saved(tmp_path: Path) -> None:
    stale, later = checkpoint(tmp_path, incarnation=1), checkpoint(tmp_path, incarnation=2)
    save(stale, 0)
    save(later, 1)
    with pytest.raises(CheckpointUnsaved, match="incarnation 2 of this learner has saved a newer state"):
        save(stale, 2)
    assert "incarnation 2 saved it, and this is an earlier one, 1" in reason(stale)
    stale.remove()
    assert seed_of(later.load()) == 1


def test_an_earlier_incarnation_that_is_overtaken_while_it_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of its calls: the later one saves, and its state stays, whatever becomes of the earlier one's."""
    whole = checkpoint(tmp_path / "whole")
    save(whole, 0)
    total = how_many_calls(monkeypatch, lambda: save(whole, 1))
    told = 0
    for at in range(total):
        stale, later = (checkpoint(tmp_path / str(at), incarnation=k) for k in (1, 2))
        save(stale, 0)
        left = [at]

        def patched(real: Callable[..., Any], left: list[int] = left, later: LocalCheckpoint = later) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                left[0] -= 1
                if left[0] == -1:
                    save(later, 2)
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, patched(getattr(os, name)))
            try:
                save(stale, 1)
            except CheckpointUnsaved:
                told += 1
        assert seed_of(later.load()) == 2
        save(later, 3)
        assert seed_of(later.load()) == 3
        assert len(on_disk(later)) == 1
    assert told > 3


def test_what_a_later_incarnation_is_writing_is_left_alone(tmp_path: Path) -> None:
    local = checkpoint(tmp_path, incarnation=3)
    save(local, 0)
    theirs, mine = (f"new-{k:08d}-{'0' * 32}" for k in (4, 3))
    for name in (theirs, mine):
        Path(local.folder, name).mkdir()
    save(local, 1)
    assert theirs in on_disk(local)
    assert mine not in on_disk(local)


def test_nobody_else_may_look_inside(tmp_path: Path) -> None:
    local = checkpoint(tmp_path / "checkpoints")
    save(local, 0)
    folder, group = Path(local.folder), Path(local.folder).parent
    for path in (tmp_path / "checkpoints", group, folder):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in files(local):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    folder.chmod(0o777)
    assert seed_of(local.load()) == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("level", ["run", "learner"])
def test_no_link_is_followed_out_of_the_folder(tmp_path: Path, level: str) -> None:
    elsewhere, base = tmp_path / "elsewhere", tmp_path / "base"
    save(checkpoint(elsewhere), 0)
    before = sorted(elsewhere.rglob("*"))
    if level == "run":
        base.mkdir()
        (base / GROUP).symlink_to(elsewhere / GROUP)
    else:
        (base / GROUP).mkdir(parents=True)
        (base / GROUP / "studio").symlink_to(elsewhere / GROUP / "studio")
    local = checkpoint(base)
    assert "is no folder" in reason(local)
    with pytest.raises(CheckpointUnsaved, match="is no folder"):
        save(local, 1)
    local.remove()
    forget_old(base, keep=(), now_s=10**10)
    assert sorted(elsewhere.rglob("*")) == before
    assert seed_of(checkpoint(elsewhere).load()) == 0


def test_a_file_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    local = checkpoint(tmp_path / "base")
    save(local, 0)
    for path in files(local):
        whole = tmp_path / path.name
        path.rename(whole)
        path.symlink_to(whole)
        assert "cannot be read" in reason(local)
        path.unlink()
        whole.rename(path)
    assert seed_of(local.load()) == 0


def test_another_users_folder_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = checkpoint(tmp_path)
    save(local, 0)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert "belongs to another user" in reason(local)
    with pytest.raises(CheckpointUnsaved, match="belongs to another user"):
        save(local, 1)


# Cleaning

DAY_S = 86400.0


def of(run: str) -> str:
    return folder_of(run, MANIFEST)


def seen(base: Path, run: str, at_s: float, *, learner: str = "studio") -> None:
    save(checkpoint(base, run=run, learner=learner), 0)
    for path in (base / of(run) / learner, base / of(run)):
        os.utime(path, (at_s, at_s))


def test_runs_unseen_for_a_month_are_forgotten(tmp_path: Path) -> None:
    now_s = 1e9
    seen(tmp_path, "old1", now_s - 31 * DAY_S)
    seen(tmp_path, "kept", now_s - 31 * DAY_S)
    seen(tmp_path, "new1", now_s - 29 * DAY_S)
    seen(tmp_path, "both", now_s - 40 * DAY_S)
    seen(tmp_path, "both", now_s - 1 * DAY_S, learner="book")
    os.utime(tmp_path / of("both"), (now_s - 40 * DAY_S,) * 2)
    seen(tmp_path, "next", now_s + 5 * DAY_S)  # a clock that was set back
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "Some-Folder").mkdir()
    assert forget_old(tmp_path, keep={of("kept")}, now_s=now_s) == [of("old1")]
    assert sorted(os.listdir(tmp_path)) == sorted(["Some-Folder", *map(of, ("both", "kept", "new1", "next")), "notes.txt"])
    assert seed_of(checkpoint(tmp_path, run="kept").load()) == 0


def test_loading_counts_as_seeing(tmp_path: Path) -> None:
    seen(tmp_path, "abcd1234", 1e9)
    assert seed_of(checkpoint(tmp_path).load()) == 0
    assert forget_old(tmp_path, keep=(), now_s=1e9 + 31 * DAY_S) == []


def test_together_they_are_bounded_and_the_longest_unseen_go_first(tmp_path: Path) -> None:
    now_s = 1e9
    for age, run in enumerate(("run1", "run2", "run3", "run4"), start=1):
        seen(tmp_path, run, now_s - age * DAY_S)
    one = sum(path.stat().st_size for path in (tmp_path / of("run1")).rglob("*") if path.is_file())
    assert forget_old(tmp_path, keep=(), now_s=now_s, total_bytes=4 * one) == []
    assert forget_old(tmp_path, keep={of("run4")}, now_s=now_s, total_bytes=2 * one + 1) == [of("run3"), of("run2")]
    assert sorted(os.listdir(tmp_path)) == [of("run1"), of("run4")]


def test_there_may_be_nothing_to_forget(tmp_path: Path) -> None:
    assert forget_old(tmp_path / "absent", keep=(), now_s=0.0) == []
    (tmp_path / "file").touch()
    assert forget_old(tmp_path / "file", keep=(), now_s=0.0) == []


# Runs of one id


def test_another_run_of_the_same_id_finds_nothing_and_is_not_in_the_way(tmp_path: Path) -> None:
    """One that was made anew after it was removed, or that lies in another mailbox."""
    former = checkpoint(tmp_path, incarnation=7)
    save(former, 0)
    later = checkpoint(tmp_path, manifest_sha256="ef" * 32)
    assert later.load() is None
    save(later, 1)
    assert (seed_of(former.load()), seed_of(later.load())) == (0, 1)
    later.remove()
    assert (seed_of(former.load()), later.load()) == (0, None)
