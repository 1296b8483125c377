"""A learner's local checkpoint: what the next process that holds the learner's id goes on from.

<base>/                                this user's alone, on this machine
  <run>-<manifest>/<learner>/          32 digits of the SHA-256 of the run's manifest: an id alone may be another run's later
    <incarnation:08d>-<n:010d>/        a whole one; the last in order counts, and the ones before it go
      arrays.safetensors               every array, as '<section>/<name>'
      values.json                      line 1: whose it is, the values, size and hash of the arrays; line 2: line 1's SHA-256
    new-<incarnation:08d>-<random>/    being written, or left over
    old-<random>/                      being removed, or left over
  old-<random>/                        the same, of a whole run or learner

A whole one is synced before the rename that gives it its name, and the one before it is removed after that: a process killed
at any instruction leaves one that can be read, and at most two on the disk. Whatever is wrong with it is told in words and
costs the resumption, never the learner.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from numpy.typing import NDArray

from swarm.core.errors import CheckpointUnsaved, HeaderError
from swarm.core.ids import learner_id, run_id
from swarm.core.manifest import Manifest
from swarm.core.records import LearnerRecord
from swarm.mailbox import disk
from swarm.runtime.sections import ARRAYS, FORMAT, VALUES, Head, Refused, check_json, flat, read_arrays, read_head, write
from swarm.tensors.payload import Packed

UNSEEN_S = 30 * 86400.0
TOTAL_BYTES = 20 << 30

_GENERATION = re.compile(r"(\d{8})-(\d{10})")
_NEW = re.compile(r"new-(\d{8})-[0-9a-f]{32}")
_RUN = re.compile(r"[a-z0-9]{4,32}(-[0-9a-f]{32})?")
_OLD = re.compile(r"old-[0-9a-f]{32}")


@dataclass(frozen=True)
class Loaded:
    """What was saved. The arrays are read-only, those of one section in one memory of its own."""

    sections: dict[str, dict[str, NDArray[Any]]]
    values: dict[str, Any]
    incarnation: int  # that saved it
    passed_over: str | None = None  # what is wrong with a newer one, if so


@dataclass(frozen=True)
class Unusable:
    """There is one, and it cannot be used."""

    reason: str


class LocalCheckpoint:
    """Of one learner in one run, held by one incarnation. One thread at a time. `base` is made when something is saved."""

    def __init__(
        self, base: Path, *, run: str, manifest_sha256: str, learner: str, incarnation: int, schema_sha256: str
    ) -> None:
        self._base = str(base)
        self._run, self._learner = run_id(run), learner_id(learner)  # which makes them safe as names of folders
        self._incarnation, self._schema_sha256 = incarnation, schema_sha256
        self._group = folder_of(run, manifest_sha256)
        self.folder = f"{self._base}/{self._group}/{learner}"

    def save(self, sections: Mapping[str, Mapping[str, NDArray[Any]]], values: Mapping[str, Any]) -> None:
        """In place of the one before. On the disk when this returns.

        The arrays are read where they lie, and must not change meanwhile. `values` is what JSON can hold, with text as
        keys; numbers that are not finite may be among it. A section's name is of a-z, 0-9, '.', '_' and '-'. Raises
        CheckpointUnsaved if this cannot be saved, or a higher incarnation has saved one: the one before is then as it was.
        """
        try:
            check_json(dict(values))
            arrays, plain = flat(sections)
            packed = Packed(arrays)
            self._make_folder()
            before = self._tidy()
            if before is not None and before[0] > self._incarnation:
                raise CheckpointUnsaved(f"{self.folder}: incarnation {before[0]} of this learner has saved a newer state")
            head = Head(
                format=FORMAT,
                run=self._run,
                learner=self._learner,
                incarnation=self._incarnation,
                schema_sha256=self._schema_sha256,
                size_bytes=packed.size_bytes,
                sha256="",
                sections=sorted(sections),
                plain=plain,
                values=dict(values),
            )
            number = before[1] + 1 if before is not None and before[0] == self._incarnation else 1
            self._write(packed, head, f"{self._incarnation:08d}-{number:010d}")
        except OSError as error:
            raise CheckpointUnsaved(f"{self.folder}: cannot be saved: {error.strerror or error}") from error
        except (ValueError, TypeError, RecursionError) as error:
            raise CheckpointUnsaved(f"{self.folder}: cannot be saved: {error}") from error
        with suppress(OSError):  # it is saved; what is left over goes the next time
            self._tidy()

    def load(self) -> Loaded | Unusable | None:
        """The newest one that can be used; None if there is none at all."""
        reasons: list[str] = []
        try:
            for generation in reversed(self._generations()):
                try:
                    loaded = self._read(generation, reasons[0] if reasons else None)
                except OSError as error:
                    reasons.append(f"it cannot be read: {error.strerror or error}")
                except HeaderError as error:
                    reasons.append(f"its arrays are damaged: {error}")
                except Refused as error:
                    reasons.append(str(error))
                else:
                    with suppress(OSError):
                        os.utime(self.folder)  # the run was seen
                    return loaded
        except OSError as error:
            reasons.append(f"its folder cannot be read: {error.strerror or error}")
        return Unusable(reasons[0]) if reasons else None

    def remove(self) -> None:
        """Nothing is to be resumed any more. What a higher incarnation saved stays."""
        with suppress(OSError):
            if any(incarnation > self._incarnation for incarnation, _ in self._generations()):
                return
            _discard(self.folder, self._base)
            os.rmdir(os.path.dirname(self.folder))

    # Writing

    def _make_folder(self) -> None:
        os.makedirs(self._base, 0o700, exist_ok=True)
        parent = self._base
        for name in (self._group, self._learner):
            path = f"{parent}/{name}"
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
                disk.sync_folder(parent)
            _check_private(path)
            parent = path

    def _tidy(self) -> tuple[int, int] | None:
        """Remove everything but the newest one, and what a higher incarnation is writing; the newest one."""
        generations = self._generations()
        for incarnation, number in generations[:-1]:
            _discard(f"{self.folder}/{incarnation:08d}-{number:010d}", self.folder)
        for name in os.listdir(self.folder):
            left_over = _NEW.fullmatch(name)
            if left_over and int(left_over[1]) <= self._incarnation:
                _discard(f"{self.folder}/{name}", self.folder)
            elif _OLD.fullmatch(name):
                shutil.rmtree(f"{self.folder}/{name}", ignore_errors=True)
        return generations[-1] if generations else None

    def _write(self, packed: Packed, head: Head, name: str) -> None:
        staged = f"{self.folder}/new-{self._incarnation:08d}-{uuid4().hex}"
        os.mkdir(staged, 0o700)
        try:
            write(staged, packed, head)
            os.rename(staged, f"{self.folder}/{name}")
            disk.sync_folder(self.folder)
        except Exception:
            with suppress(OSError):
                _discard(staged, self.folder)  # a full disk needs the room
            raise

    # Reading

    def _generations(self) -> list[tuple[int, int]]:
        """Incarnation and number of every whole one, the newest last."""
        for path in (os.path.dirname(self.folder), self.folder):
            try:
                _check_private(path)
            except FileNotFoundError:
                return []
        found = (_GENERATION.fullmatch(name) for name in os.listdir(self.folder))
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def _read(self, generation: tuple[int, int], passed_over: str | None) -> Loaded:
        folder = f"{self.folder}/{generation[0]:08d}-{generation[1]:010d}"
        head = self._owned(read_head(f"{folder}/{VALUES}"), generation[0])
        sections: dict[str, dict[str, NDArray[Any]]] = {section: {} for section in head.sections}
        for section, name, array in read_arrays(f"{folder}/{ARRAYS}", head):
            sections[section][name] = array
        return Loaded(sections, head.values, head.incarnation, passed_over)

    def _owned(self, head: Head, incarnation: int) -> Head:
        """`head`, if it is this learner's. Raises Refused."""
        for what, theirs, ours in (
            ("run", head.run, self._run),
            ("learner", head.learner, self._learner),
            ("incarnation", head.incarnation, incarnation),
            ("a model with the schema", head.schema_sha256[:12], self._schema_sha256[:12]),
        ):
            if theirs != ours:
                raise Refused(f"it is of {what} {theirs}, not {ours}")
        if head.incarnation > self._incarnation:
            raise Refused(f"incarnation {head.incarnation} saved it, and this is an earlier one, {self._incarnation}")
        return head


