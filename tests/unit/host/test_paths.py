"""Where this machine's own files are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from swarm.host.paths import cache_dir, jobs_dir, settings_file, state_dir

ROOT = Path(__file__).parents[3]


def test_the_environment_moves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_STATE_DIR", "/a/state")
    monkeypatch.setenv("SWARM_CONFIG", "/a/s.toml")
    monkeypatch.setenv("SWARM_CACHE_DIR", "/a/cache")
    assert cache_dir() == Path("/a/cache")
    assert state_dir() == Path("/a/state")
    assert jobs_dir() == Path("/a/state/jobs")
    assert settings_file() == Path("/a/s.toml")


@pytest.mark.skipif(sys.platform != "linux", reason="README's table for Linux")
def test_they_are_where_the_readme_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWARM_STATE_DIR", "SWARM_CONFIG", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for path in (state_dir(), settings_file()):
        assert f"`~/{path.relative_to('/home/somebody')}" in readme
    monkeypatch.delenv("SWARM_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == Path("/home/somebody/.cache/swarm")
    monkeypatch.setenv("XDG_STATE_HOME", "/xdg/state")
    assert state_dir() == Path("/xdg/state/swarm")


def test_help_writes_nothing(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    for arguments in (["runs"], ["jobs"]):
        subprocess.run([sys.executable, "-m", "swarm", *arguments], env=environment, cwd=ROOT, capture_output=True, check=False)
    assert list(tmp_path.iterdir()) == []
