"""What listings have shown lately, so that an object that was listed is opened without listing its folder again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Container

FOLDERS = 512


class Names:
    """Names by folder, of the folders listed last. Says only that a name was there: absence is asked anew each time."""

    def __init__(self, folders: int = FOLDERS) -> None:
        self._folders = folders
        self._names: OrderedDict[str, Container[str]] = OrderedDict()
        self._lock = threading.Lock()

    def has(self, folder: str, name: str) -> bool:
        with self._lock:
            return name in self._names.get(folder, ())

    def remember(self, folder: str, names: Container[str]) -> None:
        with self._lock:
            self._names[folder] = names
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
