"""A machine that stands by: `swarm join --wait`."""

from __future__ import annotations

from swarm.standby.keeping import Log, home, log_file, other
from swarm.standby.machine import Standby

__all__ = ["Log", "Standby", "home", "log_file", "other"]
