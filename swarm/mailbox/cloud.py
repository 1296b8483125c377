"""Folders that a cloud client copies to other machines later: each of these writes its own copy, and two can win a record."""

from __future__ import annotations

import os
from pathlib import Path

_NAMES = {
    "dropbox": "Dropbox",
    "mobile documents": "iCloud Drive",
    "icloud drive": "iCloud Drive",
    "onedrive": "OneDrive",
    "google drive": "Google Drive",
    "googledrive": "Google Drive",
    "my drive": "Google Drive",
    "cloudstorage": "a cloud drive",
    "nextcloud": "Nextcloud",
    "owncloud": "ownCloud",
}
_MARKS = {".stfolder": "Syncthing", ".dropbox.cache": "Dropbox"}


def synchronised(path: str) -> str | None:
    """In words, which program copies the folder `path`, or one that it is in; None: none that is known."""
    real = Path(os.path.realpath(path))
    for part in real.parts:
        for name, cloud in _NAMES.items():
            if part.lower() == name or part.lower().startswith((f"{name} - ", f"{name}-")):
                return f"{path} is in a folder of {cloud}"
    for folder in (real, *real.parents):
        for mark, cloud in _MARKS.items():
            if (folder / mark).exists():
                return f"{folder} is kept by {cloud}"
        if (folder / ".dropbox").is_file():  # in a home, a folder of this name has its settings
            return f"{folder} is kept by Dropbox"
    return None
