"""What Home says of the known mailboxes and of this machine's jobs: values in, words out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm.api import progress
from tui import text, view_ranks
from tui.commands import KEYS, Place, Table, pressed
from tui.messages import RUNNING_JOB, RunAt
from tui.transitions import unread
from tui.view_run import METHODS, STALE_S, asked_by, glyph, joinable, method, phase_cell, program_words, round_text
from tui.widgets.table import Cell, Column, Row
from tui.widgets.toned import bounded

if TYPE_CHECKING:
    from swarm.api import Job, RunState, SeenPeer, SeenRun, Sightings
    from tui.messages import HomeShown
    from tui.widgets.toned import Line, Piece

RUN_COLUMNS = (
    Column("run", 22, grow=True),
    Column("method", 7, rank=5),
    Column("task", 10, rank=2, grow=True),
    Column("state", 10),
    Column("round", 8, rank=1, right=True, descending=True),
    Column("live", 4, rank=3, right=True, descending=True),
    Column("tok/s", 6, rank=4, right=True, descending=True),
    Column("mailbox", 16, rank=6, grow=True),
)
JOB_COLUMNS = (
    Column("run", 22),
    Column("learner", 14, rank=1),
    Column("state", 10),
    Column("device", 11, rank=2),
    Column("last words, or the log", 24, rank=3, grow=True, sortable=False),
)
_JOBS = {
    "starting": ("◌", "accent"),
    "running": ("●", "good"),
    "done": ("✓", "dim"),
    "stopped": ("■", "dim"),
    "left": ("○", "dim"),
    "dropped": ("○", "warn"),
    "failed": ("✗", "bad"),
}
_UNASKED = ("dropped", "failed")  # ends that nobody on this machine asked for
_SEPARATOR = "\n"  # in no location and in no id


def row_key(at: RunAt) -> str:
    return f"{at.mailbox}{_SEPARATOR}{at.run}"


def run_at(key: str) -> RunAt | None:
    mailbox, found, run = key.rpartition(_SEPARATOR)
    return RunAt(mailbox, run) if found else None


@dataclass(frozen=True)
class Entry:
    """A run of a mailbox, or one that the network alone tells of."""

    at: RunAt
    state: RunState | None = None
    seen: SeenRun | None = None

    @property
    def name(self) -> str:
        return self.state.name if self.state is not None else self.seen.advert.name if self.seen is not None else self.at.run

    @property
    def phase(self) -> str:
        return self.state.phase if self.state is not None else self.seen.advert.phase if self.seen is not None else ""

    @property
    def joinable(self) -> bool:
        if self.state is not None:
            return joinable(self.state)
        return self.seen is not None and self.seen.ours and self.phase not in ("done", "stopped")

    @property
    def program(self) -> str:
        """How it is joined, if no worker can; else ''."""
        return program_words(self.state) if self.state is not None else ""


def entries(shown: HomeShown) -> Iterator[Entry]:
    """All runs, those that can be joined first, among them those that are trained. What a mailbox holds is not told twice."""
    heard = {seen.advert.run: seen for seen in reversed(shown.sightings.runs)}
    found = [
        Entry(RunAt(view.location, state.run), state, heard.get(state.run))
        for view in shown.home.mailboxes
        for state in view.runs
    ]
    known = {entry.at.run for entry in found}
    here = {view.location for view in shown.home.mailboxes}
    alone = [seen for run, seen in heard.items() if run not in known and seen.location not in here]
    found += [Entry(RunAt("", seen.advert.run), None, seen) for seen in sorted(alone, key=lambda seen: seen.advert.name)]
    rank = {"running": 0, "waiting": 0, "paused": 1, "idle": 1}
    yield from sorted(found, key=lambda each: rank.get(each.phase, 2) if each.joinable else 3)  # stable: newest first stays


def find_entry(shown: HomeShown, at: RunAt) -> Entry | None:
    return next((entry for entry in entries(shown) if entry.at == at), None)


def run_rows(shown: HomeShown, here: str = "") -> tuple[Row, ...]:
    """`here`: this user's home folder, shown as `~`."""
    mine = {job.run for job in shown.home.jobs if job.state in RUNNING_JOB}
    rows = []
    for entry in entries(shown):
        if entry.state is not None:
            rows.append(_run_row(entry.at, entry.state, mine=entry.at.run in mine, here=here))
        elif entry.seen is not None:
            rows.append(_heard_row(entry, entry.seen))
    return tuple(rows)


