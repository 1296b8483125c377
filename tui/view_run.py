"""What the Run screen says of a run: values in, words out. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.cells import cell_len

from swarm import api
from swarm.api import (
    DiLoCo,
    FedAvg,
    FineTune,
    accuracy,
    private,
    settings_words,
    train_loss,
)
from tui import text, view_ranks, view_refused, view_rounds, view_trouble
from tui.commands import KEYS, Place, Table, pressed
from tui.states import STATES, learner_state
from tui.view_work import goodput_text, memory_text, totals, traffic
from tui.widgets.table import Cell, Column, Row

if TYPE_CHECKING:
    from swarm.api import (
        LearnerView,
        RunState,
    )
    from tui.messages import RunShown
    from tui.widgets.toned import Line, Piece

_MANY_STEPS = 1e9  # more than a round has
WIDE = 100  # columns, from which on the title has room for a fingerprint
ROOMY = 60  # columns, from which on it has room for who may write
STALE_S = 5.0  # a share that has not answered for so long counts as lost
METHODS = {"diloco": "DiLoCo", "fedavg": "FedAvg", "mlx-lm": "MLX-LM"}
_PHASES = {
    "running": ("●", "good"),
    "waiting": ("◌", "warn"),
    "paused": ("‖", "warn"),
    "idle": ("○", "dim"),
    "done": ("✓", "good"),
    "stopped": ("■", "dim"),
    "checking": ("◌", "dim"),
    "unknown": ("?", "dim"),
}
LEARNER_COLUMNS = (
    Column("learner", 12, grow=True),
    Column("state", 10),
    Column("round", 12, rank=1),
    Column("tok/s", 6, rank=2, right=True, descending=True),
    Column("rate", 8, rank=7, sortable=False),
    Column("loss", 6, rank=3, right=True),
    Column("beat", 6, rank=4, right=True),
    Column("device", 12, rank=5, grow=True),
    Column("memory", 8, rank=8, right=True, descending=True),
    Column("traffic", 11, rank=9, right=True, descending=True),
    Column("good", 4, rank=6, right=True, descending=True),
)


def word(state: RunState) -> str:
    """The run's phase; 'checking' while watching longer may still change it."""
    return state.phase if state.phase_is_certain or state.manifest is None else "checking"


def glyph(word: str) -> Piece:
    return _PHASES.get(word, ("?", "dim"))


def phase_cell(state: RunState) -> Cell:
    said = word(state)
    mark, tone = glyph(said)
    return Cell(f"{mark} {said}", tone)


def round_text(state: RunState) -> str:
    """'r12/40': the open round of how many; for an ended run the rounds it had. Of a data-parallel job 'it 604/1000'."""
    if view_ranks.parallel(state):
        return f"it {view_ranks.iteration_text(state)}"
    total = state.total_rounds
    return f"r{state.open_round}" + (f"/{total}" if total is not None else "")


def joinable(state: RunState) -> bool:
    """Whether a learner may still join: a run that nobody trains goes on with the next one."""
    return state.manifest is not None and state.phase in ("running", "waiting", "paused", "idle")


def stoppable(state: RunState) -> bool:
    return joinable(state) and not state.effect.stopping


def extensible(state: RunState) -> bool:
    """Whether it can be given another number of rounds: one that has had all its rounds, too."""
    rounds = state.manifest is not None and not view_ranks.parallel(state)
    return rounds and state.phase != "stopped" and not state.effect.stopping


def exportable(state: RunState) -> bool:
    return state.manifest is not None and not state.lost


def resting(state: RunState) -> bool:
    """Whether the run is paused, or about to be: what is left to ask for is that it goes on."""
    return state.effect.paused or state.effect.pausing


def droppable(state: RunState) -> tuple[str, ...]:
    """Who takes part, and was not dropped yet."""
    return tuple(view.learner for view in state.live if state.dropped_by(view) is None)


def program_words(state: RunState) -> str:
    """How a run is joined that no worker can join, in one line; '' for all others."""
    program = api.foreign_program(state.manifest) if state.manifest else ""
    return f"{name(state)} {program}" if program else ""


def can_join(shown: RunShown) -> bool:
    return joinable(shown.state) and not shown.running


def name(state: RunState) -> str:
    return text.plain(state.name, 40)


