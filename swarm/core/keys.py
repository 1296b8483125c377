"""The key grammar, and where each kind of object stands in the mailbox (FORMAT.md, "Tree").

Numbers are zero-padded, so that byte order is numeric order. Builders raise InvalidKey for a negative number and for an id
or a hash that breaks its grammar: whatever comes from a peer cannot name a place outside its folder. A parser gives None for
every name that its builder would not write, and never raises.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

from swarm.core.errors import InvalidKey
from swarm.core.ids import WINDOWS_DEVICES, is_learner_id

MARKER = "mailbox/record.json"
RECORD = "record.json"
SHARD = 100  # rounds per folder under rounds/

_KEY = re.compile(r"[a-z0-9._-]+(?:/[a-z0-9._-]+)*")
_SHA = re.compile(r"[0-9a-f]{64}")


@functools.lru_cache(1 << 11)  # a poll names the same few again and again; a larger one fills for hundreds of rounds
def check_key(key: str) -> str:
    """`key` itself. Raises InvalidKey if the grammar does not allow it."""
    if not _KEY.fullmatch(key):
        raise InvalidKey(f"{key!r} is no key: components of a-z, 0-9, '.', '_', '-' joined by '/'")
    for part in key.split("/"):
        if part[0] == "." or part[-1] == "." or len(part) > 120:
            raise InvalidKey(f"{key!r} is no key: a component starts or ends with '.' or is over 120 bytes")
        if part.split(".")[0] in WINDOWS_DEVICES:
            raise InvalidKey(f"{key!r} is no key: {part!r} is a Windows device name")
    return key


def is_key(key: str) -> bool:
    try:
        check_key(key)
    except InvalidKey:
        return False
    return True


@functools.lru_cache(1 << 10)
def check_prefix(prefix: str) -> str:
    """A prefix is '' or whole components followed by '/'."""
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise InvalidKey(f"{prefix!r} is no prefix: '' or a key followed by '/'")
    return prefix


def is_sha256(text: str) -> bool:
    """Whether `text` is a SHA-256 as keys and records write it: 64 lower-case hex digits."""
    return _SHA.fullmatch(text) is not None


def _padded(number: int, digits: int) -> str:
    if number < 0:  # "-001" would pass the grammar, and sort anywhere
        raise InvalidKey(f"a number in a key must be >= 0, got {number}")
    return f"{number:0{digits}d}"


def _id(text: str) -> str:
    if not is_learner_id(text):
        raise InvalidKey(f"{text!r} is no learner or client id")
    return text


def _payload(sha256: str) -> str:
    if not is_sha256(sha256):
        raise InvalidKey(f"{sha256!r} is no SHA-256 in lower-case hex")
    return f"{sha256}.safetensors"


class RunKeys:
    """Keys of one run."""

    def __init__(self, run: str) -> None:
        self.root = f"runs/{run}"
        self.manifest = f"{self.root}/manifest/{RECORD}"
        self.beats = f"{self.root}/beats/"
        self.learners = f"{self.root}/learners/"
        self.control = f"{self.root}/control/"
        self.evals = f"{self.root}/evals/"
        self.refused = f"{self.root}/refused/"
        self.checkpoints = f"{self.root}/checkpoints/"
        self.generations = f"{self.root}/ranks/"

    def init_blob(self, fragment: int, sha256: str) -> str:
        return f"{self.root}/blobs/init/{_padded(fragment, 3)}/{_payload(sha256)}"

    def shard(self, shard: int) -> str:
        """Prefix of the rounds shard·100 … shard·100 + 99."""
        return f"{self.root}/rounds/{_padded(shard, 8)}/"

    def round(self, round: int) -> str:
        return f"{self.shard(round // SHARD)}{_padded(round, 10)}/{RECORD}"

    def round_blob(self, round: int, sha256: str) -> str:
        return f"{self.root}/blobs/rounds/{_padded(round, 10)}/{_payload(sha256)}"

    def snapshots(self, round: int) -> str:
        return f"{self.root}/snapshots/{_padded(round, 10)}/"

    def snapshot(self, round: int, *, unit: str, learner: str, incarnation: int, claim: int = 0) -> str:
        name = f"{_id(learner)}.{_padded(incarnation, 1)}.{_padded(claim, 1)}.json"
        return f"{self.snapshots(round)}{_id(unit)}/{name}"

    def snapshot_blob(self, round: int, learner: str, sha256: str) -> str:
        return f"{self.root}/blobs/snapshots/{_padded(round, 10)}/{_id(learner)}/{_payload(sha256)}"

    def claims(self, round: int) -> str:
        return f"{self.root}/claims/{_padded(round, 10)}/"

    def claim(self, round: int, n: int) -> str:
        return f"{self.claims(round)}{_padded(n, 3)}/{RECORD}"

    def eval_claim(self, round: int) -> str:
        """Claim on the evaluation of `round`: first come, once."""
        return f"{self.claims(round)}eval/{RECORD}"

    def client_claims(self, round: int) -> str:
        return f"{self.root}/clients/{_padded(round, 10)}/"

    def client_claim(self, round: int, client: str, n: int) -> str:
        """The n-th claim on training `client` for `round`."""
        return f"{self.client_claims(round)}{_id(client)}/{_padded(n, 3)}/{RECORD}"

    def sample(self, round: int) -> str:
        """Which private clients train in a round that no round record names them for."""
        return f"{self.root}/samples/{_padded(round, 10)}/{RECORD}"

    def learner(self, learner: str, incarnation: int) -> str:
        return f"{self.learners}{_id(learner)}/{_padded(incarnation, 4)}/{RECORD}"

    def beats_of(self, learner: str) -> str:
        return f"{self.beats}{_id(learner)}/"

    def beat(self, learner: str, incarnation: int, n: int) -> str:
        return f"{self.beats_of(learner)}{_padded(incarnation, 4)}-{_padded(n, 10)}.json"

    def refused_of(self, machine: str) -> str:
        return f"{self.refused}{_id(machine)}/"

    def refusal(self, machine: str, n: int, sha256: str) -> str:
        """The n-th that `machine` tells of itself; `sha256`: of its body, so that two processes that count alike write two."""
        if not is_sha256(sha256):
            raise InvalidKey(f"{sha256!r} is no SHA-256 in lower-case hex")
        return f"{self.refused_of(machine)}{_padded(n, 6)}.{sha256}.json"

    def control_record(self, n: int) -> str:
        return f"{self.control}{_padded(n, 6)}/{RECORD}"

    def eval(self, round: int) -> str:
        return f"{self.evals}{_padded(round // SHARD, 8)}/{_padded(round, 10)}/{RECORD}"

    def checkpoint(self, round: int) -> str:
        return f"{self.checkpoints}{_padded(round, 10)}/{RECORD}"

    def checkpoint_blob(self, round: int, fragment: int, sha256: str) -> str:
        return f"{self.root}/blobs/checkpoints/{_padded(round, 10)}/{_padded(fragment, 3)}/{_payload(sha256)}"

    def eval_shard(self, shard: int) -> str:
        """Prefix of the evaluations of the rounds shard·100 … shard·100 + 99."""
        return f"{self.evals}{_padded(shard, 8)}/"

    def file_hashes(self, sha256: str) -> str:
        """The SHA-256 of each chunk of an attached file, as 32 bytes each."""
        return f"{self._file(sha256)}/hashes"

    def file_chunk(self, sha256: str, n: int) -> str:
        return f"{self._file(sha256)}/{_padded(n, 6)}"

    def _file(self, sha256: str) -> str:
        if not is_sha256(sha256):
            raise InvalidKey(f"{sha256!r} is no SHA-256 in lower-case hex")
        return f"{self.root}/files/{sha256}"

    def queue(self, name: str) -> str:
        """Prefix of a shared queue."""
        return f"{self.root}/queues/{_id(name)}/"

    def ranks(self, name: str) -> str:
        """Prefix of the fixed slices of some data."""
        return f"{self.root}/slices/{_id(name)}/"

    def barrier(self, name: str) -> str:
        """Prefix of a barrier's generations."""
        return f"{self.root}/barriers/{_id(name)}/"

    def meeting(self, name: str, generation: int) -> str:
        """Prefix of all of one generation of a barrier."""
        return f"{self.barrier(name)}{_padded(generation, 10)}/"

    def arrivals(self, name: str, generation: int) -> str:
        return f"{self.meeting(name, generation)}arrived/"

    def arrival(self, name: str, generation: int, *, learner: str, incarnation: int) -> str:
        return f"{self.arrivals(name, generation)}{_id(learner)}/{_padded(incarnation, 4)}/{RECORD}"

    def barrier_open(self, name: str, generation: int) -> str:
        return f"{self.meeting(name, generation)}open/{RECORD}"

    def generation(self, generation: int) -> str:
        """Prefix of all that one generation of a data-parallel job writes."""
        return f"{self.generations}{_padded(generation, 6)}/"

    def members(self, generation: int) -> str:
        return f"{self.generation(generation)}members/"

    def member(self, generation: int, *, learner: str, incarnation: int) -> str:
        return f"{self.members(generation)}{_id(learner)}/{_padded(incarnation, 4)}/{RECORD}"

    def probes(self, generation: int) -> str:
        return f"{self.generation(generation)}probes/"

    def probe(self, generation: int, *, learner: str, incarnation: int, target: str, target_incarnation: int) -> str:
        """How an incarnation of `learner` reaches one of `target`."""
        name = f"{_id(target)}.{_padded(target_incarnation, 1)}.json"
        return f"{self.probes(generation)}{_id(learner)}/{_padded(incarnation, 4)}/{name}"

    def lead_claims(self, generation: int) -> str:
        return f"{self.generation(generation)}claims/"

    def lead_claim(self, generation: int, n: int) -> str:
        """The n-th claim on leading a generation."""
        return f"{self.lead_claims(generation)}{_padded(n, 3)}/{RECORD}"

    def rank_plan(self, generation: int) -> str:
        return f"{self.generation(generation)}plan/{RECORD}"

    def marks(self, generation: int, what: Literal["ready", "started"]) -> str:
        return f"{self.generation(generation)}{what}/"

    def mark(self, generation: int, what: Literal["ready", "started"], *, learner: str, incarnation: int) -> str:
        return f"{self.marks(generation, what)}{_id(learner)}/{_padded(incarnation, 4)}/{RECORD}"

    def generation_end(self, generation: int) -> str:
        return f"{self.generation(generation)}end/{RECORD}"

    def job_logs(self, generation: int) -> str:
        """Prefix of what a generation tells of its training."""
        return f"{self.generation(generation)}log/"

    def job_log_shard(self, generation: int, shard: int) -> str:
        """Prefix of its parts shard·100 … shard·100 + 99."""
        return f"{self.job_logs(generation)}{_padded(shard, 8)}/"

    def job_log(self, generation: int, n: int) -> str:
        return f"{self.job_log_shard(generation, n // SHARD)}{_padded(n, 10)}.json"

    def job_checkpoints(self, generation: int) -> str:
        """Prefix of the checkpoints that one generation of a data-parallel job wrote."""
        return f"{self.checkpoints}{_padded(generation, 6)}/"

    def job_checkpoint(self, generation: int, step: int) -> str:
        return f"{self.job_checkpoints(generation)}{_padded(step, 10)}/{RECORD}"

    @property
    def files_of_checkpoints(self) -> str:
        """Prefix of the files of all checkpoints."""
        return f"{self.root}/blobs/checkpoints/"

    def job_files(self, generation: int) -> str:
        """Prefix of the files of its checkpoints."""
        return f"{self.files_of_checkpoints}{_padded(generation, 6)}/"

    def job_files_of(self, generation: int, step: int) -> str:
        """Prefix of the files of one checkpoint."""
        return f"{self.job_files(generation)}{_padded(step, 10)}/"

    def job_file(self, generation: int, step: int, sha256: str) -> str:
        return f"{self.job_files_of(generation, step)}{_payload(sha256)}"


