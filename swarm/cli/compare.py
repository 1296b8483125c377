"""`swarm compare`."""

from __future__ import annotations

import asyncio

import click
import msgspec

from swarm import api
from swarm.cli.common import json_option, mailbox_option, put, table, wait_for, where
from swarm.core.errors import MailboxUnavailable
from swarm.core.sentences import number, plain

ROWS = 20


class At(msgspec.Struct, frozen=True):
    """Where a run stood after a round."""

    round: int
    tokens: int  # trained on so far, all learners together
    seconds_s: float  # the rounds' own times added up: what others waited for the slowest
    train_loss: float | None
    val_loss: float | None


@click.command()
@click.argument("run")
@click.argument("other")
@click.option("--all", "every", is_flag=True, help=f"Every round, not {ROWS} of them.")
@mailbox_option
@json_option
def compare(run: str, other: str, every: bool, mailbox: str | None, as_json: bool) -> None:
    """Put two runs side by side: what differs in their settings, then their losses round by round."""
    location = where(mailbox)
    states = wait_for(_both(location, run, other))
    tapes = [history(state) for state in states]
    if as_json:
        for state, tape in zip(states, tapes, strict=True):
            for at in tape:
                put({"run": state.run, "name": state.name, **msgspec.structs.asdict(at)})
        return
    here, there = states
    print(table(("", plain(here.name), plain(there.name)), [*_settings(here, there), *_totals(tapes)]))
    if not any(tapes):
        return
    print()
    rounds = sorted({at.round for tape in tapes for at in tape})
    shown = rounds if every else sorted({rounds[round(i * (len(rounds) - 1) / (ROWS - 1))] for i in range(ROWS)})
    by_round = [{at.round: at for at in tape} for tape in tapes]
    rows = []
    for r in shown:
        pair = [by.get(r) for by in by_round]
        rows.append(
            (
                str(r),
                *(number(at.val_loss if at else None) for at in pair),
                _difference(*(at.val_loss if at else None for at in pair)),
                *(number(at.train_loss if at else None) for at in pair),
                *(f"{at.tokens:,}" if at else "–" for at in pair),
            )
        )
    print(table(("ROUND", "VAL", "VAL", "DIFF", "TRAIN", "TRAIN", "WORK", "WORK"), rows))


async def _both(location: str, *names: str) -> list[api.RunState]:
    states = []
    for name in names:
        manifest = await api.find_run(location, name)
        watch = api.RunWatch(location, manifest.run)
        state = await watch.poll()
        while watch.behind and not state.lost:
            await asyncio.sleep(0)
            state = await watch.poll()
        if state.manifest is None or state.lost:
            raise MailboxUnavailable(state.lost or f"{location} does not answer")
        states.append(state)
    return states


def history(state: api.RunState) -> list[At]:
    """The run after each of its rounds."""
    losses = {e.round: e.loss for e in state.evals}
    found, tokens, seconds_s = [], 0, 0.0
    for record in state.rounds:
        tokens += sum(p.tokens for p in record.participants)
        seconds_s += max((p.seconds_s for p in record.participants), default=0.0) + record.close_s
        found.append(At(record.round, tokens, seconds_s, api.train_loss(record), losses.get(record.round)))
    return found


def _settings(here: api.RunState, there: api.RunState) -> list[tuple[str, str, str]]:
    """What differs, field by field."""
    mine, theirs = (_flat(state) for state in (here, there))
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    return [(name, mine.get(name, "–"), theirs.get(name, "–")) for name in names]


def _flat(state: api.RunState) -> dict[str, str]:
    manifest = state.manifest
    assert manifest is not None
    fields = {"task": manifest.task.name, "rounds": str(state.total_rounds or "∞"), "seed": str(manifest.seed)}
    fields |= {f"-o {name}": str(value) for name, value in manifest.task.options.items()}
    fields |= {f"data {n}": f"{d.name} {d.sha256[:12]}" for n, d in enumerate(manifest.task.data)}
    if manifest.base is not None:
        fields["base model"] = f"{manifest.base.name} {manifest.base.sha256[:12]}"
    return fields | {name: str(value) for name, value in msgspec.structs.asdict(manifest.algorithm).items()}


def _totals(tapes: list[list[At]]) -> list[tuple[str, ...]]:
    best = [min((at.val_loss for at in tape if at.val_loss is not None), default=None) for tape in tapes]
    return [
        ("rounds so far", *(str(len(tape)) for tape in tapes)),
        ("work", *(f"{tape[-1].tokens:,}" if tape else "–" for tape in tapes)),
        ("time in rounds", *(f"{tape[-1].seconds_s:,.1f} s" if tape else "–" for tape in tapes)),
        ("best val loss", *(number(value, 4) for value in best)),
        ("last val loss", *(number(next((a.val_loss for a in reversed(t) if a.val_loss is not None), None), 4) for t in tapes)),
    ]


def _difference(mine: float | None, theirs: float | None) -> str:
    return "–" if mine is None or theirs is None else f"{theirs - mine:+.3f}"
