"""The images of lenet5: those that come along, MNIST's files in a folder, archives, and what is no such thing."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from swarm.core.errors import DataMissing, UsageError
from swarm.core.manifest import DataRef
from swarm.runtime.attached import chosen
from swarm.tasks import registry
from swarm.tasks.lenet5 import idx, places
from swarm.tasks.lenet5.images import Images, enlarged, load, own, read, reduced, split

TASK = registry.get("lenet5")
U8 = NDArray[np.uint8]


def idx_bytes(array: U8) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def mnist(folder: Path, *, train: int = 20, held_out: int = 10, side: int = 28, seed: int = 0) -> dict[str, U8]:
    """A folder with MNIST's four files; their arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.random.default_rng(seed)
    made: dict[str, U8] = {}
    for (images, labels), count in ((idx.TRAIN, train), (idx.HELD_OUT, held_out)):
        made[images] = drawn.integers(0, 256 if side == 28 else 17, (count, side, side)).astype(np.uint8)
        made[labels] = (np.arange(count) % 10).astype(np.uint8)
    for name, array in made.items():
        (folder / name).write_bytes(idx_bytes(array))
    return made


def npz(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path, **arrays)
    return path


# The shipped ones


def test_the_shipped_digits_are_described_and_loaded() -> None:
    (ref,) = TASK.data(None)
    assert (ref.name, [ref]) == ("digits.npz", TASK.data(Path("digits")))
    source = (places.shipped().parent / "SOURCE.md").read_text()
    assert ref.sha256 in source
    assert "CC BY 4.0" in source
    small, large = (load([ref], None, side=side) for side in (8, 28))
    for parts, side in ((small, 8), (large, 28)):
        assert (len(parts.train), len(parts.held_out)) == (1435, 362)
        x, y = parts.held_out.batch(slice(None))
        assert (x.shape, x.dtype, y.dtype) == ((362, side, side), np.float32, np.uint8)
        assert (x.min(), x.max()) == (0, 1)
        assert np.bincount(y).min() >= 34
    (pixels, _), (enlarged_, _) = (parts.train.batch(np.array([0, 7])) for parts in (small, large))
    np.testing.assert_allclose(enlarged_[:, 3:27:3, 3:27:3], pixels, atol=1e-7)  # the pixels' centres


@pytest.mark.parametrize("place", ["site/swarm/tasks/lenet5/digits", "site/assets/digits"])
def test_they_are_found_in_a_package_and_in_a_source_tree(tmp_path: Path, place: str) -> None:
    package = tmp_path / "site" / "swarm" / "tasks" / "lenet5"
    package.mkdir(parents=True)
    with pytest.raises(DataMissing, match="--data mnist:DIR"):
        places.shipped(package)
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "digits.npz").write_bytes(b"x")
    assert places.shipped(package) == tmp_path / place / "digits.npz"


def test_every_fifth_image_of_a_label_is_held_out() -> None:
    labels = np.array([0, 1, 0, 0, 0, 0, 0, 1, 0], np.uint8)
    images = Images(np.arange(9, dtype=np.uint8)[:, None, None], 255, labels)
    parts = split(images)
    assert parts.held_out.pixels.ravel().tolist() == [2, 7, 8]
    assert parts.train.pixels.ravel().tolist() == [0, 1, 3, 4, 5, 6]
    with pytest.raises(UsageError, match="too few"):
        split(images.part(np.array([0, 1])))


# Sizes


@given(arrays(np.uint8, (2, 8, 8), elements=st.integers(0, 16)))
def test_enlarging_is_bilinear_interpolation(pixels: U8) -> None:
    large = enlarged(pixels)
    assert (large.shape, large.dtype) == ((2, 28, 28), np.uint8)
    inner = large[:, 2:26, 2:26]
    assert large.sum(dtype=np.int64) == inner.sum(dtype=np.int64)  # the margin is empty
    at = np.clip((np.arange(24) - 1) / 3, 0, 7)
    low = np.floor(at).astype(int)
    high, part = np.minimum(low + 1, 7), at - low
    rows = pixels[:, low] * (1 - part)[:, None] + pixels[:, high] * part[:, None]
    expected = rows[:, :, low] * (1 - part) + rows[:, :, high] * part
    np.testing.assert_allclose(inner / 9, expected, atol=1e-9)