def work_set(prefix: str) -> str:
    """What the units of a queue, or the slices, below `prefix` are."""
    return f"{prefix}set/{RECORD}"


def work_claims(prefix: str, unit: int) -> str:
    return f"{prefix}{_padded(unit, 10)}/"


def work_claim(prefix: str, unit: int, n: int) -> str:
    """The n-th claim on a unit of a queue, or on a slice."""
    return f"{work_claims(prefix, unit)}{_padded(n, 6)}/{RECORD}"


def work_done(prefix: str, unit: int) -> str:
    return f"{work_claims(prefix, unit)}done/{RECORD}"


def _number_of(digits: int) -> str:
    """A number as `_padded` writes it. At most 18 digits: int() takes its time over very long ones, and then raises."""
    return rf"([0-9]{{{digits}}}|[1-9][0-9]{{{digits},17}})"


_RUNS, _IDS = r"runs/[^/]+", r"([a-z0-9-]{1,64})"
_BEAT = re.compile(rf"{_RUNS}/beats/{_IDS}/{_number_of(4)}-{_number_of(10)}\.json")
_LEARNER = re.compile(rf"{_RUNS}/learners/{_IDS}/{_number_of(4)}/record\.json")
_SNAPSHOT = re.compile(rf"{_RUNS}/snapshots/{_number_of(10)}/{_IDS}/{_IDS}\.{_number_of(1)}\.{_number_of(1)}\.json")
_ROUND = re.compile(rf"{_RUNS}/rounds/{_number_of(8)}/{_number_of(10)}/record\.json")
_CLAIM = re.compile(rf"{_RUNS}/claims/{_number_of(10)}/{_number_of(3)}/record\.json")
_CLIENT_CLAIM = re.compile(rf"{_RUNS}/clients/{_number_of(10)}/{_IDS}/{_number_of(3)}/record\.json")
_CONTROL = re.compile(rf"{_RUNS}/control/{_number_of(6)}/record\.json")
_EVAL = re.compile(rf"{_RUNS}/evals/{_number_of(8)}/{_number_of(10)}/record\.json")
_CHECKPOINT = re.compile(rf"{_RUNS}/checkpoints/{_number_of(10)}/record\.json")
_REFUSAL = re.compile(rf"{_RUNS}/refused/{_IDS}/{_number_of(6)}\.([0-9a-f]{{64}})\.json")
_FILE_CHUNK = re.compile(rf"{_RUNS}/files/([0-9a-f]{{64}})/{_number_of(6)}")

