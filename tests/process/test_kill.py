"""kill -9 of learners and syncers at random moments: the others go on, and the mailbox stays whole."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from swarm import api
from swarm.core.events import Joined, RoundClosed
from swarm.core.specs import DiLoCo
from tests.process.machines import Machine, check_mailbox, closed, make_mailbox, new_run, start

pytest.importorskip("torch")
pytest.importorskip("mlx.core")
pytestmark = pytest.mark.process

SPEC = DiLoCo(sync_every=20, quorum_size=2, beat_s=0.2, lease_s=2.0)
ROUNDS = 12


def kill_one(folder: Path, seed: int) -> None:
    """One run of two learners; one of them, which closes rounds as often as the other, is killed."""
    rng = random.Random(seed)
    mailbox = make_mailbox(folder)
    run = new_run(rounds=ROUNDS, algorithm=SPEC)
    creator, joiner = rng.sample(["torch", "mlx"], 2)
    first = start(mailbox, run, creator, creator, create=True)
    first.until(lambda event: type(event).__name__ == "Joined")
    second = start(mailbox, run, joiner, joiner)
    second.until(closed(0))
    victim, survivor = rng.sample([first, second], 2)
    time.sleep(rng.uniform(0, 1.0))
    victim.kill()
    assert survivor.wait() == 0, survivor.words()
    assert survivor.ended is not None
    assert survivor.ended.reason == "done"
    assert check_mailbox(mailbox, run.run) == ROUNDS


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) for seed in range(5)])
def test_killing_a_learner_stops_nobody(tmp_path: Path, state_dir: Path, seed: int) -> None:
    kill_one(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_killing_a_learner_stops_nobody_at_many_moments(tmp_path: Path, state_dir: Path, seed: int) -> None:
    kill_one(tmp_path, seed)


CAST = DiLoCo(
    sync_every=20, fragments=2, in_flight=2, alignment="carry", delta_dtype="F8_E4M3", quorum_size=1, beat_s=0.2, lease_s=2.0
)


def kill_some(folder: Path, seed: int, *, framework: str) -> None:
    """One run of two learners and a syncer; one kind of them or both are killed at a random moment, and come back."""
    rng = random.Random(seed)
    mailbox = make_mailbox(folder)
    run = new_run(rounds=None, algorithm=CAST)
    kinds = {"studio": (framework, "either"), "mbp": (framework, "either"), "nas": ("auto", "syncer")}

    def begin(name: str, *, create: bool = False) -> Machine:
        framework, role = kinds[name]
        return start(mailbox, run, name, framework, create=create, role=role)  # type: ignore[arg-type]

    there = {"studio": begin("studio", create=True)}
    there["studio"].until(lambda event: type(event).__name__ == "Joined")
    there |= {name: begin(name) for name in ("mbp", "nas")}
    for machine in there.values():
        machine.until(closed(1))
    victims = (["mbp"], ["nas"], ["mbp", "nas"])[seed % 3]
    time.sleep(rng.uniform(0, 1.0))
    for name in victims:
        there[name].kill()
    newest = max(event.round for event in there["studio"].look() if isinstance(event, RoundClosed))
    there["studio"].until(closed(newest + 4))  # it goes on without them
    again = {name: begin(name) for name in victims}
    for name, machine in again.items():
        joined = machine.until(lambda event: isinstance(event, Joined))
        assert isinstance(joined, Joined)
        assert joined.incarnation == 2, name
        machine.until(closed(joined.round + 4))
    asyncio.run(api.stop_run(mailbox, run.run))
    there |= again
    ends = set()
    for name, machine in there.items():
        assert machine.wait() == 0, machine.words()
        assert machine.ended is not None
        assert machine.ended.reason == "stopped"
        if name != "nas":
            ends.add(machine.ended.params_sha256)
    assert len(ends) == 1
    check_mailbox(mailbox, run.run)


def test_killing_a_learner_and_the_syncer_stops_nobody(tmp_path: Path, state_dir: Path) -> None:
    kill_some(tmp_path, 2, framework="mlx")  # which loads in a tenth of the time


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 115))
def test_killing_learners_and_syncers_at_many_moments(tmp_path: Path, state_dir: Path, seed: int) -> None:
    kill_some(tmp_path, seed, framework="torch")


def test_a_killed_learner_comes_back_at_once_and_both_end_with_the_same_parameters(tmp_path: Path, state_dir: Path) -> None:
    mailbox = make_mailbox(tmp_path)
    run = new_run(rounds=None, algorithm=SPEC)
    first = start(mailbox, run, "first", "mlx", create=True)
    first.until(lambda event: type(event).__name__ == "Joined")
    mlx = start(mailbox, run, "mlx", "mlx")
    mlx.until(closed(1))
    mlx.kill()
    again = start(mailbox, run, "mlx", "mlx")
    joined = again.until(lambda event: type(event).__name__ == "Joined")
    assert joined.incarnation == 2  # type: ignore[union-attr]
    event = again.until(lambda e: type(e).__name__ == "RoundClosed" and "mlx" in e.participants)  # type: ignore[union-attr]
    again.until(closed(event.round + 2))  # type: ignore[union-attr]
    asyncio.run(api.stop_run(mailbox, run.run))
    assert first.wait() == 0, first.words()
    assert again.wait() == 0, again.words()
    assert first.ended is not None
    assert again.ended is not None
    assert first.ended.reason == again.ended.reason == "stopped"
    assert first.ended.params_sha256 == again.ended.params_sha256
    check_mailbox(mailbox, run.run)
