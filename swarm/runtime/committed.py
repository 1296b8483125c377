"""The newest committed records of a run, by fragment, and the parameters that they refer to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from swarm.core.errors import PayloadMissing
from swarm.core.manifest import INIT, PayloadRef
from swarm.core.records import RoundRecord
from swarm.exchange import Exchange
from swarm.runtime.handoff import Tensors

Pulling = Callable[..., AbstractContextManager[None]]
"""Given the references of payloads: meanwhile, beats say that these are being fetched."""


class Committed:
    def __init__(self, exchange: Exchange, *, holds: bool, gives_away: bool, pulling: Pulling) -> None:
        """`holds`: whether to fetch the parameters of every round, as whoever trains does; one that only closes rounds fetches
        what it needs. `gives_away`: they are held until they are handed over, and no longer."""
        self.exchange, self.holds, self.pulling = exchange, holds, pulling
        self._gives_away = gives_away
        self.newest = INIT
        self.records: list[RoundRecord | None] = []  # by fragment
        self.theta: dict[int, tuple[str, Tensors]] = {}  # by fragment, as held: SHA-256 of the payload, parameters

    @property
    def newest_record(self) -> RoundRecord | None:
        return self.records[self.exchange.schedule.fragment(self.newest)] if self.newest >= 0 else None

    @property
    def control(self) -> int:
        """How many control records the newest round record names."""
        return 0 if self.newest_record is None else self.newest_record.control

    def ref(self, fragment: int) -> PayloadRef:
        return self.exchange.theta_ref(fragment, self.records[fragment])

    async def look(self) -> None:
        """Read the newest records, before anything is held."""
        newest = await self.exchange.newest_round()
        self.records, self.newest = await self.exchange.newest_records(newest), newest

    async def load(self, newest: int | None = None) -> None:
        """Start from the newest records, up to round `newest` if it is given, whatever came before. What rounds that are
        committed meanwhile take away is looked for anew; what was fetched already is not fetched twice. Raises PayloadMissing
        if a payload is gone that the newest records refer to."""
        records = self.records if newest is None else await self.exchange.newest_records(newest)
        newest = self.newest if newest is None else newest
        fetched = dict(self.theta)
        while True:
            refs = [self.exchange.theta_ref(fragment, record) for fragment, record in enumerate(records)]
            fetched = {k: held for k, held in fetched.items() if held[0] == refs[k].sha256}
            missing = [k for k in range(len(refs)) if k not in fetched] if self.holds else []
            try:
                with self.pulling(*(refs[k] for k in missing)):
                    for k in missing:
                        fetched[k] = refs[k].sha256, await self.exchange.fetch(k, refs[k])
            except PayloadMissing:
                before, newest = newest, await self.exchange.newest_round()
                if newest == before:
                    raise
                records = await self.exchange.newest_records(newest)
                continue
            self.records, self.newest, self.theta = records, newest, fetched
            return

    async def of(self, record: RoundRecord) -> Tensors | None:
        """The parameters of a round that was committed; None if they are not held here. Made from its update if it has one
        and what that starts from is held."""
        if not self.holds:
            return None
        held = self.theta.get(record.fragment)
        if held is not None and held[0] == record.theta.sha256:
            return held[1]
        with self.pulling(*(ref for ref in (record.theta, record.update) if ref is not None)):
            return await self.exchange.fetch_theta(record.fragment, record, held)

    def take(self, record: RoundRecord, theta: Tensors | None) -> None:
        """Go on to the next round, which was committed with these parameters."""
        self.records[record.fragment], self.newest = record, record.round
        if theta is not None and self.holds:
            self.theta[record.fragment] = record.theta.sha256, theta

    def handed_over(self, *fragments: int) -> dict[int, tuple[str, Tensors]]:
        """What is held of these, for whoever trains with it."""
        return {k: self.theta.pop(k) if self._gives_away else self.theta[k] for k in fragments}

    async def parameters(self, fragment: int, ref: PayloadRef | None = None) -> Tensors:
        """Those of a fragment that `ref` refers to, by default its newest; fetched if they are not held."""
        ref, held = ref or self.ref(fragment), self.theta.get(fragment)
        if held is not None and held[0] == ref.sha256:
            return held[1]
        with self.pulling(ref):
            return await self.exchange.fetch(fragment, ref)
