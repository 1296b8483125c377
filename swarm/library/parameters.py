"""The newest parameters, without joining."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.exchange import Exchange
from swarm.learners.layout import Layout
from swarm.learners.select import adapter_for
from swarm.library.place import Place, found, opened
from swarm.library.waiting import wait_for
from swarm.mailbox.waiting import in_time
from swarm.runtime.parameters import committed
from swarm.tensors.schema import Schema, check_equal


def align(model: Any, *, mailbox: Place = None, run: str, layout: Layout | str | None = None, round: int | None = None) -> int:
    """Set the model's parameters to the newest committed ones of `run`, a name or an id, without joining it; returns the round
    that they come from, −1 for Θ⁰.

    `mailbox`: a folder or a Mailbox; None: SWARM_MAILBOX, else the one last used on this machine. `layout` as for Session.
    `round`: the newest, or that of a checkpoint, for the parameters that were kept then. Raises RunNotFound, MailboxError;
    UsageError, naming the checkpoints, if nothing was kept after that round; SchemaMismatch, naming every parameter. The model
    is changed as a whole or not at all."""
    adapter = adapter_for(model, layout)
    schema = adapter.schema()

    async def fetch() -> tuple[int, Mapping[str, NDArray[np.generic]]]:
        store = await opened(mailbox)
        manifest = await in_time(store, found(store, run))
        check_equal(schema, Schema(manifest.tensors))
        exchange = Exchange(store, manifest)
        return await in_time(store, committed(exchange, round))

    found_round, theta = wait_for(fetch())
    adapter.apply(theta)
    return found_round
