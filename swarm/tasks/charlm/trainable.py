"""Training the language model, and writing with it, in either framework."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from swarm.core.tensorspec import TensorSpec
from swarm.tasks.charlm.corpus import Corpus
from swarm.tasks.charlm.sampling import check_writing, choose, printable
from swarm.tasks.charlm.sizes import Size
from swarm.tasks.contract import EvalResult, StepResult, TaskState
from swarm.tasks.net import Net
from swarm.tasks.state import restore, state_of
from swarm.tasks.streams import generator

_STD = 0.02
_START = b"\n"  # a new line begins in any text
_SAMPLE_TEMPERATURE = 0.8


def initial(tensors: Iterable[TensorSpec], seed: int, *, layers: int) -> dict[str, NDArray[np.float32]]:
    """Parameters from the seed alone, equal in every framework: weights N(0, 0.02), those that write into the residual
    stream by 1/√(2 layers) smaller (GPT-2), norms 1, biases 0."""
    made: dict[str, NDArray[np.float32]] = {}
    for spec in tensors:
        *_, layer, kind = spec.name.split(".")
        if kind == "bias":
            made[spec.name] = np.zeros(spec.shape, np.float32)
        elif layer.startswith("norm"):
            made[spec.name] = np.ones(spec.shape, np.float32)
        else:
            std = _STD / math.sqrt(2 * layers) if layer in ("o", "down") else _STD
            drawn = generator(seed, "charlm", "init", spec.name).standard_normal(spec.shape, dtype=np.float32)
            made[spec.name] = drawn * np.float32(std)
    return made


class CharLM:
    """A Trainable and a Generator (contract.py). A token is a byte."""

    def __init__(self, net: Net, corpus: Corpus, *, size: Size, sample_bytes: int, seed: int) -> None:
        self.adapter = net.adapter
        self.framework = net.adapter.framework
        self.device = net.device
        self._net = net
        self._corpus = corpus
        self._seq_len = size.seq_len
        self._batch_size = size.batch_size
        self._sample_bytes = sample_bytes
        self._seed = seed
        self.adapter.apply(initial(self.adapter.schema(), seed, layers=size.layers))
        self._random = generator(seed, "charlm", "batches")

    def use_stream(self, learner: str, incarnation: int) -> None:
        self._random = generator(self._seed, "charlm", "batches", learner, incarnation)

    def step(self) -> StepResult:
        x, y = self._corpus.batch(self._random, self._batch_size)
        return StepResult(loss=self._net.train(x, y), tokens=y.size, samples=len(y))

    def state(self) -> TaskState:
        return state_of(self._net, self._random, task="charlm")

    def load(self, state: TaskState) -> None:
        self._random = restore(self._net, state, task="charlm")

    def evaluate(self) -> EvalResult:
        """Cross entropy in nats per byte; `bits_per_byte` is the same in bits. The sample starts a new line."""
        total, tokens = 0.0, 0
        for x, y in self._corpus.held_out(self._batch_size):
            total += self._net.loss(x, y) * y.size
            tokens += y.size
        loss = total / tokens
        sample = b"".join(
            self.generate(_START, max_tokens=self._sample_bytes, temperature=_SAMPLE_TEMPERATURE, seed=self._seed)
        )
        return EvalResult(loss=loss, metrics={"bits_per_byte": loss / math.log(2)}, sample=printable(sample))

    def generate(self, prompt: bytes, *, max_tokens: int, temperature: float, seed: int) -> Iterator[bytes]:
        """One byte at a time. The model sees the last `seq_len` bytes; an empty prompt starts a new line."""
        check_writing(max_tokens=max_tokens, temperature=temperature)
        return self._continued(prompt or _START, max_tokens, temperature, generator(seed, "charlm", "generate"))

    def _continued(self, prompt: bytes, count: int, temperature: float, random: np.random.Generator) -> Iterator[bytes]:
        seen = prompt[-self._seq_len :]
        for _ in range(count):
            logits = self._net.predict(np.array([bytearray(seen)], np.uint8))[0, -1]
            piece = bytes([choose(logits, temperature, random)])
            seen = (seen + piece)[-self._seq_len :]
            yield piece
