"""The phases of a round one by one, and what publishing costs at each precision."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from swarm.bench.limits import cpu_s
from swarm.bench.options import Options
from swarm.bench.runs import new_run
from swarm.core.manifest import PayloadRef
from swarm.core.tensorspec import TensorSpec
from swarm.exchange import Exchange
from swarm.learners.select import adapter_for
from swarm.tasks.blank import build
from swarm.tensors import outer
from swarm.tensors.codec import encode, room
from swarm.tensors.fold import Fold, is_embedding

Tensors = dict[str, Any]
REPEATS = 3


def phases(options: Options) -> dict[str, object]:
    """CPU seconds of each phase for all parameters, and of publishing at F32, F8_E4M3 and F4."""
    model, scale = build(options.framework, options.shapes, seed=0)
    adapter = adapter_for(model)
    adapter.schema()
    mailbox, manifest = asyncio.run(new_run(msgspec.structs.replace(options, fragments=1), adapter))
    exchange = Exchange(mailbox, manifest)
    specs = list(exchange.schema)
    anchor = {name: np.array(array) for name, array in adapter.snapshot().items()}
    scale(0.999)
    rounds = itertools.count()

    def store(tensors: Tensors) -> PayloadRef:
        return asyncio.run(exchange.store(next(rounds), tensors))

    def fetch(ref: PayloadRef) -> Any:
        return asyncio.run(exchange.fetch(0, ref))

    def delta(dtype: str | None = options.delta_dtype) -> Tensors:
        return _encoded(specs, anchor, adapter.snapshot(), dtype)

    def timed(work: Callable[..., object], *arguments: Any) -> float:
        return cpu_s(functools.partial(work, *arguments), repeats=REPEATS)

    made = delta()
    ref = store(anchor)
    return {
        "host_view_s": timed(adapter.snapshot),
        "delta_s": timed(delta),
        "write_s": timed(store, made),
        "read_s": timed(fetch, ref),
        "merge_s": _closing(options, specs, anchor, made),
        "apply_s": timed(adapter.apply, fetch(ref)),
        "publish_s": {code: timed(lambda code: store(delta(code)), code) for code in ("F32", "F8_E4M3", "F4")},
    }


def _encoded(specs: list[TensorSpec], anchor: Tensors, theta: Any, dtype: str | None) -> Tensors:
    delta = room(specs, dtype)
    for spec in specs:
        encode(anchor[spec.name], theta[spec.name], spec=spec, dtype=dtype, out=delta)
    return delta


def _closing(options: Options, specs: list[TensorSpec], theta: Tensors, delta: Tensors) -> dict[str, float]:
    """CPU seconds of merging two such deltas and of the outer step, in memory, by merge."""
    embeddings = frozenset(spec.name for spec in specs if is_embedding(spec))
    momentum = {spec.name: np.ones(spec.shape, np.float32) for spec in specs}
    of = {spec.name: {n: a for n, a in delta.items() if n in (spec.name, f"{spec.name}.scale")} for spec in specs}
    found = {}
    for merge in ("mean", "rda"):
        fold: Fold | None = None

        def close(merge: Any = merge) -> None:
            nonlocal fold
            if fold is None:
                fold = Fold(specs, [1.0, 2.0], merge=merge, dtype=options.delta_dtype, embeddings=embeddings, norms=True)
            else:
                fold.restart([1.0, 2.0])
            for _ in range(2):
                for spec in specs:
                    fold.add(spec.name, of[spec.name])
            for spec in specs:
                m = [momentum[spec.name]]
                outer.step(outer.Nesterov(0.7, 0.9), theta[spec.name], fold.result(spec.name), old=m, new=m)

        found[merge] = cpu_s(close, repeats=REPEATS)
    return found
