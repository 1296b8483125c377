"""Fixed states, a feed that plays them, and an app over it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import textual._wait
import textual.screen
from textual.cache import LRUCache
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.message import Message
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input

from swarm import api
from swarm.core.adverts import PeerAdvert, RunAdvert
from swarm.core.clients import sampled
from swarm.core.finetune import FineTune
from swarm.core.joining import JoinFacts, join_ticks
from swarm.core.lease import BeatId
from swarm.core.manifest import PayloadRef, TaskRef
from swarm.core.mounting import Desktop, parse_share, way, ways_in_words
from swarm.core.records import Claim, Control
from swarm.core.sightings import SeenPeer, SeenRun, Sightings
from swarm.core.specs import DiLoCo, FedAvg
from swarm.core.state import (
    ClientsRead,
    ControlRead,
    EvalRead,
    LearnerRead,
    ManifestRead,
    Polled,
    RoundRead,
    ShareLost,
    SnapshotRead,
    apply,
)
from swarm.core.tensorspec import TensorSpec
from tests.integration import handmade_job
from tui.app import SwarmApp
from tui.messages import (
    Facts,
    HomePolled,
    HomeShown,
    JoinPolled,
    JoinShown,
    LogLine,
    NetworkPolled,
    NetworkShown,
    RunAt,
    RunPolled,
    RunShown,
)
from tui.transitions import Note

# After every key a Pilot looks twice whether the process rests, for 20 ms each, and a screen paints 60 times a second: half of
# the time that these tests took. Both are quicker here; the messages under way are waited for as before.
textual._wait.SLEEP_GRANULARITY, textual._wait.SLEEP_IDLE = 1 / 250, 1 / 1000
textual.screen.UPDATE_PERIOD = 1 / 500  # type: ignore[misc]

# A cursor that blinks is in a picture or not, as the machine is busy.
Input._toggle_cursor = lambda self: None  # type: ignore[method-assign]

# Every app reads the same styles, and keeps what it made of them to itself: here, what one has read the others know.
_parse_rules = Stylesheet._parse_rules
_rules_of: dict[frozenset[tuple[str, str]], LRUCache[tuple[object, ...], list[RuleSet]]] = {}


def _read_once(sheet: Stylesheet, *args: Any, **more: Any) -> list[RuleSet]:
    sheet._parse_cache = _rules_of.setdefault(frozenset(sheet._variables.items()), LRUCache(4096))
    try:
        return _parse_rules(sheet, *args, **more)
    finally:
        sheet._parse_cache = LRUCache(1)  # which `set_variables` clears


Stylesheet._parse_rules = _read_once  # type: ignore[method-assign]


# A screen is painted whenever anything changed, a few times a key, and headless for nobody. Here it is painted once the Pilot
# has waited for the messages under way, which is when a test looks.
_paint, _wait, _pause = Screen._compositor_refresh, Pilot._wait_for_screen, Pilot.pause


def _paint_later(screen: Screen[Any]) -> None:
    app = screen.app
    if app.is_headless and not app.is_inline and screen is app.screen:
        screen._dirty_widgets.clear()
        app._update_mouse_over(screen)
    else:
        _paint(screen)


def _paint_now(pilot: Pilot[Any]) -> None:
    if pilot.app.is_running and pilot.app.screen._compositor._dirty_regions:
        _paint(pilot.app.screen)


async def _wait_and_paint(pilot: Pilot[Any], timeout: float = 30.0) -> bool:
    done = await _wait(pilot, timeout)
    if done:
        _paint_now(pilot)
    return done


async def _pause_and_paint(pilot: Pilot[Any], delay: float | None = None) -> None:
    await _pause(pilot, delay)
    _paint_now(pilot)


Screen._compositor_refresh = _paint_later  # type: ignore[method-assign]
Pilot._wait_for_screen = _wait_and_paint  # type: ignore[method-assign]
Pilot.pause = _pause_and_paint  # type: ignore[method-assign]

run_from_the_start = SwarmApp.run_test


async def home_is_there(pilot: Pilot[Any]) -> None:
    """Before it, the app shows one line for as long as Home is loaded."""
    while len(pilot.app.screen_stack) < 2 or not pilot.app.screen.children:
        await pilot.pause()
    await pilot.pause()


@contextlib.asynccontextmanager
async def _with_home(app: SwarmApp, **arguments: Any) -> AsyncGenerator[Pilot[None], None]:
    async with run_from_the_start(app, **arguments) as pilot:
        await home_is_there(pilot)
        yield pilot


SwarmApp.run_test = _with_home  # type: ignore[method-assign]

SHARE = "/mnt/share/swarm"
AT = RunAt(SHARE, "k4m7q2xw")
NAME = "charlm-brave-otter"
DEVICES = {"studio": "torch mps", "mbp": "mlx metal", "linux-3090": "torch cuda:0", "air": "mlx metal"}


def manifest(
    *, run: str = AT.run, name: str = NAME, rounds: int | None = 40, start_learners: int = 2, task: str = "charlm"
) -> api.Manifest:
    return api.Manifest(
        run=run,
        name=name,
        algorithm=DiLoCo(sync_every=100, quorum_size=2, start_learners=start_learners),
        task=TaskRef(name=task),
        tensors=(TensorSpec("embed", "F32", (4, 4)),),
        schema_sha256="0" * 64,
        init=(),
        rounds=rounds,
        created_by="studio",
    )


def loss_at(round: int, shift: float = 0.0) -> float:
    return 1.6 + 2.2 / (1 + 0.35 * round) + shift + 0.03 * ((round * 7) % 5 - 2)


def round_record(
    round: int, learners: Iterable[str], rejected: Iterable[api.Rejected] = (), *, norm: float | None = None
) -> api.RoundRecord:
    names = tuple(learners)
    return api.RoundRecord(
        round=round,
        fragment=0,
        step=100 * (round + 1),
        version=round if names else -1,
        parent=None,
        participants=tuple(
            api.Participant(
                learner=name,
                unit=name,
                weight=1.0 / len(names),
                tokens=102_400,
                steps=100,
                train_loss=loss_at(round, 0.02 * n),
                seconds_s=5.6 + n,
                size_bytes=1 << 20,
                delta_norm=None if norm is None else norm * (n + 1),
            )
            for n, name in enumerate(names)
        ),
        rejected=tuple(rejected),
        theta=PayloadRef(round=round, sha256="1" * 64, size_bytes=1 << 20),
        outer=None,
        closer=names[0] if names else "",
        close_s=0.4,
    )


def beat(n: int, learner: str, *, phase: str = "train", round: int = 12, step: int = 0) -> api.Beat:
    speed = {"studio": 820.0, "mbp": 455.0, "linux-3090": 1210.0, "air": 131.0}.get(learner, 300.0)
    return api.Beat(
        phase=phase,  # type: ignore[arg-type]
        round=round,
        step=step,
        steps=100 * round + step,
        tokens_per_s=speed * (1 + 0.05 * ((n * 7) % 11 - 5)) * (0.4 if n % 9 == 8 else 1.0),
        loss=loss_at(round, 0.01 * (n % 3)),
        rss_bytes=int(1.4e9),
        sent_bytes=12 << 20,
        received_bytes=11 << 20,
    )


def run_state(
    *,
    learners: tuple[str, ...] = ("studio", "mbp", "linux-3090", "air"),
    closed: int = 12,
    rounds: int | None = 40,
    silent: tuple[str, ...] = (),
    left: tuple[str, ...] = (),
    polls: int = 24,
    stop: bool = False,
    start_learners: int = 2,
    run: str = AT.run,
    name: str = NAME,
    task: str = "charlm",
    syncers: tuple[str, ...] = (),
    algorithm: DiLoCo | None = None,
    beat_every_s: float = 2.5,
    controls: tuple[Control, ...] = (),
) -> api.RunState:
    """As a watch folds it, polling every 2.5 s from second 0. Those in `silent` stop beating after the first third."""
    made = manifest(run=run, name=name, rounds=rounds, start_learners=start_learners, task=task)
    if algorithm is not None:
        made = msgspec.structs.replace(made, algorithm=algorithm)
    state = apply(api.RunState(run=run), ManifestRead(made))
    everybody = learners + syncers
    for round in range(closed):
        missing = round % 5 == 3  # air comes late to this one, as the next record says
        late = (api.Rejected(learner="air", unit="air", reason="late", round=round - 1),) if round % 5 == 4 else ()
        record = round_record(round, (n for n in learners if not (missing and n == "air")), late)
        if (stop or controls) and round == closed - 1:
            record = msgspec.structs.replace(record, control=1)
        state = apply(state, RoundRead(record))
        state = apply(state, EvalRead(api.EvalRecord(round=round, learner=learners[0], loss=loss_at(round, 0.07))))
    for n, name_ in enumerate(everybody):
        role = "syncer" if name_ in syncers else "both"
        state = apply(
            state,
            LearnerRead(
                api.LearnerRecord(
                    learner=name_,
                    incarnation=1,
                    machine=f"machine-{n}",
                    machine_name=name_,
                    boot="boot",
                    pid=4000 + n,
                    process="1",
                    version="0.1.0",
                    device="" if role == "syncer" else DEVICES.get(name_, "torch cpu"),
                    role=role,  # type: ignore[arg-type]
                )
            ),
        )
    rests = any(c.action == "pause" for c in controls)
    phases = ("paused",) * 4 if rests else ("train", "upload", "wait", "train")
    for poll in range(polls):
        beats = {}
        for n, name_ in enumerate(everybody):
            at = min(poll, polls // 3) if name_ in silent else poll
            phase = "left" if name_ in left else "wait" if name_ in syncers and not rests else phases[n % 4]
            step = 100 if phase in ("upload", "wait") else min(99, 20 + 2 * at)
            said = beat(at, name_, phase=phase, round=closed, step=step)
            if name_ in syncers:
                said = msgspec.structs.replace(said, role="syncer", step=0, tokens_per_s=0.0, loss=None)
            beats[name_] = (BeatId(1, at), said)
        state = apply(state, Polled(now_s=poll * beat_every_s, beats=beats))
    if closed and not (stop or rests):
        for name_ in learners[1:3]:
            if name_ not in silent and name_ not in left:
                state = apply(state, SnapshotRead(snapshot(closed, name_)))
    if stop:
        state = apply(state, ControlRead(1, Control(action="stop", by="studio")))
    for n, control in enumerate(controls, len(state.controls) + 1):
        state = apply(state, ControlRead(n, control))
    return state


def fed_state(
    *,
    clients: int = 10,
    per_round: int = 4,
    closed: int = 12,
    private: bool = False,
    learners: tuple[str, ...] = ("studio", "mbp", "linux-3090"),
    silent: tuple[str, ...] = (),
    buffers: str = "averaged",
    labels: int = 10,
    polls: int = 24,
) -> api.RunState:
    """A FedAvg run as a watch folds it: of the open round one client is reported, the next ones are claimed by the learners in
    turn, and one is left. Its last round closed at its deadline, with a client that two learners trained differently."""
    spec = FedAvg(
        clients=clients,
        per_round=per_round,
        private=private,
        optimizer="adam",
        partition="dirichlet:0.5",
        buffers=buffers,  # type: ignore[arg-type]
        deadline_s=60.0,
    )
    made = msgspec.structs.replace(manifest(task="lenet5", name="lenet5-calm-lynx"), algorithm=spec)
    state = apply(api.RunState(run=AT.run), ManifestRead(made))

    def units(round: int) -> tuple[str, ...]:
        return tuple(sorted(learners)) if private else sampled(spec, made.seed, round)

    for round in range(closed):
        last, chosen = round == closed - 1, units(round)
        parts = tuple(
            api.Participant(
                learner=unit if private else learners[n % len(learners)],
                unit=unit,
                weight=90.0,
                tokens=60 + 37 * n + 3 * (round % 5),
                steps=6,
                train_loss=loss_at(2 * round, 0.02 * n),
                seconds_s=1.2 + 0.3 * n,
                size_bytes=240 << 10,
                metrics={"accuracy": 1 - 0.9 / (1.3 + 0.5 * round) + 0.01 * n},
            )
            for n, unit in enumerate(chosen[:-1] if last else chosen)
        )
        twice = api.Rejected(learner="mbp", unit=chosen[0], reason="duplicate", round=round, differs=True)
        record = msgspec.structs.replace(
            round_record(round, learners, (twice,) if last and not private else ()),
            step=round + 1,
            participants=parts,
            reason="the deadline is over: 3 of 4 clients" if last else "every client has reported",
            clients=units(round + 1) if private else (),
            waited_s=2.5,
        )
        state = apply(state, RoundRead(record))
        right = 1 - 0.85 / (1.2 + 0.6 * round)
        confusion = tuple(tuple(30 + a if a == b else (a * b + round) % 3 for b in range(labels)) for a in range(labels))
        found = api.EvalRecord(
            round=round, learner=learners[0], loss=loss_at(2 * round, 0.07), metrics={"accuracy": right}, confusion=confusion
        )
        state = apply(state, EvalRead(found))
    for n, name_ in enumerate(learners):
        who = api.LearnerRecord(
            learner=name_,
            incarnation=1,
            machine=f"machine-{n}",
            machine_name=name_,
            boot="boot",
            pid=4000 + n,
            process="1",
            version="0.1.0",
            device=DEVICES.get(name_, "torch cpu"),
        )
        state = apply(state, LearnerRead(who))
    for poll in range(polls):
        at = {name_: min(poll, polls // 3) if name_ in silent else poll for name_ in learners}
        beats = {name_: (BeatId(1, k), beat(k, name_, round=closed, step=k % 6)) for name_, k in at.items()}
        state = apply(state, Polled(now_s=2.5 * poll, beats=beats))
    first, *others = units(closed)
    done = msgspec.structs.replace(snapshot(closed, first if private else learners[0]), unit=first, tokens=75)
    state = apply(state, SnapshotRead(done))
    claims = {
        unit: {0: Claim(round=closed, learner=who, incarnation=1)} for unit, who in zip(others, learners[1:], strict=False)
    }
    return apply(state, ClientsRead(closed, {} if private else claims))


def job_state(*, meeting: bool = False, finished: bool = False, silent: tuple[str, ...] = (), **more: object) -> api.RunState:
    """A data-parallel job as a watch folds it; `meeting`: between two generations."""
    if finished:
        records = handmade_job.job(upto=1000, finished=True)
        return handmade_job.seen(records, spec=FineTune(world_size_min=2), live=False, step=1000, run=AT.run)
    if not meeting:
        state = handmade_job.job(upto=600)
        return handmade_job.seen(state, spec=FineTune(world_size_min=2), silent=silent, run=AT.run, polls=24, **more)
    records = [r for r in handmade_job.job() if getattr(r, "generation", None) in (0, 1)]
    records += [handmade_job.member("studio", 2)]
    words = {"studio": "waiting for 1 more machine; not here: linux-3090, mbp"}
    return handmade_job.seen(records, spec=FineTune(world_size_min=2), trains=False, words=words, run=AT.run)


def snapshot(round: int, learner: str) -> api.Snapshot:
    return api.Snapshot(
        round=round,
        fragment=0,
        learner=learner,
        incarnation=1,
        unit=learner,
        base_sha256="2" * 64,
        schema_sha256="0" * 64,
        dtype=None,
        payload=PayloadRef(round=round, sha256="3" * 64, size_bytes=1 << 20),
        tokens=102_400,
        steps=100,
        train_loss=2.0,
        seconds_s=6.0,
    )


def lost(state: api.RunState, *, after_s: float = 3.0, reason: str = "the share does not answer") -> api.RunState:
    return apply(state, ShareLost(now_s=(state.polled_at_s or 0.0) + after_s, reason=reason))


def job(
    *,
    state: str = "running",
    run: str = AT.run,
    name: str = NAME,
    message: str = "",
    id: str = "20250301-120000-a1b2c3",
    doing: str = "",
) -> api.Job:
    return api.Job(
        id=id,
        mailbox=SHARE,
        run=run,
        run_name=name,
        learner="studio",
        state=state,
        message=message,
        pid=4000,
        device="torch mps",
        doing=doing,
        log=Path(f"/home/ann/.local/state/swarm/jobs/{id}/log.txt"),
    )


def home(*states: api.RunState, jobs: tuple[api.Job, ...] = (), problem: str = "", remedy: str = "") -> api.Home:
    return api.Home(mailboxes=(api.MailboxView(location=SHARE, problem=problem, remedy=remedy, runs=states),), jobs=jobs)


def home_shown(
    value: api.Home, *, age_s: float = 0.4, notes: tuple[Note, ...] = (), sightings: Sightings | None = None
) -> HomeShown:
    polled = [s.polled_at_s for v in value.mailboxes for s in v.runs if s.polled_at_s is not None]
    now_s = max(polled, default=0.0) + age_s
    return HomeShown(home=value, now_s=now_s, polled_at_s=now_s, notes=notes, sightings=sightings or Sightings())


MAILBOX = "a1b2c3d4" * 4  # id of the one that `far` is in
FAR = RunAt("", "far00001")
PEERS = {"studio": 38 << 30, "mbp": 20 << 30, "linux-3090": 24 << 30}


def seen_run(*, ours: bool = True, phase: str = "running", share: str = "smb://nas/swarm", **more: object) -> SeenRun:
    """A run that the network alone tells of."""
    advert = RunAdvert(
        run=FAR.run,
        peer="1" * 32,
        name="digits-far-heron",
        method="diloco",
        task="lenet5",
        mailbox=MAILBOX,
        phase=phase,
        round=7,
        rounds=40,
        learners=2,
        share=share,
    )
    return SeenRun(advert=msgspec.structs.replace(advert, **more), how=("network",), peers=("linux-3090",), ours=ours)


def seen_peer(name: str, *, itself: bool = False, **more: object) -> SeenPeer:
    advert = PeerAdvert(
        peer=name.encode().hex().ljust(32, "0")[:32],
        name=name,
        boot="0" * 8,
        version="0.2.0",
        accelerators=(DEVICES[name],),
        memory_bytes=PEERS[name],
        state="training" if name == "linux-3090" else "watching",
        address=f"192.168.1.{len(name)}",
    )
    return SeenPeer(advert=advert, how=("network",), itself=itself, **more)  # type: ignore[arg-type]


def sightings(*runs: SeenRun, peers: tuple[SeenPeer, ...] | None = None) -> Sightings:
    here = (seen_peer("linux-3090"), seen_peer("mbp", sees_us=False), seen_peer("studio", itself=True))
    return Sightings(runs=runs, peers=here if peers is None else peers)


def join_shown(
    *, at: RunAt = FAR, job: api.Job | None = None, mounting: bool = False, unsure: str = "", **facts: object
) -> JoinShown:
    """All ticks as facts make them, by default of a run that can be joined."""
    state = manifest(run=at.run, name="digits-far-heron", task="lenet5")
    good = JoinFacts(
        name=state.name,
        mailbox=MAILBOX,
        listened=True,
        told_by=("linux-3090",),
        looked=True,
        location=SHARE,
        share_words="4 ms to write, sync, rename, list, read and delete a small file",
        manifest=state,
        their_format=1,
        phase="running",
        phase_words="running, round 7 of 40, 2 learners",
        trains=True,
        passphrase="open",
        version="0.2.0",
        task_words="lenet5, with torch",
        free_bytes=20 << 30,
        total_bytes=38 << 30,
    )
    all_facts = msgspec.structs.replace(good, **facts)
    share = parse_share("smb://nas/swarm")
    how = way(share, Desktop(system="linux", gio=True, user="ann", uid=1000)) if all_facts.location is None else None
    if how is not None:
        all_facts = msgspec.structs.replace(all_facts, mounting=ways_in_words(MAILBOX, share, how))
    joining = api.Joining(
        run=at.run,
        name=state.name,
        ticks=join_ticks(all_facts),
        location=all_facts.location,
        manifest=all_facts.manifest,
        looked=all_facts.looked,
        share=share,
        way=how,
        unsure=unsure,
    )
    return JoinShown(at=at, joining=joining, now_s=100.0, job=job, mounting=mounting)


def not_mounted(**more: object) -> JoinShown:
    unknown = {"manifest": None, "phase": None, "share_words": None, "passphrase": None, "their_format": None}
    advert = seen_run().advert
    return join_shown(location=None, advert=advert, **{**unknown, **more})


LOG = (
    LogLine("12:03:58 studio joined charlm-brave-otter as studio, torch mps"),
    LogLine("12:04:02 round 10 closed: 4/4, train 2.099, val 2.154"),
    LogLine("12:04:09 round 11 closed: 4/4, train 2.031, val 2.095"),
    LogLine("12:04:12 WARN linux-3090 silent: no beat for 30 s", "warn"),
)


def run_shown(
    state: api.RunState, *, age_s: float = 0.4, job: api.Job | None = None, log: tuple[LogLine, ...] = LOG, **more: object
) -> RunShown:
    now_s = (state.polled_at_s or 0.0) + age_s
    return RunShown(at=RunAt(SHARE, state.run), state=state, now_s=now_s, jobs=(job,) if job else (), log=log, **more)  # type: ignore[arg-type]


class PlayedFeed:
    """Plays fixed snapshots and notes down the commands."""

    def __init__(
        self,
        home: HomeShown | None,
        run: RunShown | None = None,
        *,
        joining: JoinShown | None = None,
        network: NetworkShown | None = None,
    ) -> None:
        self.home, self.run, self.joining, self.network = home, run, joining, network
        self.asked: list[tuple[str, object]] = []
        self.closed = False
        self._post: Callable[[Message], object] = lambda message: None

    def start(self, post: Callable[[Message], object]) -> None:
        self._post = post
        if self.home is not None:
            self._post(HomePolled(self.home))

    def close(self) -> None:
        self.closed = True

    def show(self, at: RunAt | None) -> None:
        self.asked.append(("show", at))
        if at is not None and self.run is not None:
            self._post(RunPolled(self.run))

    def tell(self, value: HomeShown | RunShown | JoinShown | NetworkShown | Message) -> None:
        if isinstance(value, HomeShown):
            self.home = value
            value = HomePolled(value)
        elif isinstance(value, RunShown):
            self.run = value
            value = RunPolled(value)
        elif isinstance(value, JoinShown):
            self.joining = value
            value = JoinPolled(value)
        elif isinstance(value, NetworkShown):
            self.network = value
            value = NetworkPolled(value)
        self._post(value)

    def check(self, at: RunAt | None, *, name: str = "") -> None:
        self.asked.append(("check", at))
        if at is not None and self.joining is not None:
            self._post(JoinPolled(self.joining))

    def ask(self, question: object) -> None:
        self.asked.append(("ask", question))

    def mount(self, at: RunAt, way: object) -> None:
        self.asked.append(("mount", at))

    def add_peer(self, address: str) -> None:
        self.asked.append(("add the peer", address))

    def save(self, setting: str, value: object) -> None:
        self.asked.append(("save", (setting, value)))

    def rescan(self) -> None:
        self.asked.append(("rescan", None))

    def examine(self) -> None:
        self.asked.append(("examine", None))
        if self.network is not None:
            self._post(NetworkPolled(self.network))

    def join(self, at: RunAt) -> None:
        self.asked.append(("join", at))

    def leave(self, job: str) -> None:
        self.asked.append(("leave", job))

    def stop(self, at: RunAt) -> None:
        self.asked.append(("stop", at))

    def pause(self, at: RunAt) -> None:
        self.asked.append(("pause", at))

    def resume(self, at: RunAt) -> None:
        self.asked.append(("resume", at))

    def drop(self, at: RunAt, learner: str) -> None:
        self.asked.append(("drop", (at, learner)))

    def extend(self, at: RunAt, rounds: int | None) -> None:
        self.asked.append(("extend", (at, rounds)))

    def export(self, at: RunAt, file: str) -> None:
        self.asked.append(("export", (at, file)))

    @property
    def facts(self) -> Facts:
        return Facts(home_polls=3, home_poll_s=0.012, run_polls=7, run_poll_s=0.004)


def app_over(
    home: HomeShown | None,
    run: RunShown | None = None,
    *,
    joining: JoinShown | None = None,
    network: NetworkShown | None = None,
    ascii: bool = False,
    pictures: Path | None = None,
) -> SwarmApp:
    feed = PlayedFeed(home, run, joining=joining, network=network)
    return SwarmApp(feed, ascii=ascii, home_folder="/home/ann", pictures=pictures)


_REPEATED = ("50x20", "light", "no-color", "grey", "ascii")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pictures that repeat others, smaller or in other colours, are left to `make slow`, but for those of Run: each takes half
    a second."""
    for item in items:
        picture = "snap_compare" in getattr(item, "fixturenames", ())
        repeats = any(word in item.name for word in _REPEATED) and not item.name.startswith(("test_run[", "test_look[run-"))
        if picture and repeats:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def snap_compare(snap_compare: Callable[..., bool]) -> Callable[..., bool]:
    """As pytest-textual-snapshot has it, once Home is there."""

    def compare(app: SwarmApp, *, run_before: Callable[[Pilot[Any]], Any] | None = None, **arguments: Any) -> bool:
        async def before(pilot: Pilot[Any]) -> None:
            await home_is_there(pilot)
            if run_before is not None and inspect.isawaitable(found := run_before(pilot)):
                await found

        return snap_compare(app, run_before=before, **arguments)

    return compare


@pytest.fixture
def fixed() -> SimpleNamespace:
    """The makers of fixed states."""
    return SimpleNamespace(**{k: v for k, v in globals().items() if not k.startswith("_")})
