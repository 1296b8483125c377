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
    RoundClosed,
    ShareBack,
    ShareLost,
    Stepped,
    Transfer,
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
        case Transfer():
            return _transfer(event) if event.line else None
        case Joined():
            again = f", incarnation {event.incarnation}" if event.incarnation > 1 else ""
            return f"joined {plain(event.name)} as {event.learner}{again} on {plain(event.device)}, at round {event.round}"
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


def transferred(event: Transfer) -> str:
    """For a line that is painted over."""
    doing = {"attach": "attaching", "fetch": "fetching", "have": "checking"}[event.how]
    share = 100 * event.done_bytes // max(1, event.size_bytes)
    return f"{doing} {plain(event.file)}  {share} % of {amount(event.size_bytes)}"


def _transfer(event: Transfer) -> str:
    size = f"{plain(event.file)}, {amount(event.size_bytes)}"
    if event.how == "have":
        return f"{size}, is on this machine already: nothing to fetch"
    if event.done_bytes >= event.size_bytes:
        return f"{'attached' if event.how == 'attach' else 'fetched'} {size}"
    if event.done_bytes == 0:
        return f"{'attaching' if event.how == 'attach' else 'fetching'} {size} …"
    return transferred(event)


def _closed(event: RoundClosed) -> str:
    of = f" ({event.round + 1} of {event.rounds})" if event.rounds else ""
    rejected = f"  rejected: {plain(', '.join(event.rejected), 200)}" if event.rejected else ""
    nobody = "nobody" if not event.participants else plain(", ".join(event.participants), 200)
    return f"round {event.round} closed{of} with {nobody}  train loss {number(event.train_loss, 4)}{rejected}"


def plain(text: str, limit: int = 80) -> str:
    """Text that may come from another machine: printable characters only, bounded."""
    cleaned = "".join(c if c.isprintable() else "·" for c in text)
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"


def amount(size_bytes: int) -> str:
    """A size for people, in three digits: '999 bytes', '4.35 MB', '12.3 GB'."""
    size, unit = float(size_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 99.95 else f"{size:.{1 if size >= 9.995 else 2}f} {unit}"


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
