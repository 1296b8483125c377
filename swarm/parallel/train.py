"""One rank's part of a job, from its plan to the last step."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import mlx.core as mx
import msgspec
from mlx.utils import tree_flatten

from swarm.core.errors import CheckpointUnsaved, LossNotFinite
from swarm.core.finetune import FineTune, Places, adapter_config
from swarm.core.rankjob import (
    Phase,
    RankEvent,
    RankPlan,
    RankReady,
    RankStepped,
    Replanned,
    Reported,
    Saved,
    Smaller,
    Validated,
)
from swarm.core.shares import Balance
from swarm.host.memory import keep_freed
from swarm.parallel import checkpoint as checkpoints
from swarm.parallel.checkpoint import Position
from swarm.parallel.group import Group, agree, broadcast, digest, how_many, numbers, schema
from swarm.parallel.step import Limits, Step, Stepper
from swarm.tasks.lm import model as models
from swarm.tasks.lm.rows import Order, Rows, read_rows, tokens_given
from swarm.tasks.lm.writer import Writer
from swarm.tasks.streams import generator

Tell = Callable[[RankEvent], None]
SAMPLE_TOKENS = 40  # that rank 0 writes at an evaluation
PAD_GPU, PAD_CPU = 32, 8  # a GPU computes tiles, and compiles once a shape; a CPU computes every position


class Data(NamedTuple):
    train: Rows
    valid: Rows
    test: Rows


class Trainer:
    """A rank that is ready for its next step: it holds the same as all others."""

    def __init__(
        self,
        plan: RankPlan,
        *,
        model: Any,
        optimizer: Any,
        data: Data,
        group: Group,
        position: Position,
        tell: Tell,
        progressed: Callable[[], None],
        halting: Callable[[], bool] = lambda: False,
        writer: Writer | None = None,
    ) -> None:
        """`halting`: whether this rank was told to halt. `writer`: the model and its tokenizer, where samples are written."""
        self.plan, self.spec, self.group = plan, plan.spec, group
        self.model, self.optimizer, self.data = model, optimizer, data
        self.position = position
        """What is done: replaced after each step."""
        self.saved: str | None = plan.start
        """The last good checkpoint."""
        self._kept = position.step  # of the last good checkpoint, which only rank 0 has; 0: there is none
        self._tell, self._halting, self._progressed, self._writer = tell, halting, progressed, writer
        self._halted = False
        self._balance = Balance(plan.divided)
        self._replanned: list[tuple[int, tuple[int, ...]]] = []
        gpu = on_gpu()
        self.stepper = Stepper(
            model,
            optimizer,
            rows=data.train,
            group=group,
            seed=self.spec.seed,
            limits=Limits(
                max_rows=plan.microbatch_rows or self.spec.batch_size,
                max_tokens=plan.microbatch_tokens,
                pad_to=PAD_GPU if gpu else PAD_CPU,
            ),
            compiled=gpu,
            buckets=self.spec.gradient_buckets,
            progressed=progressed,
        )
        self._order = Order(data.train.lengths, batch_size=self.spec.batch_size, seed=self.spec.seed)
        self._report = _Report()

    def ready(self) -> RankReady:
        return RankReady(
            step=self.position.step,
            steps=self.spec.steps,
            rank=self.group.rank,
            size=self.group.size,
            generation=self.plan.generation,
            rows=len(self.data.train),
            valid_rows=len(self.data.valid),
            cut_rows=self.data.train.cut,
            batches_per_epoch=self._order.per_epoch,
            trainable=sum(value.size for value in models.trainables(self.model).values()),
            device=str(mx.default_device()),
        )

    def run(self) -> bool:
        """All steps that are left; False: some are, and all ranks halt here, since one of them was told to. Raises
        LossNotFinite, CheckpointUnsaved, ReplicasDiffer, RowTooLarge, GroupBroken."""
        spec = self.spec
        if self.position.step < spec.steps and how_many(self.group, self._halting()):
            return False  # nothing to save: it stands where it began
        if self.position.step == 0:
            self._validate("valid", spec.val_batches)
        if self.position.step >= spec.steps:  # whoever made the last step may not have come to write the adapter
            self.save()
        for step in range(self.position.step, spec.steps):
            self.advance()
            halt = self._halted and step + 1 < spec.steps
            if spec.due(spec.steps_per_eval, step) and not halt:
                self._validate("valid", spec.val_batches)
            if spec.due(spec.save_every, step) or halt:
                self.save()
            if halt:
                return False
        if spec.test:
            self._validate("test", spec.test_batches)
        return True

    def advance(self) -> None:
        """One step."""
        spec, step = self.spec, self.position.step
        began = time.perf_counter()
        before = self.stepper.limits.max_tokens
        iterations = range(spec.iterations(step), spec.iterations(step + 1))
        batches = [self._order.batch(k) for k in iterations]
        try:
            done = self.stepper.step(batches, step=step, shares=self._balance.shares, halt=self._halting())
        except LossNotFinite as error:
            raise LossNotFinite(error.what, step=error.step, rows=error.rows, kept=self._what_is_kept()) from error
        self._halted = done.halting > 0
        if mx.get_cache_memory() > spec.clear_cache_threshold:
            mx.clear_cache()
        tokens = self.position.trained_tokens + done.tokens
        self.position = _at(self.position, step=step + 1, trained_tokens=tokens)
        most = self.stepper.limits.max_tokens
        if most is not None and most != before:
            self._tell(Smaller(microbatch_tokens=most))
        self._tell(self._stepped(done, self._balance.fraction(self.group.rank)))
        self._rebalance(batches, done)
        self._report.add(done, seconds_s=time.perf_counter() - began)
        if spec.due(spec.steps_per_report, step):
            if self.group.rank == 0:
                self._tell(self._report.told(self))
            self._report = _Report()

    def _rebalance(self, batches: Sequence[Sequence[int]], done: Step) -> None:
        """From the same numbers, all ranks come to the same shares."""
        if not self.plan.replan or self.group.size == 1:
            return
        given = tokens_given(batches, self.data.train.lengths, self._balance.shares)
        if self._balance.measured(given, done.compute_s):
            self._replanned.append((self.position.step, self._balance.shares))
            if self.group.rank == 0:
                self._tell(Replanned(step=self.position.step, shares=self._balance.shares))

    def save(self) -> None:
        """See that all ranks still hold the same; then rank 0 writes the checkpoint and the adapter. Raises CheckpointUnsaved,
        on all ranks, if it could not."""
        agree(
            self.group,
            {
                "the shares of the batches": _sha256(f"{self._replanned}"),
                "the trained weights": digest(models.trainables(self.model).items()),
            },
        )
        failed: CheckpointUnsaved | None = None
        if self.group.rank == 0:
            try:
                self._write()
            except CheckpointUnsaved as error:
                failed = error
        if how_many(self.group, failed is not None):
            words = failed or "rank 0 could not write it"
            raise CheckpointUnsaved(f"step {self.position.step} is not saved: {words}; {self._what_is_kept()}") from failed
        self._kept = self.position.step

    def _write(self) -> None:
        step, iteration = self.position.step, self.iteration
        path = checkpoints.save(Path(self.plan.checkpoints), self.model, self.optimizer, self.position)
        self.saved = str(path)
        adapter = models.save_adapter(
            Path(self.plan.adapter_path),
            self.model,
            config=adapter_config(self.spec, _places(self.plan)),
            iteration=iteration if self.spec.numbered(step) else None,
        )
        self._tell(Saved(step=step, iteration=iteration, checkpoint=str(path), adapter=str(adapter)))

    def _what_is_kept(self) -> str:
        if self._kept == 0:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is that of step {self._kept}" + (f", {self.saved}" if self.saved else "")

    @property
    def iteration(self) -> int:
        """MLX-LM's iterations that are done."""
        return self.spec.iterations(self.position.step)

    @property
    def epoch(self) -> float:
        return self.iteration / self._order.per_epoch

    def _validate(self, part: Literal["valid", "test"], count: int) -> None:
        rows = self.data.valid if part == "valid" else self.data.test
        if len(rows) == 0 or count == 0:
            return
        began = time.perf_counter()
        loss, tokens = self.stepper.evaluated(rows, _evaluation(rows, self.spec, count), shares=self._balance.shares)
        if self.group.rank == 0:
            told = Validated(
                part=part,
                iteration=self.iteration,
                loss=_finite(loss),
                tokens=tokens,
                seconds_s=time.perf_counter() - began,
                sample=self._sample(rows) if part == "valid" else "",
            )
            self._tell(told)

    def _sample(self, rows: Rows) -> str:
        """How the model goes on from the first row's beginning. The other ranks wait meanwhile, for as long as a few steps."""
        if self._writer is None:
            return ""
        self._progressed()
        random = generator(self.spec.seed, "mlx-lm", "sample")
        text = self._writer.sample(rows, 0, count=SAMPLE_TOKENS, random=random)
        self._progressed()
        return text

    def _stepped(self, done: Step, share: float) -> RankStepped:
        waiting_s = min(done.exchange_s, max(done.compute_s) - done.compute_s[self.group.rank])
        return RankStepped(
            step=self.position.step,
            iteration=self.iteration,
            tokens=done.tokens,
            own_tokens=done.local.tokens,
            positions=done.local.positions,
            padding=done.local.padding,
            compute_s=done.local.compute_s,
            waiting_s=waiting_s,
            exchange_s=done.exchange_s - waiting_s,
            update_s=done.update_s,
            microbatch_rows=self.stepper.limits.max_rows,
            microbatch_tokens=self.stepper.limits.max_tokens,
            memory_bytes=mx.get_peak_memory(),
            share=share,
            loss=done.loss,
        )


