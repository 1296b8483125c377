"""`swarm bench`: what an exchange costs on this machine. Measured in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import msgspec

from swarm.cli.common import json_option, put, table
from swarm.core.errors import UsageError, WorkerFailed

DTYPES = ("F32", "F16", "BF16", "F8_E4M3", "F4")


@click.command()
@click.option("--params", type=click.IntRange(1000), default=50_000_000, show_default=True, help="Parameters of the model.")
@click.option("--tensors", type=click.IntRange(1), default=100, show_default=True, help="Tensors that these are in.")
@click.option("--fragments", type=click.IntRange(1), default=1, show_default=True, help="Fragments of the rounds.")
@click.option("--rounds", type=click.IntRange(2), default=5, show_default=True, help="Rounds of the two processes.")
@click.option(
    "--framework",
    type=click.Choice(["numpy", "torch", "mlx"]),
    default="numpy",
    show_default=True,
    help="What holds the model.",
)
@click.option("--delta-dtype", type=click.Choice(DTYPES), help="Precision of the deltas; by default the parameters' own.")
@click.option("--merge", type=click.Choice(["mean", "rda"]), default="mean", show_default=True, help="How rounds are merged.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(exists=True, file_okay=False, writable=True),
    help="Folder for the mailboxes, which go afterwards; by default a temporary one.",
)
@json_option
def bench(
    params: int,
    tensors: int,
    fragments: int,
    rounds: int,
    framework: str,
    delta_dtype: str | None,
    merge: str,
    folder: str | None,
    as_json: bool,
) -> int:
    """Measure what an exchange costs here, beside copying, hashing and writing the bytes once.

    What other programs do meanwhile counts little, but it does.
    """
    from swarm import api

    if framework != "numpy" and framework not in api.installed_frameworks():
        raise UsageError(f"{framework} is not installed here: pip install 'homeswarm[{framework}]'")
    if fragments > tensors:
        raise UsageError(f"--fragments must be <= --tensors ({tensors}), got {fragments}")
    options = {
        "params": params,
        "tensors": tensors,
        "fragments": fragments,
        "rounds": rounds,
        "framework": framework,
        "delta_dtype": delta_dtype,
        "merge": merge,
        "folder": os.path.abspath(folder) if folder else "",
    }
    done = subprocess.run(
        [sys.executable, "-m", "swarm.bench", "all", msgspec.json.encode(options).decode()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != 0:
        raise WorkerFailed(f"the measurement ended with exit code {done.returncode}")
    found = msgspec.json.decode(done.stdout)
    figures = found["figures"]
    if as_json:
        put(found)
    else:
        rows = [
            (
                figure["name"],
                "-" if figure["value"] is None else f"{figure['value']:.3f}",
                f"{figure['bound']:g}",
                {True: "yes", False: "NO", None: "-"}[figure["holds"]],
                figure["what"],
            )
            for figure in figures
        ]
        print(table(("FIGURE", "VALUE", "AT MOST", "HOLDS", "WHAT"), rows))
    return 0
