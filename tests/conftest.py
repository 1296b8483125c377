from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples wherever and whenever the tests run, so that a change fails by what it changes. `make slow` draws new ones,
# and four times as many.
settings.register_profile("repeatable", derandomize=True, max_examples=25)
settings.load_profile("repeatable")

# No test tells the network of itself by accident, nor do the processes that it starts: those that mean to say so.
os.environ["SWARM_DISCOVERY"] = "0"


PROCESSES = [Path(__file__).parent / path for path in ("process", "golden", "integration/test_bench.py")]
"""Where the tests that start processes are looked for: `.ci/tests` reads no other file for them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("process") and not any(item.path.is_relative_to(path) for path in PROCESSES):
            raise pytest.UsageError(f"{item.nodeid}: `.ci/tests` does not look here for a test with the mark `process`")


def pytest_collection_finish() -> None:
    """Half a million objects stay until the end. Python need not look through them again and again for what is garbage: that
    took a sixth of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder and a settings file of the test's own, for this process and those it starts."""
    folder = tmp_path / "state"
    monkeypatch.setenv("SWARM_STATE_DIR", str(folder))
    monkeypatch.setenv("SWARM_CONFIG", str(tmp_path / "config" / "settings.toml"))
    monkeypatch.setenv("SWARM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("SWARM_MAILBOX", raising=False)
    return folder
