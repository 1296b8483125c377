"""Random states that a stretch of work sets and gives back: of Python, NumPy, PyTorch and MLX."""

from __future__ import annotations

import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

MAX_SEED = 2**64 - 1


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Everything drawn inside from a global random state follows from `seed`, 0 to 2⁶⁴ − 1, or with None from the system's
    entropy; afterwards each state is as it was, also when the work raised. Raises ValueError for another seed.

    A framework takes part if it was imported before. PyTorch's generator on the CPU goes by the lower 32 bits. MLX keeps a
    state for each thread: that of the calling one is meant.
    """
    if seed is None:
        seed = secrets.randbits(64)
    if not 0 <= seed <= MAX_SEED:
        raise ValueError(f"a seed must be from 0 to {MAX_SEED}, got {seed}")
    with ExitStack() as restored:
        for state in (_python, _numpy, _torch, _mlx):
            restored.callback(state(seed))
        yield


Restore = Callable[[], None]


def _python(seed: int) -> Restore:
    state = random.getstate()
    random.seed(seed)
    return lambda: random.setstate(state)


def _numpy(seed: int) -> Restore:
    state = np.random.get_state(legacy=False)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])  # a number alone may have 32 bits only
    return lambda: np.random.set_state(state)


def _torch(seed: int) -> Restore:
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return lambda: None
    restores: list[Restore] = []

    def keep(get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        state = get()
        restores.append(lambda: put(state))

    keep(torch.default_generator.get_state, torch.default_generator.set_state)
    torch.default_generator.manual_seed(seed)
    # Not torch.manual_seed: of a GPU that nobody has used yet it would only note the seed, for the time after this.
    if torch.cuda.is_initialized():
        keep(torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        keep(torch.mps.get_rng_state, torch.mps.set_rng_state)
        torch.mps.manual_seed(seed)

    def restore() -> None:
        for one in restores:
            one()

    return restore


def _mlx(seed: int) -> Restore:
    if "mlx.core" not in sys.modules:
        return lambda: None
    state: Any = sys.modules["mlx.core"].random.state
    high, low = (int(word) for word in np.array(state[0]))
    set_state: Callable[[int], None] = sys.modules["mlx.core"].random.seed  # to these two words
    set_state(seed)
    return lambda: set_state(high << 32 | low)