def folder_of(run: str, manifest_sha256: str) -> str:
    """The name of the folder for one run's learners on this machine."""
    return f"{run}-{manifest_sha256[:32]}"


def local_of(
    base: Path, manifest: Manifest, *, manifest_sha256: str, now_s: float
) -> Callable[[LearnerRecord], LocalCheckpoint]:
    """The place of each learner of a run that begins to train on this machine. Old ones of other runs go: `forget_old`."""
    forget_old(base, keep=(folder_of(manifest.run, manifest_sha256),), now_s=now_s)
    return lambda me: LocalCheckpoint(
        base,
        run=manifest.run,
        manifest_sha256=manifest_sha256,
        learner=me.learner,
        incarnation=me.incarnation,
        schema_sha256=manifest.schema_sha256,
    )


@dataclass
class Saver:
    """When to save, so that it takes at most a small share of the time. Times are of one monotonic clock, in seconds."""

    began_s: float
    every_s: float = 60.0
    """At the latest after so long, wherever in a round that is."""
    spacing: float = 50.0
    """Not before so many times what the last attempt took."""

    def __post_init__(self) -> None:
        self._last_s, self._took_s = self.began_s, 0.0

    def due(self, now_s: float, *, boundary: bool = False, leaving: bool = False) -> bool:
        """Whether to save now, between two steps. `boundary`: a round has just been reported to or taken over."""
        since_s = now_s - self._last_s
        return leaving or (since_s >= self.spacing * self._took_s and (boundary or since_s >= self.every_s))

    def tried(self, *, began_s: float, now_s: float) -> None:
        """An attempt has ended, with success or not: a disk that is full is not asked more often."""
        self._last_s, self._took_s = now_s, now_s - began_s


