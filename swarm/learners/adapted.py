"""An adapter that speaks canonical parameters over one that speaks its framework's."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from swarm.learners.contract import Adapter
from swarm.learners.layout import Join, Layout, Move, Permute, Rename, Split, moves, taken, viewed
from swarm.tensors.payload import check
from swarm.tensors.schema import Schema

Tensors: TypeAlias = Mapping[str, NDArray[Any]]


def adapted(adapter: Adapter, layout: Layout, *, local: Callable[[], Schema] | None = None) -> Adapter:
    """`adapter` with its schema, snapshots and applies in canonical names, axis orders and splits.

    A snapshot copies a tensor that is permuted or joined, when it is asked for; names and splits along axis 0 cost nothing.
    `apply` holds one packed parameter at a time beside what `adapter` itself needs. That `layout` fits the model is checked
    by `schema` and `apply`, which raise SchemaMismatch. `local` gives what the model has and `adapter` leaves out: rules for
    that do nothing.
    """
    return Adapted(adapter, layout, local)


class Adapted:
    def __init__(self, adapter: Adapter, layout: Layout, local: Callable[[], Schema] | None) -> None:
        self.framework = adapter.framework
        self._adapter = adapter
        self._layout = layout
        self._local = local
        self._known: tuple[Schema, tuple[Move, ...]] | None = None

    def _moves(self) -> tuple[Move, ...]:
        schema = self._adapter.schema()
        if self._known is None or self._known[0] != schema:
            self._known = schema, moves(self._layout, schema, local=self._local)
        return self._known[1]

    def schema(self) -> Schema:
        return Schema(spec for move in self._moves() for spec in move.outputs)

    def snapshot(self, names: Container[str] | None = None) -> Tensors:
        made = [move for move in self._moves() if names is None or any(spec.name in names for spec in move.outputs)]
        wanted = None if names is None else {spec.name for move in made for spec in move.inputs}
        places = {
            spec.name: (move, index)
            for move in made
            for index, spec in enumerate(move.outputs)
            if names is None or spec.name in names
        }
        return _Snapshot(self._adapter.snapshot(wanted), places)

    def apply(self, tensors: Tensors) -> None:
        made = self._moves()
        check(tensors, (spec for move in made for spec in move.outputs if spec.name in tensors))
        views: dict[str, NDArray[Any]] = {}
        copied: list[Callable[[], Tensors]] = []
        for move in made:
            if not any(spec.name in tensors for spec in move.outputs):
                continue
            match move.rule:
                case None | Rename():
                    views[move.inputs[0].name] = tensors[move.outputs[0].name]
                case Permute(view=None) as rule:
                    views[move.inputs[0].name] = tensors[move.outputs[0].name].transpose(rule.back)
                case Join():
                    for spec, span in zip(move.inputs, move.bounds(), strict=True):
                        views[spec.name] = tensors[move.outputs[0].name][span]
                case Permute() as rule:
                    copied.append(lambda move=move, rule=rule: _reordered_back(move, rule, tensors))  # type: ignore[misc]
                case Split():
                    copied.append(lambda move=move: self._packed(move, tensors))  # type: ignore[misc]
                case _:
                    assert_never(move.rule)
        if views:
            self._adapter.apply(views)
        for packed in copied:  # one by one: together they could be a whole second model
            self._adapter.apply(packed())

    def _packed(self, move: Move, tensors: Tensors) -> Tensors:
        """The framework's parameter of a Split, of which `tensors` may hold some parts only: the others stay."""
        (whole,) = move.inputs
        dtype = next(tensors[part.name].dtype for part in move.outputs if part.name in tensors)  # checked: the schema's
        packed: NDArray[Any] = np.empty(whole.shape, dtype)
        if not all(part.name in tensors for part in move.outputs):
            packed[...] = self._adapter.snapshot({whole.name})[whole.name]
        for part, span in zip(move.outputs, move.bounds(), strict=True):
            if part.name in tensors:
                packed[span] = tensors[part.name]
        return {whole.name: packed}

    def warnings(self, mapped: Container[str] | None = None) -> tuple[str, ...]:
        made = self._moves()
        ours = set(taken(made))
        if mapped is not None:
            ours |= {spec.name for move in made for spec in move.inputs if any(out.name in mapped for out in move.outputs)}
        return self._adapter.warnings(ours)


def _reordered_back(move: Move, rule: Permute, tensors: Tensors) -> Tensors:
    assert rule.view is not None
    seen = viewed(rule.view, move.inputs[0])
    array = tensors[move.outputs[0].name].reshape([seen[axis] for axis in rule.axes])
    return {move.inputs[0].name: array.transpose(rule.back).reshape(move.inputs[0].shape)}


class _Snapshot(Mapping[str, NDArray[Any]]):
    """Canonical arrays made from the framework's `held` ones when they are asked for, so that a model full of permuted
    tensors is not copied as a whole."""

    def __init__(self, held: Tensors, places: Mapping[str, tuple[Move, int]]) -> None:
        self._held = held
        self._places = places

    def __getitem__(self, name: str) -> NDArray[Any]:
        move, index = self._places[name]
        array = np.require(self._array(move, index), requirements="C").view()
        array.flags.writeable = False
        return array

    def _array(self, move: Move, index: int) -> NDArray[Any]:
        array = self._held[move.inputs[0].name]
        match move.rule:
            case None | Rename():
                return array
            case Permute(view=None, axes=axes):
                return array.transpose(axes)
            case Permute(view=view, axes=axes):
                assert view is not None
                return array.reshape(viewed(view, move.inputs[0])).transpose(axes).reshape(array.shape)
            case Split():
                return array[move.bounds()[index]]
            case Join(axis=axis):
                return np.concatenate([self._held[spec.name] for spec in move.inputs], axis)
        assert_never(move.rule)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