def _heard_row(entry: Entry, seen: SeenRun) -> Row:
    advert = seen.advert
    mark, tone = glyph(advert.phase or "unknown")
    total = f"/{advert.rounds}" if advert.rounds is not None else ""
    parallel = advert.method == "mlx-lm"
    done = f"it {advert.round}{total}" if parallel else f"r{advert.round}{total}"
    where = text.plain(advert.share, 60) or "not mounted here"
    return Row(
        key=row_key(entry.at),
        quiet=not entry.joinable,
        cells=(
            Cell(text.plain(advert.name, 64), "strong"),
            Cell(METHODS.get(advert.method, text.plain(advert.method, 10)) or text.NONE),
            Cell(text.plain(advert.task, 40) or text.NONE),
            Cell(f"{mark} {text.plain(advert.phase, 10) or 'unknown'}", tone),
            Cell(done, order=float(advert.round)),
            Cell(str(advert.learners) if advert.learners else text.NONE, order=float(advert.learners)),
            Cell(text.NONE, order=0.0),
            Cell(where if seen.ours else "another swarm's", "warn" if seen.ours else "dim"),
        ),
    )


def _run_row(at: RunAt, state: RunState, *, mine: bool, here: str) -> Row:
    live = len(state.trainers)
    rate_s = state.tokens_per_s if live and state.phase != "paused" else 0.0
    return Row(
        key=row_key(at),
        quiet=not joinable(state),
        cells=(
            Cell(text.plain(state.name, 64) + ("*" if mine else ""), "strong"),
            Cell(METHODS.get(method(state), method(state)) or text.NONE),
            Cell(_task(state)),
            phase_cell(state),
            _done(state),
            Cell(str(live) if live else text.NONE, order=float(live)),
            Cell(text.short(rate_s) if rate_s else text.NONE, order=rate_s),
            Cell(text.short_path(text.plain(at.mailbox), here), "dim"),
        ),
    )


def _task(state: RunState) -> str:
    """What is trained: the task, or the model that is fine-tuned, without whose it is."""
    if state.manifest is None:
        return text.NONE
    model = state.manifest.model
    return text.plain(model.name.rpartition("/")[2] if model is not None else state.manifest.task.name, 40)


def _done(state: RunState) -> Cell:
    at = progress(state)
    if at is not None:
        return Cell(view_ranks.iteration_text(state), order=float(at.iteration))
    return Cell(round_text(state), order=float(state.open_round))


def job_rows(jobs: tuple[Job, ...], here: str = "") -> tuple[Row, ...]:
    """Those that run first, then the newest."""
    return tuple(_job_row(job, here) for job in sorted(jobs, key=lambda job: job.state not in RUNNING_JOB))


def _job_row(job: Job, here: str) -> Row:
    mark, tone = _JOBS.get(job.state, ("?", ""))
    log = Cell(text.short_path(text.plain(str(job.log), 300), here), "dim")
    return Row(
        key=job.id,
        quiet=job.state in ("done", "stopped", "left"),
        cells=(
            Cell(text.plain(job.run_name, 64), "strong"),
            Cell(text.plain(job.learner, 64)),
            Cell(f"{mark} {text.plain(job.state, 10)}", tone),
            Cell(text.plain(job.device, 40) or text.NONE),
            _last_words(job, tone) or log,
        ),
    )


def _last_words(job: Job, tone: str) -> Cell | None:
    """Why it ended, if nobody asked for that, or what is in its way."""
    if job.trouble:
        return Cell(text.plain(job.trouble, 400), "bad")
    return Cell(text.plain(job.message), tone) if job.state in _UNASKED and job.message else None


def job_detail(job: Job | None, here: str = "") -> Iterator[Line]:
    """More of the job under the cursor, if it failed or was dropped."""
    if job is None or job.state not in _UNASKED:
        return
    mark, tone = _JOBS[job.state]
    how = "was dropped" if job.state == "dropped" else "failed"
    said = text.plain(job.message, 400) or "it left no message"
    yield ((f"{mark} {text.plain(job.run_name, 40)} {how}: ", tone), (said, ""))
    yield ((f"  whole log: {text.short_path(text.plain(str(job.log), 300), here)}", "dim"),)


def run_detail(state: RunState | None, keys: Table = KEYS) -> Iterator[Line]:
    """More of the run under the cursor, where the list cannot say all: who asked for what, and how it is joined."""
    if state is None or state.lost:
        return
    name, now = text.plain(state.name, 40), state.effect
    if state.phase == "paused":
        yield ((f"‖ {name} is paused{asked_by(now.by)}: {pressed(keys, Place.HOME, 'pause')} lets it go on", "warn"),)
    elif now.ending and joinable(state):
        yield ((f"‖ {name}: a {'stop' if now.stopping else 'pause'} was asked for{asked_by(now.by)}", "warn"),)
    elif state.phase == "waiting" and state.phase_is_certain:
        words = f"is {state.waiting}" if progress(state) is not None else f"waits for {state.waits_for}"
        yield ((f"◌ {name} {text.plain(words)}", "warn"),)
    if joinable(state) and (program := program_words(state)):
        yield ((program, "dim"),)


