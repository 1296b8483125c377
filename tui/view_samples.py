"""What a model wrote at its evaluations: values in, lines out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tui import text
from tui.view_round import sample_lines

if TYPE_CHECKING:
    from swarm.api import RunState
    from tui.widgets.toned import Line

SHOWN = 50  # samples
_LINES = 12  # of one


def written(state: RunState) -> bool:
    """Whether any evaluation of those that are held has a sample."""
    return any(e.sample for e in reversed(state.evals))


def sample_pages(state: RunState, *, width: int) -> Iterator[Line]:
    """The newest first, each under its round and loss."""
    found = [e for e in reversed(state.evals) if e.sample][:SHOWN]
    if not found:
        yield (("no evaluation has a sample: a language model's has one", "dim"),)
    for n, e in enumerate(found):
        if n:
            yield ()
        yield (
            (f"round {e.round}", "strong"),
            (f"  validation loss {text.loss(e.loss)}", ""),
            (f"  by {text.plain(e.learner, 64)}", "dim"),
        )
        for line in sample_lines(e.sample, width=max(10, width - 2), most=_LINES):
            yield (("│ ", "accent"), (line, ""))
