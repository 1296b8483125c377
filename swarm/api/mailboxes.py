"""Looking after a mailbox: checking it, freeing what nobody needs, and where its bytes are."""

from __future__ import annotations

from collections.abc import Callable

from swarm.api.finding import opened
from swarm.audit import gc, verify
from swarm.audit.faults import Fault, Report
from swarm.audit.gc import STAGED_S, Kind, Waste
from swarm.audit.runs import find
from swarm.audit.size import SORTS, Size, size
from swarm.audit.verify import Progress
from swarm.core.errors import RunNotFound
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.waiting import in_time

__all__ = ["SORTS", "STAGED_S", "Fault", "Kind", "Progress", "Report", "Size", "Waste", "checked", "free", "sizes", "waste"]


async def checked(
    location: str, text: str | None, *, found: Callable[[Fault], None], told: Callable[[Progress], None]
) -> Report:
    """Check the mailbox, or the run that `text` names. Raises RunNotFound, MailboxError."""
    store = await opened(location)
    run = await _run(store, text)
    return await in_time(store, verify.verify(store, run=run, found=found, told=told))


async def waste(
    location: str, text: str | None, *, told: Callable[[float], None], to_free: bool = False
) -> tuple[Mailbox, Waste]:
    """What nobody needs, of the mailbox or of the run that `text` names, with the mailbox that `free` frees it of. Raises
    RunNotFound, MailboxError; MailboxReadOnly at once if it is `to_free` that and cannot."""
    store = await opened(location)
    if to_free:
        await in_time(store, gc.check_writable(store))
    run = await _run(store, text)
    return store, await in_time(store, gc.look(store, run=run, told=told))


async def free(
    store: Mailbox,
    found: Waste,
    *,
    freed: Callable[[str, Kind, int, int], None],
    watching: Callable[[float], None],
) -> int:
    """Free it; how many objects that were staged or trashed have gone, too. What is staged stays where somebody is live."""
    await in_time(store, gc.free(store, found, freed=freed))
    if found.live:
        return 0
    return await in_time(store, gc.free_staged(store, found, watching=watching))


async def sizes(location: str, text: str | None) -> list[Size]:
    """Of each run, the largest first; last of what is outside of all runs. Raises RunNotFound, MailboxError."""
    store = await opened(location)
    run = await _run(store, text)

    async def read() -> list[Size]:
        return [each async for each in size(store, run=run)]

    return sorted(await in_time(store, read()), key=lambda each: (not each.run, -each.bytes, each.name))


async def _run(store: Mailbox, text: str | None) -> str | None:
    """The id of the run that `text` names: by name or id, or an unambiguous prefix of either; one that cannot be read, too."""
    if text is None:
        return None
    every = await in_time(store, find(store))
    exact = [each for each in every if text in (each.run, each.name)]
    fitting = exact or [each for each in every if text and (each.run.startswith(text) or each.name.startswith(text))]
    if len(fitting) == 1:
        return fitting[0].run
    names = ", ".join(f"{each.name} ({each.run})" for each in (fitting or every)[:5]) or "none"
    if not fitting:
        raise RunNotFound(f"no run {text!r} in {store.location}; runs there: {names}")
    raise RunNotFound(f"{text!r} fits several runs: {names}")