class _Report:
    """What MLX-LM reports now and then: over all tokens since the last time."""

    def __init__(self) -> None:
        self._loss, self._tokens, self._seconds_s = 0.0, 0, 0.0

    def add(self, done: Step, *, seconds_s: float) -> None:
        self._loss += (done.loss or 0.0) * done.tokens
        self._tokens += done.tokens
        self._seconds_s += seconds_s

    def told(self, trainer: Trainer) -> Reported:
        rate = trainer.optimizer.state.get("learning_rate")
        return Reported(
            iteration=trainer.iteration,
            train_loss=self._loss / self._tokens if self._tokens else None,
            learning_rate=trainer.spec.learning_rate if rate is None else float(rate.item()),
            tokens_per_s=self._tokens / self._seconds_s,
            trained_tokens=trainer.position.trained_tokens,
            epoch=trainer.epoch,
        )


def prepared(
    plan: RankPlan,
    group: Group,
    *,
    tell: Tell,
    progressed: Callable[[], None] = lambda: None,
    halting: Callable[[], bool] = lambda: False,
) -> Trainer:
    """Load everything, take up where the job stands, and see that all ranks hold the same. Raises UsageError, DataMissing,
    StateMismatch, SchemaMismatch, ReplicasDiffer, RowTooLarge, GroupBroken."""
    spec = plan.spec
    tell(Phase(what="model"))
    if mx.metal.is_available():  # as MLX-LM does: else large models are paged out between steps
        mx.set_wired_limit(int(mx.device_info()["max_recommended_working_set_size"]))
    if not on_gpu():
        keep_freed()
    model, tokenizer = models.load_base(Path(plan.model))
    models.prepare(model, spec)
    optimizer = models.make_optimizer(spec, model)
    progressed()
    tell(Phase(what="rows"))
    folder = Path(plan.data)
    train, valid = (read_rows(folder, part, tokenizer=tokenizer, spec=spec) for part in ("train", "valid"))
    data = Data(train, valid, read_rows(folder, "test", tokenizer=tokenizer, spec=spec) if spec.test else _none(valid))
    progressed()
    tell(Phase(what="weights"))
    position = Position(
        job=checkpoints.fingerprint(spec),
        data=data.train.digest.hex(),
        base=plan.base,
        generation=plan.generation,
        size=group.size,
    )
    if group.rank == 0:
        position = _taken_up(plan, model, optimizer, position)
    agree(
        group,
        {
            "the versions of MLX and MLX-LM": _sha256(f"{version('mlx')} {version('mlx-lm')}"),
            "the options": _sha256(checkpoints.fingerprint(spec)),
            "the plans": _sha256(f"{plan.generation} {plan.divided} {plan.replan} {spec}"),
            "the training rows, or the tokenizers": data.train.digest,
            "the validation rows": data.valid.digest,
            "the test rows": data.test.digest,
            "the layers to fine-tune": schema(models.trainables(model).items()),
            "the optimizers": schema(tree_flatten(optimizer.state)),
        },
    )
    position = _spread(group, model, optimizer, position)
    named = [*models.trainables(model).items(), *tree_flatten(optimizer.state)]
    agree(group, {"the weights at the start": digest(named)})
    trainer = Trainer(
        plan,
        model=model,
        optimizer=optimizer,
        data=data,
        group=group,
        position=position,
        tell=tell,
        progressed=progressed,
        halting=halting,
        writer=Writer(model, tokenizer, mx.default_device()) if group.rank == 0 else None,
    )
    if plan.memory_bytes is not None:
        tell(Phase(what="memory"))
        mx.set_memory_limit(int(plan.memory_bytes))  # beyond it, MLX gives back what it holds on to
        trainer.stepper.fit(memory_bytes=int(plan.memory_bytes))
    return trainer


