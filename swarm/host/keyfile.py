"""The swarm's passphrase on this machine: one file, for its owner's eyes alone. It reaches no argument and no environment.

It holds what the passphrase is stretched to as well, so that it is stretched once, and not by every command.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import tomllib
import unicodedata
from pathlib import Path
from typing import NamedTuple

from swarm.core.errors import PassphraseError
from swarm.core.trust import SwarmKey, stretched
from swarm.host.paths import settings_file

SHORTEST = 12  # characters: below that, whoever has seen a signed record can try them all
LONGEST = 1000
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # 32 that are not taken for one another, written or spoken
_GROUPS = 5  # of as many letters: 125 bits
_MISHEARD = str.maketrans({"o": "0", "i": "1", "l": "1", " ": "-", "_": "-"})
_MADE_HERE = re.compile(rf"[{_LETTERS}]{{{_GROUPS}}}(-[{_LETTERS}]{{{_GROUPS}}}){{{_GROUPS - 1}}}")
_MAX_FILE_BYTES = 1 << 16


class Kept(NamedTuple):
    """What the file holds."""

    passphrase: str
    key: SwarmKey


def key_file() -> Path | None:
    """Beside the settings. `SWARM_KEY_FILE` overrides; an empty one says that there is none."""
    override = os.environ.get("SWARM_KEY_FILE")
    if override is None:
        return settings_file().with_name("passphrase.toml")
    return Path(override) if override else None


def load_key() -> SwarmKey | None:
    """What signs this machine's records; None without a passphrase. Raises PassphraseError for a file that cannot be used."""
    found = kept()
    return None if found is None else found.key


def kept() -> Kept | None:
    """Raises PassphraseError."""
    path = key_file()
    if path is None:
        return None
    data = _read(path)
    if data is None:
        if "SWARM_KEY_FILE" in os.environ:  # asked for: to train in the open instead would be a surprise
            raise PassphraseError(f"SWARM_KEY_FILE names {path}, which is not there: `swarm key import` makes it")
        return None
    try:
        found = tomllib.loads(data.decode())
        passphrase = tidied(found["passphrase"])
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise PassphraseError(f"{path} holds no passphrase: `swarm key import --replace` writes it anew") from error
    if flaw := weakness(passphrase):
        raise PassphraseError(f"{path}: {flaw}")
    return Kept(passphrase, SwarmKey(_stretched_in(found, passphrase) or _stretched_once(passphrase)))


def keep(passphrase: str) -> SwarmKey:
    """Write it to this machine's file. Raises PassphraseError for a weak one, and where the file cannot be written."""
    passphrase = tidied(passphrase)
    if flaw := weakness(passphrase):
        raise PassphraseError(flaw)
    path = key_file()
    if path is None:
        raise PassphraseError("SWARM_KEY_FILE is empty, so this machine keeps no passphrase: unset it, or name a file")
    master = stretched(passphrase)
    fields = {"passphrase": passphrase, "stretched": master.hex(), "fits": _fits(master, passphrase)}
    text = "# Whoever knows this passphrase belongs to the swarm. `swarm key --help` tells more.\n"
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
    try:
        _write(path.resolve(), text.encode())  # where a link to it leads: the link stays
    except OSError as error:
        raise PassphraseError(f"{path} cannot be written: {error.strerror or error}") from error
    return SwarmKey(master)


def forget() -> bool:
    """Delete the file; whether there was one. Raises PassphraseError."""
    path = key_file()
    if path is None:
        return False
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PassphraseError(f"{path} cannot be deleted: {error.strerror or error}") from error
    return True


def fresh() -> str:
    """A new passphrase of 125 random bits, in groups that can be read aloud."""
    return "-".join("".join(secrets.choice(_LETTERS) for _ in range(_GROUPS)) for _ in range(_GROUPS))


def tidied(text: str) -> str:
    """The same passphrase for all who type it: whatever their keyboard makes of an umlaut, and, of one that `fresh` made,
    however it was heard."""
    plain = unicodedata.normalize("NFC", text.strip())
    heard = plain.lower().translate(_MISHEARD)
    return heard if _MADE_HERE.fullmatch(heard) else plain


def weakness(passphrase: str) -> str:
    """What is wrong with it; '' if nothing."""
    if len(passphrase) < SHORTEST:
        return f"{len(passphrase)} characters can be guessed: at least {SHORTEST}, or `swarm key new` makes a strong passphrase"
    if len(set(passphrase)) < 5:
        return "the same few characters can be guessed: `swarm key new` makes a strong passphrase"
    if len(passphrase) > LONGEST or not passphrase.isprintable():
        return f"a passphrase is one line of at most {LONGEST} printable characters"
    return ""


@functools.lru_cache(1)
def _stretched_once(passphrase: str) -> bytes:
    """Of a file that was written by hand, and does not say it: whoever follows mailboxes asks at every poll."""
    return stretched(passphrase)


def _stretched_in(found: dict[str, object], passphrase: str) -> bytes | None:
    """What the file says that the passphrase is stretched to; None if it does not, or another one's: somebody edited it."""
    with contextlib.suppress(ValueError, TypeError):
        master = bytes.fromhex(str(found.get("stretched")))
        if len(master) == 32 and hmac.compare_digest(str(found.get("fits")).encode(), _fits(master, passphrase).encode()):
            return master
    return None


def _fits(master: bytes, passphrase: str) -> str:
    return hmac.new(master, passphrase.encode(), hashlib.sha256).hexdigest()[:16]


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_IMODE(mode) & 0o077:
                raise PassphraseError(f"others can read the swarm's passphrase in {path}: chmod 600 {path}")
            return file.read(_MAX_FILE_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PassphraseError(f"{path} cannot be read: {error.strerror or error}") from error


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
