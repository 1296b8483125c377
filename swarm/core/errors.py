"""Every error that swarm raises on purpose. The name says the reaction; the message says what, where and what to do.

SwarmError
├── UsageError                  a value that a person gave is wrong (exit 2)
│   ├── NoMailboxNamed          no mailbox is given, and none is remembered
│   └── NotInstalled            what was asked for needs a package that is not here: names it, and how to install it
├── NothingToJoin               no run to join here (exit 3)
├── InvalidKey                  a key that the grammar does not allow; also a ValueError
├── RunError
│   ├── RunNotFound             no run of that name or id, or the prefix fits several
│   ├── RunConfigMismatch       a different configuration than the manifest's
│   ├── SchemaMismatch          the model's parameters are not the manifest's
│   ├── FormatMismatch          the mailbox or the run was written in another format version
│   ├── LearnerIdTaken          a live learner holds that id; a free one is suggested
│   ├── Superseded              a higher incarnation holds this learner's id: stop
│   ├── Dropped                 somebody removed this learner from the run: stop
│   ├── RunEnded                the run was stopped or has all its rounds
│   ├── NotJoinable             something keeps this machine out of the run: says what, and what to do about it
│   ├── RankLost                another learner trains this one's slice of the data now
│   ├── RunSigned               the run is signed, and this machine has no passphrase, or another one
│   ├── RanksTaken              every slice of the data is held by a live learner
│   └── BarrierBroken           not everybody came: the time is over, or one of them is gone
├── MailboxError
│   ├── MailboxUnavailable      transient: retry for as long as it lasts
│   ├── MailboxFull             no space left, or over quota
│   ├── MailboxReadOnly         mounted or exported read-only
│   ├── MailboxMoved            another mailbox than before: stop
│   │   ├── MailboxAway         no mailbox there now: mounted again, it may be back
│   │   └── RecordGone          a record that was read here is not there: a listing that is behind, or an older copy
│   └── MailboxCorrupt          an object that is not what its key promises
│       └── RecordForged        a record without a signature that this swarm's passphrase gives
├── RecordError                 a record that cannot be decoded; also a ValueError
├── AdvertError                 what came from the network is no advert; also a ValueError
├── PeerUnreachable             no connection to a machine, or no answer: says why, and what to do
├── PassphraseError             the file with the swarm's passphrase cannot be used: says why
├── PayloadError                a payload that must not be used
│   ├── PayloadCorrupt          its bytes do not have the promised SHA-256
│   ├── PayloadMissing          gone: start over from the newest record
│   ├── NotFinite               NaN or infinity where numbers belong: neither published nor merged
│   └── HeaderError             a Safetensors header that breaks a rule; one class per rule in core/header.py
├── TaskError
│   ├── TaskUnknown             the manifest names a task that is not installed here
│   ├── DataMissing             the task's data is not here; says which file to pass
│   └── StateMismatch           a saved inner state of another task, framework, optimizer or model: begin a new one
├── RankError                   a data-parallel rank that cannot go on with its generation
│   ├── GroupBroken             a collective failed, or took too long: another rank is gone; begin a new generation
│   ├── ReplicasDiffer          ranks that hold different data, options, versions or weights; says which
│   ├── RowTooLarge             a single row is too much for this machine's memory: go on without it, or with shorter rows
│   ├── LossNotFinite           a step whose loss or gradient is not finite: stop; says the step and the rows
│   └── JobStopped              the job cannot go on on any machine; says why, and the last good checkpoint
├── CheckpointUnsaved           a local checkpoint that could not be saved: train on, the one before is kept
├── FileError
│   ├── FileRefused             no plain data file: by its name or its content it could be executed
│   ├── FileChanged             it was written to while it was being attached
│   └── CacheUnusable           no room, or no right, to keep a fetched file on this machine
├── CannotStandBy               not now: another process stands by here, or there is no room for what it keeps; may pass
├── DeviceUnavailable           the device asked for is absent
└── WorkerFailed                a worker process ended with an error; carries its last words
"""

from __future__ import annotations

from collections.abc import Iterable

INTERRUPTED = 130  # exit code of what a person or a signal ended, as shells have it


class SwarmError(Exception):
    """Base of all errors that swarm raises on purpose."""

    exit_code = 1


class UsageError(SwarmError):
    exit_code = 2


class NoMailboxNamed(UsageError):
    pass


class NotInstalled(UsageError):
    def __init__(self, what: str, *, remedy: str) -> None:
        self.what, self.remedy = what, remedy
        super().__init__(f"{what}: {remedy}")


class NothingToJoin(SwarmError):
    exit_code = 3


class InvalidKey(SwarmError, ValueError):
    pass


class RunError(SwarmError):
    pass


class RunNotFound(RunError):
    pass


class RunConfigMismatch(RunError):
    def __init__(self, differing: Iterable[str]) -> None:
        self.differing = tuple(differing)
        super().__init__(f"the run has another configuration: {', '.join(self.differing)}")


class SchemaMismatch(RunError):
    """`names`: every parameter whose name, dtype or shape differs, sorted."""

    def __init__(self, names: Iterable[str] = (), *, advice: str = "") -> None:
        self.names = tuple(sorted(names))
        message = advice or f"model does not match the run's schema: {', '.join(self.names)}"
        super().__init__(message)


class FormatMismatch(RunError):
    def __init__(self, *, theirs: int, ours: int, where: str, name: str = "") -> None:
        """`name`: of the run that `where` is about, if it could be read."""
        self.theirs, self.ours, self.name = theirs, ours, name
        self.run = ""  # its id, once whoever looked for it knows
        newer = "here" if theirs > ours else "where it was made"
        super().__init__(f"{where} has format {theirs}, this swarm reads format {ours}: upgrade swarm {newer}")


