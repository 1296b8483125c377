"""A rank that makes no progress ends itself: of a collective whose other ranks hang or sleep, nothing else is heard."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable

from swarm.core.errors import GroupBroken

PATIENCE = 10.0  # times the longest wait between two signs of progress so far
LOOK_S = 0.5
LAST_WORDS_S = 2.0


class Progress:
    """When the last sign of progress came, and how long the next may take. Pure: time is an argument."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._what, self._since_s, self._limit_s, self._longest_s = "", 0.0, float("inf"), 0.0
        self._grows, self._advice = False, ""

    def expect(self, what: str, limit_s: float, *, now_s: float, grows: bool = False, advice: str = "") -> None:
        """From now on, `what` is being done. `grows`: signs that come slowly are given more time. `advice`: what else to say
        when it takes too long."""
        with self._lock:
            self._advice = f"; {advice}" if advice else ""
            self._what, self._limit_s, self._since_s, self._grows, self._longest_s = what, limit_s, now_s, grows, 0.0

    def sign(self, now_s: float) -> None:
        with self._lock:
            self._longest_s = max(self._longest_s, now_s - self._since_s)
            self._since_s = now_s

    def overdue(self, now_s: float) -> str:
        """In words, what takes too long; else empty."""
        with self._lock:
            limit_s = max(self._limit_s, PATIENCE * self._longest_s) if self._grows else self._limit_s
            silent_s = now_s - self._since_s
            return f"{self._what}: no sign of progress for {silent_s:.0f} s{self._advice}" if silent_s > limit_s else ""


class Watchdog:
    """Watches over a Progress from a thread of its own, which runs while a collective hangs; no signal handler would."""

    def __init__(self, last_words: Callable[[str], None]) -> None:
        self._progress, self._last_words = Progress(), last_words

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def leash(self, lines: Iterable[bytes], heard: Callable[[bytes], None]) -> None:
        """Hand on every line, and end this process after the last: whoever started it is gone."""
        threading.Thread(target=self._hold, args=(lines, heard), name="leash", daemon=True).start()

    def expect(self, what: str, limit_s: float, *, grows: bool = False, advice: str = "") -> None:
        self._progress.expect(what, limit_s, now_s=time.monotonic(), grows=grows, advice=advice)

    def sign(self) -> None:
        self._progress.sign(time.monotonic())

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            words = self._progress.overdue(time.monotonic())
            if words:
                self._end(words)

    def _hold(self, lines: Iterable[bytes], heard: Callable[[bytes], None]) -> None:
        for line in lines:
            heard(line)
        self._end("whoever started this rank is gone")

    def _end(self, words: str) -> None:
        # On a thread of their own: whoever should read them may have stopped doing so, and the pipe may be full.
        speaker = threading.Thread(target=self._last_words, args=(words,), daemon=True)
        speaker.start()
        speaker.join(LAST_WORDS_S)
        os._exit(GroupBroken.exit_code)
