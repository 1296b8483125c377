"""The sizes in which the language model comes."""

from __future__ import annotations

import msgspec


class Size(msgspec.Struct, frozen=True, kw_only=True):
    width: int
    layers: int
    heads: int
    seq_len: int  # bytes that the model sees at once
    batch_size: int  # sequences per step
    learning_rate: float
    eval_windows: int  # sequences of the held-out part that are evaluated, at most


# Parameters: about 0.12 M, 0.84 M and 10.8 M.
SIZES = {
    "tiny": Size(width=64, layers=2, heads=2, seq_len=64, batch_size=4, learning_rate=1.5e-3, eval_windows=48),
    "small": Size(width=128, layers=4, heads=4, seq_len=128, batch_size=16, learning_rate=1e-3, eval_windows=64),
    "base": Size(width=384, layers=6, heads=6, seq_len=256, batch_size=32, learning_rate=6e-4, eval_windows=64),
}

# The inner optimizer, AdamW, in both frameworks; a gradient longer than MAX_NORM is scaled down to it.
ADAMW_BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1  # of matrices; biases and norms are not decayed
MAX_NORM = 1.0
