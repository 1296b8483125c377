"""What a learner's state is called, and how it is drawn; and the marks of what was checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.api import LearnerView, RunState

STATES = {
    "train": ("●", "good"),
    "upload": ("↑", "good"),
    "wait": ("◌", ""),
    "merge": ("◆", "accent"),
    "pull": ("↓", "good"),
    "evaluate": ("◇", "accent"),
    "join": ("◌", "accent"),
    "joining": ("◌", "accent"),
    "paused": ("‖", "warn"),
    "syncer": ("◆", "dim"),
    "silent": ("?", "bad"),
    "left": ("○", "dim"),
    "dropped": ("○", "dim"),
    "refused": ("✗", "bad"),
}
VERDICTS = {
    "ok": ("✓", "good"),
    "warning": ("⚠", "warn"),
    "failed": ("✗", "bad"),
    "checking": ("◌", "dim"),
}
"""Of a Tick."""


def learner_state(state: RunState, view: LearnerView) -> str:
    """A word: what the learner is doing. A syncer's is that it is one, but for the time in which it closes a round."""
    if not view.live and state.dropped_by(view) is not None:
        return "dropped"
    waits = view.live and view.state not in ("merge", "joining", "join")
    return "syncer" if view.role == "syncer" and waits else view.state
