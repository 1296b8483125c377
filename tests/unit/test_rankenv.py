"""What a rank's environment says, by backend."""

from __future__ import annotations

import json

import msgspec
import pytest

from swarm.core.errors import UsageError
from swarm.core.rankenv import VARIABLES, group_environment, group_file
from tests.unit.test_meeting_decisions import PLAN

PLACES = [f"{seat.address}:{seat.port}" for seat in PLAN.seats]


def test_ring_has_one_place_for_each_rank() -> None:
    assert json.loads(group_file(PLAN)) == [[place] for place in PLACES]
    assert group_environment(PLAN, 2, "/x/hosts.json") == {"MLX_RANK": "2", "MLX_HOSTFILE": "/x/hosts.json"}


def test_jaccl_has_a_matrix_of_devices_and_a_coordinator() -> None:
    rows = [["" if a == b else f"rdma_en{b}" for b in range(3)] for a in range(3)]
    seats = tuple(msgspec.structs.replace(seat, rdma=tuple(row)) for seat, row in zip(PLAN.seats, rows, strict=True))
    plan = msgspec.structs.replace(PLAN, backend="jaccl", seats=seats)
    assert json.loads(group_file(plan))[1] == ["rdma_en0", None, "rdma_en2"]
    assert group_environment(plan, 1, "/x/devices.json") == {
        "MLX_RANK": "1",
        "MLX_IBV_DEVICES": "/x/devices.json",
        "MLX_JACCL_COORDINATOR": PLACES[0],
    }


def test_nccl_is_told_where_the_first_rank_is() -> None:
    plan = msgspec.structs.replace(PLAN, backend="nccl")
    assert group_file(plan) == ""
    told = group_environment(plan, 1, "")
    assert told == {
        "MLX_RANK": "1",
        "MLX_WORLD_SIZE": "3",
        "NCCL_HOST_IP": PLAN.seats[0].address,
        "NCCL_PORT": "21001",
    }
    assert set(told) <= set(VARIABLES)


@pytest.mark.parametrize("backend", ["ring", "nccl", "mpi"])
def test_one_rank_on_its_own_is_told_nothing(backend: str) -> None:
    alone = msgspec.structs.replace(PLAN, backend=backend, seats=PLAN.seats[:1])
    assert group_file(alone) == ""
    assert group_environment(alone, 0, "/x") == {}


def test_mpi_has_a_launcher_of_its_own() -> None:
    with pytest.raises(UsageError, match="mpirun"):
        group_environment(msgspec.structs.replace(PLAN, backend="mpi"), 0, "")
