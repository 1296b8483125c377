from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shares() -> tuple[Path, Path]:
    """Two folders that are mounts of one share, as two machines have them."""
    named = os.environ.get("SWARM_TEST_SHARES")
    if not named:
        pytest.skip("SWARM_TEST_SHARES names no mounts; `make shares` makes some")
    a, b = named.split(":")
    return Path(a), Path(b)
