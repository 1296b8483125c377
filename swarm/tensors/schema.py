"""A model's schema: the name, dtype and shape of every trainable parameter and of buffers, sorted by name. No NumPy here: it
stands in manifests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from swarm.core.errors import SchemaMismatch
from swarm.core.tensorspec import TensorSpec

__all__ = ["Schema", "TensorSpec", "check_equal"]


class Schema:
    """Specs in the order of their names (by code point, which is also UTF-8's byte order). Immutable.

    Raises ValueError if two have the same name.
    """

    __slots__ = ("_by_name", "digest")

    digest: str
    """SHA-256, in hex, of the UTF-8 bytes of the JSON `[["<name>","<dtype>",[<shape>]],…]`, where a buffer's row ends in
    `,true]`: sorted by name, no white space, of a name only '"', '\\' and control characters escaped, as
    `json.dumps(ensure_ascii=False)` does."""

    def __init__(self, tensors: Iterable[TensorSpec]) -> None:
        by_name: dict[str, TensorSpec] = {}
        for spec in sorted(tensors, key=lambda spec: spec.name):
            if spec.name in by_name:
                raise ValueError(f"two tensors are named {spec.name!r}")
            by_name[spec.name] = spec
        rows = [[spec.name, spec.dtype, list(spec.shape), *([True] if spec.buffer else [])] for spec in by_name.values()]
        text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False)
        self._by_name: Mapping[str, TensorSpec] = MappingProxyType(by_name)
        self.digest = hashlib.sha256(text.encode()).hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)

    @property
    def size(self) -> int:
        """Elements of all tensors."""
        return sum(spec.size for spec in self)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors, without any header."""
        return sum(spec.size_bytes for spec in self)

    def __getitem__(self, name: str) -> TensorSpec:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Schema({list(self)})"


def check_equal(model: Schema, run: Schema) -> None:
    """Raises SchemaMismatch naming every tensor that one has and the other lacks, or whose dtype or shape differs, or
    that is a buffer in one of them only."""
    differing = {spec.name for spec in set(model) ^ set(run)}
    if differing:
        raise SchemaMismatch(differing)
