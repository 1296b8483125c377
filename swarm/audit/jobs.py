"""What follows from what in a data-parallel job: generations, checkpoints, the log."""

from __future__ import annotations

from swarm.audit.checking import Check, Referred, Still, gaps
from swarm.audit.records import Read
from swarm.core.catalog import Place
from swarm.core.ranks import CheckpointAt, GenerationEnd, JobCheckpoint, Plan
from swarm.garbage import CHECKPOINTS_KEPT, job_steps


class Generations:
    """Fed with each record that could be read; then asked what does not fit."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self._plans: dict[int, Plan] = {}
        self._ends: dict[int, GenerationEnd] = {}
        self._parts: dict[int, set[int]] = {}
        self._steps: dict[int, set[int]] = {}
        for place in check.places.values():
            if place.kind == "log":
                self._parts.setdefault(place.number, set()).add(place.second)
            elif place.kind == "job-checkpoint":
                self._steps.setdefault(place.number, set()).add(place.second)

    def take(self, place: Place, read: Read) -> None:
        match read.record:
            case Plan():
                self._plans[place.number] = read.record
            case GenerationEnd():
                self._ends[place.number] = read.record
            case JobCheckpoint():
                for file in (read.record.state, read.record.adapter):
                    key = self.check.keys.job_file(place.number, place.second, file.sha256)
                    self.check.referred[key] = Referred(file.size_bytes, True, self._while_there(place.key, key))

    def _while_there(self, record: str, key: str) -> Still:
        async def still() -> bool:
            return not await self.check.absent(record) and await self.check.absent(key)

        return still

    def judge(self) -> None:
        check = self.check
        newest = max(self._plans, default=-1)
        ended = [place.number for place in check.places.values() if place.key == check.keys.generation_end(place.number)]
        for first, last in gaps(ended, end=max(newest, 0)):
            many = f"generation {first} has" if first == last else f"generations {first} to {last} have"
            check.lacks("gap", check.keys.generation_end(first), f"{many} no end, and generation {newest} has a plan")
        for generation, parts in self._parts.items():
            for first, last in gaps(parts):
                many = f"part {first} is" if first == last else f"parts {first} to {last} are"
                what = f"of the log of generation {generation} {many} not there: those behind are passed over"
                check.lacks("gap", check.keys.job_log(generation, first), what)
        if newest >= 0:
            self._judge_start(newest)
        final = max(self._ends, default=-1)
        if final >= newest and final >= 0 and not self._ends[final].goes_on:
            at = self._ends[final].checkpoint
            if at is not None and at.step not in self._steps.get(at.generation, ()):
                key = check.keys.job_checkpoint(at.generation, at.step)
                check.lacks("missing", key, f"the end of generation {final} names it: its adapters are what counts")

    def _judge_start(self, generation: int) -> None:
        """A generation that goes on from a checkpoint, and has not made two of its own yet, needs it."""
        check, start = self.check, self._plans[generation].start
        if start is None or generation in self._ends or self._has(start):
            return
        key = check.keys.job_checkpoint(start.generation, start.step)

        async def still() -> bool:
            ended = not await check.absent(
                check.keys.generation_end(generation)
            )  # and then it may have been deleted as damaged
            own = await job_steps(check.plain, check.keys, generation)
            return not ended and len(own) < CHECKPOINTS_KEPT and await check.absent(key)

        check.lacks("missing", key, f"the plan of generation {generation} goes on from it", still)

    def _has(self, at: CheckpointAt) -> bool:
        return at.step in self._steps.get(at.generation, ())

    def unneeded(self, place: Place) -> bool:
        """Whether nobody needs a file that no record refers to: one of the newest generation may be about to be named."""
        newest = max(self._plans, default=0)
        return place.kind in ("hashes", "chunk") or (place.kind == "job-file" and place.number < newest)
