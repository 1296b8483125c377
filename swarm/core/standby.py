"""What a machine that stands by joins next, and when it tries again (`swarm join --wait`). Pure; time is an argument."""

from __future__ import annotations

import fnmatch
import signal
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias, assert_never

import msgspec

from swarm.core.errors import INTERRUPTED
from swarm.core.sentences import amount, counted, plain
from swarm.core.state import RunPhase

Why = Literal["dropped", "left"]
"""Why this machine is not to join a run any more: somebody dropped it from the run, or a person had it leave."""
BARRED_WORDS: Mapping[Why, str] = {
    "dropped": "this machine was dropped from it",
    "left": "somebody had this machine leave it",
}
AWAY = frozenset({"MailboxUnavailable", "MailboxFull", "MailboxReadOnly", "MailboxAway", "MailboxMoved"})
"""Last words of a worker that are about the share: it is waited for, and nothing is wrong with the run."""
OVER = frozenset({"RunEnded", "RunNotFound", "JobStopped"})
"""... that are about a run which has ended, or was deleted."""
HOPELESS = frozenset(
    {
        "UsageError",
        "TaskUnknown",
        "DataMissing",
        "DeviceUnavailable",
        "FormatMismatch",
        "SchemaMismatch",
        "RunConfigMismatch",
        "RunSigned",
        "RecordForged",
        "PassphraseError",
        "FileRefused",
    }
)
"""... that trying again does not mend: a person has to."""


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How often things are tried."""

    look_s: float = 3.0  # between two looks at the mailboxes
    first_s: float = 2.0  # before a worker that failed is started again; twice as long after each more failure,
    longest_s: float = 600.0  # up to this
    good_s: float = 600.0  # after so long in a run, failures of before do not count any more
    failures: int = 8  # in a row, after which a run is given up
    given_up_s: float = 6 * 3600.0  # for so long
    held_s: float = 1800.0  # that a worker holds still for its machine's owner, before it leaves and gives back its memory


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs to join; without any rule, all of them."""

    only: tuple[str, ...] = ()  # names, with * and ?; or ids
    methods: tuple[str, ...] = ()  # diloco, fedavg, mlx-lm
    memory_bytes: int | None = None  # that a run may need, at most

    def words(self) -> str:
        """'' without any rule."""
        said = [f"only {plain(', '.join(self.only), 200)}"] if self.only else []
        said += [f"method {' or '.join(self.methods)}"] if self.methods else []
        said += [f"at most {amount(self.memory_bytes)} of memory"] if self.memory_bytes is not None else []
        return ", ".join(said)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was just seen."""

    mailbox: str
    run: str
    name: str
    method: str
    phase: RunPhase
    memory_bytes: int = 0  # that it needs, about; 0: not known
    program: bool = False  # trains a program's own model: no worker can


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """How often a run's worker has failed here, and when it may be started again."""

    failures: int = 0  # in a row
    not_before_s: float = 0.0
    given_up: bool = False


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine that stands by has to remember, by run."""

    tried: dict[str, Tried] = {}
    barred: dict[str, Why] = {}


# How a worker ended


class Finished(msgspec.Struct, frozen=True):
    """The run has ended, or a person had it leave."""


class ShareAway(msgspec.Struct, frozen=True):
    message: str


class Crashed(msgspec.Struct, frozen=True):
    message: str
    hopeless: bool = False  # trying again does not mend it


Outcome: TypeAlias = Finished | ShareAway | Crashed


def outcome(*, code: int, error: str, message: str, ended: bool) -> Outcome:
    """`code`: the worker's exit code, `error` and `message` its last words, '' if it had none; `ended`: whether it said that it
    has left its run."""
    if error in OVER or (ended and not error and code == 0):
        return Finished()
    if code in (INTERRUPTED, -signal.SIGINT, -signal.SIGTERM):  # told to leave before it had joined, or could listen
        return Finished()
    if error in AWAY:
        return ShareAway(message)
    return Crashed(message, hopeless=error in HOPELESS)


# What follows


class Again(msgspec.Struct, frozen=True):
    """It is joined again."""

    after_s: float


class GivenUp(msgspec.Struct, frozen=True):
    """... but not for long."""

    failures: int
    for_s: float


class Done(msgspec.Struct, frozen=True):
    """There is nothing to be said."""


Verdict: TypeAlias = Again | GivenUp | Done


def ended(
    standing: Standing, run: str, how: Outcome, *, good: bool, now_s: float, draw: float, pace: Pace
) -> tuple[Standing, Verdict]:
    """After the worker of `run` has ended. `good`: it had taken part for `pace.good_s`. `draw`: a random number from 0 to 1, so
    that machines which crash together do not all come back at once."""
    before = standing.tried.get(run, Tried())
    before_failures = 0 if good or before.given_up else before.failures
    match how:
        case Finished():
            # What was seen of the run before may be old: it is not joined again at this very moment.
            return _put(standing, run, Tried(not_before_s=now_s + pace.first_s)), Done()
        case ShareAway():
            wait_s = pace.first_s * (1 + draw)
            return _put(standing, run, Tried(failures=before_failures, not_before_s=now_s + wait_s)), Again(wait_s)
        case Crashed(hopeless=hopeless):
            failures = before_failures + 1
            if hopeless or failures >= pace.failures:
                tried = Tried(failures=failures, not_before_s=now_s + pace.given_up_s, given_up=True)
                return _put(standing, run, tried), GivenUp(failures, pace.given_up_s)
            # Jitter downwards, by half at most.
            wait_s = min(pace.first_s * 2.0 ** min(failures - 1, 30), pace.longest_s) * (0.5 + 0.5 * draw)
            return _put(standing, run, Tried(failures=failures, not_before_s=now_s + wait_s)), Again(wait_s)
        case _:
            assert_never(how)


def _put(standing: Standing, run: str, tried: Tried) -> Standing:
    return msgspec.structs.replace(standing, tried={**standing.tried, run: tried})


def refusal(candidate: Candidate, rules: Rules, standing: Standing, *, now_s: float) -> str:
    """Why a run is not joined now, in words; '' if it may be."""
    run = candidate.run
    if rules.only and not any(pattern == run or fnmatch.fnmatchcase(candidate.name, pattern) for pattern in rules.only):
        return "not what --only names"
    if rules.methods and candidate.method not in rules.methods:
        return f"its method is {plain(candidate.method, 20)}"
    if rules.memory_bytes is not None and candidate.memory_bytes > rules.memory_bytes:
        return f"it needs about {amount(candidate.memory_bytes)} of memory"
    if candidate.program:
        return "trains a program's own model"
    if candidate.phase in ("done", "stopped", "unknown", "paused"):
        return {"done": "it is done", "stopped": "it was stopped", "paused": "it is paused"}.get(
            candidate.phase, "not read yet"
        )
    if run in standing.barred:
        return BARRED_WORDS[standing.barred[run]]
    tried = standing.tried.get(run)
    if tried is not None and now_s < tried.not_before_s:
        if tried.given_up:
            return f"given up after {counted(tried.failures, 'failure')}, for now"
        return SOON
    return ""


SOON = "it is tried again in a moment"


def choose(candidates: Iterable[Candidate], rules: Rules, standing: Standing, *, now_s: float) -> Candidate | None:
    """The run to join: one that waits for learners before one that trains, and that before one where nobody is; by name."""
    fit = [each for each in candidates if not refusal(each, rules, standing, now_s=now_s)]
    order = {"waiting": 0, "running": 1, "idle": 2}
    return min(fit, key=lambda each: (order.get(each.phase, 3), each.name, each.run), default=None)


def barred(before: Mapping[str, Why], newest: Mapping[str, Why | None]) -> dict[str, Why]:
    """Runs that are not to be joined any more. `newest`: by run, how the newest job of this machine in it ended; None: in any
    other way, or not yet. Whoever joined one by hand again has changed his mind."""
    found = dict(before)
    for run, why in newest.items():
        if why is not None:
            found[run] = why
        else:
            found.pop(run, None)
    return found


def size(text: str) -> int:
    """'8G', '500 MB', '1.5GiB', '2000000' as bytes. Raises ValueError."""
    squeezed = "".join(text.split()).lower()
    digits = squeezed.rstrip("kmgtib")
    unit = squeezed[len(digits) :]
    powers = {"": 0, "b": 0, "k": 1, "m": 2, "g": 3, "t": 4}
    base = 1024 if unit.endswith(("ib", "i")) else 1000
    power = powers.get(unit.removesuffix("b").removesuffix("i") if unit != "b" else "b")
    if power is None or not digits or not set(digits) <= set("0123456789."):
        raise ValueError(f"{plain(text, 40)!r} is no size: 8G, 500MB, 1.5GiB")
    try:
        found = float(digits) * base**power
    except ValueError:
        raise ValueError(f"{plain(text, 40)!r} is no size: 8G, 500MB, 1.5GiB") from None
    if not 1 <= found < 2**63:
        raise ValueError(f"a size must be a byte at least and less than 2^63 bytes, got {plain(text, 40)!r}")
    return int(found)
