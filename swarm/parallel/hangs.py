"""What is known of collectives that hang by themselves."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from swarm.core.ranks import Backend

REPORT = "github.com/ml-explore/mlx/issues/4475"
"""Sums of many sizes hang in the ring, at three ranks and more in a few of a hundred steps; seen up to MLX 0.32.2, and still
open in September 2026. Up to 0.32.0, a connection that is reset once hangs it, too (issue 3862)."""
REPORTED = "0.32.2"


def advice(backend: Backend, size: int) -> str:
    """For a person whose ranks wait for each other, and none of them is gone or asleep; empty if nothing is known."""
    if backend != "ring" or size < 2:
        return ""
    try:
        here = f"here it is {version('mlx')}"
    except PackageNotFoundError:
        here = "here it has no version"
    return (
        f"if no machine slept or lost its network, MLX's ring may hang by itself, above all with three machines and more "
        f"(reported up to MLX {REPORTED}, {here}: {REPORT}): install the newest MLX on all machines, or use fewer of them"
    )
