"""What is known to be there, from listings and from one's own writes, so that it is opened without listing its folder again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

FOLDERS = 512


class Names:
    """Names by folder, of the folders seen last. Says only that a name was there: absence is asked anew each time."""

    def __init__(self, folders: int = FOLDERS) -> None:
        self._folders = folders
        self._names: OrderedDict[str, set[str]] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, folder: str, name: str) -> bool:
        with self._lock:
            return name in self._names.get(folder, ())

    def listed(self, folder: str, names: Iterable[str], *, whole: bool = True) -> None:
        """These are in `folder`, and no others if that is the `whole` of it."""
        with self._lock:
            if whole:
                self._names[folder] = set(names)
            else:
                self._names.setdefault(folder, set()).update(names)
            self._touch(folder)

    def written(self, path: str) -> None:
        """`path` is there, though a late listing may not show it yet."""
        folder, _, name = path.rpartition("/")
        with self._lock:
            self._names.setdefault(folder, set()).add(name)
            self._touch(folder)

    def _touch(self, folder: str) -> None:
        self._names.move_to_end(folder)
        if len(self._names) > self._folders:
            self._names.popitem(last=False)

    def forget(self, folder: str) -> None:
        with self._lock:
            self._names.pop(folder, None)

    def forget_above(self, path: str) -> None:
        """Forget every folder on the way to `path`."""
        with self._lock:
            while path:
                path = path.rpartition("/")[0]
                self._names.pop(path, None)
