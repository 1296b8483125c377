"""What Home says of the known mailboxes and of this machine's jobs: values in, words out. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from swarm.api import Home, Job, RunState, progress
from tui import text, view_ranks
from tui.messages import RUNNING_JOB, HomeShown, RunAt
from tui.view_run import METHODS, STALE_S, asked_by, joinable, method, phase_cell, program_words, round_text
from tui.widgets.table import Cell, Column, Row
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


def runs(home: Home) -> Iterator[tuple[RunAt, RunState]]:
    """All runs, those that can be joined first, among them those that are trained."""
    rank = {"running": 0, "waiting": 0, "paused": 1, "idle": 1}
    found = [(RunAt(view.location, state.run), state) for view in home.mailboxes for state in view.runs]
    yield from sorted(found, key=lambda each: rank.get(each[1].phase, 2))  # stable: newest first stays


def find_run(home: Home, at: RunAt) -> RunState | None:
    return next((state for where, state in runs(home) if where == at), None)


def run_rows(home: Home, here: str = "") -> tuple[Row, ...]:
    """`here`: this user's home folder, shown as `~`."""
    mine = {job.run for job in home.jobs if job.state in RUNNING_JOB}
    return tuple(_run_row(at, state, mine=state.run in mine, here=here) for at, state in runs(home))


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
            Cell(text.plain(job.message), tone) if job.state in _UNASKED and job.message else log,
        ),
    )


def job_detail(job: Job | None, here: str = "") -> Iterator[Line]:
    """More of the job under the cursor, if it failed or was dropped."""
    if job is None or job.state not in _UNASKED:
        return
    mark, tone = _JOBS[job.state]
    how = "was dropped" if job.state == "dropped" else "failed"
    said = text.plain(job.message, 400) or "it left no message"
    yield ((f"{mark} {text.plain(job.run_name, 40)} {how}: ", tone), (said, ""))
    yield ((f"  whole log: {text.short_path(text.plain(str(job.log), 300), here)}", "dim"),)


def run_detail(state: RunState | None) -> Iterator[Line]:
    """More of the run under the cursor, where the list cannot say all: who asked for what, and how it is joined."""
    if state is None or state.lost:
        return
    name, now = text.plain(state.name, 40), state.effect
    if state.phase == "paused":
        yield ((f"‖ {name} is paused{asked_by(now.by)}: P lets it go on", "warn"),)
    elif now.ending and joinable(state):
        yield ((f"‖ {name}: a {'stop' if now.stopping else 'pause'} was asked for{asked_by(now.by)}", "warn"),)
    elif state.phase == "waiting" and state.phase_is_certain:
        words = f"is {state.waiting}" if progress(state) is not None else f"waits for {state.waits_for}"
        yield ((f"◌ {name} {text.plain(words)}", "warn"),)
    if joinable(state) and (program := program_words(state)):
        yield ((program, "dim"),)


def headline(shown: HomeShown | None) -> Line:
    pieces: list[Piece] = [("swarm ▸ ", "dim"), ("home", "strong")]
    if shown is None:
        return (*pieces, ("  looking at the mailboxes …", "dim"))
    home = shown.home
    count = sum(len(view.runs) for view in home.mailboxes)
    here = sum(job.state in RUNNING_JOB for job in home.jobs)
    boxes = "1 mailbox" if len(home.mailboxes) == 1 else f"{len(home.mailboxes)} mailboxes"
    pieces.append((f"  {boxes}  {text.count(count, 'run')}", ""))
    pieces.append((f"  {text.count(here, 'job')} running here", "good") if here else ("  no job running here", "dim"))
    pieces.append((f"  signed {home.fingerprint}", "good") if home.fingerprint else ("  open", "dim"))
    return tuple(pieces)


def banner(shown: HomeShown, here: str = "") -> Iterator[Line]:
    """Mailboxes that cannot be used, each with what to do about it; and what is wrong with the settings."""
    for fault in shown.faults:
        yield ((f"⚠ {text.plain(fault, 300)}", "warn"),)
    for view in shown.home.mailboxes:
        where = text.short_path(text.plain(view.location), here)
        if view.problem:
            yield ((f"✗ {where}: {text.plain(view.problem)}", "bad"), (_age(shown, view.runs), "dim"))
            if view.remedy:
                yield ((f"  {text.plain(view.remedy)}", ""),)
        elif lost := next((state.lost for state in view.runs if state.lost and not state.halted), None):
            yield ((f"✗ {where}: share lost: {text.plain(lost)}", "bad"), (_age(shown, view.runs), "dim"))
        if foreign := view.foreign.words:
            yield ((f"⚠ {where}: {foreign}: this machine's passphrase did not sign them", "warn"),)
        for state in view.runs:
            if state.halted:
                yield ((f"✗ {text.plain(state.name, 40)} cannot go on: {text.plain(state.lost or '')}", "bad"),)
            elif ignored := state.trust.ignored:
                yield ((f"⚠ {text.plain(state.name, 40)}: {text.plain(ignored)}", "warn"),)


def _age(shown: HomeShown, states: tuple[RunState, ...]) -> str:
    polled = [state.polled_at_s for state in states if state.polled_at_s is not None]
    age_s = shown.now_s - max(polled) if polled else 0.0
    return f"; what is shown is {text.span(age_s)} old" if age_s > STALE_S else ""


def empty(shown: HomeShown | None, here: str = "") -> Iterator[Line]:
    """What stands in the place of the runs while there are none: what was checked, and what to do."""
    if shown is None or any(view.runs for view in shown.home.mailboxes):
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
    yield (("No run yet.", "strong"), (" Start one here, then join it on your other machines:", ""))
    yield (("    swarm start diloco --task charlm", "accent"),)
    yield (("or watch two learners on this machine:", ""),)
    yield (("    swarm demo", "accent"),)
    yield ()
    for view in views:
        where = text.short_path(text.plain(view.location), here)
        mark: Piece = ("✗ ", "bad") if view.problem else ("✓ ", "good")
        yield (mark, (f"{where}: ", "dim"), (text.plain(view.problem) or "a mailbox, no run", "dim"))