@given(arrays(np.uint8, (2, 28, 28)))
def test_reducing_adds_up_blocks(pixels: U8) -> None:
    small = reduced(pixels)
    assert small.shape == (2, 8, 8)
    assert small.sum(dtype=np.int64) == pixels.sum(dtype=np.int64)
    assert small[1, 0, 0] == pixels[1, :2, :2].sum(dtype=np.int64)
    assert small[0, 3, 7] == pixels[0, 10:14, 26:].sum(dtype=np.int64)


# MNIST's files


def test_a_folder_of_mnists_files_is_data(tmp_path: Path) -> None:
    arrays_ = mnist(tmp_path / "mnist")
    given = Path(f"mnist:{tmp_path / 'mnist'}")
    refs = TASK.data(given)
    assert [ref.name for ref in refs] == [*idx.TRAIN, *idx.HELD_OUT]
    assert [ref.size_bytes for ref in refs] == [16 + 20 * 784, 8 + 20, 16 + 10 * 784, 8 + 10]
    assert TASK.data(tmp_path / "mnist") == refs
    parts = load(refs, given, side=28)
    x, y = parts.train.batch(slice(None))
    assert (x * 255 == arrays_[idx.TRAIN[0]]).all()
    assert (y == arrays_[idx.TRAIN[1]]).all()
    assert (parts.held_out.pixels == arrays_[idx.HELD_OUT[0]]).all()
    assert load(refs, given, side=8).held_out.pixels.shape == (10, 8, 8)


