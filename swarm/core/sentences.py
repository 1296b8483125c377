"""What a worker tells, in words: the same on the command line and in a job's log."""

from __future__ import annotations

from swarm.core.events import (
    Building,
    Created,
    Ended,
    Evaluated,
    Failed,
    Joined,
    Published,
    Restored,
    RoundClosed,
    ShareBack,
    ShareLost,
    Stepped,
    Trouble,
    Waiting,
    WorkerEvent,
)


def sentence(event: WorkerEvent) -> str | None:
    """The event in words; None for one that is not worth a line."""
    match event:
        case Building():
            return f"preparing {plain(event.what)} …"
        case Created():
            return f"made run {plain(event.name)} ({event.run})"
        case Joined():
            again = f", incarnation {event.incarnation}" if event.incarnation > 1 else ""
            return f"joined {plain(event.name)} as {event.learner}{again} on {plain(event.device)}, at round {event.round}"
        case Restored():
            return f"goes on at round {event.round}, step {event.step}, with {plain(event.what, 200)}"
        case Waiting():
            return f"round {event.round}: {plain(event.reason, 200)}" if event.reason.startswith("waiting") else None
        case RoundClosed():
            return _closed(event)
        case Evaluated():
            metrics = "".join(f"  {plain(k)} {v:.3f}" for k, v in event.metrics.items())
            return f"round {event.round}: validation loss {number(event.loss, 4)}{metrics}"
        case ShareLost():
            return f"the mailbox does not answer ({plain(event.reason, 200)}): training goes on, and it is tried again"
        case ShareBack():
            return f"the mailbox is back after {event.after_s:.0f} s"
        case Trouble():
            return plain(event.message, 300)
        case Ended():
            words = {"done": "the run is done", "stopped": "the run was stopped", "left": "left the run"}
            return f"{words.get(event.reason, event.reason)} after {event.rounds} round{'s' if event.rounds != 1 else ''}"
        case Failed():
            return f"swarm: {plain(event.message, 500)}"
        case Published() | Stepped():
            return None


def _closed(event: RoundClosed) -> str:
    of = f" ({event.round + 1} of {event.rounds})" if event.rounds else ""
    rejected = f"  rejected: {plain(', '.join(event.rejected), 200)}" if event.rejected else ""
    nobody = "nobody" if not event.participants else plain(", ".join(event.participants), 200)
    return f"round {event.round} closed{of} with {nobody}  train loss {number(event.train_loss, 4)}{rejected}"


def plain(text: str, limit: int = 80) -> str:
    """Text that may come from another machine: printable characters only, bounded."""
    cleaned = "".join(c if c.isprintable() else "·" for c in text)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
