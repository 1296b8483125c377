"""Random streams, one for each purpose."""

from __future__ import annotations

import hashlib

import numpy as np


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
