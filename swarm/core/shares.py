"""How a batch is divided among ranks of unequal speed. From the same numbers all ranks come to the same answer: only + − × ÷
and comparisons are used."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

WINDOW = 9  # measured steps that a decision takes; the median of them forgives a few slow ones
WORTH = 1.15  # a step must be expected to take so many times what it would take with better shares
TOTAL = 1000  # shares are of so many parts
IDLE_STEPS = 100  # without a single row, after which a rank is tried again; twice as many each time

Shares = tuple[int, ...]


class Balance:
    """The shares of all ranks, which follow their measured speeds."""

    def __init__(self, shares: Sequence[int]) -> None:
        """`shares`: to begin with; a rank with 0 takes no part, and never will."""
        if not any(shares) or min(shares) < 0:
            raise ValueError(f"shares must not be negative, and not all zero, got {list(shares)}")
        self.shares: Shares = tuple(shares)
        self._ranks = {rank: _Speed() for rank, share in enumerate(shares) if share > 0}

    def fraction(self, rank: int) -> float:
        return self.shares[rank] / sum(self.shares)

    def measured(self, work: Sequence[float], seconds: Sequence[float]) -> bool:
        """Add a step: by rank, what it was given (tokens) and how long it took. Whether the shares are others from now on."""
        for rank, speed in self._ranks.items():
            speed.add(work[rank], seconds[rank])
        if len(self._ranks) == 1 or not all(speed.known for speed in self._ranks.values()):
            return False
        again = [speed for speed in self._ranks.values() if speed.forget()]
        speeds = self._speeds()
        better = divided(speeds, size=len(self.shares))
        # Steps take some time for nothing. Where that is most of it, a rank with little work looks slow, and would get still
        # less: so what counts is that one rank really holds up the others.
        took_s = [speed.took_s for speed in self._ranks.values() if speed.took_s is not None]
        uneven = len(took_s) < len(self._ranks) or max(took_s) > WORTH * sum(took_s) / len(took_s)
        worth = uneven and expected(self.shares, speeds) > WORTH * expected(better, speeds)
        for speed in again:
            speed.idle = 0
        if better == self.shares or not (worth or again):
            return False
        self.shares = better
        for speed in self._ranks.values():
            speed.begin()
        return True

    def _speeds(self) -> dict[int, float]:
        """Of each rank; of one that is not known, the mean of the others'."""
        known = [speed.median for speed in self._ranks.values() if speed.median is not None]
        mean = sum(known) / len(known) if known else 1.0
        return {rank: mean if speed.median is None else speed.median for rank, speed in self._ranks.items()}


class _Speed:
    """What is known of a rank."""

    def __init__(self) -> None:
        self.idle = 0
        """Steps since it had work."""
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._last: float | None = None  # from before the shares were changed
        self._patience = IDLE_STEPS

    def begin(self) -> None:
        """The shares are others: what comes is not to be mixed with what was."""
        self._last = self.median
        self._recent.clear()
        self._seconds.clear()
        self.idle = 0

    def add(self, work: float, seconds: float) -> None:
        if work > 0 and seconds > 0:
            self._recent.append(work / seconds)
            self._seconds.append(seconds)
            self.idle = 0
        else:
            self.idle += 1

    @property
    def took_s(self) -> float | None:
        """The median of its steps; None if it had no work of late."""
        return statistics.median(self._seconds) if len(self._seconds) == WINDOW else None

    @property
    def known(self) -> bool:
        """Whether there is something to decide on."""
        return len(self._recent) == WINDOW or self.idle >= WINDOW

    @property
    def median(self) -> float | None:
        return statistics.median(self._recent) if len(self._recent) == WINDOW else self._last

    def forget(self) -> bool:
        """Whether its speed was from so long ago that it is measured again, however slow it was."""
        if self.idle < self._patience:
            return False
        self._patience *= 2
        self._recent.clear()
        self._seconds.clear()
        self._last = None
        return True


def divided(speeds: dict[int, float], *, size: int) -> Shares:
    """TOTAL parts (or one for each rank, if that is more) in proportion to the speeds (> 0), by largest remainder; a rank
    without a speed gets none, all others at least one."""
    spare = max(0, TOTAL - len(speeds))
    whole = sum(speeds.values())
    exact = {rank: spare * (speed / whole) for rank, speed in speeds.items()}
    parts = {rank: int(part) for rank, part in exact.items()}
    left = spare - sum(parts.values())
    for rank in sorted(parts, key=lambda rank: (parts[rank] - exact[rank], rank))[: max(0, left)]:
        parts[rank] += 1
    return tuple(parts[rank] + 1 if rank in parts else 0 for rank in range(size))


def expected(shares: Sequence[int], speeds: dict[int, float]) -> float:
    """How long the slowest rank takes for its share of one piece of work."""
    whole = sum(shares)
    return max(shares[rank] / whole / speed for rank, speed in speeds.items())
