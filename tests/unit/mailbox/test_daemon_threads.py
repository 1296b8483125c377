from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from swarm.mailbox import threads as module
from swarm.mailbox.threads import DaemonThreads


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_run_gives_the_result_or_the_exception():
    threads = DaemonThreads(2)
    assert await threads.run(divmod, 7, 2) == (3, 1)
    assert await threads.run(sorted, [2, 1], reverse=True) == [2, 1]
    with pytest.raises(ZeroDivisionError):
        await threads.run(divmod, 7, 0)


async def test_calls_run_beside_each_other_on_daemon_threads_and_no_more_than_n():
    threads = DaemonThreads(3)
    barrier = threading.Barrier(3)

    def meet() -> threading.Thread:
        barrier.wait(30)
        return threading.current_thread()

    used = set()
    for _ in range(2):
        used |= set(await asyncio.gather(*(threads.run(meet) for _ in range(6))))
    assert len(used) == 3
    assert all(thread.daemon for thread in used)


async def test_outstanding_is_the_age_of_the_oldest_call_without_progress():
    clock = Clock()
    threads = DaemonThreads(1, now=clock)
    assert threads.outstanding_s(clock()) == 0
    go, moved, checked = threading.Event(), threading.Event(), threading.Event()

    def transfer() -> None:
        go.wait(30)
        threads.progressed()
        moved.set()
        checked.wait(30)

    first = asyncio.create_task(threads.run(transfer))
    await asyncio.sleep(0)
    clock.now_s += 3
    second = asyncio.create_task(threads.run(int))  # waits for the only thread: it counts too
    await asyncio.sleep(0)
    clock.now_s += 4
    assert threads.outstanding_s(clock()) == 7
    go.set()
    moved.wait(30)
    assert threads.outstanding_s(clock()) == 4
    checked.set()
    await asyncio.gather(first, second)
    assert threads.outstanding_s(clock()) == 0


async def test_a_cancelled_call_that_hangs_is_still_outstanding_and_one_that_waits_never_begins():
    clock = Clock()
    threads = DaemonThreads(1, now=clock)
    go, ran = threading.Event(), []
    hanging = asyncio.create_task(threads.run(go.wait, 30))
    waiting = asyncio.create_task(threads.run(ran.append, 1))
    await asyncio.sleep(0)
    for task in (hanging, waiting):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    clock.now_s += 6
    assert threads.outstanding_s(clock()) == 6
    go.set()
    await threads.run(int)  # behind them on the only thread
    assert ran == []
    assert threads.outstanding_s(clock()) == 0


async def test_idle_threads_end_and_come_back(monkeypatch):
    monkeypatch.setattr(module, "IDLE_S", 0.0)
    threads = DaemonThreads(2)
    for n in range(50):
        thread, result = await threads.run(lambda n=n: (threading.current_thread(), n))
        assert result == n
        if n % 10 == 0:
            thread.join(30)  # it ends by itself


async def test_nothing_of_a_call_stays_alive_in_an_idle_thread():
    class Payload:
        pass

    threads = DaemonThreads(1)
    payload = Payload()
    gone = weakref.ref(payload)
    await threads.run(lambda p: None, payload)
    del payload
    await threads.run(int)  # the thread is past the first call
    gc.collect()
    assert gone() is None


def test_a_call_that_outlives_its_loop_ends_unseen():
    threads = DaemonThreads(1)
    began, go, ran = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        go.wait(30)
        ran.set()

    async def leave() -> None:
        task = asyncio.create_task(threads.run(call))
        assert await asyncio.to_thread(began.wait, 30)  # what is cancelled before never begins
        task.cancel()

    asyncio.run(leave())
    go.set()
    assert ran.wait(30)
    assert asyncio.run(threads.run(int)) == 0


def test_it_needs_a_thread():
    with pytest.raises(ValueError, match="n must be >= 1"):
        DaemonThreads(0)
