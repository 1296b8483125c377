"""Memory in one piece: where it comes from, and when it is used again."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from swarm.tensors.blocks import MAPPED_BYTES, copies, forget, in_one_piece, piece
from swarm.tensors.payload import Packed, unpack

SIZE = MAPPED_BYTES + (1 << 20)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def marked(size: int, mark: int) -> np.ndarray:
    """A piece whose first byte tells it from others: memory that is asked for anew may stand where freed memory stood."""
    found = piece(size)
    found[0] = mark
    return found


def is_that(array: np.ndarray, mark: int) -> bool:
    return int(array[0]) == mark


def test_what_nobody_holds_is_used_again() -> None:
    memory = marked(SIZE, 7)
    assert memory.shape == (SIZE,)
    del memory
    assert is_that(piece(SIZE), 7)


@pytest.mark.parametrize("held", ["view", "memoryview", "tensor"])
def test_what_anybody_holds_is_not(held: str) -> None:
    memory = marked(SIZE, 7)
    memory[1] = 1
    match held:
        case "view":
            kept = memory[1:]
        case "memoryview":
            kept = np.frombuffer(memory.data[1:], np.uint8)
        case _:
            payload = b"".join(bytes(chunk) for chunk in Packed({"a": np.arange(9, dtype=np.float32)}))
            memory[: len(payload)] = np.frombuffer(payload, np.uint8)
            kept = unpack(memory.data[: len(payload)])["a"]
    before, at = kept[:8].tobytes(), address(memory)
    del memory
    other = piece(SIZE)
    other[:256] = 255
    assert address(other) != at
    assert kept[:8].tobytes() == before
    del kept, other


def test_a_payload_takes_the_place_of_its_arrays() -> None:
    """Its header is what it has more."""
    arrays = in_one_piece({f"layer.{k}": ((SIZE // 400,), np.dtype(np.float32)) for k in range(100)})
    size_bytes = Packed(arrays).size_bytes + 1
    at = address(arrays["layer.0"])
    arrays["layer.0"][0] = 7.0
    arrays.clear()
    found = piece(size_bytes)
    assert (address(found), float(found[:4].view(np.float32)[0])) == (at, 7.0)


def test_the_largest_is_kept_and_one_only() -> None:
    small, large = marked(SIZE, 1), marked(3 * SIZE, 2)
    del large
    del small
    assert not is_that(piece(SIZE), 2), "far too large for this"
    assert is_that(piece(3 * SIZE), 2), "kept meanwhile"


def test_one_that_is_too_small_goes_before_another_is_asked_for() -> None:
    tracemalloc.start()
    try:
        memory = piece(SIZE)
        del memory
        large = piece(3 * SIZE)
        assert large.nbytes <= tracemalloc.get_traced_memory()[1] < 3.5 * SIZE
    finally:
        tracemalloc.stop()


def test_forgotten_memory_goes_back() -> None:
    tracemalloc.start()
    try:
        memory = piece(SIZE)
        del memory
        assert tracemalloc.get_traced_memory()[0] >= SIZE
        forget()
        assert tracemalloc.get_traced_memory()[0] < SIZE
    finally:
        tracemalloc.stop()


def test_threads_never_get_the_same_memory() -> None:
    found: list[tuple[int, np.ndarray]] = []

    def work(k: int) -> None:
        for turn in range(40):
            mine = piece(SIZE)
            mine[:4096] = k
            if turn % 8 == 7:
                found.append((k, mine))
            assert (mine[:4096] == k).all()
            del mine

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20, "no thread failed"
    assert all((memory[:4096] == k).all() for k, memory in found)


def test_copies_are_the_same_in_memory_of_their_own() -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(3, dtype=np.int64), "c": np.float32([])}
    found = copies(arrays)
    arrays["a"][...] = 0
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (found["b"].dtype, found["b"].tolist(), found["c"].shape) == (np.int64, [0, 1, 2], (0,))
