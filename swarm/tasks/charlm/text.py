"""The text that is learned: the shipped one or a file, told apart by content. Bytes only: any language, any encoding."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from swarm.core.errors import DataMissing, UsageError
from swarm.core.manifest import DataRef

MAX_TEXT_BYTES = 4 << 30  # it is held in memory
_SHIPPED = "kjv.txt"


def shipped(package: Path = Path(__file__).parent) -> Path:
    """The text that comes with swarm: inside the installed `package`, or beside it in the source tree. Raises
    DataMissing."""
    places = (package / "text" / _SHIPPED, package.parents[2] / "assets" / "text" / _SHIPPED)
    for path in places:
        if path.is_file():
            return path
    raise DataMissing(f"the text {_SHIPPED} that comes with swarm is not at {places[0]}: pass a text with --data FILE")


def describe(path: Path) -> DataRef:
    """Name, SHA-256 and size of a text. Raises UsageError if it cannot be read or trained on."""
    try:
        text = _read(path)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    return _ref(path.name, text)


def load(wanted: DataRef, path: Path | None) -> bytes:
    """The text `wanted`, from the file `path` or else from the shipped one. Raises DataMissing if that is not it."""
    advice = f"pass the same file with --data; its SHA-256 starts with {wanted.sha256[:12]}"
    if path is None:
        try:
            path = shipped()
            described = f"the run trains on {wanted.name!r}, which is not shipped with swarm"
        except DataMissing as error:
            raise DataMissing(f"the run trains on {wanted.name!r}, and {error}; {advice}") from error
    else:
        described = f"{path} is not the text {wanted.name!r} that the run trains on"
    try:
        text = _read(path)
    except OSError as error:
        raise DataMissing(f"cannot read {path}: {error.strerror or error}; {advice}") from error
    if _ref(wanted.name, text) != wanted:
        raise DataMissing(f"{described}: {advice}")
    return text


def _read(path: Path) -> bytes:
    found = path.stat()
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):  # it might never end, or never begin
        raise UsageError(f"{path} is no file: a pipe or a device is not read")
    size = found.st_size
    if size > MAX_TEXT_BYTES:
        raise UsageError(f"{path} has {size} bytes, more than {MAX_TEXT_BYTES}: pass a part of it")
    text = path.read_bytes()
    if not text:
        raise UsageError(f"{path} is empty")
    return text


def _ref(name: str, text: bytes) -> DataRef:
    return DataRef(name=name, sha256=hashlib.sha256(text).hexdigest(), size_bytes=len(text))
