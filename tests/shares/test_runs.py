"""Whole runs over a real share: learners in processes of their own, each with a mount of its own."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm import api
from swarm.core.events import Joined, RoundClosed, WorkerEvent
from swarm.core.jobs import CreateRun
from swarm.core.specs import DiLoCo, FedAvg
from tests.process import machines
from tests.process.machines import Machine, check_mailbox, closed, make_mailbox, new_run, start

pytest.importorskip("mlx.core")
pytestmark = pytest.mark.share

ROUNDS = 10
SPEC = DiLoCo(sync_every=10, fragments=2, in_flight=2, quorum_size=2, beat_s=1.0, lease_s=10.0)
FRAMEWORK = "mlx"  # it is imported in a twentieth of the time of the other, and the share sees no difference
Begin = Callable[..., Machine]


@pytest.fixture
def mailboxes(shares: tuple[Path, Path], tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One mailbox, as it is called on either machine."""
    monkeypatch.setattr(machines, "HANG_S", 280.0)
    folder = shares[0] / tmp_path.name
    folder.mkdir()
    here = make_mailbox(folder)
    return [here, str(shares[1] / Path(here).relative_to(shares[0]))]


def begin(mailboxes: list[str], run: CreateRun) -> list[Machine]:
    """Two learners, the first of which has made the run."""
    first = start(mailboxes[0], run, "here", FRAMEWORK, create=True)
    first.until(lambda event: isinstance(event, Joined))
    return [first, start(mailboxes[1], run, "elsewhere", FRAMEWORK)]


def check_ends(there: list[Machine], mailboxes: list[str], run: CreateRun, *, reason: str = "done") -> int:
    """All took part to the end, with the same parameters, and the mailbox is whole whoever looks; how many rounds it has."""
    for machine in there:
        assert machine.wait() == 0, machine.words()
        assert machine.ended is not None
        assert machine.ended.reason == reason, machine.words()
    assert len({machine.ended.params_sha256 for machine in there if machine.ended}) == 1
    here, elsewhere = (check_mailbox(mailbox, run.run) for mailbox in mailboxes)
    assert here == elsewhere
    return here


def test_two_learners_on_two_mounts_end_with_the_same_parameters(mailboxes: list[str]) -> None:
    run = new_run(rounds=ROUNDS, algorithm=SPEC)
    there = begin(mailboxes, run)
    assert check_ends(there, mailboxes, run) == ROUNDS


def test_a_learner_that_is_killed_stops_nobody_and_comes_back(mailboxes: list[str]) -> None:
    run = new_run(rounds=2 * ROUNDS, algorithm=SPEC)
    there = begin(mailboxes, run)
    for machine in there:
        machine.until(closed(0))
    victim, pause_s = random.randrange(2), random.uniform(0, 2)
    print(f"killed {('here', 'elsewhere')[victim]} {pause_s:.2f} s after both had seen round 0")
    time.sleep(pause_s)
    there[victim].kill()
    there[victim] = start(mailboxes[victim], run, ("here", "elsewhere")[victim], FRAMEWORK)
    joined = there[victim].until(lambda event: isinstance(event, Joined))
    assert isinstance(joined, Joined)
    assert joined.incarnation == 2
    assert check_ends(there, mailboxes, run) == 2 * ROUNDS


def test_two_learners_train_the_clients_of_a_federated_run(mailboxes: list[str]) -> None:
    algorithm = FedAvg(clients=4, per_round=2, batch_size=32, local_epochs=1, beat_s=1.0, lease_s=10.0)
    run = api.new_run(task="lenet5", options={"model": "mlp"}, algorithm=algorithm, rounds=None, seed=1)
    there = begin(mailboxes, run)
    joined = there[1].until(lambda event: isinstance(event, Joined))
    assert isinstance(joined, Joined)

    def shared(event: WorkerEvent) -> bool:
        return isinstance(event, RoundClosed) and len({client.learner for client in event.clients}) == 2

    for machine in there:
        machine.until(shared)
        machine.until(closed(joined.round + 2))
    asyncio.run(api.stop_run(mailboxes[0], run.run))
    assert check_ends(there, mailboxes, run, reason="stopped") > joined.round + 2
