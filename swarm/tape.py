"""A run's records, read and written: no payload, no tensor, no numpy.

Every read is bounded and tolerant of foreign names; what is read twice is asked for once (`known` arguments).
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from swarm.core import keys
from swarm.core.errors import MailboxCorrupt, MailboxMoved, RecordError, RecordForged, RecordGone
from swarm.core.fragments import Schedule
from swarm.core.lease import BeatId
from swarm.core.lines import body_sha256, decode, decode_needed, encode
from swarm.core.manifest import INIT, Manifest
from swarm.core.records import Beat, Checkpoint, Claim, Control, EvalRecord, LearnerRecord, RoundRecord, Sample, Snapshot
from swarm.core.specs import DiLoCo, FedAvg
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.signed import is_genuine

BEATS_KEPT = 3
BEATS_TRIED = 2 * BEATS_KEPT  # of the newest names, until one can be read
Look: TypeAlias = Mapping[tuple[str, str], Sequence[str]]
"""Listings made beforehand, by what was asked for: (prefix, after). What is not among them is listed when it is needed."""
NO_LOOK: Look = {}


def nonce() -> str:
    """What makes a record's bytes unique, so that a caller whose reply was lost recognises its own record."""
    return uuid.uuid4().hex


def derived_nonce(body: msgspec.Struct) -> str:
    """The nonce of a record that only one incarnation can write, and writes again after a lost reply: the same bytes."""
    return hashlib.sha256(msgspec.json.encode(body)).hexdigest()[:32]


