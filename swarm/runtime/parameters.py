"""Committed parameters, without taking part; and what is to be done when the newest are damaged in the mailbox."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, TypeVar

from numpy.typing import NDArray

from swarm.core.errors import MailboxError, PayloadCorrupt, PayloadMissing, RecordError, UsageError
from swarm.exchange import Exchange

E = TypeVar("E", bound=Exception)
SHOWN = 3  # checkpoints


async def committed(exchange: Exchange, round: int | None = None) -> tuple[int, Mapping[str, NDArray[Any]]]:
    """(a round, the parameters of the whole model after it): the newest, or `round`, which is the newest or has a checkpoint.
    So the last round's are there even if its checkpoint is not, because its closer died. Raises UsageError naming the
    checkpoints, PayloadMissing, PayloadCorrupt."""
    if round is None:
        return await newest(exchange)
    kept = await exchange.checkpoints()
    if round in kept:
        return round, await exchange.fetch_checkpoint(round)
    last = await exchange.newest_round()
    if round == last:
        now = await newest(exchange)
        if now[0] == round:  # else another one was committed meanwhile
            return now
    there = f"rounds with a checkpoint: {', '.join(map(str, kept)) or 'none'}; the newest round is {last}"
    raise UsageError(f"no parameters were kept after round {round} of {exchange.manifest.name}; {there}")


async def newest(exchange: Exchange) -> tuple[int, Mapping[str, NDArray[Any]]]:
    """(the newest round, the committed parameters of every fragment after it). Raises PayloadMissing, PayloadCorrupt, both
    with what to do."""
    while True:
        round = await exchange.newest_round()
        theta: dict[str, NDArray[Any]] = {}
        try:
            for fragment, record in enumerate(await exchange.newest_records(round)):
                theta |= await exchange.fetch(fragment, exchange.theta_ref(fragment, record))
        except PayloadCorrupt as error:
            raise await advised(exchange, error) from None
        except PayloadMissing as error:
            if await exchange.newest_round() == round:
                raise await advised(exchange, error) from None
            continue  # rounds were committed meanwhile, and the payload was swept
        return round, theta


async def advised(exchange: Exchange, error: E) -> E | PayloadMissing | PayloadCorrupt:
    """`error` with what to do about it, if it is that of a payload which a newest record refers to."""
    if isinstance(error, PayloadMissing | PayloadCorrupt):
        with contextlib.suppress(MailboxError, RecordError):
            advice = await _advice(exchange, error.key)
            if advice and isinstance(error, PayloadCorrupt):
                return PayloadCorrupt(error.key, error.want, error.got, advice=advice)
            if advice:
                return PayloadMissing(error.key, advice=advice)
    return error


async def _advice(exchange: Exchange, key: str) -> str:
    name = exchange.manifest.name
    for fragment, record in enumerate(await exchange.newest_records(await exchange.newest_round())):
        if key == exchange.key_of(fragment, exchange.theta_ref(fragment, record)):
            kept = await exchange.checkpoints()
            rounds = ", ".join(map(str, kept[-SHOWN:]))
            other = "no checkpoint is kept"
            if kept:
                export = f"`swarm export {name} FILE --round {kept[-1]}`"
                other = f"or go on from a checkpoint ({rounds}): {export}, `swarm start diloco --base-model FILE`"
            return (
                "these are newest parameters. A learner that trains holds them, and writes them anew when a round of theirs "
                f"closes: try again then; {other}"
            )
        if record is not None and record.outer is not None and key == exchange.key_of(fragment, record.outer):
            return (
                "this is newest momentum, without which no round can be closed. The parameters are there: "
                f"`swarm export {name} FILE`, and `swarm start diloco --base-model FILE` goes on with them"
            )
    return ""