_WORK_CLAIM = re.compile(rf"{_RUNS}/(?:queues|slices)/{_IDS}/{_number_of(10)}/{_number_of(6)}/record\.json")
_ARRIVAL = re.compile(rf"{_RUNS}/barriers/{_IDS}/{_number_of(10)}/arrived/{_IDS}/{_number_of(4)}/record\.json")
_GENERATION = rf"{_RUNS}/ranks/{_number_of(6)}"
_MEMBER = re.compile(rf"{_GENERATION}/members/{_IDS}/{_number_of(4)}/record\.json")
_PROBE = re.compile(rf"{_GENERATION}/probes/{_IDS}/{_number_of(4)}/{_IDS}\.{_number_of(1)}\.json")
_LEAD_CLAIM = re.compile(rf"{_GENERATION}/claims/{_number_of(3)}/record\.json")
_MARK = re.compile(rf"{_GENERATION}/(?:ready|started)/{_IDS}/{_number_of(4)}/record\.json")
_JOB_LOG = re.compile(rf"{_GENERATION}/log/{_number_of(8)}/{_number_of(10)}\.json")
_JOB_CHECKPOINT = re.compile(rf"{_RUNS}/checkpoints/{_number_of(6)}/{_number_of(10)}/record\.json")
_JOB_FILE = re.compile(rf"{_RUNS}/blobs/checkpoints/{_number_of(6)}/{_number_of(10)}/[0-9a-f]{{64}}\.safetensors")
_MANIFEST = re.compile(r"runs/([a-z0-9]{4,32})/manifest/record\.json")


