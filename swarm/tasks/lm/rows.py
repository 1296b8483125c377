"""The rows of a data folder, and which of them make which batch.

A batch is a function of (seed, its number) alone: of no rank, no world size and no state that would have to be saved.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import DataMissing, UsageError
from swarm.core.finetune import FineTune
from swarm.tasks.streams import generator

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Part = Literal["train", "valid", "test"]

WINDOW_BATCHES = 64  # rows are sorted by length within so many batches: hardly any padding, and still other batches each epoch
WHAT_A_ROW_IS = "a row is a JSON object, with messages, prompt and completion, or text"
MAX_TOKEN = 2**31 - 1
BEGINNING_TOKENS = 8  # of a row without a prompt


class Rows(NamedTuple):
    """Tokenised rows, one after the other."""

    tokens: I32  # (sum of lengths,)
    starts: I64  # (rows + 1,) where each row begins in `tokens`, and the end
    offsets: I32  # (rows,) tokens of the prompt, which are not learned; 0: the whole row is learned
    lines: I64  # (rows,) line of the file, from 1
    cut: int  # rows that were longer than allowed

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def lengths(self) -> I64:
        """(rows,) tokens of each row."""
        return np.diff(self.starts)

    @property
    def targets(self) -> I64:
        """(rows,) tokens of each row that are learned: all that have one before them and are not of the prompt."""
        return np.maximum(0, self.lengths - np.maximum(1, self.offsets))

    @property
    def digest(self) -> bytes:
        """SHA-256 of everything that batches and losses depend on."""
        found = hashlib.sha256()
        for array in (self.tokens, self.starts, self.offsets):
            found.update(np.ascontiguousarray(array).data)
        return found.digest()

    def row(self, index: int) -> I32:
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def beginning(self, index: int) -> list[int]:
        """Tokens that a row begins with: its prompt, or a few where all of it is learned."""
        row = self.row(index)
        return [int(token) for token in row[: int(self.offsets[index]) or min(BEGINNING_TOKENS, max(1, row.size // 2))]]


class Batch(NamedTuple):
    """Rows of one pass through the model, padded to one length."""

    rows: tuple[int, ...]
    inputs: I32  # (rows, length)
    targets: I32  # (rows, length) the tokens that follow
    mask: NDArray[np.bool_]  # (rows, length) which of them are learned
    padding: int  # positions that are computed for nothing: beyond the row that stands in them

    @property
    def learned_tokens(self) -> int:
        return int(np.count_nonzero(self.mask))


def read_rows(folder: Path, part: Part, *, tokenizer: Any, spec: FineTune) -> Rows:
    """A part of a data folder, tokenised as MLX-LM does: chat, completions or text, as its first row says. An absent file has
    no rows. Raises DataMissing if `train` is absent or empty, UsageError for a line that is no row."""
    path = folder / f"{part}.jsonl"
    try:
        texts = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    lines = [number for number, text in enumerate(texts, 1) if text.strip()]
    data = [_decoded(texts[number - 1], where=f"{path}, line {number}") for number in lines]
    if not data:
        if part == "train":
            raise DataMissing(f"{path}: no rows to train on; {WHAT_A_ROW_IS}")
        return Rows(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64), 0)
    return tokenised(data, lines, path=path, process=_processor(data, tokenizer, spec, path), limit=spec.max_seq_length)


def tokenised(
    data: Sequence[Any], lines: Sequence[int], *, path: Path, process: Callable[[Any], tuple[list[int], int]], limit: int
) -> Rows:
    tokens: list[I32] = []
    offsets = np.zeros(len(data), np.int32)
    cut = 0
    for index, (datum, line) in enumerate(zip(data, lines, strict=True)):
        try:
            row, offset = process(datum)
            array = np.asarray(row, np.int64)
            if array.ndim != 1 or array.size == 0 or array.min() < 0 or array.max() > MAX_TOKEN:
                raise ValueError("it has no tokens")
        except Exception as error:  # templates and tokenizers raise anything
            words = f"it has no {error}" if isinstance(error, KeyError) else f"{error}"
            raise UsageError(f"{path}, line {line}: {' '.join(words.split()):.200}") from error
        cut += array.size > limit
        tokens.append(array[:limit].astype(np.int32))
        offsets[index] = min(int(offset), limit)
    starts = np.zeros(len(data) + 1, np.int64)
    np.cumsum([row.size for row in tokens], out=starts[1:])
    return Rows(np.concatenate(tokens), starts, offsets, np.asarray(lines, np.int64), cut)


def _decoded(text: str, *, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: {WHAT_A_ROW_IS}")
    return value


def _processor(
    data: list[dict[str, Any]], tokenizer: Any, spec: FineTune, path: Path
) -> Callable[[Any], tuple[list[int], int]]:
    from mlx_lm.tuner.datasets import create_dataset

    try:
        dataset: Any = create_dataset(data, tokenizer, spec)  # it reads the spec's *_feature and mask_prompt
    except ValueError as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())}") from error
    process: Callable[[Any], tuple[list[int], int]] = dataset.process
    return process


class Order:
    """Which rows make batch k of an endless sequence, in which each epoch has every row once."""

    def __init__(self, lengths: I64, *, batch_size: int, seed: int) -> None:
        """`lengths`: (rows,) tokens of each row; at least one row."""
        self._lengths, self._seed = lengths, seed
        count = len(lengths)
        self.per_epoch = -(-count // batch_size)
        """Batches of an epoch: of equal size, or one row fewer, so that no tail of a few rows makes a step of its own."""
        self._bounds = np.asarray([count * k // self.per_epoch for k in range(self.per_epoch + 1)])
        self._epoch = functools.lru_cache(2)(self._shuffled)

    def batch(self, number: int) -> tuple[int, ...]:
        """The rows of a batch, shortest first."""
        epoch, position = divmod(number, self.per_epoch)
        return self._epoch(epoch)[position]

    def _shuffled(self, epoch: int) -> list[tuple[int, ...]]:
        """Shuffle the rows, sort each window of them by length, cut it into batches, and shuffle these."""
        rows = permutation(len(self._lengths), self._seed, "rows", epoch)
        batches = []
        for first in range(0, self.per_epoch, WINDOW_BATCHES):
            last = min(first + WINDOW_BATCHES, self.per_epoch)
            start, stop = self._bounds[first], self._bounds[last]
            window = rows[start:stop]
            window = window[np.argsort(self._lengths[window], kind="stable")]
            for k in range(first, last):
                batches.append(tuple(window[self._bounds[k] - start : self._bounds[k + 1] - start].tolist()))
        return [batches[k] for k in permutation(self.per_epoch, self._seed, "batches", epoch)]


def permutation(count: int, seed: int, *names: str | int) -> I64:
    """A random order of 0 to count − 1. Of raw numbers of the generator: they are the same in every version of NumPy, and all
    ranks must draw the same."""
    return np.argsort(generator(seed, *names).bit_generator.random_raw(count), kind="stable")


def shared_out(rows: Sequence[int], lengths: I64, shares: Sequence[int]) -> list[list[int]]:
    """The rows of each rank: each row is in exactly one list, and the tokens go by the ranks' shares (not negative, not all
    zero; a rank may get none). The longest row first, to whoever is then the least loaded for its share; ties go to the lower
    rank."""
    taking = [rank for rank, share in enumerate(shares) if share > 0]
    if not taking or min(shares) < 0:
        raise ValueError(f"shares must not be negative, and not all zero, got {list(shares)}")
    parts: list[list[int]] = [[] for _ in shares]
    loads = [0] * len(shares)
    for row in sorted(rows, key=lambda row: (-int(lengths[row]), row)):
        length = int(lengths[row])
        rank = min(taking, key=lambda rank: ((loads[rank] + length) / shares[rank], rank))
        loads[rank] += length
        parts[rank].append(row)
    return parts


def tokens_given(batches: Sequence[Sequence[int]], lengths: I64, shares: Sequence[int]) -> list[int]:
    """By rank, the tokens of its rows in some batches."""
    given = [0] * len(shares)
    for batch in batches:
        for rank, rows in enumerate(shared_out(batch, lengths, shares)):
            given[rank] += int(lengths[rows].sum())
    return given


def microbatches(
    rows: Sequence[int], lengths: I64, *, max_rows: int, max_tokens: int | None, pad_to: int
) -> Iterator[list[int]]:
    """The rows in groups that go through the model at once, alike in length. A row that alone has more than `max_tokens` goes
    alone."""
    group: list[int] = []
    for row in sorted(rows, key=lambda row: (-int(lengths[row]), row)):
        longest = padded(int(lengths[group[0] if group else row]), pad_to)
        if group and (len(group) == max_rows or (max_tokens is not None and longest * (len(group) + 1) > max_tokens)):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


def padded(length: int, pad_to: int) -> int:
    """Positions that a row takes up as inputs: all of its tokens but the last, and padding."""
    return max(1, -(-(length - 1) // pad_to)) * pad_to


def assembled(rows: Rows, indices: Sequence[int], *, pad_to: int) -> Batch:
    """The arrays of one pass through the model."""
    found = [rows.row(index) for index in indices]
    width = max(padded(row.size, pad_to) for row in found)
    inputs = np.zeros((len(found), width), np.int32)
    targets = np.zeros((len(found), width), np.int32)
    mask = np.zeros((len(found), width), np.bool_)
    for k, (index, row) in enumerate(zip(indices, found, strict=True)):
        inputs[k, : row.size - 1] = row[:-1]
        targets[k, : row.size - 1] = row[1:]
        mask[k, max(0, int(rows.offsets[index]) - 1) : row.size - 1] = True  # the first target is the row's second token
    return Batch(tuple(indices), inputs, targets, mask, inputs.size - sum(row.size - 1 for row in found))
