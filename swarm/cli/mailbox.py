"""`swarm mailbox`: whether a mailbox is sound, where its bytes are, and what nobody needs."""

from __future__ import annotations

import time
from collections import Counter

import click

from swarm.api import mailboxes
from swarm.cli.common import json_option, mailbox_option, put, say, table, wait_for, where
from swarm.core.errors import UsageError
from swarm.core.sentences import amount, counted, plain

run_option = click.option("--run", "run", metavar="RUN", help="Only this run: a name, an id or the beginning of one.")
_WHAT = {
    "parameters": "parameters of older rounds",
    "deltas": "deltas of closed rounds",
    "snapshots": "records of such deltas",
    "claims": "claims on closed rounds",
    "init": "first parameters of who came second",
    "checkpoints": "older checkpoints",
    "beats": "older beats",
    "files": "files that no run names",
    "staged": "left staged or trashed",
}
SHOWN_S = 0.2  # between two sights of how far it is


@click.group()
def mailbox() -> None:
    """Look after a mailbox: check all of it, free what nobody needs, see where its bytes are."""


@mailbox.command()
@run_option
@mailbox_option
@json_option
def verify(run: str | None, mailbox: str | None, as_json: bool) -> int:
    """Check that all of a mailbox is what it says.

    Every record is read, and every payload hashed: so it takes as long as reading the mailbox does. Learners may go on
    meanwhile. Prints a line for each fault, with what to do about it, and ends with 1 if there is one.
    """
    location, progress = where(mailbox), _Sight()

    def tell(fault: mailboxes.Fault) -> None:
        progress.clear()
        if as_json:
            put(fault)
        else:
            print(f"{fault.fault}: {plain(str(fault), 1000)}", flush=True)

    began_s = time.monotonic()
    try:
        found = wait_for(mailboxes.checked(location, run, found=tell, told=progress))
    finally:
        progress.clear()
    took_s = max(time.monotonic() - began_s, 1e-6)
    for note in found.notes:
        say(plain(note, 500))
    if found.unknown_count:
        first = next(iter(found.unknown.values()))
        say(f"{counted(found.unknown_count, 'object')} that no swarm wrote, such as {plain(first, 300)}")
    if found.unneeded:
        say(f"{counted(found.unneeded, 'payload')} that nobody needs: `swarm mailbox gc`")
    if as_json:
        put(_summary(found, took_s))
    rate = f"{amount(int(found.bytes / took_s))}/s"
    read = f"{counted(found.runs, 'run')}, {counted(found.objects, 'object')}, {amount(found.bytes)} in {took_s:.1f} s, {rate}"
    say(f"{counted(found.faults, 'fault')}: {read}" if found.faults else f"whole: {read}")
    return 1 if found.faults else 0


def _summary(found: mailboxes.Report, took_s: float) -> dict[str, object]:
    return {
        "runs": found.runs,
        "objects": found.objects,
        "bytes": found.bytes,
        "seconds_s": took_s,
        "faults": found.faults,
        "unneeded": found.unneeded,
        "unknown": found.unknown_count,
        "notes": found.notes,
    }


class _Sight:
    """How far it is, on a terminal."""

    def __init__(self) -> None:
        from swarm.cli.narrate import Progress

        self._line = Progress()
        self._began_s = self._shown_s = time.monotonic()

    def __call__(self, now: mailboxes.Progress) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= SHOWN_S:
            self._shown_s = now_s
            rate = amount(int(now.done_bytes / max(now_s - self._began_s, 1e-6)))
            known = max(now.known_bytes, now.done_bytes)  # a run that goes on grows
            self._line.show(f"{plain(now.run, 40)}: {amount(now.done_bytes)} of {amount(known)}, {rate}/s")

    def show(self, text: str) -> None:
        self._line.show(text)

    def clear(self) -> None:
        self._line.clear()


