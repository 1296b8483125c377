"""Work beside a loop that must not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Beside:
    """One piece of work at a time."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def idle(self) -> bool:
        """Whether nothing is under way. Raises what the last piece raised."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()
        return self._task is None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Only while it is idle."""
        self._task = asyncio.create_task(work)

    async def done(self) -> None:
        """See it done. Raises what it raised; cancelling this leaves it under way."""
        if self._task is not None:
            await asyncio.wait({self._task})
        self.idle()

    async def cancel(self) -> None:
        await cancelled(self._task)


async def cancelled(task: asyncio.Future[Any] | None) -> None:
    """See a task ended, however it ends."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