def on_gpu() -> bool:
    on: bool = mx.default_device() == mx.Device(mx.gpu)
    return on


def _taken_up(plan: RankPlan, model: Any, optimizer: Any, position: Position) -> Position:
    if plan.start is not None:
        found = checkpoints.load(Path(plan.start))
        checkpoints.restore(found, model, optimizer, position)
        return _at(position, step=found.position.step, trained_tokens=found.position.trained_tokens)
    if plan.start_adapter is not None:
        models.take_up(model, models.read_adapter(Path(plan.start_adapter)), whence=plan.start_adapter)
    return position


def _spread(group: Group, model: Any, optimizer: Any, position: Position) -> Position:
    """Give rank 0's trainables, optimizer state and position to all."""
    if group.size == 1:
        return position
    for weights in broadcast(group, models.trainables(model)):
        model.load_weights(list(weights.items()), strict=False)
    for state in broadcast(group, dict(tree_flatten(optimizer.state))):
        checkpoints.put_state(optimizer, model, state)
    (found,) = broadcast(group, {"position": mx.array([position.step, position.trained_tokens], mx.uint64)})
    step, tokens = map(int, numbers(found["position"]))
    return _at(position, step=step, trained_tokens=tokens)


def _at(position: Position, *, step: int, trained_tokens: int) -> Position:
    return msgspec.structs.replace(position, step=step, trained_tokens=trained_tokens)


def _evaluation(rows: Rows, spec: FineTune, count: int) -> Sequence[Sequence[int]]:
    """The same batches at each validation, so that its losses can be compared."""
    order = Order(rows.lengths, batch_size=spec.batch_size, seed=spec.seed)
    return [order.batch(k) for k in range(order.per_epoch if count == -1 else min(count, order.per_epoch))]


def _none(rows: Rows) -> Rows:
    return Rows(rows.tokens[:0], rows.starts[:1] * 0, rows.offsets[:0], rows.lines[:0], 0)


def _places(plan: RankPlan) -> Places:
    names = {"model": plan.model, "data": plan.data, "adapter_path": plan.adapter_path, **plan.names}
    return Places(
        model=names["model"],
        data=names["data"],
        adapter_path=names["adapter_path"],
        resume_adapter_file=plan.start_adapter,
    )


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and loss - loss == 0 else None


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