def headline(shown: RunShown, *, width: int, frozen: bool = False, energy: str = "") -> Line:
    """The first line; figures that find no room are left out, the least important first. `energy`: what the run has drawn, in
    words."""
    state = shown.state
    said = word(state)
    mark, tone = glyph(said)
    share, heard = _share(shown), _heard(shown, short=width < WIDE)
    trust = _trust(state, short=width < WIDE) if width >= ROOMY else (" ", "")
    pieces: list[Piece] = [(f"{mark} {said.upper()}", tone)]
    if frozen:
        pieces.append(("  ‖ FROZEN", "warn"))
    if state.manifest is not None:
        pieces.append((f"  {round_text(state)}", ""))
    room = width - 3 - _length([*pieces, trust, share, heard])
    who = text.fit(name(state), min(cell_len(name(state)), max(8, room - 2))) + "  "
    room -= cell_len(who)
    head = "swarm ▸ "
    if len(head) <= room:
        room -= len(head)
    else:
        head = ""
    for figure in (*_figures(state), *([f"  {energy}"] if energy else ())):
        if len(figure) > room:
            break
        pieces.append((figure, ""))
        room -= len(figure)
    return ((head, "dim"), (who, "strong"), *pieces, (" " * max(1, room + 1), ""), trust, share, heard)


def _figures(state: RunState) -> tuple[str, ...]:
    if state.manifest is None:
        return ()
    method_words = (
        f"  {METHODS.get(method(state), method(state))}",
        *(f"{'' if n else ' '} {word}" for n, word in enumerate(settings_words(state.manifest.algorithm).split())),
    )
    if view_ranks.parallel(state):
        return (*view_ranks.headline_figures(state), *method_words)
    known = [v for v in state.learners if v.state != "left" and v.role != "syncer" and state.dropped_by(v) is None]
    syncers = sum(v.role == "syncer" for v in state.live)
    return (
        f"  {len(state.trainers)}/{text.count(len(known), 'learner')}" if known else "  no learner",
        *((f" +{text.count(syncers, 'syncer')}",) if syncers else ()),
        *((f"  {text.short(state.tokens_per_s)} {work_rate(state)}",) if state.trainers and state.phase != "paused" else ()),
        *((f"  ETA {text.span(left_s)}",) if (left_s := view_rounds.eta_s(state)) is not None else ()),
        *method_words,
        *totals(state),
    )


def method(state: RunState) -> str:
    """As the command line names it; '' while it is not known."""
    return str(type(state.manifest.algorithm).__struct_config__.tag) if state.manifest else ""


def _length(pieces: list[Piece]) -> int:
    return sum(cell_len(words) for words, _ in pieces)


def _trust(state: RunState, *, short: bool) -> Piece:
    """Who may write here: 'signed 1a2b3c4d', or 'open'."""
    if state.manifest is None:
        return ("", "")
    word = state.trust.word
    return (f" {word.split()[0] if short else word}  ", "good" if state.trust.signed else "dim")


def _share(shown: RunShown) -> Piece:
    """Whether the share answers, and how long a whole look at the run took; when it does not, for how long."""
    polled_s = shown.state.polled_at_s
    if polled_s is None:
        return ("share …", "dim") if not shown.state.lost else ("share ✗", "bad")
    age_s = shown.now_s - polled_s
    if shown.state.lost or age_s > STALE_S:
        return f"share ✗ {text.span(age_s)}", "bad"
    if shown.poll_s is None:
        return f"share ✓ {text.span(age_s)}", "good"
    return f"share ✓ {1000 * shown.poll_s:.0f} ms" if shown.poll_s < 1 else f"share ✓ {text.span(shown.poll_s)}", "good"


def _heard(shown: RunShown, *, short: bool) -> Piece:
    """Whether the network tells of other machines; only a hint, since runs need none."""
    if shown.heard is None or short:
        return ("", "")
    return ("  mDNS ✓", "good") if shown.heard else ("  mDNS ✗", "dim")


