"""The swarm's passphrase, and what it signs: records, and what machines tell the network (FORMAT.md, "Signatures").

Whoever knows the passphrase belongs to the swarm. It is stretched once, by scrypt, and each use has a key of its own, so that
no use can be taken for another one.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

TAG_DIGITS = 16  # of an advert's: it has little room, and is a hint
_SALT = b"homeswarm passphrase 1"  # the same everywhere: machines meet before there is a place to keep another one


class SwarmKey:
    """What a passphrase gives. Two machines with the same one have the same `fingerprint`."""

    def __init__(self, master: bytes) -> None:
        """`master`: 32 bytes, of `stretched`."""
        if len(master) != 32:
            raise ValueError(f"a swarm's key must be 32 bytes, got {len(master)}")
        self._records, self._adverts = (_derived(master, use) for use in (b"records", b"adverts"))
        self.fingerprint = _derived(master, b"fingerprint").hex()[:8]
        """Tells whether two machines have the same key; the key does not follow from it."""

    def signature(self, run: str, key: str, body: bytes) -> str:
        """Of the record with `body`, its first line, that stands under `key` in `run`."""
        return _mac(self._records, run.encode(), key.encode(), body).hexdigest()

    def verifies(self, signature: str | None, *, run: str, key: str, body: bytes) -> bool:
        """Whether somebody who knows the passphrase wrote that body for that run and place."""
        return signature is not None and _same(signature, self.signature(run, key, body))

    def tag(self, *told: str) -> str:
        """What an advert that says `told` carries: a machine of another swarm cannot make it."""
        return _mac(self._adverts, *(text.encode() for text in told)).hexdigest()[:TAG_DIGITS]

    def tagged(self, tag: str, *told: str) -> bool:
        return _same(tag, self.tag(*told))


class Forged(msgspec.Struct, frozen=True):
    """Records that were passed over, since nobody with the passphrase wrote them where they stand."""

    kinds: dict[str, int] = {}  # how many of each: 'round', 'claim', …
    newest: str = ""  # the key of the one that was met last

    @property
    def count(self) -> int:
        return sum(self.kinds.values())

    def and_one(self, key: str) -> Forged:
        kind = kind_of(key)
        return Forged({**self.kinds, kind: self.kinds.get(kind, 0) + 1}, key)


class Trust(msgspec.Struct, frozen=True):
    """What is known of who wrote a run's records."""

    signed: bool = False
    fingerprint: str = ""  # of this machine's passphrase, with which the run is signed; '' on a machine that has none
    forged: Forged = Forged()

    @property
    def word(self) -> str:
        """'open', 'signed 1a2b3c4d', or 'signed' on a machine that cannot tell by whom."""
        return f"signed {self.fingerprint}".rstrip() if self.signed else "open"

    @property
    def ignored(self) -> str:
        """'2 forged records ignored, newest: KEY', in which KEY may be anybody's; '' if there are none."""
        n = self.forged.count
        return f"{n} forged record{'s' if n > 1 else ''} ignored, newest: {self.forged.newest}" if n else ""


class Foreign(msgspec.Struct, frozen=True):
    """Runs of a mailbox that a machine with a passphrase has no part in."""

    unsigned: int = 0
    otherwise: int = 0  # signed with another passphrase

    @property
    def words(self) -> str:
        """'2 unsigned runs ignored'; '' if there are none."""
        each = ((self.unsigned, "unsigned run", ""), (self.otherwise, "run", " of another passphrase"))
        said = [f"{n} {noun}{'s' if n > 1 else ''}{of} ignored" for n, noun, of in each if n]
        return ", ".join(said)


_KINDS = {
    "rounds": "round",
    "snapshots": "snapshot",
    "claims": "claim",
    "clients": "claim",
    "samples": "sample",
    "learners": "learner",
    "beats": "beat",
    "evals": "evaluation",
    "refused": "refusal",
    "checkpoints": "checkpoint",
    "ranks": "generation",
}


def is_signed_key(key: str) -> bool:
    """Whether what stands under `key` is a record of a run, which a signed swarm signs. All else is named by its hash there."""
    return key.startswith("runs/") and key.endswith(".json") and key.count("/") > 1


def kind_of(key: str) -> str:
    """What kind of record stands under a key below runs/, in a word for people."""
    folder = key.split("/")[2]
    return _KINDS.get(folder, folder)


def stretched(passphrase: str) -> bytes:
    """The 32 bytes that a passphrase stands for. Takes about a tenth of a second, and 32 MiB, so that guessing is slow."""
    return hashlib.scrypt(passphrase.encode(), salt=_SALT, n=1 << 15, r=8, p=1, maxmem=64 << 20, dklen=32)


def _derived(master: bytes, use: bytes) -> bytes:
    return hmac.new(master, use, hashlib.sha256).digest()


def _mac(key: bytes, *parts: bytes) -> hmac.HMAC:
    """Over parts of any content: each comes with its length, so that no two lists of parts are one text."""
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac


def _same(text: str, other: str) -> bool:
    return hmac.compare_digest(text.encode(errors="replace"), other.encode())
