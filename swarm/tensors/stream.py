"""Payloads a part at a time: which bytes to read together, and how to write tensors that come about one after the other."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import SchemaMismatch
from swarm.tensors.payload import CHUNK_BYTES, Buffer, Entry, array_of, header

Named: TypeAlias = tuple[str, str, tuple[int, ...]]
"""A tensor of a payload: name, Safetensors code, shape as the header states it."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [begin, end) of a payload that are read together: whole tensors."""

    begin: int
    end: int
    entries: tuple[Entry, ...]


def spans_of(entries: Iterable[Entry], owner: Mapping[str, str], *, limit_bytes: int) -> list[Span]:
    """`entries`, in the order of their bytes, in spans of at most `limit_bytes` each; but a tensor is never cut, nor parted
    from the next one if both belong to one parameter. `owner`: names of tensors → names of parameters."""
    spans: list[Span] = []
    run: list[Entry] = []
    for entry in entries:
        if run and entry.end - run[0].begin > limit_bytes and owner[entry.name] != owner[run[-1].name]:
            spans.append(Span(run[0].begin, run[-1].end, tuple(run)))
            run = []
        run.append(entry)
    if run:
        spans.append(Span(run[0].begin, run[-1].end, tuple(run)))
    return spans


def check_listed(entries: Iterable[Entry], wanted: Iterable[Named]) -> None:
    """Raises SchemaMismatch naming every tensor that is missing, not asked for, or of another shape or dtype."""
    found = {entry.name: (entry.dtype, entry.shape) for entry in entries}
    asked = {name: (code, shape) for name, code, shape in wanted}
    differing = {name for name in asked.keys() | found.keys() if asked.get(name) != found.get(name)}
    if differing:
        raise SchemaMismatch(differing, advice=f"tensors do not match the schema: {', '.join(sorted(differing))}")


class Gathering:
    """Puts the tensors of each parameter together again, from spans whose memory is used again for the next one."""

    def __init__(self, owner: Mapping[str, str]) -> None:
        self._owner = owner
        self._missing: dict[str, set[str]] = {}
        for name, parameter in owner.items():
            self._missing.setdefault(parameter, set()).add(name)
        self._held: dict[str, dict[str, NDArray[Any]]] = {}

    def take(self, span: Span, raw: memoryview) -> dict[str, dict[str, NDArray[Any]]]:
        """The tensors by name of every parameter that is complete with `raw`, the bytes of `span`. Read-only
        views, good until the next span is read."""
        come: dict[str, dict[str, NDArray[Any]]] = {}
        for entry in span.entries:
            parameter = self._owner[entry.name]
            tensors = come.setdefault(parameter, self._held.pop(parameter, {}))
            tensors[entry.name] = array_of(entry, raw[entry.begin - span.begin : entry.end - span.begin])
            self._missing[parameter].discard(entry.name)
        for parameter, tensors in come.items():
            if self._missing[parameter]:
                self._held[parameter] = {name: array.copy() for name, array in tensors.items()}
        return {parameter: tensors for parameter, tensors in come.items() if not self._missing[parameter]}


class Growing:
    """The payload of tensors that come about while it is written: an asynchronous source, as `Packed` is a plain one, and
    the same bytes.

    `tensors` gives an iterator over maps of names to C-contiguous arrays, in any order; one that comes before its turn is
    held back in a copy. Each array must stay as it is as long as a chunk of a Source must. Hashing is done by `offload`.
    """

    def __init__(
        self,
        named: Sequence[Named],
        tensors: Callable[[], AsyncIterator[Mapping[str, NDArray[Any]]]],
        *,
        offload: Callable[[Callable[[], Any]], Awaitable[Any]],
        progressed: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        self._order = sorted(named)
        self._tensors, self._offload, self._progressed = tensors, offload, progressed
        self.header = header(self._order)
        self._sha256: str | None = None
        self.size_bytes = 0
        """Of the whole payload, once it was written."""

    @property
    def sha256(self) -> str:
        """Of the last iteration, in hex. Raises RuntimeError until one has come to its end."""
        if self._sha256 is None:
            raise RuntimeError("the payload has no hash before all of it was read")
        return self._sha256

    async def __aiter__(self) -> AsyncIterator[Buffer]:
        self._sha256, self.size_bytes = None, len(self.header)
        sha = hashlib.sha256(self.header)
        yield self.header
        waiting: dict[str, NDArray[Any]] = {}
        turn = 0
        async for tensors in self._tensors():
            waiting.update(tensors)
            while turn < len(self._order) and self._order[turn][0] in waiting:
                raw = waiting.pop(self._order[turn][0]).reshape(-1).view(np.uint8).data.toreadonly()
                turn += 1
                for start in range(0, len(raw), 4 * CHUNK_BYTES):
                    chunk = raw[start : start + 4 * CHUNK_BYTES]
                    await self._offload(lambda chunk=chunk: sha.update(chunk))  # type: ignore[misc]
                    yield chunk
                    self.size_bytes += len(chunk)
                    self._progressed(len(chunk))
            for name in waiting.keys() & tensors.keys():
                waiting[name] = waiting[name].copy()
        if turn < len(self._order) or waiting:
            raise ValueError(f"not the tensors that were announced: {self._order[turn:]}, {sorted(waiting)}")
        self._sha256 = sha.hexdigest()
