"""Pictures of the screens over fixed states, compared with those that people have looked at.

Look at new ones (snapshot_report.html), then: pytest tests/screens --snapshot-update
`make test` leaves some out (tests/screens/conftest.py); plain pytest does not.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import textual
from textual.pilot import Pilot

from swarm.core.joining import Fault
from swarm.core.records import JoinRefusal, RejectReason
from swarm.core.state import RefusalsRead, RoundRead, apply
from tests.screens import surroundings
from tui import view_refused

DRAWN_WITH = "8.2.8"
pytestmark = pytest.mark.skipif(
    textual.__version__ != DRAWN_WITH, reason=f"the pictures were drawn with Textual {DRAWN_WITH}: another one draws others"
)
IN_ROUNDS = ("running", "waiting", "silent", "lost", "done", "paused", "rejected", "syncer")
FEDERATED = ("fedavg", "fedavg-private", "fedavg-many")
JOBS = ("job", "job-meeting")
SIZES = [(120, 36), (80, 24), (50, 20)]
IDS = [f"{width}x{height}" for width, height in SIZES]


@pytest.fixture(autouse=True)
def same_colours_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)


def home_of(fixed: SimpleNamespace, name: str) -> Any:
    if name == "no-mailbox":
        return fixed.home_shown(fixed.api.Home())
    if name == "no-run":
        return fixed.home_shown(fixed.home())
    if name == "problem":
        remedy = "is the share mounted? `swarm init /mnt/share/swarm` makes a mailbox there"
        return fixed.home_shown(fixed.home(problem="no mailbox is there", remedy=remedy))
    if name == "alone":  # no mailbox, and a run on the network
        return fixed.home_shown(fixed.api.Home(), sightings=fixed.sightings(fixed.seen_run()))
    gone = ("studio", "mbp", "linux-3090", "air")
    idle = fixed.run_state(run="aaaa2222", name="digits-calm-lynx", left=gone, closed=7, rounds=None)
    done = fixed.run_state(run="bbbb3333", name="charlm-warm-owl", left=gone, closed=20, rounds=20)
    failed = fixed.job(id="20250301-113000-d4e5f6", state="failed", run="aaaa2222", name="digits-calm-lynx", message="no data")
    value = fixed.home(fixed.run_state(), idle, done, jobs=(fixed.job(), failed))
    if name == "network":
        foreign = fixed.seen_run(ours=False, run="fore0001", name="stranger")
        return fixed.home_shown(value, sightings=fixed.sightings(fixed.seen_run(), foreign))
    return fixed.home_shown(value)


def run_of(fixed: SimpleNamespace, name: str) -> Any:
    match name:
        case "waiting":
            return fixed.run_shown(fixed.run_state(learners=("studio",), closed=0), log=())
        case "silent":
            return fixed.run_shown(fixed.run_state(silent=("linux-3090",)), job=fixed.job())
        case "lost":
            return fixed.run_shown(fixed.lost(fixed.run_state()), age_s=34.0, job=fixed.job())
        case "done":
            return fixed.run_shown(fixed.run_state(closed=40, left=("studio", "mbp", "linux-3090", "air")))
        case "paused":
            return fixed.run_shown(fixed.run_state(controls=(fixed.Control(action="pause", by="mbp"),)), job=fixed.job())
        case "rejected":
            return fixed.run_shown(rejecting(fixed), job=fixed.job())
        case "idle":
            return fixed.run_shown(fixed.run_state(closed=7, left=("studio", "mbp", "linux-3090", "air")), log=())
        case "stopped":
            return fixed.run_shown(fixed.run_state(left=("studio", "mbp", "linux-3090", "air"), stop=True), log=())
        case "crashed":
            words = "it ended with code 1: RuntimeError: MPS backend out of memory"
            return fixed.run_shown(fixed.run_state(left=("studio",)), job=fixed.job(state="failed", message=words), log=())
        case "syncer":
            drop = fixed.Control(action="drop", by="mbp", learner="air", incarnation=1)
            algorithm = fixed.DiLoCo(fragments=4, in_flight=2, quorum_size=2, delta_dtype="F8_E4M3")
            return fixed.run_shown(
                fixed.run_state(syncers=("nas",), left=("air",), controls=(drop,), algorithm=algorithm), job=fixed.job()
            )
        case "fedavg":
            state = fixed.fed_state()
            return fixed.run_shown(state, job=fixed.job(), round_since_s=state.polled_at_s - 12.0, log=fed_log(fixed))
        case "fedavg-private":
            return fixed.run_shown(fixed.fed_state(private=True, silent=("linux-3090",)), log=())
        case "fedavg-many":
            return fixed.run_shown(fixed.fed_state(clients=500, per_round=30, closed=3, silent=("linux-3090",)), log=())
        case "job":
            return fixed.run_shown(fixed.job_state(), job=fixed.job(run=fixed.AT.run), log=())
        case "job-meeting":
            return fixed.run_shown(fixed.job_state(meeting=True), log=())
        case _:
            state = fixed.run_state()
            return fixed.run_shown(state, job=fixed.job(), round_since_s=state.polled_at_s - 41.0)


KEPT_OUT = (
    ("nas", "no task 'charlm' is installed here; install the package that brings it"),
    ("air", "no torch is installed here"),
)


def with_refused(fixed: SimpleNamespace, name: str) -> Any:
    """Two machines that could not join, and one of them that took part before."""
    left = {"left": ("air",), "learners": ("studio", "mbp", "air")} if name == "running" else {}
    states = {"running": fixed.run_state, "fedavg": fixed.fed_state, "job": fixed.job_state}
    records = [JoinRefusal(machine=n, machine_name=n, version="0.2.0", reason=reason) for n, reason in KEPT_OUT]
    state = apply(states[name](**left), RefusalsRead(tuple(records)))
    return fixed.run_shown(state, refused=view_refused.refused(state, fixed.Sightings(), ""), log=())


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, id=f"{name}-{at}")
        for name in ("running", "fedavg", "job")
        for size, at in zip(SIZES, IDS, strict=True)
        if name == "running" or size == SIZES[0]
    ],
)
def test_machines_that_could_not_join(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]
) -> None:
    app = fixed.app_over(home_of(fixed, "busy"), with_refused(fixed, name))
    assert snap_compare(app, press=["enter"], terminal_size=size, run_before=settle)


def fed_log(fixed: SimpleNamespace) -> tuple[Any, ...]:
    from tui.transitions import round_closed

    state = fixed.fed_state()
    spec = state.manifest.algorithm
    return tuple(fixed.LogLine(f"12:04:0{n % 10} {round_closed(state.rounds[n], state.evals[n], spec)}") for n in (9, 10, 11))


def rejecting(fixed: SimpleNamespace) -> Any:
    """A run whose last rounds reject something, each for another reason; one of them changed nothing."""
    state = fixed.run_state()
    for n, reason in enumerate(get_args(RejectReason)):
        who, round = ("linux-3090", "mbp", "air")[n % 3], state.open_round
        refused = fixed.api.Rejected(learner=who, unit=who, reason=reason, round=round)
        counted = () if reason == "norm" else ("studio", "mbp")
        state = apply(state, RoundRead(fixed.round_record(round, counted, (refused,), norm=0.0125 * n)))
    return state


@pytest.mark.parametrize("size", SIZES, ids=IDS)
@pytest.mark.parametrize("name", ["no-mailbox", "no-run", "busy", "problem", "network", "alone"])
def test_home(fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]) -> None:
    assert snap_compare(fixed.app_over(home_of(fixed, name)), terminal_size=size)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(name, size, id=f"{name}-{at}")
        for size, at in zip(SIZES, IDS, strict=True)
        for name in (*IN_ROUNDS, *FEDERATED, *JOBS)
        if size != (50, 20) or name not in ("rejected", "fedavg-private", "fedavg-many")  # the learners alone: as without
    ],
)
def test_run(fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]) -> None:
    app = fixed.app_over(home_of(fixed, "busy"), run_of(fixed, name))
    assert snap_compare(app, press=["enter"], terminal_size=size, run_before=settle)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param("idle", (80, 24), id="idle-80x24"),
        pytest.param("stopped", (50, 20), id="stopped-50x20"),
        pytest.param("crashed", (80, 24), id="crashed-80x24"),
    ],
)
def test_run_that_goes_on_no_more(
    fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]
) -> None:
    app = fixed.app_over(home_of(fixed, "busy"), run_of(fixed, name))
    assert snap_compare(app, press=["w"], terminal_size=size, run_before=settle)


def join_of(fixed: SimpleNamespace, name: str) -> Any:
    match name:
        case "looking":
            return None
        case "not-mounted":
            return fixed.not_mounted(hanging=("/mnt/old",))
        case "faults":
            return fixed.join_shown(
                at=fixed.FAR,
                task_fault=Fault("no task 'protein' is installed here", "install the package that brings the task 'protein'"),
                share_warning=Fault("212 MB free", "make room: a run keeps several copies of its model there"),
                passphrase="missing",
                their_versions=("0.1.0",),
                told_by=(),
            )
        case "joining":
            doing = "fetching my.txt: 12.4 MB of 30.0 MB"
            return fixed.join_shown(at=fixed.FAR, job=fixed.job(state="starting", run=fixed.FAR.run, doing=doing))
        case _:
            return fixed.join_shown(at=fixed.FAR)


@pytest.mark.parametrize("size", SIZES, ids=IDS)
@pytest.mark.parametrize("name", ["looking", "not-mounted", "faults", "ready", "joining"])
def test_join(fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]) -> None:
    app = fixed.app_over(home_of(fixed, "alone"), joining=join_of(fixed, name))
    assert snap_compare(app, press=["enter"], terminal_size=size, run_before=settle)


@pytest.mark.parametrize("size", SIZES, ids=IDS)
def test_the_details_of_a_round(fixed: SimpleNamespace, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    app = fixed.app_over(home_of(fixed, "busy"), run_of(fixed, "fedavg"))
    assert snap_compare(app, press=["enter", "d"], terminal_size=size, run_before=settle)


@pytest.mark.parametrize("size", SIZES[::2], ids=IDS[::2])
def test_plan_and_preflight_of_a_job(fixed: SimpleNamespace, snap_compare: Callable[..., bool], size: tuple[int, int]) -> None:
    app = fixed.app_over(home_of(fixed, "busy"), run_of(fixed, "job"))
    assert snap_compare(app, press=["enter", "d"], terminal_size=size, run_before=settle)


@pytest.mark.parametrize("size", SIZES, ids=IDS)
@pytest.mark.parametrize("name", ["full", "alone", "looking"])
def test_network(fixed: SimpleNamespace, snap_compare: Callable[..., bool], name: str, size: tuple[int, int]) -> None:
    app = fixed.app_over(home_of(fixed, "busy"), network=network_of(name))
    assert snap_compare(app, press=["d"], terminal_size=size, run_before=settle)


def network_of(name: str) -> Any:
    match name:
        case "alone":
            return surroundings.network_shown(found=surroundings.examination(surroundings.ALONE), seen=surroundings.ALONE)
        case "looking":
            return surroundings.network_shown(found=surroundings.looking(), seen=surroundings.ALONE)
        case _:
            return surroundings.network_shown()


async def settle(pilot: Pilot[None]) -> None:
    await pilot.pause()