def banner(shown: RunShown, keys: Table = KEYS) -> Iterator[Line]:
    """What needs attention, most urgent first."""
    state, job = shown.state, shown.job
    age_s = None if state.polled_at_s is None else shown.now_s - state.polled_at_s
    unread = "nothing was read yet" if state.manifest is None else "its learners were not read yet"
    age = unread if age_s is None else f"what is shown is {text.span(age_s)} old"
    if shown.problem:
        yield ((f"✗ {text.plain(shown.problem)}; {age}", "bad"),)
    elif state.halted:
        yield ((f"✗ a forged record: the run cannot go on; {age}", "bad"),)
        yield ((f"  {text.plain(state.lost or '', 400)}", ""),)
    elif state.lost:
        yield ((f"✗ share lost: {text.plain(state.lost)}; {age}; trying again", "bad"),)
    elif age_s is not None and age_s > STALE_S:
        yield ((f"✗ the share does not answer; {age}", "bad"),)
    elif state.manifest is None:
        yield (("◌ reading the run", "dim"),)
        return
    if ignored := state.trust.ignored:
        yield ((f"⚠ {text.plain(ignored)}", "warn"),)
    yield from view_trouble.worker_lines(shown, again=can_join(shown) and not program_words(state), keys=keys)
    if job is not None and job.state == "starting":
        yield ((f"◌ this machine joins as {text.plain(job.learner, 64)}: its worker is starting", "accent"),)
    yield from view_trouble.job_lines(shown)
    if job is not None and job.held:
        yield ((f"‖ paused here: {text.plain(job.held, 200)}; it goes on by itself", "warn"),)
    if state.manifest is not None and not state.lost:
        yield from _phase_lines(shown, keys)
        yield from view_trouble.oddity_lines(api.oddities(state, shown.sightings), keys)


def _phase_lines(shown: RunShown, keys: Table) -> Iterator[Line]:
    state, manifest = shown.state, shown.state.manifest
    assert manifest is not None
    here = f"; join it here: {pressed(keys, Place.RUN, 'join')}" if can_join(shown) and not program_words(state) else ""
    job = view_ranks.parallel(state)
    ended = view_ranks.summary(state) if job else f"{text.count(state.open_round, 'round')}, loss {_last_loss(state)}"
    by = asked_by(state.effect.by)
    match word(state):
        case "waiting":
            yield ((f"◌ {text.plain(state.waiting)}{here}", "warn"),)
        case "paused":
            yield ((f"‖ paused{by}: {pressed(keys, Place.RUN, 'pause')} lets it go on{here}", "warn"),)
        case "idle":
            since = f"since round {state.open_round - 1}" if state.rounds else "since its start"
            since = f"at {round_text(state)}" if job else since
            yield ((f"○ idle {since}: no learner is live{here}", "warn"),)
        case "done":
            yield ((f"✓ done: {ended}", "good"),)
        case "stopped":
            yield ((f"■ stopped{by}: {ended}", "dim"),)
            if (end := state.ranks.ending) is not None and end.reason:
                yield ((f"  {text.plain(end.reason)}", "warn"),)
        case "checking":
            yield (("◌ watching for signs of life", "dim"),)
        case _:
            silent = [v for v in state.learners if v.state == "silent" and state.dropped_by(v) is None]
            if silent:
                names = ", ".join(f"{text.plain(v.learner, 64)} silent {text.span(v.beat_age_s)}" for v in silent[:3])
                rest = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
                yield ((f"⚠ {names}{rest}; {_without(shown)}", "warn"),)
                yield from view_trouble.silent_words(shown, silent)
    if state.phase in ("running", "waiting"):
        yield from view_ranks.apart_lines(state)
        if state.effect.stopping:
            yield ((f"■ stop was asked for{by}: it takes effect at the next {'step' if job else 'round'}", "warn"),)
        elif state.effect.pausing:
            yield ((f"‖ a pause was asked for{by}: it begins after the next {'step' if job else 'round'}", "warn"),)
    mine = {each.learner for each in shown.running}
    for view in [each for each in state.live if each.held and each.learner not in mine][:3]:
        yield ((f"‖ {text.plain(view.learner, 64)} is not waited for: {text.plain(view.held, 100)}", "warn"),)
    for view in state.live:
        dropped = state.dropped_by(view)
        if dropped is not None:
            yield ((f"○ {text.plain(view.learner, 64)} was dropped{asked_by(dropped)}, and is about to leave", "warn"),)


def _without(shown: RunShown) -> str:
    """What becomes of the round when a learner is silent."""
    state = shown.state
    match state.manifest.algorithm if state.manifest is not None else None:
        case FedAvg(private=True):
            return "the round closes without their clients"
        case FedAvg():
            return "whoever is live trains their clients"
        case FineTune():
            return "the others go on from the last checkpoint"
        case _:
            left_s = view_rounds.grace_left_s(shown)
            when = f", or in {text.span(left_s)}" if left_s is not None and left_s > 0 else ""
            return f"the round closes with the {len(state.trainers)} still live{when}"