def heard_detail(entry: Entry | None, keys: Table = KEYS) -> Iterator[Line]:
    """The same of a run that the network alone tells of."""
    seen = entry.seen if entry is not None and entry.state is None else None
    if entry is None or seen is None:
        return
    name, who = text.plain(entry.name, 40), ", ".join(text.plain(peer, 40) for peer in seen.peers[:3]) or "the network"
    if not seen.ours:
        yield ((f"{name} is of another swarm: its machines have another passphrase, or none", "dim"),)
        return
    how = f"{pressed(keys, Place.HOME, 'open')} says how, and joins it"
    yield ((f"◌ {name} was heard from {who}; its mailbox is not mounted here: ", "warn"), (how, ""))


# The machines

PEER_COLUMNS = (
    Column("machine", 18, grow=True),
    Column("state", 10),
    Column("devices", 18, rank=1, grow=True),
    Column("memory", 6, rank=3, right=True, descending=True),
    Column("swarm", 8, rank=4),
    Column("seen by", 9, rank=5),
    Column("address", 22, rank=2, grow=True),
)
_PEERS = {
    "training": ("●", "good"),
    "waiting": ("◌", "warn"),
    "paused": ("‖", "warn"),
    "idle": ("○", ""),
    "watching": ("○", "dim"),
}
_HOW = {"network": "network", "address": "address", "mailbox": "mailbox"}


def others(sightings: Sightings) -> bool:
    """Whether another machine than this one is seen."""
    return any(not peer.itself for peer in sightings.peers)


def peer_key(peer: SeenPeer) -> str:
    return f"{peer.advert.peer}{_SEPARATOR}{peer.advert.boot}{_SEPARATOR}{peer.ours}"


def peer_rows(shown: HomeShown) -> tuple[Row, ...]:
    """Other machines first, this one last."""
    return tuple(_peer_row(peer) for peer in sorted(shown.sightings.peers, key=lambda peer: (peer.itself, not peer.ours)))


def _peer_row(peer: SeenPeer) -> Row:
    advert = peer.advert
    mark, tone = _PEERS[advert.state]
    doubt = peer.doubled or peer.sees_us is False or bool(peer.unreachable)
    address = advert.address or next(iter(peer.addresses), "")
    return Row(
        key=peer_key(peer),
        quiet=not peer.ours,
        cells=(
            Cell(text.plain(advert.name, 60) + ("*" if peer.itself else "") + (" ⚠" if doubt else ""), "strong"),
            Cell(f"{mark} {advert.state}", tone) if peer.ours else Cell("another swarm's", "dim"),
            Cell(", ".join(text.plain(each, 40) for each in advert.accelerators) or "cpu"),
            Cell(text.size(advert.memory_bytes) if advert.memory_bytes else text.NONE, order=float(advert.memory_bytes)),
            Cell(text.plain(advert.version, 20) or text.NONE),
            Cell(" ".join(_HOW[how] for how in peer.how[:1])),
            Cell(text.plain(address, 60) or text.NONE, "dim"),
        ),
    )


def peer_detail(shown: HomeShown, key: str) -> Iterator[Line]:
    """What is wrong with the machine under the cursor, and what to do about it."""
    peer = next((peer for peer in shown.sightings.peers if peer_key(peer) == key), None)
    if peer is None:
        return
    name = text.plain(peer.advert.name, 40)
    if peer.itself:
        yield ((f"{name} is this machine", "dim"),)
    if peer.doubled:
        yield ((f"⚠ {name} has the id of another machine: was its home folder copied? One of them takes a new one", "warn"),)
    if not peer.ours:
        yield ((f"{name} has another passphrase than this machine, or none", "dim"),)
    if peer.sees_us is False:
        yield ((f"⚠ {name} does not hear this machine: ", "warn"), ("is a firewall in between? `swarm doctor` tells more", ""))
    if peer.unreachable:
        yield ((f"⚠ {name} cannot be connected to: {text.plain(peer.unreachable, 200)}", "warn"),)


