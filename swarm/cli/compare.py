"""`swarm compare`."""

from __future__ import annotations

import click
import msgspec

from swarm import api
from swarm.cli.common import json_option, mailbox_option, put, table, wait_for, where
from swarm.cli.words import method
from swarm.core.sentences import counted, number, plain

ROWS = 20


class At(msgspec.Struct, frozen=True):
    """Where a run stood after a round, or a data-parallel job at a report."""

    round: int  # of a data-parallel job the iteration
    tokens: int  # trained on so far, all learners together
    seconds_s: float  # the rounds' own times added up: what others waited for the slowest; or what the iterations took
    train_loss: float | None
    val_loss: float | None
    accuracy: float | None = None


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
    tapes = [history(state) for state in states]
    if as_json:
        for state, tape in zip(states, tapes, strict=True):
            for at in tape:
                told = msgspec.structs.asdict(at)
                unit = {"iteration": told.pop("round")} if api.progress(state) is not None else {}
                put({"run": state.run, "name": state.name, **unit, **told})
        return
    here, there = states
    print(table(("", plain(here.name), plain(there.name)), [*_settings(here, there), *_totals(states, tapes)]))
    units = {unit_of(state) for state in states}
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


def history(state: api.RunState) -> list[At]:
    """The run after each of its rounds, or at each report."""
    if api.progress(state) is not None:
        return _reports(state)
    evals = {e.round: e for e in state.evals}
    hidden = state.manifest is not None and api.private(state.manifest.algorithm)
    found, tokens, seconds_s = [], 0, 0.0
    for record in state.rounds:
        tokens += sum(p.tokens for p in record.participants)
        seconds_s += api.longest_s(record.participants) + record.close_s
        evaluated = evals.get(record.round)
        found.append(
            At(
                record.round,
                tokens,
                seconds_s,
                None if hidden else api.train_loss(record),
                evaluated.loss if evaluated else None,
                api.accuracy(evaluated.metrics) if evaluated else None,
            )
        )
    return found


def _reports(state: api.RunState) -> list[At]:
    """A data-parallel job at each of its reports."""
    found, tokens, seconds_s, train = [], 0, 0.0, None
    for row in api.job_rows(state):
        if row["trained_tokens"] is not None:
            seconds_s += max(0, row["trained_tokens"] - tokens) / row["tokens_per_s"] if row["tokens_per_s"] else 0.0
            tokens, train = row["trained_tokens"], row["train_loss"]
        found.append(At(row["iteration"], tokens, seconds_s, train, row["val_loss"]))
    return found


def unit_of(state: api.RunState) -> str:
    return "round" if api.progress(state) is None else "iteration"


def _settings(here: api.RunState, there: api.RunState) -> list[tuple[str, str, str]]:
    """What differs, field by field; of two methods their settings in words, and what both have."""
    (mine, theirs), (own, other) = ([_flat(state) for state in (here, there)], [_spec(state) for state in (here, there)])
    if mine["method"] != theirs["method"]:
        shared = own.keys() & other.keys()
        own, other = ({k: v for k, v in fields.items() if k in shared} for fields in (own, other))
        mine["settings"], theirs["settings"] = (
            api.settings_words(state.manifest.algorithm) for state in (here, there) if state.manifest
        )
    mine, theirs = mine | own, theirs | other
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    return [(name, mine.get(name, "–"), theirs.get(name, "–")) for name in names]


def _flat(state: api.RunState) -> dict[str, str]:
    manifest = state.manifest
    assert manifest is not None
    fields = {"method": method(state), "task": manifest.task.name}
    if api.progress(state) is None:
        fields["rounds"] = str(state.total_rounds or "∞")
    fields["seed"] = str(manifest.seed)
    fields |= {f"-o {name}": str(value) for name, value in manifest.task.options.items()}
    fields |= {f"data {n}": f"{d.name} {d.sha256[:12]}" for n, d in enumerate(manifest.task.data)}
    if manifest.model is not None:
        fields["model"] = f"{manifest.model.name} {manifest.model.sha256[:12]}"
    if manifest.base is not None:
        fields["base model"] = f"{manifest.base.name} {manifest.base.sha256[:12]}"
    return fields


def _spec(state: api.RunState) -> dict[str, str]:
    """The method's own settings."""
    assert state.manifest is not None
    given = msgspec.structs.asdict(state.manifest.algorithm)
    return {name: "–" if value in (None, {}) else str(value) for name, value in given.items()}


def _totals(states: list[api.RunState], tapes: list[list[At]]) -> list[tuple[str, ...]]:
    best = [min((at.val_loss for at in tape if at.val_loss is not None), default=None) for tape in tapes]
    return [
        _done(states, tapes),
        ("work", *(f"{tape[-1].tokens:,}" if tape else "–" for tape in tapes)),
        ("time in rounds", *(f"{tape[-1].seconds_s:,.1f} s" if tape else "–" for tape in tapes)),
        ("best val loss", *(number(value, 4) for value in best)),
        *_best_accuracy(tapes),
        ("last val loss", *(number(next((a.val_loss for a in reversed(t) if a.val_loss is not None), None), 4) for t in tapes)),
    ]


def _done(states: list[api.RunState], tapes: list[list[At]]) -> tuple[str, ...]:
    jobs = [api.progress(state) for state in states]
    if not any(jobs):
        return ("rounds so far", *(str(len(tape)) for tape in tapes))
    counts = (counted(len(t), "round") if at is None else str(at.iteration) for at, t in zip(jobs, tapes, strict=True))
    return ("iterations so far", *counts)


def _best_accuracy(tapes: list[list[At]]) -> list[tuple[str, ...]]:
    best = [max((at.accuracy for at in tape if at.accuracy is not None), default=None) for tape in tapes]
    return [("best accuracy", *(number(value, 4) for value in best))] if any(value is not None for value in best) else []


def _difference(mine: float | None, theirs: float | None) -> str:
    return "–" if mine is None or theirs is None else f"{theirs - mine:+.3f}"
