"""Whether a share is fit for a swarm: what was measured of it in, ticks out. Pure. What is measured: mailbox/trial.py."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from swarm.core.diagnosis import clock_words
from swarm.core.mounts import REFUSED, TOPIC
from swarm.core.sentences import amount, counted, plain
from swarm.core.ticks import VERDICT, Tick, failed, ok, warning

FEW = 10  # records raced for, below which a race says little
NAMED = 3  # faults of one kind that are named
LATE_S = 1.0  # after which another process should see what was written
LONG_LIST_S, LONG_SYNC_S = 1.0, 0.5
LITTLE_BYTES_PER_S = 2e6
SAME_CLOCK_S = 1.0

_SLOW = "use a wired connection, or a share on a nearer or less busy machine"
_AGAIN = "look again; if it stays so, see the log of the machine that serves the share"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What one process of a race says of one record."""

    wrote: str  # SHA-256 of what it bid
    won: bool = False  # what the creation said
    error: str = ""  # why it said nothing
    read: str = ""  # SHA-256 of what stood there when all had bid; '': nothing
    whole: bool = False  # whether that was a whole record


class Race(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that created the same records at the same moments, one record after the other."""

    processes: int
    records: int = 0  # that all bid for
    doubles: tuple[str, ...] = ()  # with more than one winner
    unwon: tuple[str, ...] = ()  # with none, though no call failed
    changed: tuple[str, ...] = ()  # that read back differently than their winner wrote them
    errors: tuple[str, ...] = ()  # of calls that failed again and again
    ended: int = 0  # processes that somebody ended meanwhile
    stuck: int = 0  # processes that did not answer in time
    took_s: float = 0.0


def judged(name: str, answers: Mapping[int, Answer]) -> dict[str, str]:
    """What was wrong with the record `name`, in words by the field of `Race` that takes them. `answers`: by process."""
    found = {}
    winners = sorted(n for n, answer in answers.items() if answer.won and not answer.error)
    errors = [answer.error for answer in answers.values() if answer.error]
    if len(winners) > 1:
        found["doubles"] = f"{name} (processes {', '.join(str(n + 1) for n in winners)})"
    elif not winners and answers and not errors:
        found["unwon"] = name
    looked = [answer for answer in answers.values() if not answer.error]
    wanted = {answers[n].wrote for n in winners} or {answer.wrote for answer in answers.values()}
    if any(not answer.whole or answer.read not in wanted for answer in looked) or len({each.read for each in looked}) > 1:
        found["changed"] = name
    if errors:
        found["errors"] = errors[0]
    return found


def race_tick(race: Race) -> Tick:
    name, done, records = "race", f"{race.processes} processes", counted(race.records, "record")
    wrong = [
        f"{counted(len(names), 'record')} {words}: {_some(names)}"
        for names, words in (
            (race.doubles, "had more than one winner"),
            (race.unwon, "had no winner"),
            (race.changed, "read back differently than written"),
        )
        if names
    ]
    if wrong:
        return failed(name, f"of {records} that {done} created at once, {'; '.join(wrong)}", REFUSED, topic=TOPIC)
    if race.stuck:
        words = f"{race.stuck} of {done} got no answer while they created records at once"
        return failed(name, words, "see that the machine that serves the share is on and reachable", topic=TOPIC)
    if race.errors and race.records <= len(race.errors):
        return failed(name, f"{done} created records at once, and none went well: {race.errors[0]}", _AGAIN, topic=TOPIC)
    if race.errors:
        words = f"{done} created {records} at once: one winner each; {counted(len(race.errors), 'call')} failed again and again"
        return warning(name, f"{words}: {race.errors[0]}", _AGAIN, topic=TOPIC)
    if race.ended:
        words = f"{race.ended} of {done} ended before the race was over, after {records} with one winner each"
        return warning(name, words, "did somebody end it, or is memory scarce? Look again", topic=TOPIC)
    if race.records < FEW:
        words = f"{done} created only {records} in {race.took_s:.0f} s, with one winner each: too few to tell"
        return warning(name, words, f"look again when this machine is less busy; if it stays so, {_SLOW}", topic=TOPIC)
    return ok(name, f"{done} created {records} at once: each had one winner, and all read the same", topic=TOPIC)


def visibility_tick(late_s: Sequence[float]) -> Tick:
    """`late_s`: how long another process of this machine did not see what was written, each time."""
    median, worst = statistics.median(late_s), max(late_s)
    late = f"after {_ms(median)}, at most {_ms(worst)}" if worst >= 0.001 else "at once"
    detail = f"a second process lists and reads what was written {late}"
    if worst > LATE_S:
        remedy = "mount it with shorter caches (NFS and SMB on Linux: actimeo=1): every round waits for what others wrote"
        return warning("visibility", detail, remedy, topic=TOPIC)
    return ok("visibility", detail, topic=TOPIC)


def invisible_tick(limit_s: float) -> Tick:
    words = f"a second process did not see within {limit_s:.0f} s what was written"
    return failed("visibility", words, "mount it without caches of names, or serve it by SMB or NFS", topic=TOPIC)


def listing_tick(*, made: int, wanted: int, took_s: Sequence[float], missing: int, doubled: int) -> Tick:
    """`made` names, as many of those `wanted` as could be made in time; `missing` in the newest listing, by this process."""
    each_s = statistics.median(took_s)
    detail = f"{made:,} names in {_ms(each_s)}"
    if made < wanted:
        detail += f" (to make {wanted:,} took too long: {wanted * each_s / max(made, 1):.2g} s for as many)"
    if doubled:
        detail += f"; {counted(doubled, 'name')} given twice, which is harmless"
    if missing:
        words = f"{detail}; {missing} that had just been made were missing for as long as was looked"
        return failed("listing", words, "mount it without caches of names, or serve it by SMB or NFS", topic=TOPIC)
    if each_s * wanted / max(made, 1) > LONG_LIST_S:
        return warning("listing", f"{detail}: slow", _SLOW, topic=TOPIC)
    return ok("listing", detail, topic=TOPIC)


def sync_tick(took_s: Sequence[float], *, folders: bool) -> Tick:
    """`took_s`: of each fsync of a little file. `folders`: whether a folder can be synced, too."""
    median = statistics.median(took_s)
    detail = f"fsync {_ms(median)}, at most {_ms(max(took_s))}"
    if not folders:
        detail += "; a folder cannot be synced here, and need not be"
    if median > LONG_SYNC_S:
        return warning("syncing", f"{detail}: slow", _SLOW, topic=TOPIC)
    return ok("syncing", detail, topic=TOPIC)


def speed_tick(*, write_bytes_per_s: float, read_bytes_per_s: float) -> Tick:
    detail = f"writes {amount(int(write_bytes_per_s))}/s, reads {amount(int(read_bytes_per_s))}/s"
    if min(write_bytes_per_s, read_bytes_per_s) < LITTLE_BYTES_PER_S:
        return warning("speed", f"{detail}: little for a model", _SLOW, topic=TOPIC)
    return ok("speed", detail, topic=TOPIC)


def names_tick(*, folds: bool) -> Tick:
    """`folds`: whether capitals and small letters are one."""
    words = "capitals and small letters are one here, which is harmless: names in a mailbox have no capitals"
    return ok("names", words if folds else "long ones are kept, and capitals are told from small letters", topic=TOPIC)


def clock_tick(off_s: float) -> Tick:
    """A remark. `off_s`: how far the share's clock is ahead of this machine's."""
    if abs(off_s) < SAME_CLOCK_S:
        return ok("clock", "the share's and this machine's agree", topic=TOPIC)
    return ok("clock", f"the share's is {clock_words(off_s)}: no clocks are compared, so it does no harm", topic=TOPIC)


def conclusion(ticks: Iterable[Tick]) -> Tick:
    """Whether the share of which these were found is fit for a swarm, in one tick."""
    ticks = list(ticks)
    bad = [tick for tick in ticks if tick.verdict == "failed"]
    doubtful = [tick.name for tick in ticks if tick.verdict == "warning"]
    if bad:
        words = f"not fit: {plain(bad[0].detail, 200)}" + "".join(f"; {tick.name}" for tick in bad[1:])
        return failed(VERDICT, words, bad[0].remedy, topic=TOPIC)
    if doubtful:
        return warning(VERDICT, f"fit, with warnings: {', '.join(doubtful)}", "see above what to do about them", topic=TOPIC)
    return ok(VERDICT, "fit", topic=TOPIC)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")


def _ms(seconds_s: float) -> str:
    return f"{1000 * seconds_s:.{0 if seconds_s >= 0.01 else 1}f} ms"
