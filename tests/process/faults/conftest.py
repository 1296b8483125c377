from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.process.faults.share import Share, mounted


@pytest.fixture(scope="module")
def served() -> Iterator[Share]:
    """A share that the tests of a module break one after the other; in memory, if there is such a file system."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder,
        mounted(Path(folder)) as share,
    ):
        yield share


@pytest.fixture
def share(served: Share) -> Iterator[Share]:
    """With a new mailbox, and nothing broken yet."""
    served.new(uuid4().hex)
    yield served
    served.fails()
