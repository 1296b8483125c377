"""What dead writers left in tmp/ and trash/."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial

from swarm.mailbox.errnos import foreign
from swarm.mailbox.folder_read import OURS, TMP, TRASH
from swarm.mailbox.folder_write import FolderFiles


class Sweeper:
    """Judges by this process's clock alone: from when it first saw something as it still is."""

    def __init__(self, files: FolderFiles) -> None:
        self._files = files
        self._seen: dict[str, tuple[float, tuple[int, int]]] = {}  # path → since when, and size and time of change

    def sweep(self, older_than_s: float, now_s: float) -> int:
        """Remove what has been the same for `older_than_s`; how many."""
        files = self._files
        with foreign(files.root):
            files.guard()
            lying = files.patiently(partial(self._look, TMP)) | files.patiently(partial(self._look, TRASH))
        seen = {}
        for path, what in lying.items():
            since_s, before = self._seen.get(path, (now_s, what))
            seen[path] = (since_s if before == what else now_s, what)
        removed = 0
        for path, (since_s, _) in list(seen.items()):
            if now_s - since_s >= older_than_s and self._remove(path):
                removed += 1
                del seen[path]
        self._seen = seen
        return removed

    def _look(self, place: str) -> dict[str, tuple[int, int]]:
        found = {}
        for name in os.listdir(self._files.path(place)):
            if OURS.fullmatch(name) and name not in self._files.staging:
                with suppress(FileNotFoundError):
                    at = os.lstat(self._files.path(f"{place}/{name}"))
                    found[f"{place}/{name}"] = (at.st_size, at.st_mtime_ns)
                self._files.progressed()
        return found

    def _remove(self, path: str) -> bool:
        return self._files.discard(path) if path.startswith(f"{TMP}/") else self._files.remove(path)
