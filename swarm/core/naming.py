"""Names for runs: the task and two words, to be told apart and said aloud."""

from __future__ import annotations

import hashlib
from random import Random

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"  # easy to type

_HOW = [
    "amber",
    "brave",
    "brisk",
    "calm",
    "clear",
    "cosy",
    "deft",
    "eager",
    "early",
    "fair",
    "fine",
    "fleet",
    "fond",
    "gentle",
    "glad",
    "golden",
    "grand",
    "green",
    "happy",
    "hardy",
    "keen",
    "kind",
    "lively",
    "lucky",
    "mellow",
    "merry",
    "mild",
    "neat",
    "noble",
    "plucky",
    "proud",
    "quick",
    "quiet",
    "ready",
    "rosy",
    "sharp",
    "silver",
    "smart",
    "snug",
    "steady",
    "sunny",
    "swift",
    "tidy",
    "true",
    "warm",
    "wise",
    "witty",
    "young",
]
_WHO = [
    "badger",
    "beaver",
    "bison",
    "crane",
    "curlew",
    "dolphin",
    "eagle",
    "falcon",
    "finch",
    "fox",
    "gannet",
    "gecko",
    "hare",
    "hawk",
    "heron",
    "ibex",
    "jackdaw",
    "kestrel",
    "kite",
    "lark",
    "lemur",
    "linnet",
    "lynx",
    "magpie",
    "marmot",
    "marten",
    "merlin",
    "mole",
    "newt",
    "otter",
    "owl",
    "panda",
    "petrel",
    "plover",
    "puffin",
    "quail",
    "raven",
    "robin",
    "seal",
    "shrew",
    "siskin",
    "sparrow",
    "stoat",
    "swan",
    "swift",
    "tern",
    "thrush",
    "toad",
    "trout",
    "vole",
    "walrus",
    "wren",
]


def run_name(task: str, random: Random) -> str:
    return f"{task}-{random.choice(_HOW)}-{random.choice(_WHO)}"


def run_id(random: Random) -> str:
    """Eight characters that are easy to type; unlike a name, never the same twice in practice."""
    return "".join(random.choice(_ALPHABET) for _ in range(8))


def run_id_of(name: str) -> str:
    """The id of the run that programs make under `name`: whoever starts first, all of them mean the same one."""
    digest = hashlib.sha256(f"swarm run {name}".encode()).digest()
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in digest[:10])
