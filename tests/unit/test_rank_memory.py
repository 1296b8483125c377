"""How many rows fit, and what counts as too little memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.parallel.memory import USED, out_of_memory, rows_that_fit


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 10**5), st.integers(1, 300), st.integers(1, 10**7))
def test_as_many_rows_as_fit_and_never_a_pass_above(base: int, each: int, once: int, most: int, memory_bytes: int) -> None:
    tried = []

    def peak(rows: int) -> int:
        tried.append(rows)
        return base + once + each * rows

    rows = rows_that_fit(peak, base=base, most=most, memory_bytes=memory_bytes)
    allowed = USED * memory_bytes
    assert all(base + once + each * count <= allowed for count in tried if count > 1)  # one row must be tried
    assert rows <= most
    if rows:
        assert base + once + each * rows <= allowed
        assert rows == most or rows & (rows - 1) == 0
        assert rows == most or base + once + 4 * rows * (each + once) > allowed  # the first estimate counts `once` for each row
    else:
        assert base + once + each > allowed


def test_running_out_while_trying_is_an_answer_too() -> None:
    def peak(rows: int) -> int:
        if rows > 4:
            raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPU)")
        return 10

    assert rows_that_fit(peak, base=10, most=64, memory_bytes=1000) == 4
    with pytest.raises(RuntimeError, match="shapes"):
        rows_that_fit(lambda _: (_ for _ in ()).throw(RuntimeError("shapes")), base=1, most=4, memory_bytes=100)


@pytest.mark.parametrize(
    "words",
    [
        "[malloc] Unable to allocate 17179869184 bytes.",
        "[metal::malloc] Attempting to allocate 4873 bytes which is greater than the maximum allowed buffer size of 3 bytes.",
        "[metal::malloc] Resource limit (499000) exceeded.",
        "[METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        "cudaMallocAsync(&data, size, stream) failed: out of memory",
    ],
)
def test_what_mlx_says_when_memory_is_out(words: str) -> None:
    assert out_of_memory(RuntimeError(words))


def test_other_failures_are_none_of_memory() -> None:
    assert out_of_memory(MemoryError())
    for words in ("[matmul] shapes", "[METAL] Command buffer execution failed: Caused GPU Timeout Error", ""):
        assert not out_of_memory(RuntimeError(words))
