from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil
import pytest


@pytest.fixture(autouse=True)
def nothing_outlives_its_test() -> Iterator[None]:
    """What a test that fails has started would take the machine's time from those that follow."""
    me = psutil.Process()
    before = set(me.children(recursive=True))
    yield
    left = set(me.children(recursive=True)) - before
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=10)
