"""Python imports this at its start when this folder is on its path: a machine whose clock is off by SWARM_TEST_CLOCK_S."""

import os
import time

_OFF_S = float(os.environ.get("SWARM_TEST_CLOCK_S", "0"))
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + _OFF_S
time.time_ns = lambda: _time_ns() + int(_OFF_S * 1e9)
