"""The language model in MLX."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

from swarm.learners.mlx import device as find_device
from swarm.tasks.charlm.sizes import ADAMW_BETAS, MAX_NORM, WEIGHT_DECAY, Size
from swarm.tasks.mlx import MlxNet, untouched


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.q = nn.Linear(size.width, size.width, bias=False)
        self.k = nn.Linear(size.width, size.width, bias=False)
        self.v = nn.Linear(size.width, size.width, bias=False)
        self.o = nn.Linear(size.width, size.width, bias=False)

    def __call__(self, x: mx.array) -> mx.array:  # (batch, time, width)
        q, k, v = (mx.unflatten(p(x), -1, (self.heads, -1)).swapaxes(1, 2) for p in (self.q, self.k, self.v))
        scale = q.shape[-1] ** -0.5
        # (batch, heads, time, width / heads)
        mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
        return self.o(mixed.swapaxes(1, 2).flatten(-2))


class Feedforward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def __call__(self, x: mx.array) -> mx.array:
        return self.down(nn.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width)
        self.attn = Attention(size)
        self.norm2 = nn.LayerNorm(size.width)
        self.mlp = Feedforward(size)

    def __call__(self, x: mx.array) -> mx.array:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes (batch, time) → logits of each next byte (batch, time, 256). The head is the embedding, transposed."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, size.width)
        self.pos = nn.Embedding(size.seq_len, size.width)
        self.blocks = [Block(size) for _ in range(size.layers)]
        self.norm = nn.LayerNorm(size.width)

    def __call__(self, tokens: mx.array) -> mx.array:
        x = self.embed(tokens) + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.embed.as_linear(self.norm(x))


class DecayMatrices(optim.AdamW):
    """AdamW whose weight decay spares biases and norms, as the PyTorch model's parameter groups do."""

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, mx.array]) -> mx.array:
        if parameter.ndim < 2:
            return optim.Adam.apply_single(self, gradient, parameter, state)
        return super().apply_single(gradient, parameter, state)


def net(size: Size, device: str) -> MlxNet:
    """The model, its parameters not yet set to the run's."""
    where = find_device(device)
    optimizer = DecayMatrices(size.learning_rate, betas=list(ADAMW_BETAS), weight_decay=WEIGHT_DECAY, bias_correction=True)
    return MlxNet(untouched(lambda: GPT(size), where), optimizer, _loss, device=where, max_norm=MAX_NORM)


def _loss(logits: mx.array, tokens: mx.array) -> mx.array:
    return nn.losses.cross_entropy(logits, tokens, reduction="mean")
