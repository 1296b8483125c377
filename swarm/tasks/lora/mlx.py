"""The model with its adapters in MLX: as it is trained, and as it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from swarm.core.finetune import FineTune
from swarm.learners.mlx import device as find_device
from swarm.tasks.charlm.sampling import choose
from swarm.tasks.lm.model import load_base, make_optimizer, prepare
from swarm.tasks.local_mlx import MlxLocalNet
from swarm.tasks.lora.places import UNLEARNED
from swarm.tasks.mlx import MlxNet
from swarm.tasks.net import Array
from swarm.tasks.seeding import seeded

PAD_GPU, PAD_CPU = 32, 8  # a GPU computes tiles, and compiles once a shape; a CPU computes every position
PREFILL_TOKENS = 512  # of a prompt at once


class Tuned(NamedTuple):
    net: MlxNet
    local: MlxLocalNet
    writer: Writer
    pad_to: int


class TunedNet(MlxNet):
    """A model that is in evaluation mode, but for its steps."""

    def train(self, x: Array, y: Array) -> float:
        self._model.train()
        try:
            return super().train(x, y)
        finally:
            self._model.eval()


class Writer:
    """A model and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, device: mx.Device) -> None:
        self.tokenizer = tokenizer
        self._model, self._device = model, device

    def prompt(self, text: str) -> list[int]:
        """Tokens of a question as MLX-LM's tools would ask it: in the words of the tokenizer's chat template, if it has one."""
        tokenizer = self.tokenizer
        if tokenizer.has_chat_template:
            messages = [{"role": "user", "content": text}]
            asked = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(tokenizer.encode(asked, add_special_tokens=False))
        return list(tokenizer.encode(text))

    def text(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens))
        return text

    def written(self, tokens: Sequence[int], *, count: int, temperature: float, random: np.random.Generator) -> Iterator[str]:
        """What follows `tokens`, as it is made: `count` tokens at most, fewer if the model ends by itself."""
        from mlx_lm.models.cache import make_prompt_cache

        tokenizer = self.tokenizer
        seen = list(tokens) or [next(t for t in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if t is not None)]
        with mx.stream(self._device):
            cache = make_prompt_cache(self._model)
        while len(seen) > PREFILL_TOKENS:
            self._read(seen[:PREFILL_TOKENS], cache)
            seen = seen[PREFILL_TOKENS:]
        words = tokenizer.detokenizer
        words.reset()
        for _ in range(count):
            token = choose(self._read(seen, cache), temperature, random)
            if token in tokenizer.eos_token_ids:
                break
            words.add_token(token)
            yield words.last_segment
            seen = [token]
        words.finalize()
        yield words.last_segment

    def _read(self, tokens: Sequence[int], cache: list[Any]) -> Array:
        """(vocabulary,) logits of the token that follows."""
        with mx.stream(self._device):
            logits = self._model(mx.array([list(tokens)]), cache=cache)[0, -1].astype(mx.float32)
            mx.eval(logits, [part.state for part in cache])
        return np.array(logits)


def tuned(folder: Path, spec: FineTune, *, device: str, seed: int) -> Tuned:
    """The model of a folder, with fresh adapters that follow from the seed; all else of it is frozen. One model, as DiLoCo
    trains it and as FedAvg's clients do. Raises UsageError."""
    where = find_device(device)
    with seeded(seed), mx.stream(where):
        model, tokenizer = load_base(folder)
        prepare(model, spec)
        model.eval()
        mx.eval(model.parameters())
        optimizer = make_optimizer(spec, model)
    # A compiled step would draw the same units each time.
    compiled = False if spec.lora.dropout else None
    net = TunedNet(model, optimizer, _loss, device=where, compiled=compiled)
    local = MlxLocalNet(model, _loss, device=where, buffers=False)
    pad_to = PAD_CPU if where.type == mx.cpu else PAD_GPU
    return Tuned(net, local, Writer(model, tokenizer, where), pad_to)


def _loss(logits: mx.array, targets: mx.array) -> mx.array:
    """Mean over the learned tokens. (rows, length, vocabulary), (rows, length), of which at least one is learned."""
    learned = targets != UNLEARNED
    losses = nn.losses.cross_entropy(logits, mx.maximum(targets, 0)).astype(mx.float32)
    return mx.where(learned, losses, 0).sum() / learned.sum()
