"""kill -9 of a learner at random moments: the other goes on, and the mailbox stays whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from swarm.core.specs import DiLoCo
from tests.process.machines import check_mailbox, closed, make_mailbox, new_run, start

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


@pytest.mark.parametrize("seed", range(5))
def test_killing_a_learner_stops_nobody(tmp_path: Path, state_dir: Path, seed: int) -> None:
    kill_one(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_killing_a_learner_stops_nobody_at_many_moments(tmp_path: Path, state_dir: Path, seed: int) -> None:
    kill_one(tmp_path, seed)


def test_a_killed_learner_comes_back_at_once_and_both_end_with_the_same_parameters(tmp_path: Path, state_dir: Path) -> None:
    mailbox = make_mailbox(tmp_path)
    run = new_run(rounds=None, algorithm=SPEC)
    torch = start(mailbox, run, "torch", "torch", create=True)
    torch.until(lambda event: type(event).__name__ == "Joined")
    mlx = start(mailbox, run, "mlx", "mlx")
    mlx.until(closed(1))
    mlx.kill()
    again = start(mailbox, run, "mlx", "mlx")
    joined = again.until(lambda event: type(event).__name__ == "Joined")
    assert joined.incarnation == 2  # type: ignore[union-attr]
    event = again.until(lambda e: type(e).__name__ == "RoundClosed" and "mlx" in e.participants)  # type: ignore[union-attr]
    again.until(closed(event.round + 2))  # type: ignore[union-attr]
    import asyncio

    from swarm import api

    asyncio.run(api.stop_run(mailbox, run.run))
    assert torch.wait() == 0, torch.words()
    assert again.wait() == 0, again.words()
    assert torch.ended is not None
    assert again.ended is not None
    assert torch.ended.reason == again.ended.reason == "stopped"
    assert torch.ended.params_sha256 == again.ended.params_sha256
    check_mailbox(mailbox, run.run)
