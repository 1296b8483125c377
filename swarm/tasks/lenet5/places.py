"""Which images a run learns: those that come with swarm, MNIST's files in a folder, or an archive of arrays.

A word of `--data` says which: nothing or `digits`; `mnist:DIR`, or the folder itself; a file `*.npz`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from swarm.core.errors import DataMissing, UsageError
from swarm.core.manifest import DataRef
from swarm.tasks.lenet5 import idx

MAX_ARCHIVE_BYTES = 1 << 30  # as it lies on the disk
DIGITS = "digits"
_MNIST = "mnist:"
_SHIPPED = "digits.npz"

Kind: TypeAlias = Literal["shipped", "archive", "folder"]


def shipped(package: Path = Path(__file__).parent) -> Path:
    """The digits that come with swarm: inside the installed `package`, or beside it in the source tree. Raises
    DataMissing."""
    places = (package / "digits" / _SHIPPED, package.parents[2] / "assets" / "digits" / _SHIPPED)
    for path in places:
        if path.is_file():
            return path
    raise DataMissing(f"the images {_SHIPPED} that come with swarm are not at {places[0]}: pass others with --data mnist:DIR")


def place(given: Path | None) -> tuple[Kind, Path]:
    """What `--data` means. Raises UsageError, DataMissing if it means the shipped images and there are none."""
    text = "" if given is None else str(given)
    if given is None or text == DIGITS:
        return "shipped", shipped()
    if text.startswith(_MNIST):
        if not text.removeprefix(_MNIST):
            raise UsageError(f"{_MNIST} needs a folder: --data {_MNIST}DIR")
        return "folder", Path(text.removeprefix(_MNIST)).expanduser()
    if given.is_dir():
        return "folder", given
    if given.suffix == ".npz":
        return "archive", given
    what = "a folder or an .npz file" if given.exists() else "here"
    raise UsageError(f"{given} is not {what}: --data is {DIGITS}, {_MNIST}DIR (a folder with MNIST's files) or FILE.npz")


def archive(path: Path) -> bytes:
    """Raises UsageError."""
    try:
        if not path.is_file():
            raise UsageError(f"{path} is no file")
        if (size := path.stat().st_size) > MAX_ARCHIVE_BYTES:
            raise UsageError(f"{path} has {size} bytes, more than {MAX_ARCHIVE_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


def ref(name: str, content: bytes) -> DataRef:
    return DataRef(name=name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def refs(files: Sequence[idx.Idx]) -> list[DataRef]:
    """Of MNIST's files: by the published name and the unpacked content, so that it does not matter how they lie here."""
    return [ref(file.name, file.content) for file in files]


def refused(wanted: Sequence[DataRef], found: Sequence[DataRef], given: Path | None) -> str:
    """Why the images found are not those that a run trains on; empty if they are."""
    theirs, ours = ([(one.sha256, one.size_bytes) for one in some] for some in (wanted, found))
    if theirs == ours:
        return ""
    names = ", ".join(repr(one.name) for one in wanted)
    how = f"{_MNIST}DIR, the folder with these files" if len(wanted) > 1 else "FILE, the same one"
    n = next((n for n, one in enumerate(theirs) if ours[n : n + 1] != [one]), 0)  # the first that differs
    which = f"the SHA-256 of {wanted[n].name!r} starts with {wanted[n].sha256[:12]}"
    here = "which is not shipped with swarm" if given is None else f"and {given} is something else"
    return f"the run trains on {names}, {here}: pass --data {how}; {which}"