def headline(shown: HomeShown | None) -> Line:
    if shown is None:
        return text.OPENING
    pieces: list[Piece] = [("swarm ▸ ", "dim"), ("home", "strong")]
    home = shown.home
    count = sum(1 for _ in entries(shown))
    here = sum(job.state in RUNNING_JOB for job in home.jobs)
    boxes = "1 mailbox" if len(home.mailboxes) == 1 else f"{len(home.mailboxes)} mailboxes"
    pieces.append((f"  {boxes}  {text.count(count, 'run')}", ""))
    pieces.append((f"  {text.count(here, 'job')} running here", "good") if here else ("  no job running here", "dim"))
    pieces.append((f"  signed {home.fingerprint}", "good") if home.fingerprint else ("  open", "dim"))
    if others(shown.sightings):
        count = sum(not peer.itself for peer in shown.sightings.peers)
        pieces.append((f"  {text.count(count, 'other machine')}", ""))
    return tuple(pieces)


def banner(shown: HomeShown, here: str = "", keys: Table = KEYS) -> Iterator[Line]:
    """Mailboxes that cannot be used, each with what to do about it; and what is wrong with the settings."""
    faults = (((f"⚠ {text.plain(fault, 300)}", "warn"),) for fault in shown.faults)
    yield from bounded(faults, 3, f"the settings ({pressed(keys, Place.EVERYWHERE, 'settings')}) show them")
    for trouble in shown.sightings.trouble[:3]:
        yield ((f"⚠ {text.plain(trouble, 300)}", "warn"),)
    for view in shown.home.mailboxes:
        where = text.short_path(text.plain(view.location), here)
        if view.problem:
            yield ((f"✗ {where}: {text.after_place(view.location, view.problem)}", "bad"), (_age(shown, view.runs), "dim"))
            if view.remedy:
                yield ((f"  {text.plain(view.remedy)}", ""),)
        elif lost := next((state.lost for state in view.runs if state.lost and not state.halted), None):
            yield ((f"✗ {where}: share lost: {text.after_place(view.location, lost)}", "bad"), (_age(shown, view.runs), "dim"))
        if foreign := view.foreign.words:
            yield ((f"⚠ {where}: {foreign}: this machine's passphrase did not sign them", "warn"),)
        for state in view.runs:
            if state.halted:
                yield ((f"✗ {text.plain(state.name, 40)} cannot go on: {text.plain(state.lost or '')}", "bad"),)
            elif ignored := state.trust.ignored:
                yield ((f"⚠ {text.plain(state.name, 40)}: {text.plain(ignored)}", "warn"),)
    yield from _job_lines(shown)


def _job_lines(shown: HomeShown) -> Iterator[Line]:
    """What is in the way of this machine's workers, where the screen itself can read the mailbox: a full one answers."""
    away = unread(shown.home)
    for job in [each for each in shown.home.jobs if each.trouble and each.mailbox not in away][:3]:
        name = text.plain(job.run_name, 40)
        yield ((f"✗ {name} on this machine: {text.plain(job.trouble, 400)}; tried again", "bad"),)


def _age(shown: HomeShown, states: tuple[RunState, ...]) -> str:
    polled = [state.polled_at_s for state in states if state.polled_at_s is not None]
    age_s = shown.now_s - max(polled) if polled else 0.0
    return f"; what is shown is {text.span(age_s)} old" if age_s > STALE_S else ""


def empty(shown: HomeShown | None, here: str = "", keys: Table = KEYS) -> Iterator[Line]:
    """What stands in the place of the runs while there are none: what was checked, and what to do."""
    if shown is None or next(entries(shown), None) is not None:
        return
    yield ()
    views = shown.home.mailboxes
    if not views:
        yield (("No mailbox is known on this machine.", "strong"),)
        yield ()
        yield (
            ("A mailbox is a folder that all your machines can reach. Make one on a share, or anywhere to try it alone:", ""),
        )
        yield (("    swarm init DIR", "accent"),)
        yield ()
        yield (("Looked at: --mailbox, SWARM_MAILBOX, and the settings.", "dim"),)
        return
    if all(view.problem for view in views):  # the banner says which
        yield (("No mailbox answers.", "strong"), (" It is tried again all the time.", ""))
        return
    yield (("No run yet.", "strong"), (" Start one here, then join it on your other machines: ", ""))
    yield ((f"    {pressed(keys, Place.HOME, 'new')}", "accent"), (" opens the form of a new run; or type:", ""))
    yield (("    swarm start diloco --task charlm", "accent"),)
    yield (("or watch two learners on this machine:", ""),)
    yield (("    swarm demo", "accent"),)
    yield ()
    for view in views:
        where = text.short_path(text.plain(view.location), here)
        mark: Piece = ("✗ ", "bad") if view.problem else ("✓ ", "good")
        yield (mark, (f"{where}: ", "dim"), (text.plain(view.problem) or "a mailbox, no run", "dim"))