def _match(pattern: re.Pattern[str], key: str) -> re.Match[str] | None:
    m = pattern.fullmatch(key)
    return m if m and is_key(key) else None


def parse_beat(key: str) -> tuple[str, int, int] | None:
    """(learner, incarnation, n), or None for a foreign name."""
    m = _match(_BEAT, key)
    return (m[1], int(m[2]), int(m[3])) if m else None


def parse_learner(key: str) -> tuple[str, int] | None:
    """(learner, incarnation), or None for a foreign name."""
    m = _match(_LEARNER, key)
    return (m[1], int(m[2])) if m else None


def parse_refusal(key: str) -> tuple[str, int, str] | None:
    """(machine, n, SHA-256 of the body), or None for a foreign name."""
    m = _match(_REFUSAL, key)
    return (m[1], int(m[2]), m[3]) if m else None


def parse_snapshot(key: str) -> tuple[int, str, str, int, int] | None:
    """(round, unit, learner, incarnation, claim), or None for a foreign name."""
    m = _match(_SNAPSHOT, key)
    return (int(m[1]), m[2], m[3], int(m[4]), int(m[5])) if m else None


def parse_round(key: str) -> int | None:
    """The round, or None for a foreign name or a round in another's shard."""
    m = _match(_ROUND, key)
    return int(m[2]) if m and int(m[2]) // SHARD == int(m[1]) else None


