"""A run's attached files, as its machines meet them: who creates it attaches its data, who joins it has them fetched."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from swarm.core.errors import DataMissing, FileChanged, FileRefused, PayloadCorrupt, PayloadError, PayloadMissing, UsageError
from swarm.core.events import ShareBack, ShareLost, Transfer, Trouble, WorkerEvent
from swarm.core.manifest import DataRef, FileRef, Manifest
from swarm.core.sentences import amount
from swarm.files.attach import Attachment, attach, describe
from swarm.files.cache import Cache
from swarm.files.fetch import cached, fetch_file
from swarm.mailbox.contract import Mailbox
from swarm.runtime.patience import BACKOFF_S, Patience, jittered

ATTACHED_BYTES = 1 << 30  # data from this size on is attached only if it is asked for
LATE_S = 90.0  # for so long a share may not show what another machine wrote
TOLD_S, LINE_S = 1.0, 10.0  # between two events of progress; between two that are worth a line

Emit = Callable[[WorkerEvent], None]


def chosen(path: Path, data: tuple[DataRef, ...], *, wanted: bool | None, emit: Emit) -> Attachment | None:
    """The file at `path`, a new run's data, if it is to be attached. `wanted` None: if it is small enough, and plain data;
    why it is not is told. Raises UsageError if it is wanted and cannot be, FileChanged."""
    if wanted is False:
        return None
    advice = "who joins passes it with --data"
    if len(data) > 1:
        if wanted:
            raise UsageError(f"{path} is data of {len(data)} files, and one can be attached: {advice}")
        emit(Trouble(message=f"{path} is not attached, it is data of {len(data)} files: {advice}"))
        return None
    try:
        size = path.stat().st_size
        if wanted is None and size >= ATTACHED_BYTES:
            emit(Trouble(message=f"{path.name}, {amount(size)}, is not attached without --attach: {advice}"))
            return None
        file = describe(path)
    except (FileRefused, OSError) as error:
        if wanted:
            raise UsageError(f"{error}") from error
        emit(Trouble(message=f"not attached: {error}; {advice}"))
        return None
    if [(ref.sha256, ref.size_bytes) for ref in data] != [(file.ref.sha256, file.ref.size_bytes)]:
        raise FileChanged(f"{path} changed while it was read")
    return file


async def attach_patiently(mailbox: Mailbox, run: str, file: Attachment, emit: Emit) -> FileRef:
    """Write it into the mailbox, for as long as that takes. Raises FileChanged, FileRefused."""
    told = Told(file.ref, "attach", emit)
    ref = await attach(mailbox, run, file, progress=told, through=_patience(mailbox, emit, "attaching").through)
    told.done()
    return ref


@contextlib.contextmanager
def task_data(mailbox: Mailbox, manifest: Manifest, given: str | None, emit: Emit) -> Iterator[Path | None]:
    """Where the data of the run's task is, for the time of the block: the file that a person gave, else the attached one,
    fetched unless it is on this machine; None if there is neither. Raises DataMissing, FileRefused, CacheUnusable."""
    ref = None if given is not None else attached_data(manifest)
    if ref is None:
        yield None if given is None else Path(given)
        return
    with Cache() as cache:
        yield asyncio.run(fetch_patiently(mailbox, manifest.run, ref, cache, emit))


def attached_data(manifest: Manifest) -> FileRef | None:
    """The attached file that the run's task trains on."""
    wanted = {(ref.sha256, ref.size_bytes) for ref in manifest.task.data}
    return next((ref for ref in manifest.files if ref.kind == "data" and (ref.sha256, ref.size_bytes) in wanted), None)


async def fetch_patiently(mailbox: Mailbox, run: str, ref: FileRef, cache: Cache, emit: Emit) -> Path:
    """The file, in `cache`: fetched for as long as that takes, however often the share is away. Raises DataMissing if it is
    not whole in the mailbox, FileRefused, CacheUnusable."""
    if (found := cached(cache, ref)) is not None:
        emit(Transfer(file=ref.name, how="have", done_bytes=ref.size_bytes, size_bytes=ref.size_bytes))
        return found
    told, patience = Told(ref, "fetch", emit), _patience(mailbox, emit, "fetching")
    now = asyncio.get_running_loop().time
    missing, until_s = "", 0.0
    while True:
        try:
            path = await patience.through(lambda: fetch_file(mailbox, run, ref, cache, progress=told))
        except PayloadMissing as error:
            if error.key != missing:
                missing, until_s = error.key, now() + LATE_S
            if now() >= until_s:
                raise DataMissing(_not_whole(ref, error)) from error
            await asyncio.sleep(jittered(BACKOFF_S[1]))
        except PayloadCorrupt as error:
            raise DataMissing(_not_whole(ref, error)) from error
        else:
            told.done()
            return path


def _not_whole(ref: FileRef, error: PayloadError) -> str:
    return f"{ref.name!r} is attached to the run, but not whole: {error}; pass the same file with --data"


def _patience(mailbox: Mailbox, emit: Emit, doing: str) -> Patience:
    def tell(event: WorkerEvent) -> None:
        if isinstance(event, ShareLost):
            emit(Trouble(message=f"the mailbox does not answer ({event.reason}): {doing} goes on when it is back"))
        elif isinstance(event, ShareBack):
            emit(event)

    return Patience(mailbox, tell)


class Told:
    """Tells how a transfer goes: its size before it begins, now and then how far it is, and its end."""

    def __init__(
        self, ref: FileRef, how: Literal["attach", "fetch"], emit: Emit, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ref, self._how, self._emit, self._now = ref, how, emit, now
        self._told_s = self._line_s = now()
        self._tell(0, line=True)

    def __call__(self, done_bytes: int) -> None:
        now_s = self._now()
        if 0 < done_bytes < self._ref.size_bytes and now_s - self._told_s >= TOLD_S:
            line = now_s - self._line_s >= LINE_S
            self._told_s, self._line_s = now_s, now_s if line else self._line_s
            self._tell(done_bytes, line=line)

    def done(self) -> None:
        self._tell(self._ref.size_bytes, line=True)

    def _tell(self, done_bytes: int, *, line: bool) -> None:
        size = self._ref.size_bytes
        self._emit(Transfer(file=self._ref.name, how=self._how, done_bytes=done_bytes, size_bytes=size, line=line))
