"""Random streams, one for each purpose."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from swarm.core.errors import StateMismatch


def generator(seed: int, *names: str | int) -> np.random.Generator:
    """The stream named by a run's seed and any number of names, from its beginning.

    The key of a counter-based generator (Philox 4×64) is 128 bits of the SHA-256 of all parts, each with its type and
    length: so different names, ("a", "b") and ("ab",), 1 and "1" included, give different keys and hence independent
    streams, except with the chance of an equal hash (2⁻¹²⁸ a pair). The same names give the same bits on every machine;
    what NumPy's distributions make of them may change with its version.
    """
    digest = hashlib.sha256()
    for part in (seed, *names):
        data = part.encode() if isinstance(part, str) else str(int(part)).encode()
        digest.update(b"%c%d:%b" % (b"s" if isinstance(part, str) else b"i", len(data), data))
    key = np.frombuffer(digest.digest()[:16], dtype="<u8").astype(np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def position(random: np.random.Generator) -> dict[str, Any]:
    """Where a stream made by `generator` stands, as values that JSON can hold."""
    plain: dict[str, Any] = _plain(random.bit_generator.state)
    return plain


def at(position: Any) -> np.random.Generator:
    """The stream at a position. Raises StateMismatch for what is none."""
    random = generator(0)
    try:
        random.bit_generator.state = position
        same = _plain(random.bit_generator.state) == position  # NumPy passes over what it does not expect,
        same = same and 0 <= position["buffer_pos"] <= 4  # and reads beyond its buffer of four
    except (TypeError, ValueError, LookupError, OverflowError, AttributeError):
        same = False
    if not same:
        raise StateMismatch("the saved state has no position in a random stream that can be taken up here")
    return random


def _plain(state: Any) -> Any:
    match state:
        case dict():
            return {name: _plain(value) for name, value in state.items()}
        case np.ndarray():
            return state.tolist()
        case np.integer():
            return int(state)
        case _:
            return state
