"""What a rank's process is told of its group, as mlx.distributed reads it: from its environment, and from a file of its own."""

from __future__ import annotations

import json

from swarm.core.errors import UsageError
from swarm.core.ranks import Plan

VARIABLES = (
    "MLX_RANK",
    "MLX_WORLD_SIZE",
    "MLX_HOSTFILE",
    "MLX_IBV_DEVICES",
    "MLX_JACCL_COORDINATOR",
    "NCCL_HOST_IP",
    "NCCL_PORT",
)
"""All that may say something of a group. What is left over from elsewhere is to be removed: a rank on its own must not look for
others, and one of two groups not for the wrong one."""


def group_file(plan: Plan) -> str:
    """The text of the file that the environment names; "" if the backend needs none. One file serves all ranks."""
    if len(plan.seats) == 1:
        return ""
    match plan.backend:
        case "ring":
            return json.dumps([[f"{seat.address}:{seat.port}"] for seat in plan.seats])
        case "jaccl":
            return json.dumps([[device or None for device in seat.rdma] for seat in plan.seats])
        case _:
            return ""


def group_environment(plan: Plan, rank: int, path: str) -> dict[str, str]:
    """The variables of one rank. `path`: of the file. A rank on its own needs none. Raises UsageError for MPI, whose ranks only
    its own launcher can start."""
    first = plan.seats[0]
    if len(plan.seats) == 1:
        return {}
    match plan.backend:
        case "ring":
            return {"MLX_RANK": str(rank), "MLX_HOSTFILE": path}
        case "jaccl":
            coordinator = f"{first.address}:{first.port}"
            return {"MLX_RANK": str(rank), "MLX_IBV_DEVICES": path, "MLX_JACCL_COORDINATOR": coordinator}
        case "nccl":
            return {
                "MLX_RANK": str(rank),
                "MLX_WORLD_SIZE": str(len(plan.seats)),
                "NCCL_HOST_IP": first.address,
                "NCCL_PORT": str(first.port),
            }
        case "mpi":
            raise UsageError("ranks over MPI are started by mpirun, on all machines at once; take ring")