def parse_claim(key: str) -> int | None:
    """The claim's number, or None for a foreign name or the claim on an evaluation."""
    m = _match(_CLAIM, key)
    return int(m[2]) if m else None


def parse_client_claim(key: str) -> tuple[int, str, int] | None:
    """(round, client, claim), or None for a foreign name."""
    m = _match(_CLIENT_CLAIM, key)
    return (int(m[1]), m[2], int(m[3])) if m else None


def parse_control(key: str) -> int | None:
    """The number in the sequence, or None for a foreign name."""
    m = _match(_CONTROL, key)
    return int(m[1]) if m else None


def parse_eval(key: str) -> int | None:
    """The round, or None for a foreign name or a round in another's shard."""
    m = _match(_EVAL, key)
    return int(m[2]) if m and int(m[2]) // SHARD == int(m[1]) else None


def parse_checkpoint(key: str) -> int | None:
    """The round, or None for a foreign name."""
    m = _match(_CHECKPOINT, key)
    return int(m[1]) if m else None


def parse_file_chunk(key: str) -> tuple[str, int] | None:
    """(SHA-256 of the file, number of the chunk), or None for a foreign name."""
    m = _match(_FILE_CHUNK, key)
    return (m[1], int(m[2])) if m else None


def parse_work_claim(key: str) -> tuple[int, int] | None:
    """(unit, claim), or None for a foreign name or the mark of a unit that is done."""
    m = _match(_WORK_CLAIM, key)
    return (int(m[2]), int(m[3])) if m else None


def parse_arrival(key: str) -> tuple[int, str, int] | None:
    """(generation, learner, incarnation), or None for a foreign name."""
    m = _match(_ARRIVAL, key)
    return (int(m[2]), m[3], int(m[4])) if m else None


def parse_member(key: str) -> tuple[int, str, int] | None:
    """(generation, learner, incarnation), or None for a foreign name."""
    m = _match(_MEMBER, key)
    return (int(m[1]), m[2], int(m[3])) if m else None


def parse_probe(key: str) -> tuple[int, str, int, str, int] | None:
    """(generation, learner, incarnation, target, its incarnation), or None for a foreign name."""
    m = _match(_PROBE, key)
    return (int(m[1]), m[2], int(m[3]), m[4], int(m[5])) if m else None


def parse_lead_claim(key: str) -> tuple[int, int] | None:
    """(generation, claim), or None for a foreign name."""
    m = _match(_LEAD_CLAIM, key)
    return (int(m[1]), int(m[2])) if m else None


def parse_mark(key: str) -> tuple[int, str, int] | None:
    """(generation, learner, incarnation), or None for a foreign name."""
    m = _match(_MARK, key)
    return (int(m[1]), m[2], int(m[3])) if m else None


def parse_job_log(key: str) -> tuple[int, int] | None:
    """(generation, n), or None for a foreign name or a part in another's shard."""
    m = _match(_JOB_LOG, key)
    return (int(m[1]), int(m[3])) if m and int(m[3]) // SHARD == int(m[2]) else None


def parse_job_checkpoint(key: str) -> tuple[int, int] | None:
    """(generation, step), or None for a foreign name."""
    m = _match(_JOB_CHECKPOINT, key)
    return (int(m[1]), int(m[2])) if m else None


def parse_job_file(key: str) -> tuple[int, int] | None:
    """(generation, step) of the checkpoint that a file is of, or None for a foreign name."""
    m = _match(_JOB_FILE, key)
    return (int(m[1]), int(m[2])) if m else None


def parse_manifest(key: str) -> str | None:
    """The run id, or None for a foreign name."""
    m = _match(_MANIFEST, key)
    return m[1] if m else None