class Tape:
    """The records of one run."""

    def __init__(self, mailbox: Mailbox, manifest: Manifest) -> None:
        self.mailbox, self.manifest = mailbox, manifest
        self.keys = keys.RunKeys(manifest.run)
        self.plan = manifest.plan
        spec = manifest.algorithm
        self.schedule = Schedule(sync_every=spec.sync_every if isinstance(spec, DiLoCo) else 1, fragments=len(self.plan) or 1)
        self._held: tuple[int, str] | None = None  # the newest round record seen, and its body's hash

    async def look(self, newest: int, controls: Sequence[Control]) -> Look:
        """What a poll that knows of the rounds up to `newest` and of `controls` lists, in one trip to the store. Fit for use
        as long as nothing new was committed.

        In this order: a round record may name a control, which must then be seen, and whoever left reported before.
        """
        requests = [self._rounds_from(newest), self._controls_after(controls), (self.keys.beats, "")]
        if isinstance(self.manifest.algorithm, FedAvg):
            requests.append((self.keys.client_claims(newest + 1), ""))
        requests.append((self.keys.snapshots(newest + 1), ""))
        return dict(zip(requests, await self.mailbox.lists(requests), strict=False))

    async def _list(self, look: Look, prefix: str, after: str = "") -> Sequence[str]:
        listed = look.get((prefix, after))
        return await self.mailbox.list(prefix, after) if listed is None else listed

    async def newest_round(self) -> int:
        """Number of the newest committed round, INIT if there is none. Its cost does not grow with the run."""
        shards = [int(name) for name in await self.mailbox.names(f"{self.keys.root}/rounds/") if name.isdecimal()]
        # The newest shard may be an empty folder: a commit was under way, or its writer died.
        for shard in sorted(shards, reverse=True):
            found = _numbers(await self.mailbox.list(self.keys.shard(shard)))
            if found:
                return found[-1]
        return INIT

    async def rounds_after(self, round: int, look: Look = NO_LOOK) -> int:
        """The newest round that is committed without a gap after `round`; `round` itself if nothing is new. One list, but
        after a long absence a few. Raises RecordGone if `round` itself is gone."""
        shard = (round + 1) // keys.SHARD
        listed = _numbers(await self._list(look, *self._rounds_from(round)))
        # A listing may be late, so that only a look tells. In a copy restored from before that round nobody would ever add
        # the one that is waited for here.
        if round // keys.SHARD == shard and round not in listed and await self.mailbox.read(self.keys.round(round)) is None:
            raise RecordGone(f"{self.keys.round(round)}: gone: the mailbox was replaced or restored from an older copy")
        newest = _contiguous(round, (n for n in listed if n > round))
        if newest == (shard + 1) * keys.SHARD - 1:
            newest = max(newest, await self.newest_round())
        return newest

    def _rounds_from(self, round: int) -> tuple[str, str]:
        """What to list for `round` itself, if it is in the same folder as the next one, and for those after it."""
        return self.keys.shard((round + 1) // keys.SHARD), _before(self.keys.round(round)) if round >= 0 else ""

    async def round(self, round: int) -> RoundRecord | None:
        """The record of `round`, None if it is not committed. Raises MailboxMoved if its parent is not the record that was
        read here as the one before."""
        key = self.keys.round(round)
        try:
            data = await self.mailbox.read(key)
            record = None if data is None else decode_needed(data, RoundRecord, where=key)
        except MailboxCorrupt:  # perhaps only on its way here
            data = await self.mailbox.read(key)
            record = None if data is None else decode_needed(data, RoundRecord, where=key)
        if data is None or record is None:
            return None
        if record.round != round or record.fragment != self.schedule.fragment(round):
            raise MailboxCorrupt(f"{key}: is the record of round {record.round}, fragment {record.fragment}")
        held, sha256 = self._held, body_sha256(data)
        changed = held is not None and held[0] == round and held[1] != sha256
        if changed or (held is not None and held[0] == round - 1 and record.parent != held[1]):
            raise MailboxMoved(f"{key}: is not what was read here before: the mailbox was replaced or restored from a copy")
        if held is None or round > held[0]:
            self._held = (round, sha256)
        return record

    async def parent_of(self, round: int) -> str | None:
        """SHA-256 of the body of record `round` − 1: what a record of `round` names as its parent."""
        if round == 0:
            return None
        if self._held is None or self._held[0] != round - 1:
            data = await self.mailbox.read(self.keys.round(round - 1))
            if data is None:
                raise RecordGone(f"{self.keys.round(round - 1)}: gone")
            return body_sha256(data)
        return self._held[1]

    async def newest_records(self, newest: int) -> list[RoundRecord | None]:
        """By fragment, the newest record up to round `newest`; None for a fragment that still has Θ⁰."""
        found: list[RoundRecord | None] = []
        for fragment in range(len(self.plan)):
            round = newest - (newest - fragment) % len(self.plan)
            record = await self.round(round) if round >= 0 else None
            if round >= 0 and record is None:
                raise MailboxCorrupt(f"{self.keys.round(round)}: missing below round {newest}")
            found.append(record)
        return found

    async def snapshots(
        self, round: int, known: Mapping[str, Snapshot | None], look: Look = NO_LOOK
    ) -> dict[str, Snapshot | None]:
        """Snapshots of `round` by key, those in `known` not read again; None for one whose record cannot be used."""
        found: dict[str, Snapshot | None] = {}
        for key in await self._list(look, self.keys.snapshots(round)):
            named = keys.parse_snapshot(key)
            if named is None:
                continue
            if key in known:
                found[key] = known[key]
                continue
            try:
                snapshot = await self._snapshot(key)
            except RecordForged:  # somebody else's: whoever it names has not reported
                continue
            except (RecordError, MailboxCorrupt):  # one learner's bad record must not stop the others
                found[key] = None
                continue
            if snapshot is None:
                continue
            said = (snapshot.round, snapshot.unit, snapshot.learner, snapshot.incarnation, snapshot.claim)
            honest = said == named
            found[key] = snapshot if honest else None
        return found

    async def _snapshot(self, key: str) -> Snapshot | None:
        """Read again if it cannot be used: it may be damaged on its way here only. Raises RecordError, MailboxCorrupt."""
        for last in (False, True):
            data = await self.mailbox.read(key)
            try:
                return None if data is None else decode(data, Snapshot, where=key)
            except RecordError:
                if last:
                    raise
        raise AssertionError("the last one returns or raises")

    async def beats(self, known: Mapping[str, tuple[BeatId, Beat]], look: Look = NO_LOOK) -> dict[str, tuple[BeatId, Beat]]:
        """Each learner's newest beat; one that is in `known` is not read again."""
        return await newest_beats(self.mailbox, await self._list(look, self.keys.beats), known)

    async def claims(self, round: int) -> dict[int, Claim]:
        """Claims on closing `round`, by number, without a gap from 0 on. One that cannot be used counts for nobody."""
        found: dict[int, Claim] = {}
        for key in await self.mailbox.list(self.keys.claims(round)):
            n = keys.parse_claim(key)
            if n is None:
                continue
            try:
                data = await self.mailbox.read(key)
                if data is not None:
                    found[n] = decode(data, Claim, where=key)
            except (RecordError, MailboxCorrupt):
                found[n] = Claim(round=round, learner="", incarnation=0)
        return _in_turn(found)

    async def client_claims(
        self, round: int, known: Mapping[str, dict[int, Claim]], look: Look = NO_LOOK
    ) -> dict[str, dict[int, Claim]]:
        """Claims on training clients for `round`, by client and number, each client's without a gap from 0 on; those in `known`
        not read again. One that cannot be used counts for nobody."""
        found: dict[str, dict[int, Claim]] = {}
        for key in await self._list(look, self.keys.client_claims(round)):
            named = keys.parse_client_claim(key)
            if named is None:
                continue
            _, client, n = named
            claim = known.get(client, {}).get(n)
            if claim is None:
                try:
                    data = await self.mailbox.read(key)
                    if data is None:
                        continue
                    claim = decode(data, Claim, where=key)
                except (RecordError, MailboxCorrupt):
                    claim = Claim(round=round, learner="", incarnation=0)
            found.setdefault(client, {})[n] = claim
        return {client: _in_turn(claims) for client, claims in found.items()}

    async def controls(self, known: Sequence[Control], look: Look = NO_LOOK) -> list[Control]:
        """The contiguous sequence of control records, those in `known` not read again, unless one could not be read: what
        it stands for is passed over, by this version or until it is whole."""
        found = _readable(known)
        for key in await self._list(look, *self._controls_after(known)):
            if keys.parse_control(key) != len(found) + 1:
                continue
            try:
                data = await self.mailbox.read(key)
                if data is None:
                    break
                found.append(decode(data, Control, where=key))
            except (RecordError, MailboxCorrupt):
                found.append(Control(action="unknown"))
        return found

    def _controls_after(self, known: Sequence[Control]) -> tuple[str, str]:
        n = len(_readable(known))
        return self.keys.control, _before(self.keys.control_record(n + 1)) if n else ""

    async def incarnations(self, learner: str) -> list[int]:
        """Numbers of the incarnations of `learner` so far, ascending. After the newest that is the swarm's, forged ones count
        as far as they follow without a gap: these numbers are taken; an absurd one would leave none to take."""
        listed = {key: keys.parse_learner(key) for key in await self.mailbox.list(f"{self.keys.learners}{learner}/")}
        found = sorted((named[1], key) for key, named in listed.items() if named is not None)
        own = len(found)
        while own and not await is_genuine(self.mailbox, found[own - 1][1]):
            own -= 1
        newest = _contiguous(found[own - 1][0] if own else 0, (n for n, _ in found[own:]))
        return [n for n, _ in found if n <= newest]

    async def learner(self, learner: str, incarnation: int) -> LearnerRecord | None:
        key = self.keys.learner(learner, incarnation)
        data = await self.mailbox.read(key)
        if data is None:
            return None
        record = decode_needed(data, LearnerRecord, where=key)
        if (record.learner, record.incarnation) != (learner, incarnation):  # it would be taken for somebody else's
            raise MailboxCorrupt(f"{key}: is the record of {record.learner}, incarnation {record.incarnation}")
        return record

    async def eval(self, round: int) -> EvalRecord | None:
        key = self.keys.eval(round)
        data = await self.mailbox.read(key)
        if data is None:
            return None
        record = decode_needed(data, EvalRecord, where=key)
        if record.round != round:
            raise MailboxCorrupt(f"{key}: is the record of round {record.round}")
        return record

    async def evals_after(self, round: int) -> list[int]:
        """Rounds later than `round` that were evaluated, ascending. Lists the shards from that of `round` on."""
        first, after = max(0, round) // keys.SHARD, self.keys.eval(round) if round >= 0 else ""
        found: list[str] = []
        for name in await self.mailbox.names(self.keys.evals):
            if name.isdecimal() and int(name) >= first:
                found += await self.mailbox.list(self.keys.eval_shard(int(name)), after)
        return sorted({n for n in map(keys.parse_eval, found) if n is not None})

    async def checkpoints(self) -> list[int]:
        """Rounds whose parameters are kept beside those that training needs, ascending; forged records keep none, else one of
        a round to come would have the real ones deleted as old."""
        found = {
            n: key for key in await self.mailbox.list(self.keys.checkpoints) if (n := keys.parse_checkpoint(key)) is not None
        }
        return sorted([n for n, key in found.items() if await is_genuine(self.mailbox, key)])

    async def checkpoint(self, round: int) -> Checkpoint | None:
        key = self.keys.checkpoint(round)
        data = await self.mailbox.read(key)
        if data is None:
            return None
        record = decode_needed(data, Checkpoint, where=key)
        if record.round != round or len(record.theta) != len(self.plan):
            raise MailboxCorrupt(f"{key}: is the checkpoint of round {record.round}, with {len(record.theta)} fragments")
        return record

    async def register(self, record: LearnerRecord, *, nonce: str) -> bool:
        """Take an incarnation; False if another process took it first. Repeat it with the same `nonce`."""
        return await self.mailbox.create(self.keys.learner(record.learner, record.incarnation), encode(record, nonce=nonce))

    async def beat(self, learner: str, incarnation: int, n: int, beat: Beat, *, tidy: bool = False) -> None:
        """Write beat `n` and remove the one that fell out of the last few; with `tidy`, whatever else of `learner` is older,
        earlier incarnations' included."""
        await self.mailbox.put(self.keys.beat(learner, incarnation, n), [encode(beat, nonce=nonce())])
        old = [self.keys.beat(learner, incarnation, n - BEATS_KEPT)] if n >= BEATS_KEPT else []
        if tidy:
            named = [(keys.parse_beat(key), key) for key in await self.mailbox.list(self.keys.beats_of(learner))]
            old = [key for ident, key in named if ident is not None and ident[1:] <= (incarnation, n - BEATS_KEPT)]
        if old:
            await self.mailbox.delete(old)

    async def claim(self, round: int, n: int, claim: Claim) -> bool:
        return await self.mailbox.create(self.keys.claim(round, n), encode(claim, nonce=nonce()))

    async def claim_client(self, round: int, client: str, n: int, claim: Claim) -> bool:
        """Whether training `client` for `round` is the claimant's. Made again after a lost reply, the answer is the same."""
        return await self.mailbox.create(self.keys.client_claim(round, client, n), encode(claim, nonce=derived_nonce(claim)))

    async def sample(self, round: int) -> Sample | None:
        """Which private clients train in a round that no round record names them for; None if nobody has said yet."""
        key = self.keys.sample(round)
        data = await self.mailbox.read(key)
        if data is None:
            return None
        record = decode_needed(data, Sample, where=key)
        if record.round != round:
            raise MailboxCorrupt(f"{key}: is the sample of round {record.round}")
        return record

    async def name_sample(self, sample: Sample) -> Sample:
        """Say it, unless somebody else has; returns what holds."""
        await self.mailbox.create(self.keys.sample(sample.round), encode(sample, nonce=nonce()))
        return await self.sample(sample.round) or sample

    async def commit(self, record: RoundRecord) -> bool:
        """The commit point: False if another syncer committed this round first."""
        data = encode(record, nonce=nonce())
        won = await self.mailbox.create(self.keys.round(record.round), data)
        if won:
            self._held = (record.round, body_sha256(data))
        return won

    async def control(self, control: Control) -> int:
        """Append to the sequence of control records; returns the number it got."""
        n = len(await self.controls(()))
        while True:
            n += 1
            if await self.mailbox.create(self.keys.control_record(n), encode(control, nonce=nonce())):
                return n

    async def claim_eval(self, round: int, claim: Claim) -> bool:
        """Whether the evaluation of `round` is the claimant's. Made again after a lost reply, the answer is the same: the nonce
        follows from the claim, which one incarnation makes once."""
        return await self.mailbox.create(self.keys.eval_claim(round), encode(claim, nonce=derived_nonce(claim)))

    async def write_eval(self, record: EvalRecord) -> bool:
        return await self.mailbox.create(self.keys.eval(record.round), encode(record, nonce=nonce()))


async def newest_beats(
    mailbox: Mailbox, listed: Iterable[str], known: Mapping[str, tuple[BeatId, Beat]]
) -> dict[str, tuple[BeatId, Beat]]:
    """Each learner's newest beat of a run whose beats' keys are `listed`; one that is in `known` is not read again."""
    named: dict[str, list[tuple[BeatId, str]]] = {}
    for key in listed:
        parts = keys.parse_beat(key)
        if parts is not None:
            named.setdefault(parts[0], []).append((BeatId(parts[1], parts[2]), key))
    found: dict[str, tuple[BeatId, Beat]] = {}
    for learner, beats in named.items():
        newest = await _newest_beat(mailbox, sorted(beats, reverse=True)[:BEATS_TRIED], known.get(learner))
        if newest is not None:
            found[learner] = newest
    return found


async def _newest_beat(
    mailbox: Mailbox, beats: Sequence[tuple[BeatId, str]], known: tuple[BeatId, Beat] | None
) -> tuple[BeatId, Beat] | None:
    """The first of one learner's `beats` that can be read; `known` unless that one is newer."""
    for ident, key in beats:
        if known is not None and ident <= known[0]:
            return known
        try:
            data = await mailbox.read(key)
            if data is not None:
                return ident, decode(data, Beat, where=key)
        except (RecordError, MailboxCorrupt):  # a bad one must not hide the good ones before it
            continue
    return known


def _before(record_key: str) -> str:
    """After which a listing begins with `record_key`. The folder before it, which it would else enter in vain, is left out."""
    return record_key.rpartition("/")[0]


def _numbers(listed: Iterable[str]) -> list[int]:
    """The rounds of these records, ascending."""
    return sorted({n for n in map(keys.parse_round, listed) if n is not None})


def _readable(known: Sequence[Control]) -> list[Control]:
    return list(itertools.takewhile(lambda control: control.action != "unknown", known))


def _contiguous(after: int, rounds: Iterable[int]) -> int:
    """The last of `rounds` that follows `after` without a gap. A late listing may show a later one first."""
    for round in rounds:
        if round != after + 1:
            break
        after = round
    return after


def _in_turn(claims: Mapping[int, Claim]) -> dict[int, Claim]:
    """Those before the first gap. Nobody outbids what is not there: else one absurd number would leave none to bid with."""
    return {n: claims[n] for n in itertools.takewhile(claims.__contains__, itertools.count())}
