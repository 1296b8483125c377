"""An inner loop in a form that outlives its process, and how another one goes on from it.

Only what differs from the committed parameters is kept: these are fetched anyway.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import StateMismatch
from swarm.core.tensorspec import TensorSpec
from swarm.runtime.handoff import Aligned, Publication, Tensors, Verdict
from swarm.runtime.inner import InnerLoop
from swarm.runtime.work import Fragment, Pending, Work
from swarm.tensors.codec import payload_specs
from swarm.tensors.precision import CODES, DTYPES, WIRE_DTYPES

Sections = Mapping[str, Mapping[str, NDArray[Any]]]

FORMAT = 1
LOOK_BACK = 2  # turns through all fragments: of older states no local step is kept


class _Pending(msgspec.Struct, frozen=True, kw_only=True):
    round: int
    tokens: int
    steps: int
    seconds_s: float
    work: Work


class _Fragment(msgspec.Struct, frozen=True, kw_only=True):
    base_sha256: str
    work: Work
    pending: _Pending | None


class _Unpublished(msgspec.Struct, frozen=True, kw_only=True):
    round: int
    base_sha256: str
    tokens: int
    steps: int
    train_loss: float | None
    seconds_s: float
    flaw: str


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    schema_sha256: str
    newest: int
    round: int
    step: int
    fragments: tuple[_Fragment, ...]
    unpublished: tuple[_Unpublished, ...]


def save(inner: InnerLoop, unpublished: Iterable[Publication]) -> tuple[dict[str, dict[str, NDArray[Any]]], dict[str, Any]]:
    """(arrays by section, what JSON can hold). The arrays are valid until the next inner step or apply. `unpublished`: what
    may be in no mailbox yet."""
    sections: dict[str, dict[str, NDArray[Any]]] = {"theta": {}, "anchor": {}, "residual": {}, "kept": {}, "reported": {}}
    fragments = []
    for part, names in zip(inner.parts, inner.plan, strict=True):
        pending = part.pending
        if part.local.steps:
            sections["theta"] |= inner.adapter.snapshot(names)
            if inner.spec.alignment != "overwrite":  # else local steps are not kept beyond a commit
                sections["anchor"] |= part.anchor
        sections["residual"] |= part.residual
        if pending is not None:
            sections["kept"] |= pending.kept
            sections["reported"] |= pending.theta or {}
        fragments.append(
            _Fragment(
                base_sha256=part.base_sha256,
                work=part.work,
                pending=None
                if pending is None
                else _Pending(
                    round=pending.round,
                    tokens=pending.tokens,
                    steps=pending.steps,
                    seconds_s=pending.seconds_s,
                    work=pending.work,
                ),
            )
        )
    queue = []
    for waiting in unpublished:
        sections[f"delta.{waiting.round}"] = {name: _plain(array) for name, array in waiting.delta.items()}
        queue.append(
            _Unpublished(
                round=waiting.round,
                base_sha256=waiting.base_sha256,
                tokens=waiting.tokens,
                steps=waiting.steps,
                train_loss=waiting.train_loss,
                seconds_s=waiting.seconds_s,
                flaw=waiting.flaw,
            )
        )
    values = _Values(
        format=FORMAT,
        schema_sha256=inner.tensors.digest,
        newest=inner.newest,
        round=inner.round,
        step=inner.step,
        fragments=tuple(fragments),
        unpublished=tuple(queue),
    )
    # Not by msgspec's JSON, which has no NaN: a loss may be one.
    builtins: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(values)))
    return sections, builtins


class Saved:
    """A saved inner loop, to be taken up by `inner`, which is fresh from the newest commit. Raises StateMismatch if it cannot
    be."""

    def __init__(self, inner: InnerLoop, sections: Sections, values: Any) -> None:
        self._inner, self._sections = inner, sections
        try:
            self._values = found = msgspec.convert(values, _Values)
        except msgspec.ValidationError as error:
            raise StateMismatch(f"the saved state is not what it should be: {error}") from error
        if found.format != FORMAT:
            raise StateMismatch(f"the saved state has format {found.format}, this swarm reads format {FORMAT}")
        if found.schema_sha256 != inner.tensors.digest or len(found.fragments) != len(inner.plan):
            raise StateMismatch("the saved state is of another model")
        if found.newest > inner.newest:
            raise StateMismatch(f"the saved state is of round {found.newest}, and the run's newest is {inner.newest}")
        for fragment, (saved, part) in enumerate(zip(found.fragments, inner.parts, strict=True)):
            if not self._committed(fragment) and saved.base_sha256 != part.base_sha256:
                raise StateMismatch("the saved state began from other parameters than the run's")
        self._check()
        try:
            self._unpublished = [self._publication(waiting) for waiting in found.unpublished]
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatch(f"a saved snapshot is not what it should be: {error}") from error
        gap = inner.newest - found.newest
        self.rounds: tuple[int, ...] | None = None
        """Whose verdicts must be known. None: so many rounds went by that nothing but the optimizer is taken up."""
        if gap <= LOOK_BACK * len(inner.plan):
            self.rounds = tuple(range(found.newest + 1, inner.newest + 1))

    def _committed(self, fragment: int) -> bool:
        """Whether the fragment was committed after the state was saved."""
        inner, turn = self._inner, len(self._inner.plan)
        first = max(self._values.newest + 1, inner.newest + 1 - turn)
        return any(inner.schedule.fragment(round) == fragment for round in range(first, inner.newest + 1))

    def _section(self, name: str) -> Mapping[str, NDArray[Any]]:
        return self._sections.get(name, {})

    def _check(self) -> None:
        """Raises StateMismatch for an array that is not what its name says, or missing."""
        inner = self._inner
        residual = DTYPES[inner.spec.residual_dtype]
        for section in ("theta", "anchor", "reported", "residual", "kept"):
            for name, array in self._section(section).items():
                if name not in inner.tensors:
                    raise StateMismatch(f"the saved state has an unknown parameter {name[:100]!r}")
                spec = inner.tensors[name]
                dtype = residual if section in ("residual", "kept") else DTYPES[spec.dtype]
                if (array.shape, array.dtype) != (spec.shape, dtype):
                    raise StateMismatch(f"the saved {section} of {name[:100]} has another shape or dtype")
        for saved, names in zip(self._values.fragments, inner.plan, strict=True):
            steps = saved.work.steps + (saved.pending.work.steps if saved.pending is not None else 0)
            wanted = ["theta"] if steps else []
            if steps and inner.spec.alignment != "overwrite":
                wanted.append("anchor")
            for section in wanted:
                if any(name not in self._section(section) for name in names):
                    raise StateMismatch(f"the saved state lacks the {section} of a parameter")

    def take_up(self, verdicts: Mapping[int, Verdict]) -> list[Publication]:
        """Go on from it: steps that were made before, and what the records of `rounds` have made of them. Returns what is to
        be published again."""
        inner, saved = self._inner, self._values
        start = Aligned(
            newest=inner.newest,
            fragments={k: (part.base_sha256, part.anchor) for k, part in enumerate(inner.parts)},
            verdicts=verdicts,
        )
        inner.adapter.apply(self._section("theta"))
        inner.parts = [self._fragment(k) for k in range(len(inner.plan))]
        inner.newest, inner.round, inner.step = saved.newest, saved.round, saved.step
        inner.align(start)
        return [waiting for waiting in self._unpublished if waiting.round > inner.newest]

    def _fragment(self, fragment: int) -> Fragment:
        inner, saved, names = self._inner, self._values.fragments[fragment], self._inner.plan[fragment]
        pending = None
        if saved.pending is not None:
            pending = Pending(
                round=saved.pending.round,
                tokens=saved.pending.tokens,
                steps=saved.pending.steps,
                seconds_s=saved.pending.seconds_s,
                work=saved.pending.work,
                kept=_of(self._section("kept"), names),
                theta=_of(self._section("reported"), names) or None,
            )
        fresh = inner.parts[fragment].anchor
        return Fragment(
            base_sha256=saved.base_sha256,
            # One that was committed meanwhile needs it only for steps that are kept, and these have it saved.
            anchor=(_of(self._section("anchor"), names) or fresh) if self._committed(fragment) else fresh,
            work=saved.work,
            residual=_of(self._section("residual"), names),
            pending=pending,
        )

    def _publication(self, saved: _Unpublished) -> Publication:
        inner = self._inner
        fragment = inner.schedule.fragment(saved.round)
        delta: Tensors = {}
        if not saved.flaw:
            specs = [inner.tensors[name] for name in inner.plan[fragment]]
            delta = _payload(self._section(f"delta.{saved.round}"), specs, inner.spec.delta_dtype)
        return Publication(
            round=saved.round,
            fragment=fragment,
            delta=delta,
            base_sha256=saved.base_sha256,
            tokens=saved.tokens,
            steps=saved.steps,
            train_loss=saved.train_loss,
            seconds_s=saved.seconds_s,
            flaw=saved.flaw,
        )


def _of(section: Mapping[str, NDArray[Any]], names: Iterable[str]) -> dict[str, NDArray[Any]]:
    return {name: section[name] for name in names if name in section}


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Its bytes, if it is of a dtype that only payloads have."""
    return array if array.dtype in CODES else array.reshape(-1).view(np.uint8)


def _payload(arrays: Mapping[str, NDArray[Any]], specs: Iterable[TensorSpec], dtype: str | None) -> dict[str, NDArray[Any]]:
    found = {}
    for name, code, shape in payload_specs(specs, dtype):
        array = arrays[name]
        if WIRE_DTYPES[code] not in CODES:
            array = array.view(WIRE_DTYPES[code])
            array = array if code == "F4" else array.reshape(shape)
        found[name] = array
    return found
