"""`swarm export`: a run's parameters, and its history."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from pathlib import Path
from typing import Any

import click

from swarm import api
from swarm.cli.common import mailbox_option, say, wait_for, where
from swarm.cli.tools import run_tool
from swarm.core.errors import UsageError
from swarm.core.jobs import Export
from swarm.core.sentences import amount, counted, plain

FORMATS = (".csv", ".jsonl")


@click.command()
@click.argument("run")
@click.argument("file", required=False, type=click.Path())
@click.option(
    "--round", "round_", type=click.IntRange(0), metavar="N", help="Those after round N: the newest, or one with a checkpoint."
)
@click.option(
    "--history",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the rounds to FILE.csv, a row each, or to FILE.jsonl, with every participant: losses, metrics, waits.",
)
@mailbox_option
def export(run: str, file: str | None, round_: int | None, history: str | None, mailbox: str | None) -> int:
    """Write the newest committed parameters of RUN to FILE, as Safetensors; with --round, older ones that were kept; with
    --history, what its rounds were like. Adapters of the task lora can be written to a folder, FILE/, as MLX-LM's tools read
    them."""
    location = where(mailbox)
    if file is None and history is None:
        raise UsageError("which file? FILE for the parameters, --history FILE.csv for the rounds, or both")
    if file is None and round_ is not None:
        raise UsageError("--round says which parameters to write: they need a FILE")
    if file is not None and not Path(file).is_dir():
        _check_target(file)
    if history is not None:
        _check_target(history)
        if Path(history).suffix.lower() not in FORMATS:
            raise UsageError(f"{history}: the history is written as {' or '.join(FORMATS)}: which one, the file's name says")
        _write_history(location, run, history)
    if file is None:
        return 0
    manifest = wait_for(api.find_run(location, run))
    return run_tool(Export(mailbox=location, run=manifest.run, file=click.format_filename(file), round=round_))


def _check_target(file: str) -> None:
    target = Path(file)
    if target.exists() and not target.is_file():  # the finished file takes the place of what is there: of a device, too
        raise UsageError(f"cannot write {file}: a pipe or a device would be replaced by the file")


def _write_history(location: str, run: str, file: str) -> None:
    state = wait_for(api.whole_run(location, run))
    rows = api.history_rows(state)
    unit = "round" if api.progress(state) is None else "report"
    if not rows:
        raise UsageError(f"{plain(state.name)} has no {unit} yet: there is no history to write")
    as_csv = Path(file).suffix.lower() == ".csv"
    data = as_table(rows) if as_csv else _as_lines(api.nested_history(state))
    _write_whole(Path(file), data)
    wrote = f"{counted(len(rows), unit)} of {plain(state.name)}"
    say(f"wrote {wrote} to {click.format_filename(file)}, {amount(len(data))}")


def as_table(rows: list[dict[str, Any]]) -> bytes:
    """CSV (RFC 4180) with a heading; what is not known is empty."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([_harmless(name) for name in rows[0]])
    for row in rows:
        writer.writerow([_harmless(value) for value in row.values()])
    return text.getvalue().encode()


def _harmless(value: Any) -> Any:
    """Text comes from other machines, and a spreadsheet takes some for a formula."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def _as_lines(rows: list[dict[str, Any]]) -> bytes:
    import msgspec

    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _write_whole(target: Path, data: bytes) -> None:
    """The file as a whole or not at all. Raises UsageError."""
    target = target.resolve()  # where a link to it leads: the link stays
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        staged.write_bytes(data)
        staged.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from None
