"""A learner whose process was killed, or left, goes on where it was."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.core.events import Restored, Trouble, WorkerEvent
from swarm.core.specs import DiLoCo
from tests.process.machines import Machine, check_mailbox, closed, make_mailbox, new_run, start

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def restored(event: WorkerEvent) -> bool:
    return isinstance(event, Restored)


def test_a_learner_that_was_killed_and_one_that_left_go_on(tmp_path: Path, state_dir: Path) -> None:
    mailbox = make_mailbox(tmp_path)
    algorithm = DiLoCo(
        sync_every=20,
        fragments=2,
        in_flight=2,
        alignment="carry",
        delta_dtype="F8_E4M3",
        beat_s=0.5,
        lease_s=3.0,
    )
    run = new_run(rounds=None, algorithm=algorithm)
    first = start(mailbox, run, "a", "torch", create=True)
    first.until(closed(3))
    first.kill()
    ends: list[Callable[[Machine], object]] = [
        lambda machine: machine.worker.process.send_signal(signal.SIGINT),
        lambda machine: machine.kill(),
    ]
    for end in ends:
        machine = start(mailbox, run, "a", "torch")
        event = machine.until(restored)
        assert isinstance(event, Restored)
        for part in ("the inner optimizer", "the position in the data", "what rounding has kept back"):
            assert part in event.what
        machine.until(closed(event.round + 2))
        end(machine)
        machine.wait()
        assert not [e for e in machine.look() if isinstance(e, Trouble)]
    assert check_mailbox(mailbox, run.run) > 5