def asked_by(machine: str) -> str:
    """' by studio'; '' if it is not known who."""
    return f" by {text.plain(machine, 32)}" if machine else ""


def _last_loss(state: RunState) -> str:
    if state.evals:
        right = accuracy(state.evals[-1].metrics)
        return f"{text.loss(state.evals[-1].loss)} (validation){'' if right is None else f', accuracy {text.loss(right)}'}"
    return text.loss(train_loss(state.rounds[-1]) if state.rounds else None)


def learner_rows(shown: RunShown) -> tuple[Row, ...]:
    state = shown.state
    mine = {job.learner for job in shown.running}
    order = {"syncer": 1, "silent": 2, "left": 3, "dropped": 3}
    place = {
        v.learner: order.get("syncer" if v.live and v.role == "syncer" else learner_state(state, v), 0) for v in state.learners
    }
    views = sorted(state.learners, key=lambda v: (place[v.learner], v.learner))
    # One that took part before, and cannot any more, has no row beside: why is what there is to say of it now.
    live, refused = {view.learner for view in state.live}, dict(shown.refused)
    rows = [_learner_row(state, v, mine=v.learner in mine) for v in views if v.live or v.learner not in refused]
    return (*rows, *view_refused.rows(shown, LEARNER_COLUMNS, without=live))


def _learner_row(state: RunState, view: LearnerView, *, mine: bool) -> Row:
    beat, record = view.beat, view.record
    said = learner_state(state, view)
    mark, tone = STATES.get(said, ("?", ""))
    trains = view.role != "syncer"
    live, left = view.live and beat is not None, said in ("left", "dropped")
    steps = round_steps(state)
    done = f" {beat.step:>4}{f'/{steps}' if steps else ''}" if beat is not None and trains else ""
    at = text.NONE if beat is None else f"r{beat.round}{done}"
    running = live and trains and said != "paused"
    rate_s = beat.tokens_per_s if running and beat else 0.0
    hidden = state.manifest is not None and private(state.manifest.algorithm)  # of its data only counts are told
    loss = beat.loss if live and beat and not hidden else None
    bars = Cell(_rate_bars(view.rates) if trains else "", "accent")
    if said == "dropped":
        bars = Cell(asked_by(state.dropped_by(view) or "").strip())
    return Row(
        key=view.learner,
        quiet=left,
        cells=(
            Cell(text.plain(view.learner, 64) + ("*" if mine else ""), "strong" if mine else ""),
            Cell(f"{mark} {said}", tone),
            Cell(at, order=beat.round * _MANY_STEPS + beat.step if beat else ""),
            Cell(text.short(rate_s) if running else text.NONE, order=rate_s),
            bars,
            Cell(text.loss(loss), order=loss if loss is not None else ""),
            # Of one that left, the age would be that of our watching.
            Cell(
                text.NONE if left or not beat else text.span(view.beat_age_s), "" if view.live else "bad", order=view.beat_age_s
            ),
            Cell(text.plain(record.device, 40) if record and record.device else text.NONE),
            Cell(memory_text(view), order=float(api.used_bytes(view) or 0)),
            Cell(traffic(beat) if beat else text.NONE, order=float(beat.sent_bytes + beat.received_bytes if beat else 0)),
            Cell(goodput_text(beat) if trains else "", order=api.goodput(beat) or 0.0),
        ),
    )


def _rate_bars(rates: tuple[float, ...]) -> str:
    # As far below the lowest as the highest is above it: changes show, and a small one does not look like a stall.
    shown = text.thin(rates[-16:], 8)
    return text.bars(shown, 8, low=max(0.0, 2 * min(shown) - max(shown)))[0] if shown else ""


def round_steps(state: RunState) -> int:
    """Inner steps between two rounds; 0 where that depends on the data."""
    algorithm = state.manifest.algorithm if state.manifest is not None else None
    return max(1, algorithm.sync_every // algorithm.fragments) if isinstance(algorithm, DiLoCo) else 0


def work_rate(state: RunState) -> str:
    """What work per second is called."""
    return "smp/s" if state.manifest is not None and isinstance(state.manifest.algorithm, FedAvg) else "tok/s"
