"""What takes long with a big model is kept off the event loop, which the beats need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from swarm.core.errors import PayloadCorrupt
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.threads import DaemonThreads
from tests.integration.closing_by_hand import SPEC, Bench
from tests.integration.simulation import new_run


class Elsewhere:
    """Runs work on another thread once it may; notes which work, and on which threads."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.threads: list[int] = []
        self._pool = DaemonThreads(1)

    async def __call__(self, work: Callable[[], Any]) -> Any:
        def noted() -> Any:
            self.threads.append(threading.get_ident())
            return work()

        await self.may.wait()
        return await self._pool.run(noted)


def test_a_payload_is_verified_elsewhere_while_the_loop_goes_on() -> None:
    async def main() -> None:
        store = MemoryStore()
        manifest = await new_run(store, SPEC, rounds=None)
        elsewhere = Elsewhere()
        exchange = Exchange(MemoryMailbox(store), manifest, offload=elsewhere)
        fetching = asyncio.create_task(exchange.fetch(0, manifest.init[0]))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not fetching.done()
        elsewhere.may.set()
        honest = await Exchange(MemoryMailbox(store), manifest).fetch(0, manifest.init[0])
        assert {k: v.tolist() for k, v in (await fetching).items()} == {k: v.tolist() for k, v in honest.items()}
        assert exchange.received_bytes == manifest.init[0].size_bytes
        assert threading.get_ident() not in elsewhere.threads

    asyncio.run(main())


def test_what_is_wrong_with_a_payload_gets_back_from_there() -> None:
    async def main() -> None:
        store = MemoryStore()
        manifest = await new_run(store, SPEC, rounds=None)
        elsewhere = Elsewhere()
        elsewhere.may.set()
        exchange = Exchange(MemoryMailbox(store), manifest, offload=elsewhere)
        key = exchange.keys.init_blob(0, manifest.init[0].sha256)
        store.objects[key] = store.objects[key][:-1] + b"!"
        with pytest.raises(PayloadCorrupt):
            await exchange.fetch(0, manifest.init[0])

    asyncio.run(main())


def test_closing_moves_the_progress_that_its_beats_tell() -> None:
    """A merge that moves nothing would look stuck to the others, and be overtaken."""

    async def main() -> None:
        bench = await Bench.of()
        theta = await bench.theta()
        await bench.publish("a", {name: np.ones_like(array) for name, array in theta.items()})
        before = bench.exchange.progress_bytes
        seen: list[int] = []

        async def watched(work: Callable[[], Any]) -> Any:
            seen.append(bench.exchange.progress_bytes)
            result = work()
            seen.append(bench.exchange.progress_bytes)
            return result

        bench.exchange.offload = watched
        await bench.close()
        assert seen[0] >= before
        assert seen == sorted(seen)
        # With the merge, and with each tensor that is stepped and written.
        assert len(set(seen)) >= 2 * len(theta)
        assert seen[-1] - before >= 4 * sum(array.nbytes for array in theta.values())

    asyncio.run(main())
