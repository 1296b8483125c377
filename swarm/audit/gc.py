"""What a mailbox holds that nobody needs, and freeing it, by the rules of swarm/garbage.py.

A run in which somebody is live has a closer, that sweeps each turn: of such a one only what is two turns back goes, as there.
Of one that rests, all goes that its two newest records, its checkpoints and its open round do not need. So whoever joins finds
the same as before, and whoever slept meanwhile has lost nothing that the closer would not have deleted, too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from swarm.audit.listening import Heard, listen
from swarm.audit.runs import Found, find, unsigned
from swarm.core.errors import MailboxCorrupt, MailboxMoved, RecordError
from swarm.core.finetune import FineTune
from swarm.core.keys import RunKeys
from swarm.core.lines import decode
from swarm.core.manifest import Manifest
from swarm.core.ranks import GenerationEnd, Plan
from swarm.garbage import Garbage, What, job_steps, old_beats, old_checkpoints, old_job_checkpoints, superseded
from swarm.mailbox.contract import STAGED, TRASHED, Mailbox
from swarm.mailbox.folder import FolderMailbox
from swarm.tape import Tape

Kind: TypeAlias = What | Literal["staged"]
STAGED_S = 60.0  # that what is staged must have been the same for
AT_ONCE = 500  # objects that are deleted in one call


@dataclass(frozen=True)
class RunGarbage:
    """What can go of one run."""

    run: str
    name: str
    sizes: dict[What, dict[str, int]] = field(default_factory=dict)
    """Bytes by key, by what it is; what goes first stands first."""
    live: tuple[str, ...] = ()
    """Learners: what is younger than two turns is left to them."""
    kept: str = ""
    """Why all of it is left alone, in words; '': it is not."""
    size_bytes: int = 0
    """Of the whole run."""

    def batches(self) -> Iterator[tuple[What, list[str]]]:
        for what, sizes in self.sizes.items():
            listed = list(sizes)
            for first in range(0, len(listed), AT_ONCE):
                yield what, listed[first : first + AT_ONCE]


@dataclass(frozen=True)
class Waste:
    """What can go of a mailbox."""

    runs: tuple[RunGarbage, ...]
    staged: dict[str, int]
    """Bytes of what is staged or trashed: it goes if it does not change while it is watched, and nobody is live."""

    @property
    def live(self) -> bool:
        """Whether somebody may be about, in any run: then writers are, and their closers sweep what the dead ones staged."""
        return any(each.live for each in self.runs)


async def look(mailbox: Mailbox, *, run: str | None = None, told: Callable[[float], None] = lambda s: None) -> Waste:
    """What can go, of all runs or of the one with the id `run`. `told`: called with the seconds that it may take to find out
    whether anybody is live, if it takes any."""
    found = await find(mailbox, run)
    plain = unsigned(mailbox)  # to be taken for live needs no signature
    readable = [each.manifest for each in found if each.manifest is not None]
    heard = await listen(plain, readable, told=told)
    runs = []
    for each in found:
        sizes = await mailbox.sizes(f"{RunKeys(each.run).root}/")
        runs.append(await of_run(mailbox, each, heard.get(each.run), sizes))
    staged = {**await mailbox.sizes(STAGED), **await mailbox.sizes(TRASHED)} if run is None else {}
    return Waste(tuple(runs), staged)


async def check_writable(mailbox: Mailbox) -> None:
    """Raises MailboxReadOnly where it shows at once that nothing can be freed: in a folder. An object store tells it of each
    object."""
    if isinstance(folder := unsigned(mailbox), FolderMailbox):
        await folder.check_writable()


async def of_run(mailbox: Mailbox, found: Found, heard: Heard | None, sizes: Mapping[str, int]) -> RunGarbage:
    """What can go of one run, of which `sizes` are the objects. `heard`: who takes part; None if that cannot be told."""
    whole = sum(sizes.values())
    live = heard.live if heard is not None else ()

    def left_alone(why: str) -> RunGarbage:
        return RunGarbage(found.run, found.name, live=live, kept=why, size_bytes=whole)

    if found.manifest is None or heard is None:
        return left_alone(f"{found.flaw}: `swarm rm {found.run} --force` deletes it")
    if found.foreign:
        return left_alone(found.foreign)
    try:
        if isinstance(found.manifest.algorithm, FineTune):
            garbage = await _of_job(mailbox, found.manifest, quiet=heard.quiet)
        else:
            garbage = await _of_rounds(mailbox, found.manifest, heard)
    except (MailboxCorrupt, MailboxMoved, RecordError) as error:
        return left_alone(f"{error}: `swarm mailbox verify` says more")
    # What was listed a moment ago, and is not there any more, was deleted by somebody else.
    there = {what: {key: sizes[key] for key in listed if key in sizes} for what, listed in garbage.items()}
    return RunGarbage(found.run, found.name, {what: keys for what, keys in there.items() if keys}, live, size_bytes=whole)


async def _of_rounds(mailbox: Mailbox, manifest: Manifest, heard: Heard) -> Garbage:
    tape, quiet = Tape(mailbox, manifest), heard.quiet
    newest = await tape.newest_round()
    fetching = frozenset() if quiet else heard.fetching
    found = await superseded(tape, newest, fetching=fetching, quiet=quiet, strict=True)
    records, payloads = await old_checkpoints(tape)
    found["checkpoints"] = [*records, *payloads]
    if quiet:
        found["beats"] = old_beats(await mailbox.list(tape.keys.beats))
        found["files"] = await _unnamed_files(mailbox, manifest)
    # Records before what they name: whoever sees one can fetch it.
    order: tuple[What, ...] = ("snapshots", "claims", "checkpoints", "deltas", "parameters", "init", "beats", "files")
    return {what: found[what] for what in order if found.get(what)}


async def _of_job(mailbox: Mailbox, manifest: Manifest, *, quiet: bool) -> Garbage:
    """Only where nobody is live: else the machine of rank 0 deletes, after it has found that its generation has not ended."""
    place = RunKeys(manifest.run)
    if not quiet:
        return {}
    found: Garbage = {}
    needed = await _needed_checkpoints(mailbox, place)
    if needed is not None:
        generation, own, named = needed
        old = await old_job_checkpoints(mailbox, place, generation=generation, own=own)
        old = [at for at in old if at not in named]
        records = [place.job_checkpoint(*at) for at in old]
        files = [key for at in old for key in await mailbox.list(place.job_files_of(*at))]
        found["checkpoints"] = [*records, *files]
    found["beats"] = old_beats(await mailbox.list(place.beats))
    found["files"] = await _unnamed_files(mailbox, manifest)
    return {what: keys for what, keys in found.items() if keys}


async def _needed_checkpoints(mailbox: Mailbox, place: RunKeys) -> tuple[int, list[int], set[tuple[int, int]]] | None:
    """(the last generation that had a plan, the steps after which it wrote checkpoints, those that its plan and its end name);
    None: none had."""
    names = [int(name) for name in await mailbox.names(place.generations) if name.isdecimal()]
    for generation in sorted(names, reverse=True):
        data = await mailbox.read(place.rank_plan(generation))
        if data is None:
            continue
        named = {decode(data, Plan, where=place.rank_plan(generation)).start}
        end = await mailbox.read(place.generation_end(generation))
        if end is not None:
            named.add(decode(end, GenerationEnd, where=place.generation_end(generation)).checkpoint)
        steps = await job_steps(mailbox, place, generation)
        return generation, steps, {(at.generation, at.step) for at in named if at is not None}
    return None


async def _unnamed_files(mailbox: Mailbox, manifest: Manifest) -> list[str]:
    """What was attached by somebody who created this run second."""
    prefix, named = f"{RunKeys(manifest.run).root}/files/", {ref.sha256 for ref in manifest.files}
    found: list[str] = []
    for name in await mailbox.names(prefix):
        if name not in named:
            found += await mailbox.list(f"{prefix}{name}/")
    return found


async def free(mailbox: Mailbox, waste: Waste, *, freed: Callable[[str, Kind, int, int], None]) -> None:
    """Delete what `look` found in the runs. `freed`: called with run, what, and how many objects and bytes have gone."""
    for each in waste.runs:
        for what, batch in each.batches():
            await mailbox.delete(batch)
            freed(each.run, what, len(batch), sum(each.sizes[what][key] for key in batch))


async def free_staged(mailbox: Mailbox, waste: Waste, *, watching: Callable[[float], None] = lambda s: None) -> int:
    """Remove what has been the same for STAGED_S; how many. A writer that is alive all the same begins once more. `watching`:
    called each second or so with how long that will still take. Call it when nobody is live."""
    if not waste.staged:
        return 0
    await mailbox.sweep(math.inf)  # from here on
    left_s = STAGED_S
    while left_s > 0:
        watching(left_s)
        await asyncio.sleep(min(1.0, left_s))
        left_s -= 1.0
    return await mailbox.sweep(STAGED_S * 0.9)  # clocks may be read a little early
