"""A learner whose process was killed, or left, goes on where it was."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from swarm.core.events import Joined, Restored, Trouble, WorkerEvent
from swarm.core.keys import RunKeys
from swarm.core.naming import run_id_of
from swarm.core.specs import DiLoCo
from swarm.mailbox import open_mailbox
from swarm.manifests import manifest_sha256, read_manifest
from swarm.runtime.local import Loaded, LocalCheckpoint
from tests.process.machines import Machine, check_mailbox, closed, make_mailbox, new_run, start
from tests.process.test_examples import Program

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def restored(event: WorkerEvent) -> bool:
    return isinstance(event, Restored)


@pytest.mark.parametrize("framework", ["mlx", pytest.param("torch", marks=pytest.mark.slow)])
def test_a_learner_that_was_killed_and_one_that_left_go_on(tmp_path: Path, state_dir: Path, framework: str) -> None:
    pytest.importorskip({"torch": "torch", "mlx": "mlx.core"}[framework])
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
    first = start(mailbox, run, "a", framework, create=True)
    first.until(closed(3))
    first.kill()
    ends: list[Callable[[Machine], object]] = [
        lambda machine: machine.worker.interrupt(),
        lambda machine: machine.kill(),
    ]
    for end in ends:
        machine = start(mailbox, run, "a", framework)
        event = machine.until(restored)
        assert isinstance(event, Restored)
        for part in ("the inner optimizer", "the position in the data", "what rounding has kept back"):
            assert part in event.what
        machine.until(closed(event.round + 2))
        end(machine)
        machine.wait()
        assert not [e for e in machine.look() if isinstance(e, Trouble)]
    assert check_mailbox(mailbox, run.run) > 5


@pytest.mark.slow
def test_a_run_that_is_made_anew_under_its_id_begins_anew(tmp_path: Path, state_dir: Path) -> None:
    mailbox = make_mailbox(tmp_path)
    run = new_run(rounds=None, algorithm=DiLoCo(sync_every=20, beat_s=0.5, lease_s=3.0))
    former = start(mailbox, run, "a", "torch", create=True)
    former.until(closed(2))
    former.kill()

    async def remove() -> None:
        store = open_mailbox(mailbox)
        await store.open()
        await store.delete(await store.list(f"{RunKeys(run.run).root}/"))

    asyncio.run(remove())
    later = start(mailbox, run, "a", "torch", create=True)
    later.until(closed(4))
    later.worker.interrupt()
    later.wait()
    assert [e.incarnation for e in later.events if isinstance(e, Joined)] == [1]
    assert not [e for e in later.events if isinstance(e, Restored | Trouble)]
    again = start(mailbox, run, "a", "torch")
    event = again.until(restored)
    assert isinstance(event, Restored)
    assert event.round >= 4
    again.kill()


PROGRAM = """
import json, sys
import torch
import swarm

torch.manual_seed(0)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)

def told(event):
    if isinstance(event, swarm.events.Restored):
        print(f"restored {event.what}\\n", end="", flush=True)

def step(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss, len(batch)

session = swarm.Session(
    model, algorithm=swarm.DiLoCo(sync_every=20, beat_s=0.5, lease_s=3.0), mailbox=sys.argv[1], run="mine", learner_id="a",
    optimizer=optimizer, callbacks=[told, swarm.narrate],
)
with session:
    names = {p: name for name, p in model.named_parameters()}
    moments = {f"{names[p]}.{k}": v.tolist() for p, kept in optimizer.state.items() for k, v in kept.items()}
    begun = json.dumps({"steps": session.steps_before, "moments": moments})
    print(f"begins {begun}\\n", end="", flush=True)  # a line in one piece: events are told on another thread
    session.run(step, [torch.randn(8, 16) for _ in range(10)])
"""


@pytest.mark.slow
def test_a_program_that_was_killed_goes_on_with_the_moments_it_had(tmp_path: Path, state_dir: Path) -> None:
    pytest.importorskip("torch")
    mailbox, script = make_mailbox(tmp_path), tmp_path / "program.py"
    script.write_text(PROGRAM)
    first = Program(script, mailbox, output=tmp_path / "first.txt")
    first.until("round 5 closed")
    first.process.kill()
    first.process.wait()

    async def where() -> LocalCheckpoint:
        store = open_mailbox(mailbox)
        await store.open()
        run = run_id_of("mine")
        return LocalCheckpoint(
            state_dir / "checkpoints",
            run=run,
            manifest_sha256=await manifest_sha256(store, run),
            learner="a",
            incarnation=1,
            schema_sha256=(await read_manifest(store, run)).schema_sha256,
        )

    saved = asyncio.run(where()).load()
    assert isinstance(saved, Loaded)
    second = Program(script, mailbox, output=tmp_path / "second.txt")
    second.until("begins")
    second.until("closed")
    second.process.send_signal(signal.SIGINT)
    assert second.wait() == 0, second.text
    said = next(line for line in second.text.splitlines() if line.startswith("restored"))
    assert "the inner optimizer" in said
    begun = json.loads(next(line for line in second.text.splitlines() if line.startswith("begins")).partition(" ")[2])
    assert begun["steps"] == saved.values["steps"]["steps"] > 0
    moments = saved.sections["optimizer"]
    assert (
        begun["moments"].keys()
        == moments.keys()
        == {f"{name}.{key}" for name in ("weight", "bias") for key in ("step", "exp_avg", "exp_avg_sq")}
    )
    assert all(np.array_equal(np.array(begun["moments"][name], array.dtype), array) for name, array in moments.items())