def forget_old(
    base: Path,
    *,
    keep: Container[str],
    now_s: float,
    unseen_s: float = UNSEEN_S,
    total_bytes: int = TOTAL_BYTES,
) -> list[str]:
    """Remove the checkpoints of runs that nobody here has trained in for `unseen_s`, and of further ones, those unseen for
    longest first, until all together have at most `total_bytes`. Never those of the runs in `keep`. Runs go by their
    folders' names. `now_s` is the wall clock's. The runs that went. What cannot be removed stays."""
    seen: list[tuple[float, str, int]] = []
    for name in os.listdir(base) if base.is_dir() else ():
        path = f"{base}/{name}"
        with suppress(OSError):
            if _OLD.fullmatch(name):
                shutil.rmtree(path, ignore_errors=True)
            elif _RUN.fullmatch(name) and stat.S_ISDIR(os.lstat(path).st_mode):
                seen.append((_seen_s(path), name, _size_bytes(path)))
    gone: list[str] = []
    total = sum(size for _, _, size in seen)
    for last_s, run, size in sorted(seen):
        if run not in keep and (now_s - last_s > unseen_s or total > total_bytes):
            with suppress(OSError):
                _discard(f"{base}/{run}", str(base))
                gone.append(run)
                total -= size
    return gone


def _seen_s(path: str) -> float:
    """When anything was last saved or loaded in a run's folder, by the wall clock."""
    times = [os.lstat(path).st_mtime]
    with suppress(OSError):
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(path)]
    return max(times)


def _size_bytes(path: str) -> int:
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(OSError):
                total += os.lstat(f"{folder}/{name}").st_size
    return total


def _check_private(path: str) -> None:
    """Make sure that the folder is no link and this user's alone. Raises OSError."""
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"{path} is no folder")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(path, 0o700)


def _discard(path: str, folder: str) -> None:
    """Out of sight at once, as a whole: renamed within `folder`. Then gone."""
    hidden = f"{folder}/old-{uuid4().hex}"
    os.rename(path, hidden)
    shutil.rmtree(hidden, ignore_errors=True)
