"""The key grammar, and where each kind of object stands in the mailbox (FORMAT.md, "Tree").

Numbers are zero-padded, so that byte order is numeric order.
"""

from __future__ import annotations

import re

from swarm.core.errors import InvalidKey
from swarm.core.ids import WINDOWS_DEVICES

MARKER = "mailbox/record.json"
RECORD = "record.json"
SHARD = 100  # rounds per folder under rounds/

_KEY = re.compile(r"[a-z0-9._-]+(?:/[a-z0-9._-]+)*")
_SHA = r"[0-9a-f]{64}"


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


def check_prefix(prefix: str) -> str:
    """A prefix is '' or whole components followed by '/'."""
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise InvalidKey(f"{prefix!r} is no prefix: '' or a key followed by '/'")
    return prefix


class RunKeys:
    """Keys of one run."""

    def __init__(self, run: str) -> None:
        self.root = f"runs/{run}"
        self.manifest = f"{self.root}/manifest/{RECORD}"
        self.beats = f"{self.root}/beats/"
        self.learners = f"{self.root}/learners/"
        self.control = f"{self.root}/control/"
        self.evals = f"{self.root}/evals/"

    def init_blob(self, fragment: int, sha256: str) -> str:
        return f"{self.root}/blobs/init/{fragment:03d}/{sha256}.safetensors"

    def shard(self, shard: int) -> str:
        """Prefix of the rounds shard·100 … shard·100 + 99."""
        return f"{self.root}/rounds/{shard:08d}/"

    def round(self, round: int) -> str:
        return f"{self.shard(round // SHARD)}{round:010d}/{RECORD}"

    def round_blob(self, round: int, sha256: str) -> str:
        return f"{self.root}/blobs/rounds/{round:010d}/{sha256}.safetensors"

    def snapshots(self, round: int) -> str:
        return f"{self.root}/snapshots/{round:010d}/"

    def snapshot(self, round: int, *, unit: str, learner: str, incarnation: int, claim: int = 0) -> str:
        return f"{self.snapshots(round)}{unit}/{learner}.{incarnation}.{claim}.json"

    def snapshot_blob(self, round: int, learner: str, sha256: str) -> str:
        return f"{self.root}/blobs/snapshots/{round:010d}/{learner}/{sha256}.safetensors"

    def claims(self, round: int) -> str:
        return f"{self.root}/claims/{round:010d}/"

    def claim(self, round: int, n: int) -> str:
        return f"{self.claims(round)}{n:03d}/{RECORD}"

    def eval_claim(self, round: int) -> str:
        """Claim on the evaluation of `round`: first come, once."""
        return f"{self.claims(round)}eval/{RECORD}"

    def learner(self, learner: str, incarnation: int) -> str:
        return f"{self.learners}{learner}/{incarnation:04d}/{RECORD}"

    def beats_of(self, learner: str) -> str:
        return f"{self.beats}{learner}/"

    def beat(self, learner: str, incarnation: int, n: int) -> str:
        return f"{self.beats_of(learner)}{incarnation:04d}-{n:010d}.json"

    def control_record(self, n: int) -> str:
        return f"{self.control}{n:06d}/{RECORD}"

    def eval(self, round: int) -> str:
        return f"{self.evals}{round:010d}/{RECORD}"


_BEAT = re.compile(r"runs/[^/]+/beats/([a-z0-9-]{1,64})/(\d{4,})-(\d{10,})\.json")
_LEARNER = re.compile(r"runs/[^/]+/learners/([a-z0-9-]{1,64})/(\d{4,})/record\.json")
_SNAPSHOT = re.compile(r"runs/[^/]+/snapshots/(\d{10,})/([a-z0-9-]{1,64})/([a-z0-9-]{1,64})\.(\d+)\.(\d+)\.json")
_ROUND = re.compile(r"runs/[^/]+/rounds/\d{8,}/(\d{10,})/record\.json")
_CLAIM = re.compile(r"runs/[^/]+/claims/\d{10,}/(\d{3,})/record\.json")
_CONTROL = re.compile(r"runs/[^/]+/control/(\d{6,})/record\.json")
_EVAL = re.compile(r"runs/[^/]+/evals/(\d{10,})/record\.json")
_MANIFEST = re.compile(r"runs/([a-z0-9]{4,32})/manifest/record\.json")


def parse_beat(key: str) -> tuple[str, int, int] | None:
    """(learner, incarnation, n), or None for a foreign name."""
    m = _BEAT.fullmatch(key)
    return (m[1], int(m[2]), int(m[3])) if m else None


def parse_learner(key: str) -> tuple[str, int] | None:
    """(learner, incarnation), or None for a foreign name."""
    m = _LEARNER.fullmatch(key)
    return (m[1], int(m[2])) if m else None


def parse_snapshot(key: str) -> tuple[int, str, str, int, int] | None:
    """(round, unit, learner, incarnation, claim), or None for a foreign name."""
    m = _SNAPSHOT.fullmatch(key)
    return (int(m[1]), m[2], m[3], int(m[4]), int(m[5])) if m else None


def _number(pattern: re.Pattern[str], key: str) -> int | None:
    m = pattern.fullmatch(key)
    return int(m[1]) if m else None


def parse_round(key: str) -> int | None:
    return _number(_ROUND, key)


def parse_claim(key: str) -> int | None:
    return _number(_CLAIM, key)


def parse_control(key: str) -> int | None:
    return _number(_CONTROL, key)


def parse_eval(key: str) -> int | None:
    return _number(_EVAL, key)


def parse_manifest(key: str) -> str | None:
    """The run id, or None for a foreign name."""
    m = _MANIFEST.fullmatch(key)
    return m[1] if m else None
