"""Whether somebody takes part in any of several runs, by this process's clock alone: certain once a beat has moved, or after a
lease of silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from swarm.core.keys import RunKeys
from swarm.core.lease import BeatId, leases
from swarm.core.manifest import Manifest
from swarm.core.records import Beat
from swarm.mailbox.contract import Mailbox
from swarm.tape import newest_beats

Beats = dict[str, tuple[BeatId, Beat]]
LOOKS = 4  # at the beats in the time of one
PATIENCE = 3  # leases, at most


class Heard:
    """What was heard in one run."""

    def __init__(self, manifest: Manifest) -> None:
        spec = manifest.algorithm
        self.manifest = manifest
        self.beats: Beats = {}
        self.moved: set[str] = set()
        self._leases = leases(lease_s=spec.lease_s, beat_s=spec.beat_s)
        self._first: dict[str, BeatId] | None = None

    async def look(self, mailbox: Mailbox) -> None:
        listed = await mailbox.list(RunKeys(self.manifest.run).beats)
        self.beats |= await newest_beats(mailbox, listed, self.beats)
        now_s = asyncio.get_running_loop().time()
        newest = {learner: ident for learner, (ident, _) in self.beats.items()}
        released = frozenset(learner for learner, (_, beat) in self.beats.items() if beat.phase == "left")
        self._leases = self._leases.observe(now_s, newest, released)
        if self._first is None:
            self._first = newest
        self.moved |= {learner for learner, ident in newest.items() if self._first.get(learner) != ident} - released

    @property
    def live(self) -> tuple[str, ...]:
        """As far as is known: whoever has not left, and was not silent for a lease."""
        return tuple(sorted(self._leases.live()))

    @property
    def certain(self) -> bool:
        return not self.live or bool(self.moved & set(self.live))

    @property
    def quiet(self) -> bool:
        """Whether nobody takes part, for certain: all have left, or were silent for a lease."""
        return not self.live

    @property
    def fetching(self) -> frozenset[str]:
        """SHA-256 of payloads that some beat says are being fetched, whoever wrote it: the dead fetch little."""
        return frozenset(sha256 for _, beat in self.beats.values() for sha256 in beat.fetching)


async def listen(
    mailbox: Mailbox, manifests: Sequence[Manifest], *, told: Callable[[float], None] = lambda s: None
) -> Mapping[str, Heard]:
    """What was heard in each run, by id. `told` is called with the seconds that it may take, if it has to be waited for. On a
    share so slow that nothing gets certain, everybody counts as live in the end."""
    runs = {manifest.run: Heard(manifest) for manifest in manifests}
    clock = asyncio.get_running_loop().time
    for heard in runs.values():
        await heard.look(mailbox)
    first_s, waited = clock(), False
    while True:
        open = [heard.manifest.algorithm for heard in runs.values() if not heard.certain]
        if not open or clock() - first_s > PATIENCE * max(spec.lease_s for spec in open):
            return runs
        if not waited:
            waited = True
            told(max(spec.lease_s for spec in open))
        await asyncio.sleep(min(spec.beat_s for spec in open) / LOOKS)
        for heard in runs.values():
            if not heard.certain:
                await heard.look(mailbox)
