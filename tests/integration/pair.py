"""Learners in one thread and without a mailbox: their steps, deltas and error feedback, the merge and the outer step are the
real ones. The same arguments give the same numbers, PyTorch on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from swarm.core.fragments import Schedule, plan
from swarm.core.records import Participant
from swarm.core.specs import DiLoCo
from swarm.runtime.handoff import Aligned, Publication, Verdict
from swarm.runtime.inner import InnerLoop
from swarm.tasks.charlm import TASK
from swarm.tensors.fold import Fold
from swarm.tensors.outer import rule_of, step


def charlm(seed: int, *, names: Sequence[str] = ("a", "b"), **options: str) -> list[Any]:
    """A tiny language model for each learner, all with the same parameters. What a learner reads depends on `seed` and its
    name."""
    chosen = TASK.options({"size": "tiny", "sample_bytes": "0", **options})
    data = TASK.data(None)
    tasks = [TASK.build(framework="torch", device="cpu", options=chosen, data=data, data_path=None, seed=seed) for _ in names]
    for name, task in zip(names, tasks, strict=True):
        task.use_stream(name, 1)
    return tasks


class Pair:
    """Two learners, or more: each round is closed as soon as all have reported. The first one's parameters are Θ⁰."""

    def __init__(self, spec: DiLoCo, learners: Sequence[Any]) -> None:
        """Of a learner, which may be a Trainable of a task, `adapter` and `step` are used."""
        self.spec, self.learners = spec, learners
        adapter = learners[0].adapter
        self.schema = adapter.schema()
        self.plan = plan(self.schema, spec.fragments, spec.partition)
        self.theta = {name: np.array(array) for name, array in adapter.snapshot().items()}
        self.momentum = {name: np.zeros_like(array) for name, array in self.theta.items()}
        self.newest = -1
        start = Aligned(newest=-1, fragments={k: self._committed(k) for k in range(len(self.plan))})
        schedule = Schedule(sync_every=spec.sync_every, fragments=len(self.plan))
        self.loops = [InnerLoop(x.adapter, spec, plan=self.plan, schedule=schedule, start=start) for x in learners]

    def train(self, rounds: int) -> None:
        for _ in range(rounds):
            made = [self._published(learner, loop) for learner, loop in zip(self.learners, self.loops, strict=True)]
            fragment = made[0].fragment
            self._close(made, self.plan[fragment])
            self.newest += 1
            committed = {fragment: self._committed(fragment)}
            for loop, mine in zip(self.loops, made, strict=True):
                verdicts = {self.newest: Verdict(counted=_counted(mine))}
                loop.align(Aligned(newest=self.newest, fragments=committed, verdicts=verdicts))

    def loss(self) -> float:
        """Of Θ, in what was held out: nats per byte."""
        with self.loops[0].as_committed():
            return float(self.learners[0].evaluate().loss)

    def _published(self, learner: Any, loop: InnerLoop) -> Publication:
        while (made := loop.due(flush=False)) is None:
            result = learner.step()
            loop.count(tokens=result.tokens, loss=result.loss, seconds_s=1.0)
        return made

    def _close(self, made: Sequence[Publication], names: Sequence[str]) -> None:
        spec = self.spec
        fold = Fold([self.schema[n] for n in names], [1.0] * len(made), merge=spec.merge, dtype=spec.delta_dtype)
        for name in names:
            for publication in made:
                fold.add(name, publication.delta)
            merged, m = fold.result(name), self.momentum[name]
            assert step(rule_of(spec), self.theta[name], merged, old=[m], new=[m])
            self.theta[name] = merged

    def _committed(self, fragment: int) -> tuple[str, dict[str, np.ndarray]]:
        return f"{self.newest + 1:064x}", {name: self.theta[name] for name in self.plan[fragment]}


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
