"""The language model in PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from swarm.learners.torch import device as find_device
from swarm.tasks.charlm.sizes import ADAMW_BETAS, MAX_NORM, WEIGHT_DECAY, Size
from swarm.tasks.torch import TorchNet, empty


class Attention(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.q = nn.Linear(size.width, size.width, bias=False)
        self.k = nn.Linear(size.width, size.width, bias=False)
        self.v = nn.Linear(size.width, size.width, bias=False)
        self.o = nn.Linear(size.width, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # (batch, time, width)
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, time, width / heads)
        y: Tensor = self.o(mixed.transpose(1, 2).flatten(-2))
        return y


class Feedforward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x)))
        return y


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size.width)
        self.attn = Attention(size)
        self.norm2 = nn.LayerNorm(size.width)
        self.mlp = Feedforward(size)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes (batch, time) → logits of each next byte (batch, time, 256). The head is the embedding, transposed."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, size.width)
        self.pos = nn.Embedding(size.seq_len, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens.long()) + self.pos.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.embed.weight)


def net(size: Size, device: str) -> TorchNet:
    """The model, its parameters not yet set."""
    where = find_device(device)
    model = empty(lambda: GPT(size), where)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
        lr=size.learning_rate,
        betas=ADAMW_BETAS,
    )
    return TorchNet(model, optimizer, _loss, device=where, max_norm=MAX_NORM)


def _loss(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), tokens.long().flatten())
