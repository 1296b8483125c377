"""What a model wrote at its evaluations: values in, lines out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tui import text
from tui.view_round import sample_lines

if TYPE_CHECKING:
    from swarm.api import RunState
    from tui.widgets.toned import Line

SHOWN = 50  # samples
_LINES = 12  # of one


@dataclass(frozen=True)
class Sample:
    at: str  # 'round 12'
    loss: float | None
    by: str  # the learner whose model wrote it; '' of a data-parallel job, all of whose ranks hold the same
    words: str


def samples(state: RunState) -> tuple[Sample, ...]:
    """Those that are held, newest first."""
    of_job = [Sample(f"iteration {e.iteration}", e.loss, "", e.sample) for e in state.ranks.evals]
    every = of_job or [Sample(f"round {e.round}", e.loss, e.learner, e.sample) for e in state.evals]
    return tuple(each for each in reversed(every) if each.words)


def written(state: RunState) -> bool:
    """Whether any evaluation of those that are held has a sample."""
    return bool(samples(state))


def sample_pages(state: RunState, *, width: int) -> Iterator[Line]:
    """The newest first, each under its round and loss."""
    found = samples(state)[:SHOWN]
    if not found:
        yield (("no evaluation has a sample: a language model's has one", "dim"),)
    for n, each in enumerate(found):
        if n:
            yield ()
        yield (
            (each.at, "strong"),
            (f"  validation loss {text.loss(each.loss)}", ""),
            (f"  by {text.plain(each.by, 64)}" if each.by else "", "dim"),
        )
        for line in sample_lines(each.words, width=max(10, width - 2), most=_LINES):
            yield (("│ ", "accent"), (line, ""))
