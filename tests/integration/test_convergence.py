"""A real model, real gradients: what rounding deltas to a few bits costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from swarm.core.fragments import Schedule, plan
from swarm.core.records import Participant
from swarm.core.specs import DiLoCo
from swarm.runtime.handoff import Aligned, Publication, Verdict
from swarm.runtime.inner import InnerLoop
from swarm.tasks.charlm import TASK
from swarm.tensors.fold import Fold
from swarm.tensors.outer import step

torch = pytest.importorskip("torch")


class Pair:
    """Two learners of charlm, whose rounds are closed as soon as both have reported."""

    def __init__(self, spec: DiLoCo, **options: str) -> None:
        self.spec = spec
        chosen = TASK.options({"size": "tiny", "sample_bytes": "0", **options})
        self.tasks: list[Any] = [
            TASK.build(framework="torch", device="cpu", options=chosen, data=TASK.data(None), data_path=None, seed=3)
            for _ in range(2)
        ]
        self.schema = self.tasks[0].adapter.schema()
        self.plan = plan(self.schema, spec.fragments, spec.partition)
        theta = {name: np.array(array) for name, array in self.tasks[0].adapter.snapshot().items()}
        self.theta = [{name: theta[name] for name in names} for names in self.plan]
        self.momentum = {name: np.zeros_like(array) for name, array in theta.items()}
        start = Aligned(newest=-1, fragments={k: ("0" * 64, part) for k, part in enumerate(self.theta)})
        schedule = Schedule(sync_every=spec.sync_every, fragments=len(self.plan))
        self.loops = [InnerLoop(t.adapter, spec, plan=self.plan, schedule=schedule, start=start) for t in self.tasks]
        for name, task in zip("ab", self.tasks, strict=True):
            task.use_stream(name, 1)

    def train(self, rounds: int) -> float:
        """The validation loss after `rounds`."""
        for round in range(rounds):
            made = [self._published(task, loop) for task, loop in zip(self.tasks, self.loops, strict=True)]
            aligned = self._closed(round, made)
            for loop, mine in zip(self.loops, made, strict=True):
                loop.align(Aligned(newest=round, fragments=aligned, verdicts={round: Verdict(counted=_counted(mine))}))
        self.loops[0].take_committed()
        return float(self.tasks[0].evaluate().loss)

    def _published(self, task: Any, loop: InnerLoop) -> Publication:
        while (made := loop.due(flush=False)) is None:
            result = task.step()
            loop.count(tokens=result.tokens, loss=result.loss, seconds_s=1.0)
        return made

    def _closed(self, round: int, made: list[Publication]) -> dict[int, tuple[str, dict[str, np.ndarray]]]:
        fragment = made[0].fragment
        names = self.plan[fragment]
        fold = Fold([self.schema[n] for n in names], [1.0, 1.0], merge=self.spec.merge, dtype=self.spec.delta_dtype)
        for name in names:
            for publication in made:
                fold.add(name, publication.delta)
            merged, m = fold.result(name), self.momentum[name]
            lr, beta = self.spec.outer_lr, self.spec.outer_momentum
            assert step(self.theta[fragment][name], merged, momentum=m, new_momentum=m, lr=lr, beta=beta)
            self.theta[fragment] = {**self.theta[fragment], name: merged}
        return {fragment: (f"{round:064x}", self.theta[fragment])}


def _counted(made: Publication) -> Participant:
    return Participant(
        learner="a",
        unit="a",
        weight=1.0,
        tokens=made.tokens,
        steps=made.steps,
        train_loss=made.train_loss,
        seconds_s=made.seconds_s,
        size_bytes=1,
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So small a model is slower on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def final_loss(delta_dtype: str | None) -> float:
    """A small outer momentum and learning rate: with larger ones two runs of so few rounds differ by more than one per cent
    whatever their deltas are rounded to."""
    spec = DiLoCo(sync_every=8, delta_dtype=delta_dtype, outer_momentum=0.6)  # type: ignore[arg-type]
    return Pair(spec, seq_len="32", batch_size="4", learning_rate="5e-4").train(10)


def test_a_few_bits_with_error_feedback_end_where_fp32_does() -> None:
    full = final_loss("F32")
    assert full < 3, "it has learned something: it began at 5.5"
    for dtype in ("F8_E4M3", "F4"):
        assert abs(final_loss(dtype) - full) < 0.01 * full, dtype
