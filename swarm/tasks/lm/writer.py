"""A language model in MLX as it writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from swarm.tasks.charlm.sampling import choose, printable
from swarm.tasks.lm.rows import Rows
from swarm.tasks.net import Array

PREFILL_TOKENS = 512  # of a prompt at once
MAX_SAMPLE = 500  # characters


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

    def sample(self, rows: Rows, index: int, *, count: int, random: np.random.Generator) -> str:
        """How a row begins, and how the model goes on, each time with the likeliest of `count` tokens: one line."""
        begun = rows.beginning(index)
        text = "".join(self.written(begun, count=count, temperature=0, random=random))
        return printable(f"{self.text(begun)} {text}".encode())[:MAX_SAMPLE]

    def _read(self, tokens: Sequence[int], cache: list[Any]) -> Array:
        """(vocabulary,) logits of the token that follows."""
        with mx.stream(self._device):
            logits = self._model(mx.array([list(tokens)]), cache=cache)[0, -1].astype(mx.float32)
            mx.eval(logits, [part.state for part in cache])
        return np.array(logits)