@mailbox.command()
@click.option("--dry-run", is_flag=True, help="Only show it. This is what happens without --now, too.")
@click.option("--now", is_flag=True, help="Free it.")
@run_option
@mailbox_option
@json_option
def gc(dry_run: bool, now: bool, run: str | None, mailbox: str | None, as_json: bool) -> None:
    """Show, or free, what nobody needs any more.

    That is what the learners free themselves as rounds go by, and what those that died could not: parameters and deltas of
    older rounds, claims, what was left half written. Whoever joins afterwards finds the same as before. Whether anybody takes
    part is listened for, up to a lease; of a run in which somebody does, all that is younger than two turns is left to its
    learners. With --now, what is staged is watched for a minute first.
    """
    if dry_run and now:
        raise UsageError("--dry-run shows what --now frees: one of them")
    location, progress = where(mailbox), _Sight()
    gone: Counter[tuple[str, str]] = Counter()
    gone_bytes: Counter[tuple[str, str]] = Counter()

    def freed(run: str, what: str, objects: int, size_bytes: int) -> None:
        gone[run, what] += objects
        gone_bytes[run, what] += size_bytes
        progress.show(f"{gone.total()} objects, {amount(gone_bytes.total())} freed")

    async def work() -> mailboxes.Waste:
        store, found = await mailboxes.waste(
            location, run, told=lambda s: say(f"is anybody there? (up to {s:.0f} s)"), to_free=now
        )
        if not now:
            for each in found.runs:
                for what, sizes in each.sizes.items():
                    freed(each.run, what, len(sizes), sum(sizes.values()))
            if found.staged and not found.live:
                freed("", "staged", len(found.staged), sum(found.staged.values()))
            return found
        watching = progress.show
        removed = await mailboxes.free(
            store, found, freed=freed, watching=lambda s: watching(f"watching what is staged, for {s:.0f} s more")
        )
        if removed:
            whole = sum(found.staged.values())
            freed("", "staged", removed, whole if removed >= len(found.staged) else 0)
        return found

    try:
        found = wait_for(work())
    finally:
        progress.clear()
    names = {each.run: each.name for each in found.runs}
    rows = [(run, what, count, gone_bytes[run, what]) for (run, what), count in gone.items()]
    if as_json:
        for run_id, what, count, size_bytes in rows:
            record = {"run": run_id, "name": names.get(run_id, ""), "what": what, "objects": count, "bytes": size_bytes}
            put(record | {"freed": now})
    elif rows:
        shown = [(names.get(run_id, "–"), _WHAT[what], str(count), amount(size)) for run_id, what, count, size in rows]
        print(table(("RUN", "WHAT", "OBJECTS", "BYTES"), shown))
    _say_kept(found, now=now)
    many = f"{counted(gone.total(), 'object')}, {amount(gone_bytes.total())}"
    if now:
        say(f"{many} freed")
    else:
        say(f"{many} can go: `swarm mailbox gc --now` frees them" if rows else "nothing can go")


def _say_kept(found: mailboxes.Waste, *, now: bool) -> None:
    for each in found.runs:
        if each.kept:
            say(f"{plain(each.name, 100)}, {amount(each.size_bytes)}: left alone: {plain(each.kept, 500)}")
        elif each.live:
            many = ", ".join(plain(name, 64) for name in each.live)
            takes = "takes" if len(each.live) == 1 else "take"
            say(f"{plain(each.name, 100)}: {many} {takes} part: what is younger than two turns is left to the learners")
    if found.staged and found.live:
        say(f"{counted(len(found.staged), 'staged object')}, {amount(sum(found.staged.values()))}: left to the learners")
    elif found.staged and not now:
        say(f"what is staged may be somebody's: --now frees what does not change for {mailboxes.STAGED_S:.0f} s")


@mailbox.command()
@run_option
@mailbox_option
@json_option
def size(run: str | None, mailbox: str | None, as_json: bool) -> None:
    """Show where a mailbox's bytes are, the largest run first, and what `swarm mailbox gc` would free at least."""
    found = wait_for(mailboxes.sizes(where(mailbox), run))
    if as_json:
        for each in found:
            put(each)
        return
    sorts = [sort for sort in mailboxes.SORTS if any(sort in each.sorts for each in found if each.run)]
    heads = ("RUN", "BYTES", *(sort.upper() for sort in sorts), "GC")

    def cells(name: str, of: list[mailboxes.Size]) -> tuple[str, ...]:
        each = [sum(size.sorts.get(sort, 0) for size in of) for sort in sorts]
        gc_bytes = sum(size.gc_bytes for size in of)
        whole = amount(sum(size.bytes for size in of))
        return name, whole, *(amount(n) if n else "–" for n in each), amount(gc_bytes) if gc_bytes else "–"

    rows = [cells(each.name if each.run else "outside of runs", [each]) for each in found]
    print(table(heads, [*rows, cells("in all", found)] if len(rows) > 1 else rows))
    for each in found:
        if each.flaw:
            say(f"{plain(each.name, 100)}: {plain(each.flaw, 500)}")
