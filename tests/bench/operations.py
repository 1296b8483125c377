"""What a round costs in calls of the mailbox: every operation of each learner of a DiLoCo run, told apart.

python -m tests.bench.operations [LEARNERS [ROUNDS]]

Time is virtual and the mailbox is in memory: calls are counted, and a call is a call whatever it takes.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from swarm.core.specs import DiLoCo
from swarm.mailbox.contract import Mailbox, one_by_one
from swarm.mailbox.memory import MemoryStore
from tests.integration.simulation import Learner, Machines, new_run, together, virtually
from tests.integration.wrappers import Wrapped

OPERATIONS = 25  # of a round and learner at P = 1, besides beats and the lists of polls: the bound
LISTS = 4  # of a poll
SPEC = DiLoCo(sync_every=20, fragments=1, quorum_size=2, beat_s=5.0, lease_s=30.0)


class Told(Wrapped):
    """Tells operations apart: those of beats, the lists that a poll makes in one trip, and all others."""

    def __init__(self, inner: Mailbox) -> None:
        super().__init__(inner)
        self.others: Counter[tuple[str, str]] = Counter()  # by operation and folder of the run
        self.beats: Counter[str] = Counter()
        self.polls: Counter[int] = Counter()  # trips, by how many lists each made

    async def lists(self, requests: Sequence[tuple[str, str]]) -> Sequence[Sequence[str]]:
        self.polls[len(requests)] += 1
        return await one_by_one(self.inner.list, requests)

    async def around(self, op: str, key: str, call: Callable[[], Awaitable[Any]]) -> Any:
        # A payload's key is asked for once it is written: what puts by one is a payload.
        folder = "blobs" if op == "put" and not key else "/".join(key.split("/")[2:3])
        if folder == "beats" and op in ("put", "read", "delete"):
            self.beats[op] += 1
        else:
            self.others[op, folder] += 1
        return await call()


@dataclass
class Counted:
    """Of one learner, of whole rounds in the middle of its life."""

    rounds: int
    others: Counter[tuple[str, str]] = field(default_factory=Counter)
    beats: int = 0
    polls: int = 0
    most_lists: int = 0

    @property
    def a_round(self) -> float:
        """Operations of a round, without beats and the lists of polls."""
        return self.others.total() / self.rounds


async def counted(*, learners: int = 2, rounds: int = 10, spec: DiLoCo = SPEC, checkpoint_every: int = 0) -> list[Counted]:
    """A run of `rounds` rounds after the first three, until a turn of old payloads can be swept, and before the last, in
    which people leave. One learner closes them all: what it does more is not shared out."""
    store = MemoryStore()
    skipped = 3 * spec.fragments
    manifest = await new_run(store, spec, rounds=skipped + rounds + 1, eval_every=1, checkpoint_every=checkpoint_every)
    machines, boxes = Machines(), list[Told]()

    def wrap(inner: Mailbox) -> Told:
        boxes.append(Told(inner))
        return boxes[-1]

    members = [  # some are slower than others, as machines are
        Learner(store, manifest, f"m{n}", machines, wrap=wrap, step_s=0.1 + 0.01 * n, role="learner" if n else "both")
        for n in range(learners)
    ]

    async def begun() -> None:
        while any(member.participant.newest < skipped - 1 for member in members):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        for box in boxes:
            for counts in (box.others, box.beats, box.polls):
                counts.clear()

    async def ended() -> list[Counted]:
        while any(member.participant.newest < skipped + rounds - 1 for member in members):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return [
            Counted(rounds, box.others.copy(), box.beats.total(), box.polls.total(), max(box.polls, default=0)) for box in boxes
        ]

    async def counting() -> list[Counted]:
        await begun()
        return await ended()

    *_, found = await together(*(member.live() for member in members), counting())  # type: ignore[arg-type]
    return found  # type: ignore[no-any-return]


def main(argv: Sequence[str]) -> int:
    learners, rounds = (int(each) for each in (*argv, *("2", "10")[len(argv) :]))
    spec = msgspec.structs.replace(SPEC, quorum_size=min(2, learners))
    found = virtually(counted(learners=learners, rounds=rounds, spec=spec))
    for n, each in enumerate(found):
        print(
            f"learner {n}: {each.a_round:.1f} operations a round (at most {OPERATIONS}), besides {each.beats / rounds:.1f} of "
            f"beats and {each.polls / rounds:.1f} polls of {each.most_lists} lists (at most {LISTS})"
        )
        for (op, folder), count in sorted(each.others.items(), key=lambda item: -item[1]):
            print(f"    {count / rounds:5.1f}  {op} {folder}")
    mean = sum(each.a_round for each in found) / len(found)
    print(f"mean of the learners: {mean:.1f}")
    return 0 if all(each.a_round <= OPERATIONS and each.most_lists <= LISTS for each in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
