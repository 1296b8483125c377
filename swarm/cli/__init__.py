"""The `swarm` command. A command's module is imported when that command runs, so that `swarm --help` answers at once."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import signal
import sys

import click

from swarm import __version__
from swarm.core.errors import INTERRUPTED, SwarmError

# name → (module:attribute, one line of help). The order is that of a first day with swarm.
COMMANDS = {
    "demo": ("demo:demo", "Train a small model here, with one learner per framework."),
    "init": ("mailboxes:init", "Make a folder a mailbox and remember it."),
    "tui": ("screen:tui", "Open the screen."),
    "start": ("start:start", "Start a run, and train in it."),
    "join": ("join:join", "Take part in a run."),
    "service": ("service:service", "Have this machine stand by from its start on."),
    "leave": ("jobs:leave", "Let this machine leave a run."),
    "stop": ("control:stop", "End a run for everybody."),
    "pause": ("control:pause", "Let a run rest."),
    "resume": ("control:resume", "Let a paused run go on."),
    "extend": ("control:extend", "Give a run more rounds."),
    "drop": ("control:drop", "Ask a learner to leave a run."),
    "peers": ("peers:peers", "List the machines around."),
    "runs": ("runs:runs", "List the runs of the mailbox, and those that the network tells of."),
    "status": ("status:status", "Show one run."),
    "compare": ("compare:compare", "Put two runs side by side."),
    "jobs": ("jobs:jobs", "List what this machine trains."),
    "logs": ("jobs:logs", "Show a job's log."),
    "export": ("export:export", "Write a run's newest parameters, or its history, to a file."),
    "generate": ("runs:generate", "Let a language model of a run write."),
    "rm": ("runs:rm", "Delete a run."),
    "key": ("keys:key", "The swarm's passphrase: make it, show it, take it over."),
    "mailbox": ("mailbox:mailbox", "Check a mailbox, free what nobody needs, see where its bytes are."),
    "doctor": ("doctor:doctor", "Check this machine, its network and a mailbox."),
    "bench": ("bench:bench", "Measure what an exchange costs here."),
}

LOOKING = frozenset({"init", "runs", "status", "compare", "peers", "mailbox", "doctor"})
"""Commands that start no worker and ask nobody: whatever a share does to them, they end at once (cli/aside.py)."""

INTERRUPTS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What ends a command from outside: Ctrl-C, the system, a terminal that is closed."""


class Commands(click.Group):
    """Imports a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command = getattr(importlib.import_module(f"swarm.cli.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, 1)
            ctx.fail(f"no command {args[0]!r}" + (f": did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="swarm")
def cli() -> None:
    """Train one model together on the machines you own, over a shared folder.

    Every command takes --mailbox DIR; else SWARM_MAILBOX counts, else the mailbox last used. Data goes to stdout,
    everything else to stderr.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing to join, 130 interrupted.
    """


def main() -> None:
    # A job that the system or a closed terminal ends leaves as after Ctrl-C, unless it was told to ignore that (nohup).
    for number in INTERRUPTS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal that has no ∞ gets a ?
    if sys.stdout is None or sys.stderr is None:  # closed by whoever started us
        sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))  # noqa: SIM115
    argv = sys.argv[1:]
    if argv and argv[0] in LOOKING and sys.platform != "win32":
        from swarm.cli.aside import aside

        aside(lambda: run(argv))
    code = INTERRUPTED
    with contextlib.suppress(KeyboardInterrupt):  # once more, on the way out
        code = run(argv)
        for number in INTERRUPTS:
            if signal.getsignal(number) == signal.default_int_handler:
                signal.signal(number, signal.SIG_DFL)  # while the interpreter ends, it need not tell where
    sys.exit(code)


def run(argv: list[str]) -> int:
    """The exit code of `swarm ARGV`. A person never sees a traceback: it goes to a file that the one line names."""
    if sys.platform == "win32":
        print("swarm: native Windows is not supported: use WSL2 (https://learn.microsoft.com/windows/wsl)", file=sys.stderr)
        return 2
    try:
        return _run(argv)
    except (BrokenPipeError, SystemExit):  # click makes the one of the other
        # Whoever read our output has seen enough; what is still buffered has nowhere to go.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 0
    except KeyboardInterrupt:  # once more, while the first was dealt with
        return INTERRUPTED


def _run(argv: list[str]) -> int:
    try:
        result = cli.main(args=argv, prog_name="swarm", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return 2
    except (KeyboardInterrupt, click.Abort):
        print("swarm: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SwarmError as error:
        print(f"swarm: {_words(error)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC and error.filename is None:
            print(f"swarm: the output cannot be written: {error.strerror}", file=sys.stderr)
            return 1
        from swarm.host.crash import note_crash

        print(f"swarm: {type(error).__name__}: {_words(error)} ({note_crash()})", file=sys.stderr)
        return 1


def _words(error: Exception) -> str:
    """An error may quote what another machine wrote, and that may hold anything: printable lines of bounded length."""
    from swarm.core.sentences import plain

    return "\n".join(plain(line, 1000) for line in str(error).split("\n")[:100])
