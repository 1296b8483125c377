"""`swarm key`: the swarm's passphrase on this machine."""

from __future__ import annotations

import sys

import click

from swarm.cli.common import confirm, say
from swarm.core.errors import PassphraseError, UsageError
from swarm.host import keyfile

replace_option = click.option(
    "--replace", is_flag=True, help="Even if this machine has another passphrase, which is then lost."
)


@click.group()
def key() -> None:
    """The swarm's passphrase: whoever knows it belongs to the swarm.

    With one, this machine signs what it writes, and ignores what others wrote without it. It stands in a file beside the
    settings that only its owner can read; SWARM_KEY_FILE names another one, or, if it is empty, says that there is none. The
    passphrase is never an argument, and never told to the network.
    """


@key.command()
@replace_option
def new(replace: bool) -> None:
    """Make a strong passphrase, keep it here and print it."""
    _check_free(None, replace)
    made = keyfile.fresh()
    found = keyfile.keep(made)
    print(made)
    say(f"kept in {keyfile.key_file()}, fingerprint {found.fingerprint}. New runs are signed from now on")
    say("every other machine: `swarm key import`, and type it there. Runs that are not signed with it are ignored from now on")


@key.command(name="import")
@replace_option
def import_(replace: bool) -> None:
    """Keep another machine's passphrase here. It is asked for, or read from standard input: one line."""
    passphrase = keyfile.tidied(_asked())
    _check_free(passphrase, replace)
    found = keyfile.keep(passphrase)
    say(f"kept in {keyfile.key_file()}, fingerprint {found.fingerprint}: the same as on the other machine?")


@key.command()
def show() -> None:
    """Print this machine's passphrase, to be typed at another one."""
    found = keyfile.kept()
    if found is None:
        raise PassphraseError("no passphrase here: `swarm key new` makes one, `swarm key import` takes over another machine's")
    print(found.passphrase)
    say(f"fingerprint {found.key.fingerprint}")


@key.command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def forget(yes: bool) -> None:
    """Delete this machine's passphrase. It then trains in open runs, and watches signed ones."""
    path = keyfile.key_file()
    if path is None or not path.exists():
        say("no passphrase here")
        return
    confirm(f"Delete {path}? If no other machine has the passphrase, nobody can take part in its runs any more.", yes=yes)
    keyfile.forget()
    say("forgotten")


def _check_free(passphrase: str | None, replace: bool) -> None:
    """Raises UsageError if the passphrase would replace another one unasked."""
    if replace:
        return
    kept = keyfile.kept() if _is_there() else None
    if kept is not None and kept.passphrase != passphrase:
        raise UsageError(f"this machine has a passphrase (fingerprint {kept.key.fingerprint}): --replace gives it up")


def _is_there() -> bool:
    path = keyfile.key_file()
    return path is not None and path.exists()


def _asked() -> str:
    if sys.stdin is not None and sys.stdin.isatty():
        return str(click.prompt("Passphrase", hide_input=True, err=True))
    # Bounded: whatever stands there instead of a passphrase is not read to its end.
    line = sys.stdin.readline(4 * keyfile.LONGEST) if sys.stdin is not None else ""
    if not line.strip():
        raise UsageError("no passphrase on standard input: one line, as `swarm key show` prints it")
    return line
