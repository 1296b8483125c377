"""Two runs side by side: what differs in their settings, and how far each has come. From what is known of them; pure."""

from __future__ import annotations

import msgspec

from swarm.core.participation import accuracy
from swarm.core.rankview import job_rows, progress, spec_of
from swarm.core.sentences import counted, number
from swarm.core.sentences import settings as settings_words
from swarm.core.series import longest_s, mean_loss
from swarm.core.specs import private
from swarm.core.state import RunState


class At(msgspec.Struct, frozen=True):
    """Where a run stood after a round, or a data-parallel job at a report."""

    round: int  # of a data-parallel job the iteration
    tokens: int  # trained on so far, all learners together
    seconds_s: float  # the rounds' own times added up: what others waited for the slowest; or what the iterations took
    train_loss: float | None
    val_loss: float | None
    accuracy: float | None = None


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come, however few of its records are kept."""

    done: int = 0  # rounds, or iterations
    tokens: int = 0  # as At
    seconds_s: float = 0.0
    learners: int = 0  # that took part
    last_train: float | None = None
    best_val: float | None = None
    last_val: float | None = None
    best_accuracy: float | None = None


def unit_of(state: RunState) -> str:
    return "round" if spec_of(state) is None else "iteration"


def history(state: RunState) -> list[At]:
    """The run after each of its rounds, or at each report: of those whose records are kept."""
    if spec_of(state) is not None:
        return _reports(state)
    evals = {e.round: e for e in state.evals}
    hidden = state.manifest is not None and private(state.manifest.algorithm)
    found, tokens, seconds_s = [], 0, 0.0
    for record in state.rounds:
        tokens += sum(p.tokens for p in record.participants)
        seconds_s += longest_s(record.participants) + record.close_s
        evaluated = evals.get(record.round)
        found.append(
            At(
                record.round,
                tokens,
                seconds_s,
                None if hidden else mean_loss(record.participants),
                evaluated.loss if evaluated else None,
                accuracy(evaluated.metrics) if evaluated else None,
            )
        )
    return found


def _reports(state: RunState) -> list[At]:
    """A data-parallel job at each of its reports."""
    found, tokens, seconds_s, train = [], 0, 0.0, None
    for row in job_rows(state):
        if row["trained_tokens"] is not None:
            seconds_s += max(0, row["trained_tokens"] - tokens) / row["tokens_per_s"] if row["tokens_per_s"] else 0.0
            tokens, train = row["trained_tokens"], row["train_loss"]
        found.append(At(row["iteration"], tokens, seconds_s, train, row["val_loss"]))
    return found


def standing(state: RunState) -> Standing:
    """Where the run is now."""
    if (at := progress(state)) is not None:
        tape = _reports(state)
        last = tape[-1] if tape else At(0, 0, 0.0, None, None)
        # The machines that ever had a rank, in any generation.
        ranked = {seat.learner for generation in state.ranks.generations for seat in generation.seats}
        return Standing(
            done=at.iteration,
            tokens=last.tokens,
            seconds_s=last.seconds_s,
            learners=len(ranked),
            last_train=last.train_loss,
            best_val=min((row.val_loss for row in tape if row.val_loss is not None), default=None),
            last_val=next((row.val_loss for row in reversed(tape) if row.val_loss is not None), None),
        )
    series = state.series
    return Standing(
        done=state.open_round,
        tokens=series.tokens,
        seconds_s=series.elapsed.values[-1] if series.elapsed.values else 0.0,
        learners=len(series.took_part),
        last_train=series.train.values[-1] if series.train.values else None,
        best_val=series.best_loss,
        last_val=next((e.loss for e in reversed(state.evals) if e.loss is not None), None),
        best_accuracy=series.best_accuracy,
    )


def totals(here: RunState, there: RunState) -> list[tuple[str, str, str]]:
    """(what, of the one, of the other): how far each has come, in words. What neither knows is left out."""
    pair = (standing(here), standing(there))
    units = [unit_of(state) for state in (here, there)]
    if "iteration" in units:
        done = [str(s.done) if unit == "iteration" else counted(s.done, unit) for s, unit in zip(pair, units, strict=True)]
    else:
        done = [str(s.done) for s in pair]
    rows = [
        ("iterations so far" if "iteration" in units else "rounds so far", *done),
        ("learners", *(str(s.learners) for s in pair)),
        ("work", *(f"{s.tokens:,}" if s.done else "–" for s in pair)),
        ("time in rounds", *(f"{s.seconds_s:,.1f} s" if s.done else "–" for s in pair)),
        ("last train loss", *(number(s.last_train, 4) for s in pair)),
        ("best val loss", *(number(s.best_val, 4) for s in pair)),
        ("last val loss", *(number(s.last_val, 4) for s in pair)),
        ("best accuracy", *(number(s.best_accuracy, 4) for s in pair)),
    ]
    return [(name, one, other) for name, one, other in rows if (one, other) != ("–", "–") or "val loss" in name]


def differing(here: RunState, there: RunState) -> list[tuple[str, str, str]]:
    """(setting, of the one, of the other) where they differ; of two methods their settings in words, and what both have. What
    peers wrote is as they wrote it."""
    if here.manifest is None or there.manifest is None:
        return []
    (mine, theirs), (own, other) = ([_flat(state) for state in (here, there)], [_spec(state) for state in (here, there)])
    if mine["method"] != theirs["method"]:
        shared = own.keys() & other.keys()
        own, other = ({k: v for k, v in fields.items() if k in shared} for fields in (own, other))
        mine["settings"], theirs["settings"] = (settings_words(s.manifest.algorithm) for s in (here, there) if s.manifest)
    mine, theirs = mine | own, theirs | other
    names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
    return [(name, mine.get(name, "–"), theirs.get(name, "–")) for name in names]


def _flat(state: RunState) -> dict[str, str]:
    manifest = state.manifest
    assert manifest is not None
    fields = {"method": str(type(manifest.algorithm).__struct_config__.tag), "task": manifest.task.name}
    if spec_of(state) is None:
        fields["rounds"] = str(state.total_rounds or "∞")
    fields["seed"] = str(manifest.seed)
    fields |= {f"-o {name}": str(value) for name, value in manifest.task.options.items()}
    fields |= {f"data {n}": f"{d.name} {d.sha256[:12]}" for n, d in enumerate(manifest.task.data)}
    if manifest.model is not None:
        fields["model"] = f"{manifest.model.name} {manifest.model.sha256[:12]}"
    if manifest.base is not None:
        fields["base model"] = f"{manifest.base.name} {manifest.base.sha256[:12]}"
    return fields


def _spec(state: RunState) -> dict[str, str]:
    """The method's own settings."""
    assert state.manifest is not None
    given = msgspec.structs.asdict(state.manifest.algorithm)
    return {name: "–" if value in (None, {}) else str(value) for name, value in given.items()}
