"""`swarm compare`."""

from __future__ import annotations

import click
import msgspec

from swarm import api
from swarm.cli.common import json_option, mailbox_option, put, table, wait_for, where
from swarm.core.sentences import number, plain

ROWS = 20


@click.command()
@click.argument("run")
@click.argument("other")
@click.option("--all", "every", is_flag=True, help=f"Every round, not {ROWS} of them.")
@mailbox_option
@json_option
def compare(run: str, other: str, every: bool, mailbox: str | None, as_json: bool) -> None:
    """Put two runs side by side: what differs in their settings, then their losses, round by round or by iterations."""
    location = where(mailbox)
    states = [wait_for(api.whole_run(location, name)) for name in (run, other)]
    tapes = [api.run_history(state) for state in states]
    if as_json:
        for state, tape in zip(states, tapes, strict=True):
            for at in tape:
                told = msgspec.structs.asdict(at)
                unit = {"iteration": told.pop("round")} if api.progress(state) is not None else {}
                put({"run": state.run, "name": state.name, **unit, **told})
        return
    here, there = states
    print(table(("", plain(here.name), plain(there.name)), [*api.differing(here, there), *api.totals(here, there)]))
    units = {api.unit_of(state) for state in states}
    if len(units) > 1:
        print("one has rounds, the other iterations: they are not put side by side")
    if not any(tapes) or len(units) > 1:
        return
    print()
    rounds = sorted({at.round for tape in tapes for at in tape})
    shown = rounds if every else sorted({rounds[round(i * (len(rounds) - 1) / (ROWS - 1))] for i in range(ROWS)})
    by_round = [{at.round: at for at in tape} for tape in tapes]
    graded = any(at.accuracy is not None for tape in tapes for at in tape)
    rows = []
    for r in shown:
        pair = [by.get(r) for by in by_round]
        rows.append(
            (
                str(r),
                *(number(at.val_loss if at else None) for at in pair),
                _difference(*(at.val_loss if at else None for at in pair)),
                *(number(at.accuracy if at else None) for at in pair if graded),
                *(number(at.train_loss if at else None) for at in pair),
                *(f"{at.tokens:,}" if at else "–" for at in pair),
            )
        )
    accuracies = ("ACC", "ACC") if graded else ()
    print(table((units.pop().upper(), "VAL", "VAL", "DIFF", *accuracies, "TRAIN", "TRAIN", "WORK", "WORK"), rows))


def _difference(mine: float | None, theirs: float | None) -> str:
    return "–" if mine is None or theirs is None else f"{theirs - mine:+.3f}"
