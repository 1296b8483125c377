"""What a run's control records come to. A pure fold; what is in effect and what is only asked for are told apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

import msgspec

from swarm.core.records import Control


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """The run's state as far as people command it."""

    rounds: int | None  # how many the run has; None: until it is stopped
    stopped: bool = False
    paused: bool = False
    by: str = ""  # machine that paused or stopped it, for people
    stopping: bool = False  # a stop is asked for, and not in effect yet
    pausing: bool = False
    dropped: Mapping[str, tuple[int, str]] = {}
    """learner → (the incarnation up to which it was dropped, the machine that asked)"""

    @property
    def ending(self) -> bool:
        """Whether the open round is to be closed soon, with what there is."""
        return self.stopping or self.pausing

    def is_dropped(self, learner: str, incarnation: int) -> bool:
        return learner in self.dropped and incarnation <= self.dropped[learner][0]


def effect(controls: Sequence[Control], *, rounds: int | None, committed: int, named: int) -> Effect:
    """`controls`: all of the run, in order. `rounds`: the manifest's. `committed`: rounds so far. `named`: controls 1 to this
    are in effect, since the newest round record names them, or since nobody was live to write one.

    The others are in effect at once where no round record can be waited for: in a run that is paused or has all its rounds;
    and a drop always, lest the round wait for whom it is about. A stop is final.
    """
    now, asked = Effect(rounds=rounds), Effect(rounds=rounds)
    for n, control in enumerate(controls, 1):
        asked = _apply(asked, control, committed)
        if n <= named or now.paused or _done(now, committed) or control.action == "drop":
            now = _apply(now, control, committed)
    stopping, pausing = asked.stopped and not now.stopped, asked.paused and not (now.paused or now.stopped)
    return msgspec.structs.replace(now, stopping=stopping, pausing=pausing, by=asked.by if stopping or pausing else now.by)


def _done(state: Effect, committed: int) -> bool:
    return state.rounds is not None and committed >= state.rounds


def _apply(state: Effect, control: Control, committed: int) -> Effect:
    if state.stopped:
        return state
    match control.action:
        case "stop":
            # One that has all its rounds has nothing to stop, and may be extended later.
            if _done(state, committed):
                return state
            return msgspec.structs.replace(state, stopped=True, paused=False, by=control.by)
        case "pause":
            return state if state.paused else msgspec.structs.replace(state, paused=True, by=control.by)
        case "resume":
            return msgspec.structs.replace(state, paused=False, by="")
        case "extend":
            return msgspec.structs.replace(state, rounds=control.rounds)
        case "drop":
            before = state.dropped.get(control.learner, (-1, ""))[0]
            if control.incarnation <= before:
                return state
            dropped = {**state.dropped, control.learner: (control.incarnation, control.by)}
            return msgspec.structs.replace(state, dropped=dropped)
        case "unknown":
            return state
        case _:
            assert_never(control.action)
