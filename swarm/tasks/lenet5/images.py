"""Images of digits with their labels, in the size that a model sees: whole numbers only, so that every machine has the same."""

from __future__ import annotations

import io
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from swarm.core.errors import DataMissing, UsageError
from swarm.core.manifest import DataRef
from swarm.tasks.lenet5 import idx, places

CLASSES = 10
SMALL, LARGE = 8, 28  # sides, in pixels: of the shipped digits and of MNIST
_MAX_PIXEL = {SMALL: 16, LARGE: 255}
_HELD_OUT_EVERY, _HELD_OUT_AT = 5, 1
_HEADER_BYTES = 10_000

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Images:
    pixels: NDArray[Any]  # (n, side, side), unsigned
    white: int  # the largest value that a pixel can have
    labels: U8  # (n,), 0 to 9

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: NDArray[np.int64] | slice) -> tuple[F32, U8]:
        """(len(chosen), side, side) numbers from 0 to 1, and the labels."""
        return self.pixels[chosen].astype(np.float32) / np.float32(self.white), self.labels[chosen]

    def part(self, chosen: NDArray[Any]) -> Images:
        return Images(self.pixels[chosen], self.white, self.labels[chosen])


@dataclass(frozen=True)
class Parts:
    train: Images
    held_out: Images


def load(wanted: Sequence[DataRef], path: Path | None, *, side: int) -> Parts:
    """The images `wanted`, from where `--data` says. Raises DataMissing if those are others, or cannot be read."""
    try:
        parts, found = read(path, side=side)
    except UsageError as error:
        reason = places.refused(wanted, [], path)
        raise DataMissing(f"{error}; {reason}") from error
    if reason := places.refused(wanted, found, path):
        raise DataMissing(reason)
    return parts


def own(path: Path | None, *, side: int) -> Parts:
    """A private client's images, which are no others' business: all of an archive, or of a folder's training part, are
    trained on. Held out are the shipped ones, never its own: what is found with those is told to everybody, and a confusion
    matrix tells how many there are of each label. Without a path there is nothing to train on. Raises UsageError,
    DataMissing."""
    shipped = read(None, side=side)[0]
    if path is None:
        return Parts(shipped.train.part(np.arange(0)), shipped.held_out)
    kind, where = places.place(path)
    if kind != "folder":
        return Parts(_sized(*_arrays(places.archive(where), where), side=side, where=where), shipped.held_out)
    (train,) = _pairs(idx.folder(where, held_out=False), where, side=side)
    return Parts(train, shipped.held_out)


def read(path: Path | None, *, side: int) -> tuple[Parts, list[DataRef]]:
    """The images that `--data` means, and what a manifest says of them. Raises UsageError, DataMissing."""
    kind, where = places.place(path)
    if kind == "folder":
        files = idx.folder(where)
        train, held_out = _pairs(files, where, side=side)
        return Parts(train, held_out), places.refs(files)
    packed = places.archive(where)
    images = _sized(*_arrays(packed, where), side=side, where=where)
    return split(images), [places.ref(where.name, packed)]


def split(images: Images) -> Parts:
    """Of each label's images, in their order, the second of every five is held out: no seed, and every label in both."""
    turn = np.zeros(len(images), np.int64)
    for label in range(CLASSES):
        these = images.labels == label
        turn[these] = np.arange(np.count_nonzero(these))
    held_out = turn % _HELD_OUT_EVERY == _HELD_OUT_AT
    if not held_out.any():
        raise UsageError(f"{len(images)} images are too few to hold some out: two of a label are needed, at least")
    return Parts(images.part(~held_out), images.part(held_out))


def _pairs(files: Sequence[idx.Idx], where: Path, *, side: int) -> list[Images]:
    arrays = [np.frombuffer(file.numbers, np.uint8).reshape(file.shape) for file in files]
    return [_sized(x, y, side=side, where=where) for x, y in zip(arrays[::2], arrays[1::2], strict=True)]


# Sizes


