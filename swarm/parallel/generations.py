"""From one generation to the next, until this machine has a rank or the job is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from swarm.core.events import WorkerEvent
from swarm.core.keys import RunKeys
from swarm.core.meeting import Apart, Over
from swarm.core.ranks import GenerationEnd
from swarm.mailbox.contract import Mailbox
from swarm.parallel.meeting import Meeting, Placed
from swarm.parallel.register import next_generation
from swarm.runtime.patience import Patience


async def come(
    mailbox: Mailbox,
    place: RunKeys,
    *,
    learner: str,
    incarnation: int,
    meeting: Callable[[int], Meeting],
    apart: Callable[[str], None] = lambda reason: None,
    emit: Callable[[WorkerEvent], None] = lambda event: None,
) -> tuple[Meeting, Placed] | GenerationEnd:
    """Come to one generation after the other until one of them gives this machine a rank: its meeting, which the caller closes,
    and what to start. A GenerationEnd: the job is over.

    `meeting` makes that of a generation, with facts that are true by then. `apart` is told why this machine has no rank while
    the others go on. One that came too late announces itself for the next generation at once, so that the others can see it
    wait; one that was refused looks at itself anew when the generation is over. Raises Superseded.
    """
    patience = Patience(mailbox, emit)
    while True:
        generation = await patience.through(lambda: next_generation(mailbox, place, learner=learner, incarnation=incarnation))
        at = meeting(generation)
        outcome = None
        try:
            outcome = await at.run()
            match outcome:
                case Placed():
                    return at, outcome
                case Over(end):
                    if not end.goes_on:
                        return end
                case Apart(reason, refused):
                    apart(reason)
                    if refused:
                        await at.until_over()
                case _:
                    assert_never(outcome)
        finally:
            if not isinstance(outcome, Placed):
                await at.close()
