"""The IDX format, in which MNIST is published: a magic number, the shape as big-endian numbers of 32 bits, then the bytes.
Packed by gzip or not. Everything is bounded before it is read: a folder may be anybody's."""

from __future__ import annotations

import gzip
import math
import stat
import zlib
from pathlib import Path
from typing import NamedTuple

from swarm.core.errors import UsageError

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
HELD_OUT = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
MAX_SAMPLES = 1_000_000
MAX_BYTES = 1 << 30  # of one file's content: it is held in memory
_UBYTE = 8  # the format's code for the type of the numbers


class Idx(NamedTuple):
    name: str  # the published one, whatever the file is called here
    shape: tuple[int, ...]
    content: bytes  # of the whole file, unpacked: the numbers are its last math.prod(shape) bytes

    @property
    def numbers(self) -> memoryview:
        return memoryview(self.content)[len(self.content) - math.prod(self.shape) :]


def find(folder: Path, name: str) -> Path | None:
    """The file `name` in the folder, under one of the spellings that are in use."""
    spellings = (name, name.replace("-idx", ".idx"))
    return next((path for n in spellings for path in (folder / n, folder / f"{n}.gz") if path.exists()), None)


def folder(place: Path, *, held_out: bool = True) -> list[Idx]:
    """Images and labels of the training part, then, if wanted, those of the held-out part. Raises UsageError that names the
    files that are wanted and where they were looked for, or what is wrong with one."""
    names = TRAIN + HELD_OUT if held_out else TRAIN
    if not place.is_dir():
        raise UsageError(f"{place} is no folder: it should hold {_listed(names)}")
    found = {name: find(place, name) for name in names}
    if missing := [name for name, path in found.items() if path is None]:
        raise UsageError(f"{place} lacks {_listed(missing)} (each may end in .gz)")
    files = [read(path, name) for name, path in found.items() if path is not None]
    for images, labels in zip(files[::2], files[1::2], strict=True):
        if images.shape[0] != labels.shape[0]:
            counts = f"{images.name} has {images.shape[0]} images and {labels.name} {labels.shape[0]} labels"
            raise UsageError(f"{place} is not one data set: {counts}")
    return files


def read(path: Path, name: str) -> Idx:
    """The file at `path`, of which the published name tells how many axes it has. Raises UsageError."""
    axes = 3 if "-idx3-" in name else 1
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe might never end
            raise UsageError(f"{path} is no file")
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            header = file.read(4 + 4 * axes)
            if len(header) < 4 + 4 * axes or header[:4] != bytes((0, 0, _UBYTE, axes)):
                raise UsageError(f"{path} is no IDX file of bytes with {axes} ax{'es' if axes > 1 else 'is'}")
            shape = tuple(int.from_bytes(header[at : at + 4], "big") for at in range(4, len(header), 4))
            size = math.prod(shape)
            if not 1 <= shape[0] <= MAX_SAMPLES or not 1 <= size <= MAX_BYTES:
                limits = f"1 to {MAX_SAMPLES} samples, {MAX_BYTES} bytes"
                raise UsageError(f"{path} says that it holds {' × '.join(map(str, shape))} numbers: {limits} can be read")
            if not packed and found.st_size != len(header) + size:
                raise UsageError(f"{path} has {found.st_size} bytes, and its header says {len(header) + size}")
            data = file.read(size + 1)  # one more: at the end, gzip checks its sum
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UsageError(f"cannot read {path}: {reason}") from error
    if len(data) != size:
        raise UsageError(f"{path} has {'more' if len(data) > size else 'fewer'} numbers than the {size} that its header says")
    return Idx(name, shape, header + data)


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