class LearnerIdTaken(RunError):
    def __init__(self, learner: str, suggestion: str) -> None:
        self.learner, self.suggestion = learner, suggestion
        super().__init__(f"learner id {learner!r} is held by a live learner; {suggestion!r} is free (--learner-id)")


class Superseded(RunError):
    def __init__(self, learner: str, incarnation: int) -> None:
        super().__init__(f"learner {learner!r} was taken over by incarnation {incarnation}; this process stops")


class Dropped(RunError):
    def __init__(self, learner: str, by: str) -> None:
        super().__init__(f"learner {learner!r} was dropped from the run, asked for on {by or 'another machine'}")


class RunEnded(RunError):
    pass


class NotJoinable(RunError):
    pass


class RankLost(RunError):
    def __init__(self, rank: int, holder: str) -> None:
        self.rank, self.holder = rank, holder
        super().__init__(f"rank {rank} is held by {holder} now: this learner was not heard of for a lease")


class RunSigned(RunError):
    pass


class RanksTaken(RunError):
    pass


class BarrierBroken(RunError):
    pass


class MailboxError(SwarmError):
    pass


class MailboxUnavailable(MailboxError):
    pass


class MailboxFull(MailboxError):
    pass


class MailboxReadOnly(MailboxError):
    pass


class MailboxMoved(MailboxError):
    pass


class MailboxAway(MailboxMoved):
    pass


class RecordGone(MailboxMoved):
    pass


WAITED_OUT = (MailboxUnavailable, MailboxFull, MailboxReadOnly, MailboxAway)
"""What time or a person can mend while the work waits; the work is repeated then, and nothing is lost."""


class MailboxCorrupt(MailboxError):
    pass


class RecordForged(MailboxCorrupt):
    """`unsigned`: it carries no signature at all. `fingerprint`: of the passphrase that it is not signed with."""

    def __init__(self, key: str, *, unsigned: bool, fingerprint: str) -> None:
        self.key, self.unsigned = key, unsigned
        what = "is not signed, or damaged" if unsigned else "is signed with another passphrase, or was changed or moved"
        super().__init__(
            f"{key}: {what}: whoever wrote it lacks this swarm's passphrase ({fingerprint}); it counts for nothing, "
            "and can be deleted from the mailbox's folder"
        )


class AdvertError(SwarmError, ValueError):
    pass


class PeerUnreachable(SwarmError):
    pass


class PassphraseError(SwarmError):
    exit_code = 2


class RecordError(SwarmError, ValueError):
    pass


class PayloadError(SwarmError):
    pass


class PayloadCorrupt(PayloadError):
    def __init__(self, key: str, want: str, got: str, *, advice: str = "") -> None:
        self.key, self.want, self.got = key, want, got
        super().__init__(f"{key}: SHA-256 is {got[:12]}…, expected {want[:12]}…" + (f"; {advice}" if advice else ""))


class PayloadMissing(PayloadError):
    def __init__(self, key: str, *, advice: str = "") -> None:
        self.key = key
        super().__init__(f"{key}: no such payload" + (f"; {advice}" if advice else ""))


class NotFinite(PayloadError):
    """`name`: the first tensor that holds NaN or infinity, or whose numbers are too large for their dtype."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name}: not all numbers are finite")


class HeaderError(PayloadError, ValueError):
    pass


class TaskError(SwarmError):
    pass


class TaskUnknown(TaskError):
    pass


class DataMissing(TaskError):
    pass


class StateMismatch(TaskError):
    pass


class RankError(SwarmError):
    pass


class GroupBroken(RankError):
    exit_code = 75  # EX_TEMPFAIL: to be tried again, in a new generation


class ReplicasDiffer(RankError):
    """`what`: a plural with its article. `ranks`: those that differ from rank 0."""

    def __init__(self, what: str, ranks: Iterable[int]) -> None:
        self.what, self.ranks = what, tuple(ranks)
        names = ", ".join(map(str, self.ranks))
        super().__init__(f"{what} of rank {names} are not those of rank 0")


class RowTooLarge(RankError):
    """`tokens`: of the row; `line`: of train.jsonl (or the validation's file), from 1."""

    def __init__(self, *, rank: int, tokens: int, line: int, available_bytes: int | None = None) -> None:
        self.tokens, self.line = tokens, line
        where = "the memory" if available_bytes is None else f"the {available_bytes / 1e9:.1f} GB of memory"
        super().__init__(
            f"a single row of {tokens} tokens, line {line}, is too much for {where} that rank {rank} may take; "
            f"a smaller max_seq_length, num_layers or model needs less, and so does grad_checkpoint"
        )


class LossNotFinite(RankError):
    """`step`: of the optimizer, from 1; `rows`: lines of train.jsonl, from 1; the whole step's if no row can be told; `kept`:
    in words, the last good checkpoint."""

    def __init__(self, what: str, *, step: int, rows: Iterable[int], kept: str = "") -> None:
        self.what, self.step, self.rows = what, step, tuple(rows)
        shown = ", ".join(map(str, self.rows[:10])) + (f" and {len(self.rows) - 10} more" if len(self.rows) > 10 else "")
        words = f"the {what} of step {step} is not finite, from line {shown} of train.jsonl"
        super().__init__(f"{words}; {kept}" if kept else words)


class JobStopped(RankError):
    pass


class CheckpointUnsaved(SwarmError):
    pass


class FileError(SwarmError):
    pass


class FileRefused(FileError):
    pass


class FileChanged(FileError):
    pass


class CacheUnusable(FileError):
    pass


class CannotStandBy(SwarmError):
    pass


class DeviceUnavailable(SwarmError):
    exit_code = 2


class WorkerFailed(SwarmError):
    pass