def _sized(pixels: U8, labels: NDArray[Any], *, side: int, where: Path) -> Images:
    """`pixels` are 8×8 of 0 to 16, or 28×28 of 0 to 255. Raises UsageError for others, and for labels that are no digits."""
    if pixels.ndim != 3 or pixels.shape[1:] not in ((SMALL, SMALL), (LARGE, LARGE)):
        shape = "×".join(map(str, pixels.shape[1:])) or "single numbers"
        raise UsageError(f"the images of {where} are {shape}: {SMALL}×{SMALL} or {LARGE}×{LARGE} can be learned")
    if labels.shape != pixels.shape[:1]:
        raise UsageError(f"{where} has {len(pixels)} images, and labels of shape {labels.shape}")
    if not len(labels):
        raise UsageError(f"{where} has no images")
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise UsageError(f"the labels of {where} go from {labels.min()} to {labels.max()}: digits are 0 to {CLASSES - 1}")
    given = pixels.shape[1]
    if (brightest := int(pixels.max())) > _MAX_PIXEL[given]:
        raise UsageError(
            f"the {given}×{given} images of {where} have pixels of {brightest}: 0 to {_MAX_PIXEL[given]} can be read"
        )
    y = labels.astype(np.uint8)
    if given == side:
        return Images(pixels, _MAX_PIXEL[given], y)
    if side == LARGE:
        return Images(enlarged(pixels), 9 * _MAX_PIXEL[SMALL], y)
    return Images(reduced(pixels), 16 * _MAX_PIXEL[LARGE], y)


def enlarged(pixels: U8) -> U8:
    """(n, 8, 8) → (n, 28, 28): three times as large by bilinear interpolation, the borders repeated, within a margin of 2.
    A pixel's centre keeps its place, so the weights are thirds; the values here are 9 times the mean."""
    large = _tripled(np.swapaxes(_tripled(pixels), 1, 2))
    margin = (LARGE - 3 * SMALL) // 2
    return np.ascontiguousarray(np.pad(np.swapaxes(large, 1, 2), ((0, 0), (margin, margin), (margin, margin))))


def _tripled(x: U8) -> U8:
    """Along the last axis, times 3."""
    before = np.concatenate((x[..., :1], x[..., :-1]), axis=-1)
    after = np.concatenate((x[..., 1:], x[..., -1:]), axis=-1)
    both = np.stack((before + 2 * x, 3 * x, 2 * x + after), axis=-1)
    return both.reshape(*x.shape[:-1], 3 * x.shape[-1])


def reduced(pixels: U8) -> NDArray[np.uint16]:
    """(n, 28, 28) → (n, 8, 8): within a margin of 2, the sums of blocks of 4×4, as the shipped digits were made."""
    margin = (4 * SMALL - LARGE) // 2
    framed = np.pad(pixels, ((0, 0), (margin, margin), (margin, margin)))
    sums: NDArray[np.uint16] = framed.reshape(-1, SMALL, 4, SMALL, 4).sum(axis=(2, 4), dtype=np.uint16)
    return sums


# Archives


def _arrays(packed: bytes, where: Path) -> tuple[U8, NDArray[Any]]:
    """`images` (n, side, side), uint8, and `labels` (n,), whole numbers, of an .npz archive. Raises UsageError."""
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as files:
            images, labels = (_array(files, name) for name in ("images", "labels"))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise UsageError(f"{where} is no .npz archive that can be read: {reason}") from error
    if images.dtype != np.uint8:
        raise UsageError(f"{where}: images are {images.dtype}, and should be uint8")
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(
            f"{where}: labels are {labels.dtype} of shape {labels.shape}, and should be whole numbers, one an image"
        )
    return images, labels


def _array(files: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """One array, its header checked before anything of its size is allocated. No pickle is ever read."""
    member = f"{name}.npy"
    if member not in files.namelist():
        raise UsageError(f"it has no array {name!r}; it should have images and labels")
    with files.open(member) as file:
        version = npy.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise UsageError(f"{name} is in version {version} of the format")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, by_columns, dtype = read_header(file, max_header_size=_HEADER_BYTES)
        if dtype.kind not in "ui":
            raise UsageError(f"{name} are {dtype}, and should be whole numbers")
        size = math.prod(shape) * dtype.itemsize
        if len(shape) not in (1, 3) or not 0 <= size <= idx.MAX_BYTES:
            raise UsageError(f"{name} has shape {shape}, at most {idx.MAX_BYTES} bytes can be read")
        data = file.read(size + 1)
    if len(data) != size:
        raise UsageError(f"{name} has {'more' if len(data) > size else 'fewer'} bytes than the {size} that its header says")
    array = np.frombuffer(data, dtype)
    return array.reshape(shape[::-1]).T if by_columns else array.reshape(shape)
