"""A store that goes away under a run: two sessions of the library, each in a thread, over a bucket on this machine. Real time;
threads wait for each other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import swarm
from swarm.core.errors import MailboxUnavailable
from swarm.core.events import Joined, ShareBack, ShareLost, WorkerEvent
from swarm.core.naming import run_id_of
from swarm.core.sentences import sentence
from swarm.exchange import Exchange
from swarm.mailbox import init_mailbox, open_mailbox
from swarm.manifests import read_manifest
from tests.integration.audited import checked
from tests.integration.bucket import Bucket, Mishap, give_credentials, serve
from tests.integration.simulation import model

LONG_S = 60.0  # for what must come; nothing waits for so long unless the test fails
STEPS, ROUNDS = 40, 3
SPEC = swarm.DiLoCo(sync_every=STEPS, quorum_size=2, beat_s=0.2, lease_s=1.0, weight_unit="samples")


@pytest.fixture
def bucket(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    give_credentials(monkeypatch)
    with serve() as found:
        yield found
        back(found)


class Learner:
    """Makes as many steps as it is let."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name, self.params = url, name, model(ord(name))
        self.told: list[WorkerEvent] = []
        self.steps = self._limit = 0
        self._turn = threading.Condition()

    def train(self) -> swarm.Result:
        mine = swarm.Session(
            self.params,
            algorithm=SPEC,
            mailbox=self.url,
            run="mine",
            rounds=ROUNDS,
            learner_id=self.name,
            callbacks=[self._tell],
        )
        return mine.run(self._step, [(np.zeros((4, 3), np.float32), np.zeros(4))])

    def _tell(self, event: WorkerEvent) -> None:
        with self._turn:
            self.told.append(event)
            self._turn.notify_all()

    def _step(self, batch: Any) -> float:
        with self._turn:
            assert self._turn.wait_for(lambda: self.steps < self._limit, LONG_S), "never let go on"
            self.steps += 1
            self._turn.notify_all()
        for array in self.params.values():
            array += np.float32(0.1) * (np.float32(ord(self.name)) - array)
        return 1.0

    def let(self, steps: int) -> None:
        with self._turn:
            self._limit = steps
            self._turn.notify_all()

    def until(self, there: Callable[[], bool]) -> None:
        with self._turn:
            assert self._turn.wait_for(there, LONG_S), (self.name, self.steps, self.told[-5:])

    def until_told(self, kind: type) -> None:
        self.until(lambda: any(isinstance(event, kind) for event in self.told))


def away(bucket: Bucket) -> None:
    bucket.stop()


def hanging(bucket: Bucket) -> None:
    bucket.held = threading.Event()


def expired(bucket: Bucket) -> None:
    bucket.mishaps = [Mishap(".", status="400 Bad Request", code="ExpiredToken", count=10**9)]


def back(bucket: Bucket) -> None:
    held = bucket.held
    bucket.calm()
    if held is not None:
        held.set()
    bucket.start()


@pytest.mark.parametrize(
    ("goes", "words"),
    [
        (away, "the mailbox does not answer ("),
        pytest.param(hanging, "the mailbox does not answer (no answer for 5 s)", marks=pytest.mark.slow),
        (expired, "the store refuses these credentials (ExpiredToken)"),
    ],
)
def test_a_store_that_is_away_for_a_while_is_told_once_and_caught_up_with(
    bucket: Bucket, goes: Callable[[Bucket], None], words: str
) -> None:
    url = bucket.url("people/home")
    asyncio.run(init_mailbox(url))
    both = [Learner(url, name) for name in "ab"]
    with ThreadPoolExecutor(2) as pool:
        lives = [pool.submit(learner.train) for learner in both]
        for learner in both:
            learner.until_told(Joined)
            learner.let(STEPS + STEPS // 4)
        for learner in both:  # in the middle of the second round
            learner.until(lambda learner=learner: learner.steps == STEPS + STEPS // 4)  # type: ignore[misc]
        goes(bucket)
        for learner in both:
            learner.until_told(ShareLost)
            learner.let(STEPS + STEPS // 2)
        for learner in both:  # it trains on with what it has
            learner.until(lambda learner=learner: learner.steps == STEPS + STEPS // 2)  # type: ignore[misc]
            assert not any(isinstance(event, ShareBack) for event in learner.told)
        back(bucket)
        for learner in both:
            learner.until_told(ShareBack)
            learner.let(ROUNDS * STEPS)
        ends = [life.result(LONG_S) for life in lives]
    for learner, end in zip(both, ends, strict=True):
        assert (end.reason, end.rounds, end.steps) == ("done", ROUNDS, ROUNDS * STEPS), "no step was lost"
        told = [event for event in learner.told if isinstance(event, ShareLost | ShareBack)]
        assert [type(event) for event in told] == [ShareLost, ShareBack]
        assert words in str(sentence(told[0]))
    assert ends[0].params_sha256 == ends[1].params_sha256
    assert all(np.array_equal(both[0].params[name], array) for name, array in both[1].params.items())
    asyncio.run(check(url))


async def check(url: str) -> None:
    """That every round is there once, with both, and the mailbox whole."""
    mailbox = open_mailbox(url)
    await mailbox.open()
    exchange = Exchange(mailbox, await read_manifest(mailbox, run_id_of("mine")))
    for n in range(ROUNDS):
        record = await exchange.round(n)
        assert record is not None
        assert sorted(p.learner for p in record.participants) == ["a", "b"]
    assert await exchange.newest_round() == ROUNDS - 1
    faults, _ = await checked(mailbox)
    assert faults == []


def test_a_session_whose_credentials_are_refused_at_first_says_so_and_does_not_wait(bucket: Bucket) -> None:
    url = bucket.url("people/home")
    asyncio.run(init_mailbox(url))
    expired(bucket)
    with pytest.raises(MailboxUnavailable, match=r"refuses these credentials \(ExpiredToken\): see AWS_ACCESS_KEY_ID"):
        Learner(url, "a").train()
