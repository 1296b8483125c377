"""A data-parallel job's records, made by hand: three generations of an MLX-LM fine-tuning, under way or finished."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from swarm.core.finetune import FineTune
from swarm.core.keys import RunKeys
from swarm.core.lease import BeatId
from swarm.core.lines import encode
from swarm.core.manifest import DataRef, Manifest, ModelRef, TaskRef
from swarm.core.ranks import (
    Address,
    CheckpointAt,
    EvalPoint,
    GenerationEnd,
    JobCheckpoint,
    JobLog,
    Link,
    Member,
    Plan,
    Probe,
    Ready,
    Refusal,
    Seat,
    Started,
    StoredFile,
    TrainPoint,
)
from swarm.core.rankstate import Generation, Log
from swarm.core.records import Beat, LearnerRecord, RankBeat
from swarm.core.state import CheckpointsRead, LearnerRead, ManifestRead, Polled, RunState, apply

SHA = "ab" * 32
SPEC = FineTune(iters=1000, world_size_min=2, beat_s=0.2, lease_s=2.0)
PLACES = {"studio": "192.168.1.20", "mbp": "192.168.1.21", "linux-3090": "192.168.1.22", "air": "192.168.1.23"}
SPEEDS = {"studio": 820.0, "mbp": 455.0, "linux-3090": 1210.0}
OTHER_MLX = "has mlx 0.31.2, the others 0.32.0"
NEXT = "generation 2 is under way; this machine takes part in the next one"
LOST = "linux-3090: no sign of life for 20 s"


def manifest(spec: FineTune = SPEC, *, run: str = "k4m7q2xw", name: str = "smollm2-quiet-heron") -> Manifest:
    files = (DataRef(name="model.safetensors", sha256=SHA, size_bytes=10**8),)
    model = ModelRef(name="HuggingFaceTB/SmolLM2-135M-Instruct", revision="abc", files=files)
    return Manifest(run=run, name=name, algorithm=spec, task=TaskRef(name="mlx-lm"), model=model, created_by="studio")


def loss_at(iteration: int) -> float:
    return 1.4 + 2.2 / (1 + iteration / 90) + 0.04 * math.sin(iteration)


def member(learner: str, generation: int, *, mlx: str = "0.32.0", **more: Any) -> Member:
    ip = PLACES.get(learner, "192.168.1.99")
    addresses = (Address(address=ip, interface="en0", kind="ethernet", probe_port=30_000),)
    fields: dict[str, Any] = {
        "machine_name": learner,
        "ports": (21_000, 21_001),
        "memory_bytes": 24 << 30,
        "versions": {"swarm": "0.1.0", "mlx": mlx, "mlx-lm": "0.32.0"},
        "backends": ("ring",),
        "tokens_per_s": SPEEDS.get(learner, 0.0),
    }
    return Member(generation=generation, learner=learner, incarnation=1, addresses=addresses, nonce="n" * 16, **(fields | more))


def probe(learner: str, target: str, generation: int, *, error: str = "", mbytes_per_s: float = 110.0) -> Probe:
    link = Link(address=PLACES[target], error=error)
    if not error:
        link = Link(address=PLACES[target], source=PLACES[learner], rtt_s=0.0004, bytes_per_s=1e6 * mbytes_per_s)
    return Probe(generation=generation, learner=learner, incarnation=1, target=target, target_incarnation=1, links=(link,))


def plan(generation: int, learners: tuple[str, ...], *, start: CheckpointAt | None = None, **more: Any) -> Plan:
    seats = tuple(
        Seat(learner=who, incarnation=1, address=PLACES[who], port=21_000, share=round(SPEEDS[who])) for who in learners
    )
    return Plan(generation=generation, leader=learners[0], seats=seats, backend="ring", seed=0, start=start, **more)


def point(iteration: int, *, shift: float = 0.0, tokens_per_s: float = 2485.0) -> TrainPoint:
    return TrainPoint(
        step=iteration,
        iteration=iteration,
        train_loss=loss_at(iteration) + shift,
        learning_rate=1e-5,
        tokens_per_s=tokens_per_s,
        trained_tokens=1200 * iteration,
        epoch=iteration / 400,
    )


def evaluated(iteration: int, *, part: Any = "valid") -> EvalPoint:
    loss = loss_at(iteration) + 0.1
    return EvalPoint(part=part, step=iteration, iteration=iteration, loss=loss, tokens=5000, seconds_s=3.0)


def log(generation: int, first: int, last: int, *, shift: float = 0.0, every: int = 10) -> list[JobLog]:
    """Reports after `first` up to `last`, each in a part of its own."""
    parts = []
    for n, iteration in enumerate(range(first + every, last + 1, every)):
        evals = (evaluated(iteration),) if iteration % 200 == 0 else ()
        parts.append(JobLog(generation=generation, n=n, points=(point(iteration, shift=shift),), evals=evals))
    return parts


def checkpoint(generation: int, step: int) -> JobCheckpoint:
    file = StoredFile(sha256=SHA, size_bytes=10**7)
    return JobCheckpoint(generation=generation, step=step, iteration=step, by="studio", state=file, adapter=file)


def job(*, upto: int = 600, finished: bool = False, ending: GenerationEnd | None = None, late: bool = True) -> list[Any]:
    """All records of a job: a generation that lost a machine at iteration 250, one that never started, and one that goes on
    from iteration 200, with a machine that is refused and, if `late`, one that waits for the next."""
    first = ("linux-3090", "mbp", "studio")
    records: list[Any] = [member(who, 0) for who in first]
    records += [plan(0, first), *(Ready(generation=0, learner=who, incarnation=1) for who in first)]
    records += [Started(generation=0, learner=who, incarnation=1, pid=9) for who in first]
    records += [*log(0, 0, 250, shift=0.5), GenerationEnd(generation=0, ending="lost", by="studio", reason=LOST)]
    records += [member("studio", 1)]
    records += [GenerationEnd(generation=1, ending="rendezvous", by="studio", reason="studio made no plan within 240 s")]
    records += [member("air", 2, mlx="0.31.2"), *(member(who, 2) for who in first)]
    records += [probe(a, b, 2, mbytes_per_s=28.0 if "air" in (a, b) else 110.0) for a in PLACES for b in PLACES if a != b]
    refused = (Refusal(learner="air", subject="mlx", reason=OTHER_MLX),)
    records += [plan(2, first, start=CheckpointAt(generation=0, step=200), refused=refused)]
    records += [Ready(generation=2, learner=who, incarnation=1) for who in first]
    records += [Started(generation=2, learner=who, incarnation=1, pid=9) for who in first]
    records += log(2, 200, upto)
    records += [checkpoint(2, step) for step in range(100 * (upto // 100) - 100, upto + 1, 100)]
    if finished:
        at = CheckpointAt(generation=2, step=upto)
        ending = GenerationEnd(generation=2, ending="finished", by="studio", reason=f"all {upto} steps are done", checkpoint=at)
    if ending is not None:
        return [*records, ending]
    return [*records, member("mini", 3)] if late else records


def key_of(place: RunKeys, record: Any) -> str:
    match record:
        case Member(generation=g, learner=who, incarnation=k):
            return place.member(g, learner=who, incarnation=k)
        case Probe(generation=g, learner=who, incarnation=k, target=target, target_incarnation=other):
            return place.probe(g, learner=who, incarnation=k, target=target, target_incarnation=other)
        case Ready(generation=g, learner=who, incarnation=k):
            return place.mark(g, "ready", learner=who, incarnation=k)
        case Started(generation=g, learner=who, incarnation=k):
            return place.mark(g, "started", learner=who, incarnation=k)
        case Plan(generation=g):
            return place.rank_plan(g)
        case GenerationEnd(generation=g):
            return place.generation_end(g)
        case JobLog(generation=g, n=n):
            return place.job_log(g, n)
        case JobCheckpoint(generation=g, step=step):
            return place.job_checkpoint(g, step)
        case LearnerRecord(learner=who, incarnation=k):
            return place.learner(who, k)
        case Manifest():
            return place.manifest
        case _:
            raise AssertionError(record)


def as_bytes(record: Any) -> bytes:
    return encode(record, nonce="0" * 32)


def write(location: str, made: Manifest, records: list[Any]) -> None:
    """Straight into the folder: a mailbox would make each of them durable."""
    for record in [made, *records]:
        path = Path(location, key_of(RunKeys(made.run), record))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(as_bytes(record))


def learner(name: str, n: int = 0) -> LearnerRecord:
    device = "mlx cuda:0" if name == "linux-3090" else "mlx metal"
    described = {"machine": f"machine-{n}", "machine_name": name, "boot": "boot", "pid": 4000 + n, "process": "1"}
    return LearnerRecord(learner=name, incarnation=1, version="0.1.0", device=device, **described)


def rank_beat(n: int, name: str, rank: int, *, step: int, generation: int = 2) -> Beat:
    slow = name == "mbp"
    return Beat(
        phase="train",
        step=step,
        steps=step,
        tokens_per_s=SPEEDS[name] * (1 + 0.04 * ((n * 7) % 11 - 5)),
        loss=loss_at(step),
        rss_bytes=int(1.4e9),
        sent_bytes=12 << 20,
        rank=RankBeat(
            generation=generation,
            rank=rank,
            size=3,
            share=round(SPEEDS[name]),
            compute_s=1.7 if slow else 1.2,
            waiting_s=0.0 if slow else 0.5,
            exchange_s=0.2,
            update_s=0.1,
            microbatch_rows=1 if slow else 2,
            memory_bytes=(6 + rank) << 30,
        ),
    )


def seen(
    records: list[Any],
    *,
    spec: FineTune = SPEC,
    silent: tuple[str, ...] = (),
    words: dict[str, str] | None = None,
    live: bool = True,
    step: int = 604,
    polls: int = 12,
    trains: bool = True,
    run: str = "k4m7q2xw",
) -> RunState:
    """As a watch folds it, a poll every 0.2 s. Those in `silent` stop beating after a few. `words`: of machines that have no
    rank, what they do."""
    state = apply(RunState(run=run), ManifestRead(manifest(spec, run=run)))
    for event in events(records):
        state = apply(state, event)
    state = apply(state, CheckpointsRead(tuple(r for r in records if isinstance(r, JobCheckpoint))))
    words = {"air": OTHER_MLX, "mini": NEXT} if words is None else words
    ranked = ("linux-3090", "mbp", "studio") if trains else ()
    everybody = (*ranked, *words)
    for n, name in enumerate(everybody):
        state = apply(state, LearnerRead(learner(name, n)))
    gap_s = spec.beat_s
    for n in range(polls):
        beats: dict[str, tuple[BeatId, Beat]] = {}
        for name in everybody:
            at = min(n, 3) if name in silent else n
            if name in ranked:
                said = rank_beat(at, name, ranked.index(name), step=step - polls + 1 + at)
            else:
                said = Beat(phase="wait", doing=words[name])
            if not live and n == polls - 1:
                said = Beat(phase="left")
            beats[name] = (BeatId(1, at), said)
        state = apply(state, Polled(now_s=n * gap_s, beats=beats))
    return state


def events(records: list[Any]) -> list[Any]:
    """One for each record, as a fold takes them."""
    found: list[Any] = []
    for record in records:
        match record:
            case Member(generation=g):
                found.append(Generation(generation=g, members=(record,)))
            case Probe(generation=g):
                found.append(Generation(generation=g, probes=(record,)))
            case Ready(generation=g):
                found.append(Generation(generation=g, ready=(record,)))
            case Started(generation=g, learner=who, incarnation=k):
                found.append(Generation(generation=g, started=((who, k),)))
            case Plan(generation=g):
                found.append(Generation(generation=g, plan=record))
            case GenerationEnd(generation=g):
                found.append(Generation(generation=g, end=record))
            case JobLog(generation=g):
                found.append(Log(generation=g, parts=(record,)))
            case _:
                continue
    return found
