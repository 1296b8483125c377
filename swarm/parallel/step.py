"""One step of all ranks: the sums of their tokens' gradients, losses and tokens travel in one fp32 buffer, and the gradient
that the optimizer sees is the sum over all tokens divided by their number. So it is the same for any division of the rows.

With several buckets, the buffer travels in so many parts, the last layers' first, while a rank's last pass still computes the
gradients of the layers before them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import mlx.core as mx
import mlx.nn as nn
import msgspec
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from swarm.core.errors import LossNotFinite, RowTooLarge
from swarm.parallel.group import Group, joined_count, numbers, split_count, sums, unbroken
from swarm.parallel.memory import out_of_memory, rows_that_fit
from swarm.tasks.lm.rows import Batch, Rows, assembled, microbatches, padded, shared_out
from swarm.tasks.streams import generator

Tree = Any
Worked = TypeVar("Worked")
Named = list[tuple[str, mx.array]]


class Limits(msgspec.Struct):
    """What goes through the model at once on this machine. `max_tokens`, which counts positions, is set to half of what was too
    much for the memory."""

    max_rows: int
    max_tokens: int | None = None
    pad_to: int = 32


class Local(NamedTuple):
    """What one rank adds to a step."""

    gradients: Tree | None  # fp32, summed over tokens; None: it had none
    loss: float  # summed over tokens
    tokens: int  # that were learned
    padding: int  # positions computed for nothing
    positions: int  # positions computed
    bad: frozenset[int]  # rows whose loss is not finite
    compute_s: float


_Held = tuple[Local, Batch | None]
"""What was computed, and the last pass, which is still to be."""


class _Total(NamedTuple):
    """What all ranks have together: sums, but for the gradients."""

    gradients: Tree  # mean over tokens, in the parameters' precision
    loss: float
    tokens: int
    compute_s: tuple[float, ...]  # by rank
    finite: bool
    halting: int


class Step(NamedTuple):
    """What all ranks did in a step."""

    loss: float | None  # mean over tokens; None: all of them are masked, and nothing was updated
    tokens: int  # that were learned
    local: Local
    compute_s: tuple[float, ...]  # by rank
    exchange_s: float  # here: waiting for the slowest, and the sum itself
    update_s: float
    halting: int  # ranks that wish to halt after this step


def token_losses(model: Any, inputs: mx.array, targets: mx.array, mask: mx.array) -> mx.array:
    """(rows,) fp32 sums of the cross entropy of the learned tokens, as MLX-LM computes it but for its pad token."""
    losses = nn.losses.cross_entropy(model(inputs), targets)
    return mx.where(mask, losses, 0).astype(mx.float32).sum(axis=-1)


class Stepper:
    """A model with its optimizer, and the sums over all ranks."""

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        rows: Rows,
        group: Group,
        seed: int,
        limits: Limits,
        compiled: bool = False,
        buckets: int = 1,
        progressed: Callable[[], None] = lambda: None,
    ) -> None:
        """`progressed` is called after each pass through the model. The optimizer's state must be complete (`init`)."""
        self.model, self.optimizer, self.rows, self.group, self.limits = model, optimizer, rows, group, limits
        self._seed, self._buckets, self._progressed = seed, buckets if group.size > 1 else 1, progressed
        self._passing: Batch | None = None  # what goes through the model
        self._fitting = 0  # most positions of a pass that went well
        self._lengths = rows.lengths
        self._accumulate = self._compiled_accumulation() if compiled else self._accumulated
        self._evaluate: Callable[..., mx.array] = partial(token_losses, model)
        if compiled:
            self._evaluate = mx.compile(self._evaluate, inputs=[model.state])

    def step(self, batches: Sequence[Sequence[int]], *, step: int, shares: Sequence[int], halt: bool = False) -> Step:
        """Optimizer step number `step` on the rows of all ranks, which go through the model iteration by iteration. `halt`:
        tell the others that this rank wishes to. Raises LossNotFinite, on every rank and with nothing updated; GroupBroken."""
        local, held = self._held(batches, step=step, shares=shares, overlap=self._buckets > 1)
        local, total, began = self._summed(local, held, halt=halt)
        summed = time.perf_counter()
        if total.tokens:
            if not total.finite:
                raise self._not_finite(local, batches=batches, step=step)
            self._update(total.gradients)
        return Step(
            loss=total.loss / total.tokens if total.tokens else None,
            tokens=total.tokens,
            local=local,
            compute_s=total.compute_s,
            exchange_s=summed - began,
            update_s=time.perf_counter() - summed,
            halting=total.halting,
        )

    def local(self, batches: Sequence[Sequence[int]], *, step: int, shares: Sequence[int]) -> Local:
        """This rank's sums over its part of each batch."""
        return self._held(batches, step=step, shares=shares, overlap=False)[0]

    def _held(self, batches: Sequence[Sequence[int]], *, step: int, shares: Sequence[int], overlap: bool) -> _Held:
        mine = [shared_out(batch, self._lengths, shares)[self.group.rank] for batch in batches]
        self.model.train()
        return self._fitted(self.rows, lambda: self._local(mine, step, overlap=overlap))

    def _fitted(self, rows: Rows, work: Callable[[], Worked]) -> Worked:
        """What `work` returns; from the beginning, with smaller passes, as often as it is too much for the memory. Raises
        RowTooLarge."""
        parameters = self.model.parameters()
        while True:
            self._passing = None
            try:
                return work()
            except (RuntimeError, MemoryError) as error:
                passing = self._passing
                if passing is None or not out_of_memory(error):
                    raise
                count, width = passing.inputs.shape
                if count == 1:
                    raise self.too_large(rows, passing.rows[0]) from None
            self.limits.max_tokens = count // 2 * width
            self.model.update(parameters)  # a compiled pass would have left there what it was to compute
            mx.clear_cache()

    def too_large(self, rows: Rows, row: int, *, available_bytes: int | None = None) -> RowTooLarge:
        tokens, line = int(rows.lengths[row]), int(rows.lines[row])
        return RowTooLarge(rank=self.group.rank, tokens=tokens, line=line, available_bytes=available_bytes)

    def fit(self, *, memory_bytes: int) -> None:
        """Choose how much goes through the model at once, by passes of the longest row, of which nothing stays. Raises
        RowTooLarge."""
        longest = int(np.argmax(self._lengths))
        width = padded(int(self._lengths[longest]), self.limits.pad_to)
        most = self.limits.max_rows
        if self.limits.max_tokens is not None:
            most = max(1, min(most, self.limits.max_tokens // width))

        def peak(count: int) -> int:
            batch = assembled(self.rows, [longest] * count, pad_to=self.limits.pad_to)
            mx.clear_cache()
            mx.reset_peak_memory()
            mx.eval(self._lazy(before, batch))
            self._progressed()
            return mx.get_peak_memory()

        self.model.train()
        parameters = self.model.parameters()
        # All passes of a step but the first add to what was before.
        zeros = tree_map(lambda value: mx.zeros(value.shape, mx.float32), self.model.trainable_parameters())
        mx.eval(zeros)
        before = Local(zeros, 0.0, 0, 0, 0, frozenset(), 0.0)
        rows = rows_that_fit(peak, base=mx.get_active_memory(), most=most, memory_bytes=memory_bytes)
        self.model.update(parameters)
        mx.clear_cache()
        if rows == 0:
            raise self.too_large(self.rows, longest, available_bytes=memory_bytes)
        if rows < most:
            self.limits.max_tokens = rows * width

    def _local(self, mine: Sequence[Sequence[int]], step: int, *, overlap: bool) -> _Held:
        # Other dropout on each rank and in each step, and the same again after a restart.
        mx.random.seed(int(generator(self._seed, "dropout", step, self.group.rank).bit_generator.random_raw()))
        started = time.perf_counter()
        local = Local(None, 0.0, 0, 0, 0, frozenset(), 0.0)
        held: Batch | None = None
        for batch in (each for rows in mine for each in self._passes(self.rows, rows)):
            if batch.learned_tokens == 0:  # nothing to learn from, and its mean would be 0 ÷ 0
                local = local._replace(padding=local.padding + batch.padding, positions=local.positions + batch.inputs.size)
                continue
            if held is not None:
                local = self._evaluated(local, held)
            held = batch
        # Between sums nothing can be tried again with less memory: so a pass larger than any before gets no sums beside it.
        if held is not None and not (overlap and held.inputs.size <= self._fitting):
            local, held = self._evaluated(local, held), None
        return local._replace(compute_s=time.perf_counter() - started), held

    def _evaluated(self, local: Local, batch: Batch) -> Local:
        gradients, losses = self._lazy(local, batch)
        mx.eval(gradients, losses)
        return self._added(local, batch, gradients, losses)

    def _lazy(self, local: Local, batch: Batch) -> tuple[Tree, mx.array]:
        """(gradients with those of this pass, (rows,) losses), not evaluated yet."""
        self._passing = batch
        count = mx.array(float(batch.learned_tokens))
        inputs, targets, mask = (mx.array(each) for each in (batch.inputs, batch.targets, batch.mask))
        found: tuple[Tree, mx.array] = self._accumulate(local.gradients, inputs, targets, mask, count)
        return found

    def _added(self, local: Local, batch: Batch, gradients: Tree, losses: mx.array) -> Local:
        found = numbers(losses)
        self._fitting = max(self._fitting, batch.inputs.size)
        self._progressed()
        return local._replace(
            gradients=gradients,
            loss=local.loss + sum(found),
            tokens=local.tokens + batch.learned_tokens,
            padding=local.padding + batch.padding,
            positions=local.positions + batch.inputs.size,
            bad=local.bad | {row for row, loss in zip(batch.rows, found, strict=True) if not math.isfinite(loss)},
        )

    def _passes(self, rows: Rows, indices: Sequence[int]) -> Iterator[Batch]:
        limits, lengths = self.limits, self._lengths if rows is self.rows else rows.lengths
        groups = microbatches(indices, lengths, max_rows=limits.max_rows, max_tokens=limits.max_tokens, pad_to=limits.pad_to)
        return (assembled(rows, group, pad_to=limits.pad_to) for group in groups)

    def _accumulated(self, gradients: Tree | None, inputs: mx.array, targets: mx.array, mask: mx.array, count: mx.array) -> Any:
        """(gradients with those of this pass, (rows,) losses). The pass computes the gradient of a mean, whose numbers fit into
        half precision however many tokens there are."""

        def mean(model: Any) -> tuple[mx.array, mx.array]:
            losses = token_losses(model, inputs, targets, mask)
            return losses.sum() / count, losses

        (_, losses), found = nn.value_and_grad(self.model, mean)(self.model)
        found = tree_map(lambda part: part.astype(mx.float32) * count, found)
        return (found if gradients is None else tree_map(mx.add, gradients, found)), losses

    def _compiled_accumulation(self) -> Callable[..., Any]:
        state = [self.model.state, mx.random.state]
        # The model is an output, too: to take gradients, MLX puts placeholders into it, which must not stay there.
        compiled: Callable[..., Any] = mx.compile(self._accumulated, inputs=state, outputs=state)
        return compiled

    def _summed(self, local: Local, held: Batch | None, *, halt: bool) -> tuple[Local, _Total, float]:
        """(this rank's part with the pass that was held back, the sums over all ranks, when the rest of the exchange began)."""
        buckets = divided(tree_flatten(self.model.trainable_parameters()), self._buckets)
        gradients, losses = (local.gradients, None) if held is None else self._lazy(local, held)
        found = {} if gradients is None else dict(tree_flatten(gradients))
        parts = [
            [found[name].reshape(-1) for name, _ in bucket] if found else [mx.zeros(sum(each.size for _, each in bucket))]
            for bucket in buckets
        ]
        totals: list[mx.array] = []
        for part in parts[:-1]:
            totals.append(self.group.later(part, totals[-1] if totals else None))
        began = time.perf_counter()
        if held is not None and losses is not None:
            with unbroken(self.group):
                mx.async_eval(totals, gradients, losses)  # type: ignore[no-untyped-call]
                mx.eval(gradients, losses)
                local = self._added(local, held, gradients, losses)
            local = local._replace(compute_s=local.compute_s + time.perf_counter() - began)
            began = time.perf_counter()
        last = [*parts[-1], self._figures(local, halt=halt)]
        if totals:
            with unbroken(self.group):
                totals.append(self.group.later(last, totals[-1]))
                mx.eval(totals)
        else:
            totals.append(self.group.all_sum(mx.concatenate(last)))
        return local._replace(gradients=None), self._read(buckets, totals), began

    def _figures(self, local: Local, *, halt: bool) -> mx.array:
        seconds = [0.0] * self.group.size
        seconds[self.group.rank] = local.compute_s
        return mx.array([local.loss, *split_count(local.tokens), float(halt), *seconds], mx.float32)

    def _read(self, buckets: Sequence[Named], totals: Sequence[mx.array]) -> _Total:
        size = sum(value.size for _, value in buckets[-1])
        loss, low, high, halting, *times = numbers(totals[-1][size:])
        tokens = joined_count(low, high)
        gradients: Named = []
        finite = []
        for bucket, total in zip(buckets, totals, strict=True):
            mean = total / max(tokens, 1)  # of all at once: one by one, small arrays cost more than the optimizer
            start = 0
            for name, value in bucket:
                # In the parameters' own precision: an optimizer would otherwise turn half precision into fp32.
                part = mean[start : start + value.size].reshape(value.shape)
                gradients.append((name, part.astype(value.dtype)))
                start += value.size
            finite.append(mx.isfinite(total[:start]).all())
        good = math.isfinite(loss) and all(each.item() for each in finite)
        return _Total(tree_unflatten(gradients), loss, tokens, tuple(times), good, round(halting))

    def _not_finite(self, local: Local, *, batches: Sequence[Sequence[int]], step: int) -> LossNotFinite:
        """All ranks or none come here: they judge the same sums."""
        rows = [row for batch in batches for row in batch]
        flags = numbers(self.group.all_sum(mx.array([float(row in local.bad) for row in rows])))
        named = {row for row, flag in zip(rows, flags, strict=True) if flag} or set(rows)
        lines = sorted(int(self.rows.lines[row]) for row in named)
        return LossNotFinite("loss" if any(flags) else "gradient", step=step + 1, rows=lines)

    def _update(self, gradients: Tree) -> None:
        self.optimizer.update(self.model, gradients)
        mx.eval(self.model.trainable_parameters(), self.optimizer.state)

    def evaluated(self, rows: Rows, batches: Sequence[Sequence[int]], *, shares: Sequence[int]) -> tuple[float | None, int]:
        """(mean loss over the learned tokens of the batches, their number); each batch is divided among the ranks."""
        self.model.eval()
        lengths = rows.lengths
        mine = [shared_out(batch, lengths, shares)[self.group.rank] for batch in batches]
        loss, tokens = self._fitted(rows, lambda: self._evaluation(rows, mine))
        total, count = sums(self.group, loss=loss, tokens=tokens)
        return (total / count if count else None), count

    def _evaluation(self, rows: Rows, mine: Sequence[Sequence[int]]) -> tuple[float, int]:
        loss, tokens = 0.0, 0
        for part in (each for indices in mine for each in self._passes(rows, indices)):
            self._passing = part
            count = part.learned_tokens
            if count:
                loss += sum(numbers(self._evaluate(mx.array(part.inputs), mx.array(part.targets), mx.array(part.mask))))
                tokens += count
            self._progressed()
        return loss, tokens


def divided(named: Named, count: int) -> list[Named]:
    """At most so many buckets of about equal size; with more than one the last arrays come first, as backpropagation does."""
    if count == 1:
        return [named]
    size = sum(value.size for _, value in named)
    buckets: list[Named] = [[]]
    done = 0
    for name, value in reversed(named):
        if buckets[-1] and done * count >= len(buckets) * size:
            buckets.append([])
        buckets[-1].append((name, value))
        done += value.size
    return buckets
