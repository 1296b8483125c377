"""The feed, loaded when the app has been painted: what reads mailboxes takes longer to load than a terminal to fill."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tui.messages import CommandEnded, Facts

if TYPE_CHECKING:
    from textual.message import Message

    from tui.feed import Feed


class Later:
    """Stands for the feed that `make` makes, on a thread of its own; what is asked of it before is asked then, in order."""

    def __init__(self, make: Callable[[], Feed]) -> None:
        self._make = make
        self._feed: Feed | None = None
        self._asked: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self._lock = threading.Lock()
        self._closed = False

    def start(self, post: Callable[[Message], object]) -> None:
        threading.Thread(target=self._load, args=(post,), name="feed-load", daemon=True).start()

    def _load(self, post: Callable[[Message], object]) -> None:
        try:
            feed = self._make()
        except Exception as error:  # an installation that is broken: nothing would ever be shown, and nobody told why
            post(CommandEnded("start", "", f"{type(error).__name__}: {error}"))
            return
        with self._lock:
            if self._closed:
                return
            feed.start(post)
            for name, given, named in self._asked:
                getattr(feed, name)(*given, **named)
            self._feed = feed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._feed is not None:
                self._feed.close()

    @property
    def facts(self) -> Facts:
        return Facts() if self._feed is None else self._feed.facts

    def __getattr__(self, name: str) -> Callable[..., None]:
        def ask(*given: Any, **named: Any) -> None:
            with self._lock:
                if self._feed is None:
                    self._asked.append((name, given, named))
                    return
            getattr(self._feed, name)(*given, **named)

        return ask
