"""Where this machine keeps its own files. Everything that swarm writes outside a mailbox stands below these three."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def state_dir() -> Path:
    """Jobs, their logs, the machine's id. `SWARM_STATE_DIR` overrides."""
    override = os.environ.get("SWARM_STATE_DIR")
    return Path(override) if override else Path(platformdirs.user_state_dir("swarm", appauthor=False))


def cache_dir() -> Path:
    """What can be fetched again: files that were attached to runs. `SWARM_CACHE_DIR` overrides."""
    override = os.environ.get("SWARM_CACHE_DIR")
    return Path(override) if override else Path(platformdirs.user_cache_dir("swarm", appauthor=False))


def settings_file() -> Path:
    """`SWARM_CONFIG` overrides."""
    override = os.environ.get("SWARM_CONFIG")
    return Path(override) if override else Path(platformdirs.user_config_dir("swarm", appauthor=False)) / "settings.toml"


def checkpoints_dir() -> Path:
    """What learners on this machine go on from after a restart."""
    return state_dir() / "checkpoints"


def jobs_dir() -> Path:
    return state_dir() / "jobs"
