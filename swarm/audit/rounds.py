"""What follows from what in a run in rounds: the tape, and which payloads its records refer to."""

from __future__ import annotations

from typing import NamedTuple

from swarm.audit.checking import Check, Still, gaps
from swarm.audit.checking import Referred as Ref
from swarm.audit.records import Read
from swarm.core.catalog import Place
from swarm.core.manifest import INIT, Manifest, PayloadRef
from swarm.core.records import Checkpoint, RoundRecord, Snapshot
from swarm.core.tensorspec import TensorSpec
from swarm.tape import Tape


class _Link(NamedTuple):
    """What is remembered of each round record."""

    sha256: str
    parent: str | None
    control: int


class Rounds:
    """Fed with each record that could be read; then asked what does not fit."""

    def __init__(self, check: Check, manifest: Manifest) -> None:
        self.check, self.manifest = check, manifest
        self.tape = Tape(check.plain, manifest)
        self.turns = 2 * len(manifest.plan)
        rounds = [place.number for place in check.places.values() if place.kind == "round"]
        self.listed = frozenset(rounds)
        self.newest = max(rounds, default=INIT)
        self.controls = frozenset(place.number for place in check.places.values() if place.kind == "control")
        self._links: dict[int, _Link] = {}
        specs = {spec.name: spec for spec in manifest.tensors}
        self._specs: list[tuple[TensorSpec, ...]] = [tuple(specs[name] for name in names) for names in manifest.plan]
        for fragment, ref in enumerate(manifest.init):
            key = check.keys.init_blob(fragment, ref.sha256)
            check.referred[key] = Ref(ref.size_bytes, True, self._absence(key), self._specs[fragment])

    def take(self, place: Place, read: Read) -> None:
        match read.record:
            case RoundRecord():
                self._take_round(place, read)
            case Snapshot():
                self._take_snapshot(place, read.record)
            case Checkpoint():
                self._take_checkpoint(place, read.record)

    def _take_round(self, place: Place, read: Read) -> None:
        record: RoundRecord = read.record
        fragment = self.tape.schedule.fragment(record.round)
        if record.fragment != fragment:
            self.check.fault("misplaced", place.key, f"round: it says that it is of fragment {record.fragment}, not {fragment}")
            return
        self._links[record.round] = _Link(read.sha256, record.parent, record.control)
        needed = record.round > self.newest - self.turns
        for ref in (record.theta, record.outer, record.update):
            if ref is not None:
                self._refer(fragment, ref, record.round, needed=needed, specs=ref is record.theta)

    def _refer(self, fragment: int, ref: PayloadRef, round: int, *, needed: bool, specs: bool) -> None:
        check = self.check
        init = ref.round == INIT
        key = check.keys.init_blob(fragment, ref.sha256) if init else check.keys.round_blob(ref.round, ref.sha256)
        before = check.referred.get(key)
        if (before is not None and before.needed) or not (needed or key in check.sizes):
            return

        async def still() -> bool:
            return await self.tape.newest_round() - self.turns < round and await check.absent(key)

        check.referred[key] = Ref(ref.size_bytes, needed, still, self._specs[fragment] if specs else None)

    def _take_snapshot(self, place: Place, snapshot: Snapshot) -> None:
        check, ref = self.check, snapshot.payload
        key = check.keys.snapshot_blob(snapshot.round, snapshot.learner, ref.sha256)

        async def still() -> bool:
            closed = await self.tape.newest_round() >= snapshot.round
            return not closed and not await check.absent(place.key) and await check.absent(key)

        needed = snapshot.round > self.newest
        if needed or key in check.sizes:
            check.referred[key] = Ref(ref.size_bytes, needed, still)

    def _take_checkpoint(self, place: Place, checkpoint: Checkpoint) -> None:
        check = self.check
        if len(checkpoint.theta) != len(self._specs):
            what = f"checkpoint: it has {len(checkpoint.theta)} fragments, the run {len(self._specs)}"
            check.fault("misplaced", place.key, what)
            return

        for fragment, ref in enumerate(checkpoint.theta):
            key = check.keys.checkpoint_blob(checkpoint.round, fragment, ref.sha256)
            check.referred[key] = Ref(ref.size_bytes, True, self._while_there(place.key, key), self._specs[fragment])

    def _while_there(self, record: str, key: str) -> Still:
        async def still() -> bool:
            return not await self.check.absent(record) and await self.check.absent(key)

        return still

    def _absence(self, key: str) -> Still:
        return lambda: self.check.absent(key)

    def judge(self) -> None:
        """What lacks, and what does not follow on what is before it."""
        check = self.check
        for first, last in gaps(self.listed):
            many = f"round {first} is" if first == last else f"rounds {first} to {last} are"
            check.lacks("gap", check.keys.round(first), f"{many} not there, and round {self.newest} is")
        for first, last in gaps(self.controls, first=1):
            many = f"control record {first} is" if first == last else f"control records {first} to {last} are"
            check.lacks("gap", check.keys.control_record(first), f"{many} not there: those behind count for nothing")
        named: dict[int, int] = {}
        for round, link in sorted(self._links.items()):
            before = self._links.get(round - 1)
            if (round == 0 and link.parent is not None) or (before is not None and link.parent != before.sha256):
                what = f"round {round} names another record as the one before it than round {round - 1}'s"
                check.fault("chain", check.keys.round(round), what)
            if link.control > max(self.controls, default=0):
                named.setdefault(link.control, round)
        for control, round in named.items():
            what = f"round {round} says that control record {control} is in effect"
            check.lacks("missing", check.keys.control_record(control), what)

    def unneeded(self, place: Place) -> bool:
        """Whether nobody needs a payload that no record refers to: one of an open round may be about to be named."""
        if place.kind in ("round-blob", "delta"):
            return place.number <= self.newest
        return place.kind in ("init", "hashes", "chunk")
