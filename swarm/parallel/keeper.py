"""What goes from a rank to the mailbox, and from there to the other machines: checkpoints, the adapter, the job's log."""

from __future__ import annotations

import asyncio
import functools

from swarm.core.errors import CheckpointUnsaved, PayloadCorrupt, PayloadMissing
from swarm.core.events import JobSaved, Trouble
from swarm.core.lines import encode
from swarm.core.rankjob import Saved
from swarm.core.ranks import CheckpointAt, JobLog
from swarm.parallel.beside import Beside
from swarm.parallel.gauges import Gauges
from swarm.parallel.meeting import Meeting
from swarm.parallel.site import Site
from swarm.parallel.store import Store
from swarm.refusals import Expiry
from swarm.runtime.patience import Patience
from swarm.tape import derived_nonce


class Keeper:
    """Of one machine in one generation. Nothing here holds up the rank: a share that is away or full is waited for."""

    def __init__(
        self, site: Site, store: Store, gauges: Gauges, meeting: Meeting, *, rank: int, me: str, patience: Patience
    ) -> None:
        self.site, self.store, self.gauges, self.meeting = site, store, gauges, meeting
        self.generation, self.rank, self.me = meeting.generation, rank, me
        self.saved: CheckpointAt | None = None
        """The newest checkpoint of this generation that is in the mailbox."""
        self.to_save: Saved | None = None
        """What the rank has written since."""
        self._patience, self._emit = patience, site.emit
        # Of their own, one for each that writes: a full share answers whoever reads, which would be told as its being back.
        self._storing, self._telling = patience.beside(), patience.beside()
        self._saving, self._mirroring, self._logging = Beside(), Beside(), Beside()
        self._refusals = Expiry(meeting.register.mailbox, site.manifest.run)
        self._mirrored: CheckpointAt | None = None
        self._parts = 0  # of the job's log, written
        self._part: JobLog | None = None  # the next one

    def save_what_is_new(self) -> None:
        if self._saving.idle() and self.to_save is not None:
            saved, self.to_save = self.to_save, None
            self._saving.begin(self._save(saved))

    async def _save(self, saved: Saved) -> None:
        """Store a checkpoint that the rank has written. As long as the mailbox is away or full this waits, and training goes
        on; if the files are gone by then, newer ones are there."""
        at = CheckpointAt(generation=self.generation, step=saved.step)
        try:
            record = await self._storing.through(functools.partial(self.store.put, at, saved=saved, by=self.me))
            self.saved = at
            size = record.state.size_bytes + record.adapter.size_bytes
            self._emit(JobSaved(iteration=saved.iteration, size_bytes=size))
            await self._storing.through(lambda: self.store.tidy(at.generation, self._has_ended))
            await self._storing.through(lambda: self._refusals.look(asyncio.get_running_loop().time()))
        except OSError as error:
            self._emit(Trouble(message=f"the checkpoint after step {saved.step} is not stored: {error.strerror or error}"))

    async def _has_ended(self) -> bool:
        return await self.meeting.ended() is not None

    async def finish(self) -> None:
        """See that what the rank wrote last is stored."""
        self.save_what_is_new()
        while not self._saving.idle():
            self.gauges.phase, self.gauges.doing = "upload", "storing the checkpoint"
            await self._saving.done()
            self.save_what_is_new()

    def log_what_is_new(self) -> None:
        """Write what rank 0 has told since the last time."""
        if self._logging.idle() and self.rank == 0:
            self._logging.begin(self._log())

    async def log(self) -> None:
        """See that all that rank 0 has told is written."""
        await self._logging.done()
        await self._log()

    async def _log(self) -> None:
        gauges, generation = self.gauges, self.generation
        while self.rank == 0 and (self._part is not None or gauges.points or gauges.evals or gauges.shares):
            # Kept until it is written: if that was interrupted the same is written again.
            part = self._part = self._part or JobLog(
                generation=generation, n=self._parts, points=gauges.points, evals=gauges.evals, shares=gauges.shares
            )
            gauges.points, gauges.evals, gauges.shares = (), (), ()
            key, data = self.meeting.register.keys.job_log(generation, part.n), encode(part, nonce=derived_nonce(part))
            await self._telling.through(functools.partial(self.meeting.register.mailbox.put, key, [data]))
            self._part, self._parts = None, part.n + 1

    def mirror_what_is_new(self) -> None:
        """Write each adapter that rank 0 saves elsewhere to where a person wants it on this machine."""
        if self._mirroring.idle() and self.rank != 0 and self.site.adapter_path is not None:
            self._mirroring.begin(self._mirror())

    async def stop(self) -> None:
        """Leave undone what is under way."""
        for work in (self._saving, self._mirroring, self._logging):
            await work.cancel()

    async def _mirror(self) -> None:
        steps = await self._patience.through(lambda: self.store.steps(self.generation))
        at = CheckpointAt(generation=self.generation, step=steps[-1]) if steps else None
        if at is None or at == self._mirrored:
            return
        try:
            path = await self._patience.through(functools.partial(self.site.deliver, self.store, at, numbered=True))
        except (PayloadMissing, PayloadCorrupt):  # a newer one is there by now, or will be
            return
        except CheckpointUnsaved as error:
            self._emit(Trouble(message=f"the adapter is not written: {error}"))
            path = None
        self._mirrored = at
        if path is not None and (record := await self._patience.through(lambda: self.store.record(at))) is not None:
            self._emit(JobSaved(iteration=record.iteration, size_bytes=record.adapter.size_bytes, adapter=str(path)))