def test_packed_or_dotted_files_are_the_same_data(tmp_path: Path) -> None:
    mnist(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for n, name in enumerate((*idx.TRAIN, *idx.HELD_OUT)):
        content = (tmp_path / "a" / name).read_bytes()
        spelled = name if n % 2 else name.replace("-idx", ".idx")
        packed = n < 2
        (tmp_path / "b" / (spelled + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    refs = TASK.data(Path(f"mnist:{tmp_path / 'a'}"))
    assert TASK.data(Path(f"mnist:{tmp_path / 'b'}")) == refs
    assert len(load(refs, tmp_path / "b", side=28).train) == 20


def test_other_data_is_refused_with_the_hash_to_look_for(tmp_path: Path) -> None:
    mnist(tmp_path / "a")
    mnist(tmp_path / "b", seed=1)
    refs = TASK.data(tmp_path / "a")
    for path, reason in (
        (None, "which is not shipped with swarm"),
        (tmp_path / "b", "something else"),
        (Path(f"mnist:{tmp_path / 'missing'}"), "no folder"),
    ):
        with pytest.raises(DataMissing, match=reason) as caught:
            load(refs, path, side=28)
        assert "pass --data mnist:DIR, the folder with these files" in str(caught.value)
        assert refs[0].sha256[:12] in str(caught.value)
        assert "\n" not in str(caught.value)
    mine = DataRef(name="mine.npz", sha256="ab" * 32, size_bytes=5)
    with pytest.raises(DataMissing, match=r"'mine\.npz', which is not shipped .* --data FILE, the same one.*abababababab"):
        load([mine], None, side=28)
    (tmp_path / "b" / idx.HELD_OUT[1]).write_bytes((tmp_path / "a" / idx.HELD_OUT[1]).read_bytes())
    (tmp_path / "b" / idx.TRAIN[0]).write_bytes((tmp_path / "a" / idx.TRAIN[0]).read_bytes())
    with pytest.raises(DataMissing, match=f"the SHA-256 of '{idx.HELD_OUT[0]}' starts with {refs[2].sha256[:12]}"):
        load(refs, tmp_path / "b", side=28)


def test_a_folder_is_not_attached_and_who_starts_the_run_is_told(tmp_path: Path) -> None:
    mnist(tmp_path)
    given_ = Path(f"mnist:{tmp_path}")
    told: list[Any] = []
    assert chosen(given_, tuple(TASK.data(given_)), wanted=None, emit=told.append) is None
    assert [event.message for event in told] == [
        f"mnist:{tmp_path} is not attached, it is data of 4 files: who joins passes it with --data"
    ]
    with pytest.raises(UsageError, match="data of 4 files, and one can be attached"):
        chosen(given_, tuple(TASK.data(given_)), wanted=True, emit=told.append)


def test_files_that_are_wanted_are_named_with_the_place(tmp_path: Path) -> None:
    mnist(tmp_path)
    for name in idx.TRAIN:
        (tmp_path / name).unlink()
    with pytest.raises(UsageError, match=rf"{tmp_path} lacks train-images-idx3-ubyte, train-labels-idx1-ubyte \(each may"):
        TASK.data(tmp_path)
    with pytest.raises(UsageError, match=r"nowhere is no folder: it should hold train-images-idx3-ubyte, .*t10k-labels-idx1-u"):
        TASK.data(Path("mnist:nowhere"))
    with pytest.raises(UsageError, match="mnist: needs a folder"):
        TASK.data(Path("mnist:"))
    for other in ("nothing.txt", "nothing.npz"):
        with pytest.raises(UsageError, match=r"nothing"):
            TASK.data(tmp_path / other)


def header(*shape: int, magic: tuple[int, ...] = (0, 0, 8)) -> bytes:
    return bytes((*magic, len(shape))) + struct.pack(f">{len(shape)}I", *shape)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no IDX file of bytes with 3 axes"),
    "short": (header(20, 28, 28)[:10], "is no IDX file of bytes with 3 axes"),
    "another type": (header(20, 28, 28, magic=(0, 0, 13)) + bytes(20 * 784), "is no IDX file of bytes with 3 axes"),
    "other axes": (header(20 * 784) + bytes(20 * 784), "is no IDX file of bytes with 3 axes"),
    "a page": (b"<html>404 Not Found</html>" * 40, "is no IDX file of bytes with 3 axes"),
    "fewer": (header(20, 28, 28) + bytes(19 * 784), r"has 14912 bytes, and its header says 15696"),
    "more": (header(20, 28, 28) + bytes(20 * 784 + 1), r"has 15697 bytes, and its header says 15696"),
    "huge": (header(2**32 - 1, 2**32 - 1, 2**32 - 1), "says that it holds 4294967295 × 4294967295 × 4294967295 numbers"),
    "many": (header(2_000_000, 1, 1) + bytes(2_000_000), "1 to 1000000 samples"),
    "none": (header(0, 28, 28), "1 to 1000000 samples"),
    "no pixels": (header(20, 0, 28), "1 to 1000000 samples"),
    "another size": (header(20, 32, 32) + bytes(20 * 1024), "are 32×32: 8×8 or 28×28 can be learned"),
    "another count": (header(19, 28, 28) + bytes(19 * 784), "19 images and train-labels-idx1-ubyte 20 labels"),
    "packed, fewer": (gzip.compress(header(20, 28, 28) + bytes(100)), "fewer numbers than the 15680"),
    "packed, more": (gzip.compress(header(20, 28, 28) + bytes(20 * 784 + 1)), "more numbers than the 15680"),
    "packed, bomb": (gzip.compress(header(20, 28, 28) + bytes(50_000_000)), "more numbers than the 15680"),
    "packed, huge": (gzip.compress(header(900_000, 10_000, 28)), "1073741824 bytes can be read"),
    "packed, cut": (gzip.compress(header(20, 28, 28) + os.urandom(20 * 784))[:-900], "cannot read .*ended before"),
    "packed, wrong sum": (
        gzip.compress(header(20, 28, 28) + bytes(20 * 784))[:-8] + bytes(8),
        "cannot read .*CRC",
    ),
    "packed, damaged": (b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 100, "cannot read "),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_file_that_is_not_what_its_name_says_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    mnist(tmp_path)
    content, message = HOSTILE[what]
    (tmp_path / idx.TRAIN[0]).write_bytes(content)
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, side=28)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(tmp_path))


def test_labels_and_pixels_must_be_in_range(tmp_path: Path) -> None:
    arrays_ = mnist(tmp_path)
    (tmp_path / idx.HELD_OUT[1]).write_bytes(idx_bytes(np.full(10, 10, np.uint8)))
    with pytest.raises(UsageError, match=r"labels of .* go from 10 to 10: digits are 0 to 9"):
        read(tmp_path, side=28)
    x = arrays_[idx.TRAIN[0]][:, :8, :8]
    with pytest.raises(UsageError, match=r"8×8 images of .* have pixels of 25.: 0 to 16 can be read"):
        read(npz(tmp_path / "x.npz", images=x, labels=arrays_[idx.TRAIN[1]]), side=28)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    mnist(tmp_path)
    (tmp_path / idx.TRAIN[0]).unlink()
    os.mkfifo(tmp_path / idx.TRAIN[0])
    os.mkfifo(tmp_path / "x.npz")
    for path in (tmp_path, tmp_path / "x.npz"):
        with pytest.raises(UsageError, match="is no file"):
            TASK.data(path)


# Archives


def test_an_archive_of_arrays_is_data(tmp_path: Path) -> None:
    drawn = np.random.default_rng(0)
    x, y = drawn.integers(0, 17, (30, 8, 8)).astype(np.uint8), np.arange(30) % 10
    mine = npz(tmp_path / "mine.npz", images=x, labels=y)
    refs = TASK.data(mine)
    assert [(ref.name, ref.size_bytes) for ref in refs] == [("mine.npz", mine.stat().st_size)]
    parts = load(refs, mine, side=8)
    assert (len(parts.train), len(parts.held_out)) == (20, 10)
    assert (parts.held_out.pixels == x[10:20]).all()
    by_columns = npz(tmp_path / "fortran.npz", images=np.asfortranarray(x), labels=y.astype(">i8"))
    assert (read(by_columns, side=8)[0].held_out.pixels == x[10:20]).all()


def zipped(**members: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        for name, content in members.items():
            files.writestr(f"{name}.npy", content)
    return packed.getvalue()


def saved(array: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def lying(shape: str, content: bytes = b"") -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode() + content


X, Y = saved(np.zeros((20, 28, 28), np.uint8)), saved(np.arange(20) % 10)
ARCHIVES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is no .npz archive"),
    "no archive": (b"PK\x03\x04 and so on", "is no .npz archive"),
    "no labels": (zipped(images=X), "has no array 'labels'"),
    "a pickle": (zipped(images=saved(np.array([{}, {}]), allow_pickle=True), labels=Y), "images are object"),
    "floats": (zipped(images=saved(np.zeros((20, 28, 28))), labels=Y), "images are float64, and should be whole"),
    "wide": (zipped(images=saved(np.zeros((20, 28, 28), np.int32)), labels=Y), "images are int32, and should be uint8"),
    "labels of rows": (zipped(images=X, labels=X), "labels are uint8"),
    "huge": (zipped(images=lying("(10000000, 28, 28)"), labels=Y), "has shape"),
    "negative": (zipped(images=lying("(-1, 28, 28)"), labels=Y), "has shape"),
    "fewer": (zipped(images=lying("(20, 28, 28)", bytes(9)), labels=Y), "fewer bytes than the 15680"),
    "bomb": (zipped(images=lying("(20, 28, 28)", bytes(50_000_000)), labels=Y), "more bytes than the 15680"),
    "long header": (zipped(images=lying("(20, 28, 28)" + " " * 30_000), labels=Y), "is no .npz archive that can be read"),
    "code": (zipped(images=lying("__import__('os').abort()"), labels=Y), "is no .npz archive that can be read"),
    "another count": (zipped(images=X, labels=saved(np.zeros(3, int))), "20 images, and labels of shape"),
    "negative labels": (zipped(images=X, labels=saved(np.full(20, -1))), "go from -1 to -1"),
    "no images": (zipped(images=saved(np.zeros((0, 28, 28), np.uint8)), labels=saved(np.zeros(0, int))), "has no images"),
    "flat": (zipped(images=saved(np.zeros(20, np.uint8)), labels=Y), "are single numbers"),
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_an_archive_that_cannot_be_learned_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    content, message = ARCHIVES[what]
    (tmp_path / "x.npz").write_bytes(content)
    uses: tuple[Callable[[Path], Any], ...] = (lambda path: read(path, side=28), lambda path: own(path, side=8), TASK.data)
    for use in uses:
        with pytest.raises(UsageError, match=message) as caught:
            use(tmp_path / "x.npz")
        assert str(caught.value).count("\n") == 0
        assert len(str(caught.value)) < 400 + len(str(tmp_path))


# Private ones


def test_a_private_client_trains_on_all_that_it_has(tmp_path: Path) -> None:
    shipped = read(None, side=28)[0]
    arrays_ = mnist(tmp_path / "mnist")
    archive = npz(tmp_path / "x.npz", images=arrays_[idx.TRAIN[0]], labels=arrays_[idx.TRAIN[1]])
    for path in (Path(f"mnist:{tmp_path / 'mnist'}"), tmp_path / "mnist", archive):
        parts = own(path, side=28)
        assert (parts.train.pixels == arrays_[idx.TRAIN[0]]).all()
        assert (parts.held_out.pixels == shipped.held_out.pixels).all()  # of its own, evaluations would tell everybody
    nothing = own(None, side=28)
    assert (len(nothing.train), len(nothing.held_out)) == (0, 362)
    (tmp_path / "mnist" / idx.HELD_OUT[0]).write_bytes(b"")
    assert len(own(tmp_path / "mnist", side=28).train) == 20  # it is not read
    (tmp_path / "mnist" / idx.TRAIN[1]).unlink()
    with pytest.raises(UsageError, match="lacks train-labels-idx1-ubyte"):
        own(tmp_path / "mnist", side=28)
