"""Whether all of a mailbox is what it says: by the Mailbox interface alone, so that it holds for every kind of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.audit.checking import Check
from swarm.audit.faults import Fault, Report
from swarm.audit.hashing import Reader
from swarm.audit.jobs import Generations
from swarm.audit.rounds import Rounds
from swarm.audit.runs import Found, find, unsigned
from swarm.core.errors import MailboxAway
from swarm.core.finetune import FineTune
from swarm.core.keys import RunKeys
from swarm.mailbox.contract import STAGED, TRASHED, Mailbox
from swarm.mailbox.signed import SignedMailbox, is_genuine
from swarm.manifests import run_ids

PROBES = 20  # records that are asked who signed them, where the manifest's signature is not this swarm's


@dataclass
class Progress:
    """How far it is."""

    run: str = ""
    done_bytes: int = 0
    known_bytes: int = 0


async def verify(
    mailbox: Mailbox,
    *,
    run: str | None = None,
    found: Callable[[Fault], None],
    told: Callable[[Progress], None] = lambda progress: None,
) -> Report:
    """Check all runs, or the one with the id `run`. `found` is called with each fault, `told` whenever bytes were read.

    Memory is bounded by the keys of one run, and by two parts of each object that is read at a time. Raises MailboxError for
    a mailbox that cannot be read at all.
    """
    progress, report = Progress(), Report(unknown={}, notes=[])

    def moved(size_bytes: int) -> None:
        progress.done_bytes += size_bytes
        told(progress)

    plain = unsigned(mailbox)
    reader = Reader(plain, moved=moved)
    runs = await find(mailbox, run)
    for each in runs:
        progress.known_bytes += sum((await plain.sizes(f"{RunKeys(each.run).root}/")).values())
    if run is None:
        known = {"record.json", *await run_ids(plain)}
        for place in (STAGED, TRASHED):
            if not await _is_there(plain, place):
                report.faults += 1
                found(_lost(mailbox.location, place))
        for name in await plain.names("runs/"):
            if name not in known:
                report.unknown.setdefault("", f"runs/{name}")
                report.unknown_count += 1
    for each in runs:
        progress.run = each.name
        await _run(mailbox, each, reader, report, found, moved)
        report.runs += 1
    return report


async def _is_there(plain: Mailbox, place: str) -> bool:
    try:
        await plain.sizes(place)
    except MailboxAway:
        await plain.open()  # else it is the whole share
        return False
    return True


def _lost(location: str, place: str) -> Fault:
    what = (
        f"a folder of the mailbox, without which {'nothing can be written' if place == STAGED else 'no record can be deleted'}"
    )
    remedy = f"make an empty folder {place.rstrip('/')} in {location}, which all machines may write in"
    return Fault(fault="missing", run="", key=place, what=what, remedy=remedy)


async def _run(
    mailbox: Mailbox,
    found: Found,
    reader: Reader,
    report: Report,
    emit: Callable[[Fault], None],
    moved: Callable[[int], None],
) -> None:
    plain = unsigned(mailbox)
    sizes = await plain.sizes(f"{RunKeys(found.run).root}/")
    check = Check(
        mailbox=mailbox if found.ours and found.manifest is not None else plain,
        plain=plain,
        run=found.run,
        manifest=found.manifest,
        sizes=sizes,
        reader=reader,
        report=report,
        emit=emit,
        read_bytes=moved,
    )
    if found.manifest is None:
        await _without_manifest(check, found)
        return
    if found.foreign:
        if await _is_ours(mailbox, check):
            what = "manifest: other records of the run have this swarm's signature, and it has not"
            check.fault("forged", check.keys.manifest, what)
        report.notes.append(f"{found.name}: signatures were not checked: {found.foreign}")
    of = Generations(check) if isinstance(found.manifest.algorithm, FineTune) else Rounds(check, found.manifest)
    await check.files(found.manifest.files)
    await check.records(of.take)
    of.judge()
    await check.payloads(unneeded=of.unneeded)
    if not await check.settle():
        report.notes.append(f"{found.name} was deleted while it was checked")


async def _without_manifest(check: Check, found: Found) -> None:
    """Records and payloads can be looked at all the same; what follows from what cannot be told."""
    key = check.keys.manifest
    if key in check.places:
        check.fault("damaged", key, f"manifest: {found.flaw.removeprefix(f'{key}: ')}")
        del check.places[key]
    await check.records(lambda place, read: None)
    await check.payloads(unneeded=lambda place: False)
    if key not in check.sizes and not any(place.kind in ("round", "learner") for place in check.places.values()):
        check.report.notes.append(f"{found.run}: {found.flaw}: `swarm rm {found.run} --force` deletes it")
    elif key not in check.sizes:

        async def still() -> bool:
            """Whether it is not just being deleted, manifest first."""
            now = await check.plain.sizes(f"{check.keys.root}/")
            return key not in now and len(now) >= len(check.sizes)

        check.lacks("missing", key, "the manifest of a run that has begun", still)
    await check.settle()


async def _is_ours(mailbox: Mailbox, check: Check) -> bool:
    """Whether other records of a run whose manifest is not signed by this swarm are."""
    if not isinstance(mailbox, SignedMailbox):
        return False
    lasting = [place.key for place in check.places.values() if place.kind in ("round", "learner", "control")]
    for key in lasting[:PROBES]:
        if await is_genuine(mailbox, key):
            return True
    return False
