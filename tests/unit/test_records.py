"""The codec of records: whole and honest, or RecordError. And what a peer can make a record say."""

import contextlib
import hashlib
import json
import math
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.core import checks, manifest, ranks, records
from swarm.core.checks import MAX_COUNT, MAX_ROUND, MAX_SEED, MAX_TEXT
from swarm.core.errors import FormatMismatch, RecordError, SwarmError
from swarm.core.finetune import MAX_RANKS, FineTune, FineTuneOptimizer, FineTuneType, LoraParameters, LrSchedule
from swarm.core.fragments import Schedule
from swarm.core.ids import WINDOWS_DEVICES
from swarm.core.keys import RunKeys, check_key
from swarm.core.lines import MAX_RECORD_BYTES, as_json, body_sha256, decode, encode
from swarm.core.manifest import (
    FORMAT,
    INIT,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_FILE_BYTES,
    DataRef,
    FileRef,
    Manifest,
    Marker,
    ModelRef,
    PayloadRef,
    TaskRef,
)
from swarm.core.options import MAX_REAL
from swarm.core.ranks import (
    MAX_GENERATION,
    MAX_POINTS,
    Address,
    Backend,
    CheckpointAt,
    Ending,
    EvalPoint,
    GenerationEnd,
    JobCheckpoint,
    JobLog,
    Kind,
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
from swarm.core.records import (
    Beat,
    Checkpoint,
    Claim,
    Control,
    EvalRecord,
    JoinRefusal,
    LearnerPhase,
    LearnerRecord,
    Participant,
    RankBeat,
    Rejected,
    RejectReason,
    Role,
    RoundRecord,
    Sample,
    Snapshot,
)
from swarm.core.rounds import weight
from swarm.core.specs import Algorithm, DiLoCo, FedAvg
from swarm.core.tensorspec import TensorSpec

ids = st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True).filter(lambda text: text not in WINDOWS_DEVICES)
hashes = st.integers(0, 2**256 - 1).map("{:064x}".format)
rounds = st.sampled_from([0, 1, MAX_ROUND]) | st.integers(0, MAX_ROUND)
counts = st.sampled_from([0, 1, MAX_COUNT]) | st.integers(0, MAX_COUNT)
reals = st.floats(0, MAX_REAL)
losses = st.none() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=30)  # no surrogates: those have no UTF-8
names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20)


def refs(round: st.SearchStrategy[int] = rounds) -> st.SearchStrategy[PayloadRef]:
    return st.builds(PayloadRef, round=round, sha256=hashes, size_bytes=counts)


metrics = st.dictionaries(texts, st.floats(allow_nan=False, allow_infinity=False), max_size=3)
units = st.sets(ids, max_size=3).map(sorted).map(tuple)
participants = st.builds(
    Participant,
    learner=ids,
    unit=ids,
    weight=reals,
    tokens=counts,
    steps=counts,
    train_loss=losses,
    seconds_s=reals,
    size_bytes=counts,
    delta_norm=losses,
    claim=counts,
    metrics=metrics,
)
roles = st.sampled_from(get_args(Role))
rejected = st.builds(
    Rejected, learner=ids, unit=ids, reason=st.sampled_from(get_args(RejectReason)), round=rounds, differs=st.booleans()
)


federations = st.builds(
    FedAvg,
    optimizer=st.sampled_from(["sgd", "adam", "lion"]),
    native=st.dictionaries(texts, st.booleans() | st.integers(-(2**53), 2**53) | texts, max_size=2),
    private=st.booleans(),
    partition=st.sampled_from(["iid", "dirichlet:0.5", "by-label:2"]),
    deadline_s=st.none() | st.floats(0.1, 99),
    training_seed=st.none() | st.integers(0, 99),
)


numbers = st.integers(-(2**53), 2**53) | st.floats(-MAX_REAL, MAX_REAL)
schedules = st.builds(
    LrSchedule,
    name=st.just("step_decay"),
    arguments=st.tuples(numbers, numbers, numbers),
    warmup=st.integers(0, 99),
    warmup_init=st.floats(0, 1),
)
finetunes = st.builds(
    FineTune,
    fine_tune_type=st.sampled_from(get_args(FineTuneType)),
    optimizer=st.sampled_from(get_args(FineTuneOptimizer)),
    optimizer_config=st.fixed_dictionaries(
        {},
        optional={
            "adamw": st.fixed_dictionaries(
                {"weight_decay": numbers, "betas": st.lists(st.floats(0, 1), max_size=2)},
                optional={"bias_correction": st.booleans()},
            ),
            "adafactor": st.fixed_dictionaries({"beta_1": st.none() | numbers}),
        },
    ),
    num_layers=st.integers(-1, 99),
    iters=st.integers(1, 10**6),
    learning_rate=st.floats(1e-9, 1),
    lr_schedule=st.none() | schedules,
    lora_parameters=st.builds(
        LoraParameters,
        rank=st.integers(1, 64),
        dropout=st.floats(0, 0.9),
        scale=st.floats(-99, 99),
        keys=st.none() | st.lists(names, min_size=1, max_size=2).map(tuple),
    ),
    grad_accumulation_steps=st.integers(1, 99),
    clear_cache_threshold=st.integers(0, 10**15),
    prompt_feature=texts,
    lora_rank=st.none() | st.integers(1, 64),
    world_size_max=st.none() | st.integers(1, MAX_RANKS),
    attach_model=st.booleans(),
)
models = st.builds(
    ModelRef,
    name=names,
    revision=st.just("") | st.from_regex(r"[0-9a-f]{7,40}", fullmatch=True),
    files=st.lists(
        st.builds(DataRef, name=st.from_regex(r"[a-z]{1,9}[.]safetensors", fullmatch=True), sha256=hashes, size_bytes=counts),
        min_size=1,
        max_size=3,
        unique_by=lambda ref: ref.name,
    ).map(tuple),
)
data_refs = st.builds(DataRef, name=st.just("text.txt"), sha256=hashes, size_bytes=counts)


@st.composite
def fine_tunings(draw: st.DrawFn) -> Manifest:
    return Manifest(
        run=draw(st.from_regex(r"[a-z0-9]{5,32}", fullmatch=True)),
        name=draw(names),
        algorithm=draw(finetunes),
        task=TaskRef(name="mlx-lm", data=tuple(draw(st.lists(data_refs, max_size=2)))),
        seed=draw(st.integers(0, MAX_SEED)),
        created_by=draw(texts),
        base=draw(st.none() | data_refs),
        model=draw(models),
        files=tuple(draw(st.lists(files(), max_size=2, unique_by=lambda ref: ref.name))),
    )


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    tensor_names = sorted(draw(st.sets(st.text("abcé.", max_size=4), min_size=1, max_size=6)))
    sync_every = draw(st.integers(1, 50))
    spec: Algorithm = DiLoCo(
        sync_every=sync_every,
        fragments=draw(st.integers(1, sync_every)),
        start_learners=draw(st.none() | st.integers(1, 9)),
        grace_s=draw(st.none() | st.floats(0, 99)),
        delta_dtype=draw(st.sampled_from([None, "F32", "F16", "BF16"])),
    )
    fragments = min(spec.fragments, len(tensor_names))
    if draw(st.booleans()):
        spec, fragments = draw(federations), 1
    options = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts | st.booleans()
    return Manifest(
        run=draw(st.from_regex(r"[a-z0-9]{5,32}", fullmatch=True)),
        name=draw(names),
        algorithm=spec,
        task=TaskRef(
            name=draw(names),
            options=draw(st.dictionaries(texts, options, max_size=3)),
            data=tuple(draw(st.lists(data_refs, max_size=2))),
        ),
        tensors=tuple(
            TensorSpec(name, "F32", draw(st.sampled_from([(), (2, 3)])), draw(st.booleans())) for name in tensor_names
        ),
        schema_sha256=draw(hashes),
        init=tuple(draw(refs(st.just(INIT))) for _ in range(fragments)),
        rounds=draw(st.none() | st.integers(1, MAX_ROUND)),
        seed=draw(st.integers(0, MAX_SEED)),
        eval_every=draw(rounds),
        checkpoint_every=draw(rounds),
        checkpoints_kept=draw(rounds),
        created_by=draw(texts),
        replay=draw(texts),
        base=draw(st.none() | data_refs),
        files=tuple(draw(st.lists(files(), max_size=2, unique_by=lambda ref: ref.name))),
    )


@st.composite
def files(draw: st.DrawFn) -> FileRef:
    size = draw(st.sampled_from([1, MAX_FILE_BYTES]) | st.integers(1, MAX_FILE_BYTES))
    smallest = -(-size // MAX_CHUNKS)
    return FileRef(
        name=draw(st.sampled_from(["text.txt", "config.json", "Größe 2.csv"])),
        kind=draw(st.sampled_from(["data", "model"])),
        sha256=draw(hashes),
        size_bytes=size,
        chunk_bytes=draw(st.sampled_from([smallest, MAX_CHUNK_BYTES]) | st.integers(smallest, MAX_CHUNK_BYTES)),
        hashes_sha256=draw(hashes),
    )


@st.composite
def round_records(draw: st.DrawFn) -> RoundRecord:
    round = draw(rounds)
    earlier = st.integers(INIT, round)
    return RoundRecord(
        round=round,
        fragment=draw(counts),
        step=draw(counts),
        version=draw(earlier),
        parent=draw(st.none() | hashes),
        participants=tuple(draw(st.lists(participants, max_size=3))),
        rejected=tuple(draw(st.lists(rejected, max_size=3))),
        theta=draw(refs(earlier)),
        outer=draw(st.none() | refs(earlier)),
        update=draw(st.none() | refs(earlier)),
        closer=draw(st.just("") | ids),
        control=draw(counts),
        waited_s=draw(reals),
        quorum_waited_s=draw(reals),
        close_s=draw(reals),
        reason=draw(texts),
        clients=draw(units),
    )


generations = st.sampled_from([0, MAX_GENERATION]) | st.integers(0, MAX_GENERATION)
ips = st.ip_addresses(v=4).map(str)
ports = st.integers(1, 65535)
reasons = st.text(st.characters(categories=["L", "N", "P"]), max_size=20)
who: dict[str, st.SearchStrategy[Any]] = {"generation": generations, "learner": ids, "incarnation": counts}
addresses = st.builds(
    Address, address=ips, interface=names, kind=st.sampled_from(get_args(Kind)), probe_port=ports, speed_bytes_per_s=reals
)
links = st.builds(Link, address=ips, source=st.just("") | ips, rtt_s=reals, bytes_per_s=reals, error=reasons)
by_address: dict[str, Any] = {"max_size": 2, "unique_by": lambda each: each.address}


@st.composite
def rank_plans(draw: st.DrawFn) -> Plan:
    backend = draw(st.sampled_from(get_args(Backend)))
    learners = draw(st.lists(ids, min_size=1, max_size=3, unique=True))
    rdma = tuple("rdma_en1" for _ in learners) if backend == "jaccl" else ()
    places = draw(st.lists(st.tuples(ips, ports), min_size=len(learners), max_size=len(learners), unique=True))
    generation = draw(generations)
    return Plan(
        generation=generation,
        leader=draw(ids),
        seats=tuple(
            Seat(
                learner=learner,
                incarnation=draw(counts),
                address=place[0],
                port=place[1],
                share=draw(st.integers(1, MAX_COUNT)),
                rdma=rdma,
            )
            for learner, place in zip(learners, places, strict=True)
        ),
        backend=backend,
        seed=draw(st.integers(0, MAX_SEED)),
        start=draw(st.none() | checkpoints_at(generation - 1)) if generation else None,
        start_s=draw(reals),
        refused=tuple(draw(st.lists(st.builds(Refusal, learner=ids, subject=names, reason=reasons), max_size=2))),
    )


def checkpoints_at(newest: int) -> st.SearchStrategy[CheckpointAt]:
    return st.builds(CheckpointAt, generation=st.integers(0, newest), step=counts)


train_points = st.builds(
    TrainPoint,
    step=counts,
    iteration=counts,
    train_loss=losses,
    learning_rate=reals,
    tokens_per_s=reals,
    trained_tokens=counts,
    epoch=reals,
)
eval_points = st.builds(
    EvalPoint,
    part=st.sampled_from(["valid", "test"]),
    step=counts,
    iteration=counts,
    loss=losses,
    tokens=counts,
    seconds_s=reals,
)
stored_files = st.builds(StoredFile, sha256=hashes, size_bytes=counts)
rank_beats = st.integers(1, MAX_COUNT).flatmap(
    lambda size: st.builds(
        RankBeat,
        generation=counts,
        rank=st.sampled_from([0, size - 1]) | st.integers(0, size - 1),
        size=st.just(size),
        share=counts,
        compute_s=reals,
        waiting_s=reals,
        exchange_s=reals,
        update_s=reals,
        microbatch_rows=counts,
        memory_bytes=counts,
    )
)


RECORDS: dict[type[msgspec.Struct], st.SearchStrategy[Any]] = {
    JobLog: st.builds(
        JobLog,
        generation=generations,
        n=counts,
        points=st.lists(train_points, max_size=3).map(tuple),
        evals=st.lists(eval_points, max_size=3).map(tuple),
        shares=st.lists(counts, max_size=3).map(tuple),
    ),
    JobCheckpoint: st.builds(
        JobCheckpoint,
        generation=generations,
        step=counts,
        iteration=counts,
        by=ids,
        state=stored_files,
        adapter=stored_files,
    ),
    Member: st.builds(
        Member,
        **who,
        machine_name=names,
        addresses=st.lists(addresses, **by_address).map(tuple),
        ports=st.sets(ports, max_size=3).map(tuple),
        nonce=st.text("0123456789abcdef", min_size=16, max_size=64),
        memory_bytes=counts,
        versions=st.dictionaries(names, reasons, max_size=2),
        hashes=st.dictionaries(names, hashes, max_size=2),
        backends=st.sets(st.sampled_from(get_args(Backend))).map(sorted).map(tuple),
        tokens_per_s=reals,
    ),
    Probe: st.builds(Probe, **who, target=ids, target_incarnation=counts, links=st.lists(links, **by_address).map(tuple)),
    Plan: rank_plans(),
    Ready: st.builds(Ready, **who, refusal=reasons),
    Started: st.builds(Started, **who, pid=counts),
    GenerationEnd: generations.flatmap(
        lambda generation: st.builds(
            GenerationEnd,
            generation=st.just(generation),
            ending=st.sampled_from(get_args(Ending)),
            by=ids,
            reason=reasons,
            checkpoint=st.none() | checkpoints_at(generation),
        )
    ),
    Marker: st.builds(Marker, id=names),
    Manifest: manifests() | fine_tunings(),
    LearnerRecord: st.builds(
        LearnerRecord,
        learner=ids,
        incarnation=counts,
        machine=texts,
        machine_name=texts,
        boot=texts,
        pid=counts,
        process=texts,
        version=texts,
        device=texts,
        role=roles,
    ),
    Beat: st.builds(
        Beat,
        phase=st.sampled_from(get_args(LearnerPhase)),
        role=roles,
        round=rounds,
        step=counts,
        steps=counts,
        tokens_per_s=reals,
        loss=losses,
        rss_bytes=counts,
        sent_bytes=counts,
        received_bytes=counts,
        progress_bytes=counts,
        fetching=st.lists(hashes, max_size=2).map(tuple),
        rank=st.none() | rank_beats,
        doing=texts,
    ),
    Snapshot: st.builds(
        Snapshot,
        round=rounds,
        fragment=counts,
        learner=ids,
        incarnation=counts,
        unit=ids,
        base_sha256=hashes,
        schema_sha256=hashes,
        dtype=st.sampled_from([None, "F32", "BF16", "F99"]),
        payload=refs(),
        tokens=counts,
        steps=counts,
        train_loss=losses,
        seconds_s=reals,
        finite=st.booleans(),
        claim=counts,
        metrics=metrics,
    ),
    Claim: st.builds(Claim, round=rounds, learner=ids | st.just(""), incarnation=counts),
    RoundRecord: round_records(),
    EvalRecord: st.builds(
        EvalRecord,
        round=rounds,
        learner=ids,
        loss=losses,
        metrics=metrics,
        sample=texts,
        seconds_s=reals,
        confusion=st.integers(0, 3).flatmap(
            lambda n: st.lists(st.lists(counts, min_size=n, max_size=n).map(tuple), min_size=n, max_size=n).map(tuple)
        ),
    ),
    JoinRefusal: st.builds(
        JoinRefusal,
        machine=ids,
        machine_name=texts,
        version=texts,
        reason=texts.filter(lambda words: 1 <= len(words) <= 300),
        device=texts,
        role=roles,
    ),
    Sample: st.builds(Sample, round=rounds, clients=units.filter(len)),
    Checkpoint: st.builds(Checkpoint, round=rounds, theta=st.lists(refs(), min_size=1, max_size=3).map(tuple)),
    Control: st.one_of(
        st.builds(Control, action=st.sampled_from(["stop", "pause", "resume"]), by=texts),
        st.builds(Control, action=st.just("extend"), by=texts, rounds=st.none() | st.integers(1, MAX_ROUND)),
        st.builds(Control, action=st.just("drop"), by=texts, learner=ids, incarnation=counts),
    ),
}
PARTS = {DataRef, FileRef, TaskRef, PayloadRef, ModelRef, Participant, Rejected, RankBeat}
PARTS |= {Address, Link, CheckpointAt, Refusal, Seat, TrainPoint, EvalPoint, StoredFile}
every_record = st.one_of(*RECORDS.values())
every_type = st.sampled_from(sorted(RECORDS, key=lambda kind: kind.__name__))


def wire(body: str | bytes) -> bytes:
    """The two lines around any body, as a hostile peer would write them."""
    line = body.encode() if isinstance(body, str) else body
    return line + b'\n{"nonce":"n","sha256":"%b"}\n' % hashlib.sha256(line).hexdigest().encode()


def test_every_record_type_is_tested() -> None:
    public = {
        value
        for module in (checks, manifest, records, ranks)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, msgspec.Struct) and not name.startswith("_")
        if value.__module__ == module.__name__
    }
    assert public == set(RECORDS) | PARTS


@given(every_record, texts)
def test_what_is_written_is_read(record: msgspec.Struct, nonce: str) -> None:
    data = encode(record, nonce=nonce)
    assert decode(data, type(record)) == record
    body, envelope, end = data.split(b"\n")
    assert end == b""
    assert json.loads(envelope) == {"nonce": nonce, "sha256": body_sha256(data), "signature": None}
    assert hashlib.sha256(body).hexdigest() == body_sha256(data)
    assert as_json(record) == json.loads(body)


@given(every_record)
def test_a_nonce_makes_the_bytes_unique_and_leaves_the_body_alone(record: msgspec.Struct) -> None:
    one, other = encode(record, nonce="1"), encode(record, nonce="2")
    assert one != other
    assert body_sha256(one) == body_sha256(other)


@given(every_record, st.data())
def test_damage_is_a_record_error_and_never_another_body(record: msgspec.Struct, data: st.DataObject) -> None:
    whole = encode(record, nonce="0123456789abcdef")
    kind = type(record)
    body_bytes = whole.index(b"\n")
    i = data.draw(st.integers(0, len(whole) - 1))
    flipped = whole[:i] + bytes([whole[i] ^ data.draw(st.integers(1, 255))]) + whole[i + 1 :]
    if i <= body_bytes:
        with pytest.raises(RecordError):
            decode(flipped, kind)
    else:  # the envelope's nonce is not hashed
        with contextlib.suppress(RecordError):
            assert decode(flipped, kind) == record
    for damaged in (
        whole[:i],
        whole[i + 1 :],
        whole + whole,
        whole[: i + 1] + whole,
        whole + b"\n",
        whole + b"\0",
        b"\n" + whole,
    ):
        with pytest.raises(RecordError):
            decode(damaged, kind)


@given(st.binary() | st.text().map(str.encode), every_type)
@example(b"", Beat)
@example(b"\n\n", Beat)
@example(b"{}\n{}\n", Beat)
def test_arbitrary_bytes_are_a_record_error(data: bytes, kind: type[msgspec.Struct]) -> None:
    with pytest.raises(RecordError, match=r"^over there: "):
        decode(data, kind, where="over there")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from([2**64, -(2**64), 10**400, 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def mutants(draw: st.DrawFn) -> tuple[type[msgspec.Struct], bytes]:
    """An honest body with one value, somewhere, that was swapped for any other."""
    record = draw(every_record)
    body = json.loads(msgspec.json.encode(record))
    node: Any = body
    while True:
        places = list(node) if isinstance(node, dict) else list(range(len(node)))
        place = draw(st.sampled_from(places)) if places else None
        if place is None or not (isinstance(node[place], dict | list) and node[place] and draw(st.booleans())):
            break
        node = node[place]
    if place is not None:
        if draw(st.booleans()):
            node[place] = draw(json_values)
        elif isinstance(node, dict):
            del node[place]
    return type(record), json.dumps(body).encode()  # writes NaN and Infinity, which are no JSON


@given(mutants())
def test_a_hostile_body_is_refused_or_is_a_record_that_can_be_written(mutant: tuple[type[msgspec.Struct], bytes]) -> None:
    kind, body = mutant
    try:
        record = decode(wire(body), kind)
    except (RecordError, FormatMismatch):
        return
    assert decode(encode(record, nonce="n"), kind) == record
    check_that_it_can_be_used(record)


def check_that_it_can_be_used(record: msgspec.Struct) -> None:
    """Keys and arithmetic that the runtime makes of a record."""
    keys = RunKeys("abcd1234")
    match record:
        case Snapshot():
            check_key(keys.snapshot(record.round, unit=record.unit, learner=record.learner, incarnation=record.incarnation))
            check_key(keys.snapshot_blob(record.round, record.learner, record.payload.sha256))
            if record.steps:
                assert 0 <= weight(DiLoCo(), tokens=record.tokens, steps=record.steps) < math.inf
        case Claim() if record.learner:
            check_key(keys.learner(record.learner, record.incarnation))
        case LearnerRecord():
            check_key(keys.learner(record.learner, record.incarnation))
        case EvalRecord():
            check_key(keys.eval(record.round))
            assert all(map(math.isfinite, record.metrics.values()))
        case RoundRecord():
            check_key(keys.round(record.round))
            for ref in (record.theta, record.outer, record.update):
                if ref is not None and ref.round != INIT:
                    check_key(keys.round_blob(ref.round, ref.sha256))
            assert 0 <= sum(p.weight for p in record.participants) < math.inf
            assert sum(p.tokens for p in record.participants) >= 0
        case Manifest(algorithm=FineTune() as spec):
            check_key(RunKeys(record.run).manifest)
            assert record.plan == ()
            assert record.model is not None
            assert len(record.model.sha256) == 64
            assert spec.iterations(spec.steps) == spec.iters
            assert all(abs(float(value)) <= MAX_REAL for value in (spec.lr_schedule.arguments if spec.lr_schedule else ()))
        case Manifest():
            check_key(RunKeys(record.run).manifest)
            spec = record.by_rounds
            sync_every = spec.sync_every if isinstance(spec, DiLoCo) else 1
            schedule = Schedule(sync_every=sync_every, fragments=len(record.plan))
            assert schedule.step(0) >= 1
            assert sum(tensor.size_bytes for tensor in record.tensors) >= 0
        case Beat():
            assert 0 <= record.tokens_per_s < math.inf
            if (rank := record.rank) is not None:
                assert 0 <= rank.compute_s + rank.waiting_s + rank.exchange_s + rank.update_s < math.inf
        case JobLog():
            check_key(keys.job_log(record.generation, record.n))
            assert sum(record.shares) >= 0
            assert 0 <= sum(point.tokens_per_s for point in record.points) < math.inf
        case JobCheckpoint():
            check_key(keys.job_checkpoint(record.generation, record.step))
            for file in (record.state, record.adapter):
                check_key(keys.job_file(record.generation, record.step, file.sha256))
            assert record.at == CheckpointAt(generation=record.generation, step=record.step)
        case Member():
            check_key(keys.member(record.generation, learner=record.learner, incarnation=record.incarnation))
        case Probe():
            who = {"learner": record.learner, "incarnation": record.incarnation}
            check_key(keys.probe(record.generation, **who, target=record.target, target_incarnation=record.target_incarnation))
        case Ready() | Started():
            check_key(keys.mark(record.generation, "ready", learner=record.learner, incarnation=record.incarnation))
        case Plan():
            check_key(keys.rank_plan(record.generation))
            assert all(record.rank(seat.learner, seat.incarnation) == rank for rank, seat in enumerate(record.seats))
            assert sum(seat.share for seat in record.seats) >= len(record.seats)
        case GenerationEnd():
            check_key(keys.generation_end(record.generation))


@given(every_record, st.dictionaries(texts.map("x-{}".format), json_values.filter(lambda v: v == v), max_size=3))
def test_unknown_fields_are_ignored(record: msgspec.Struct, more: dict[str, Any]) -> None:
    body = json.loads(msgspec.json.encode(record))
    try:
        line = json.dumps(more | body | more, allow_nan=False)
    except ValueError:
        return
    assert decode(wire(line), type(record)) == record


def test_an_envelope_may_hold_more_and_a_signature() -> None:
    line = b'{"action":"stop"}'
    sha256 = hashlib.sha256(line).hexdigest()
    envelope = json.dumps({"signature": "00", "key": 1, "sha256": sha256, "nonce": ""}).encode()
    assert decode(line + b"\n" + envelope + b"\n", Control) == Control(action="stop")


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_a_record_error(opening: bytes) -> None:
    deep = opening * 200_000
    for line in (deep, b'{"action":"stop","more":' + deep):
        with pytest.raises(RecordError):
            decode(wire(line), Control)
    with pytest.raises(RecordError):
        decode(b'{"action":"stop"}\n' + deep + b"\n", Control)


def test_a_record_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(RecordError, match="more than"):
        decode(bytes(MAX_RECORD_BYTES + 1), Control)


HEX = "0123456789abcdef" * 4
REF = {"round": 3, "sha256": HEX, "size_bytes": 5}
SNAPSHOT = {
    "round": 3, "fragment": 0, "learner": "mac", "incarnation": 1, "unit": "mac", "base_sha256": HEX, "schema_sha256": HEX,
    "dtype": None, "payload": REF, "tokens": 5, "steps": 2, "train_loss": None, "seconds_s": 1.5,
}  # fmt: skip
PARTICIPANT = {
    "learner": "mac", "unit": "mac", "weight": 1.0, "tokens": 5, "steps": 2, "train_loss": 1.0, "seconds_s": 1.0,
    "size_bytes": 9,
}  # fmt: skip
ROUND = {
    "round": 3, "fragment": 0, "step": 400, "version": 3, "parent": HEX, "participants": [PARTICIPANT], "rejected": [],
    "theta": REF, "outer": None,
}  # fmt: skip
FILE = {"name": "a.txt", "kind": "data", "sha256": HEX, "size_bytes": 9, "chunk_bytes": 4, "hashes_sha256": HEX}
MANIFEST = {
    "run": "abcd1234", "name": "tiny", "algorithm": {"method": "diloco"}, "task": {"name": "charlm"},
    "tensors": [{"name": "w", "dtype": "F32", "shape": [2]}], "schema_sha256": HEX, "init": [REF | {"round": INIT}],
    "files": [FILE],
}  # fmt: skip
LEARNER = {
    "learner": "mac", "incarnation": 1, "machine": "m", "machine_name": "n", "boot": "b", "pid": 1, "process": "p",
    "version": "1",
}  # fmt: skip
ADDRESS = {"address": "10.0.0.5", "interface": "en0", "kind": "ethernet", "probe_port": 21000}
WHO = {"generation": 4, "learner": "mac", "incarnation": 1}
MEMBER = WHO | {
    "machine_name": "Mac", "addresses": [ADDRESS], "ports": [21001], "nonce": "0123456789abcdef", "memory_bytes": 9,
    "versions": {"mlx": "0.32.0"}, "hashes": {"train.jsonl": HEX},
}  # fmt: skip
LINK = {"address": "10.0.0.6", "source": "10.0.0.5"}
SEAT = {"learner": "mac", "incarnation": 1, "address": "10.0.0.5", "port": 21001}
PLAN = {
    "generation": 4, "leader": "mac", "seats": [SEAT, SEAT | {"learner": "studio", "address": "10.0.0.6"}],
    "backend": "ring", "seed": 0, "start": {"generation": 3, "step": 5},
    "refused": [{"learner": "air", "subject": "mlx", "reason": "has no mlx"}],
}  # fmt: skip
POINT = {
    "step": 5, "iteration": 10, "train_loss": 2.5, "learning_rate": 1e-5, "tokens_per_s": 99.5, "trained_tokens": 800,
    "epoch": 0.5,
}  # fmt: skip
EVAL_POINT = {"part": "valid", "step": 5, "iteration": 10, "loss": 2.5, "tokens": 99, "seconds_s": 1.5}
STORED = {"sha256": HEX, "size_bytes": 5}
RANK = {"generation": 4, "rank": 1, "size": 2}
FINE_TUNING = {
    "run": "abcd1234", "name": "tiny", "algorithm": {"method": "mlx-lm"}, "task": {"name": "mlx-lm"},
    "model": {"name": "mlx-community/Qwen3", "files": [{"name": "model.safetensors", "sha256": HEX, "size_bytes": 5}]},
}  # fmt: skip
HONEST: dict[type[msgspec.Struct], dict[str, Any]] = {
    JobLog: {"generation": 4, "n": 7, "points": [POINT], "evals": [EVAL_POINT], "shares": [3, 1]},
    JobCheckpoint: {"generation": 4, "step": 5, "iteration": 10, "by": "mac", "state": STORED, "adapter": STORED},
    Member: MEMBER,
    Probe: WHO | {"target": "studio", "target_incarnation": 2, "links": [LINK]},
    Plan: PLAN,
    Ready: WHO,
    Started: WHO | {"pid": 5},
    GenerationEnd: {"generation": 4, "ending": "lost", "by": "mac", "checkpoint": {"generation": 4, "step": 5}},
    Snapshot: SNAPSHOT,
    RoundRecord: ROUND,
    Manifest: MANIFEST,
    LearnerRecord: LEARNER,
    Beat: {"phase": "train", "rank": RANK, "doing": "step 5"},
    Claim: {"round": 3, "learner": "mac", "incarnation": 1},
    EvalRecord: {"round": 3, "learner": "mac", "loss": 1.0},
    Control: {"action": "stop"},
    JoinRefusal: {"machine": "m1", "machine_name": "Mac", "version": "1", "reason": "no torch"},
    Marker: {"id": "3c4b"},
}

NO_ID = ["", "Mac", "a/b", "../x", "a.b", "con", "x" * 65, "a\n", "é", 5, None]
NO_HASH = ["", HEX[1:], HEX + "0", HEX.upper(), "../" + HEX[3:], "g" * 64, None]
NO_FILE = [
    "",
    "../x.txt",
    "a/b.txt",
    "a\\b.txt",
    ".hidden",
    "c:x",
    "a\nb.txt",
    "con.txt",
    "NUL",
    "a.txt.",
    "a ",
    "a?.txt",
    "x" * 201,
    None,
]
NO_ROUND = [-1, MAX_ROUND + 1, 10**400, 1.5, True, "1", None]
NO_COUNT = [-1, MAX_COUNT + 1, 10**400, 0.5, True, "1", None]
NO_REAL = [-1, -1e-300, MAX_REAL * 10, 10**400, "1", True, None]
NO_LOSS = ["1", True, 10**400, []]
NO_GENERATION = [*NO_COUNT, MAX_GENERATION + 1]
NO_ADDRESS = ["", "10.0.0", "10.0.0.256", "010.0.0.1", "fe80::1", "mac.local", "10.0.0.5:80", "10.0.0.5 ", None, 5]
NO_PORT = [0, 65536, -1, 1.5, True, "21000", None]
NO_REASON = ["x" * 201, "a\nb", "\x1b[31m", None, 5]


def bad_values() -> list[tuple[type[msgspec.Struct], str, Any]]:
    found: list[tuple[type[msgspec.Struct], str, Any]] = []
    fields: list[tuple[list[Any], type[msgspec.Struct], list[str]]] = [
        (NO_ID, Snapshot, ["learner", "unit"]),
        (NO_ID, RoundRecord, ["participants.0.learner", "participants.0.unit"]),
        (NO_ID, LearnerRecord, ["learner"]),
        (NO_ID, EvalRecord, ["learner"]),
        (NO_ID[1:], Claim, ["learner"]),
        (NO_ID[1:], RoundRecord, ["closer"]),
        (NO_HASH, Snapshot, ["base_sha256", "schema_sha256", "payload.sha256"]),
        (NO_HASH, RoundRecord, ["theta.sha256"]),
        (NO_HASH[:-1], RoundRecord, ["parent"]),
        (NO_HASH, Manifest, ["schema_sha256", "init.0.sha256"]),
        (NO_ROUND, Snapshot, ["round"]),
        (NO_ROUND, RoundRecord, ["round"]),
        (NO_ROUND, EvalRecord, ["round"]),
        (NO_ROUND, Claim, ["round"]),
        (NO_ROUND, Beat, ["round"]),
        (NO_ROUND, Manifest, ["eval_every"]),
        ([0, *NO_ROUND[:-1]], Manifest, ["rounds"]),
        ([-2, *NO_ROUND[1:]], RoundRecord, ["theta.round", "version"]),
        ([4], RoundRecord, ["theta.round", "version"]),
        (NO_COUNT, Snapshot, ["fragment", "incarnation", "tokens", "steps", "payload.size_bytes"]),
        (NO_COUNT, RoundRecord, ["fragment", "step", "control", "participants.0.tokens", "participants.0.steps"]),
        (NO_COUNT, RoundRecord, ["participants.0.size_bytes", "theta.size_bytes"]),
        (NO_COUNT, Beat, ["step", "steps", "rss_bytes", "sent_bytes", "received_bytes", "progress_bytes"]),
        (NO_COUNT, LearnerRecord, ["incarnation", "pid"]),
        (NO_COUNT, Claim, ["incarnation"]),
        ([-1, 2**63, 10**400, 0.5, True, None], Manifest, ["seed"]),
        (NO_REAL, Snapshot, ["seconds_s"]),
        (NO_REAL, RoundRecord, ["participants.0.weight", "participants.0.seconds_s", "waited_s", "quorum_waited_s", "close_s"]),
        (NO_REAL, Beat, ["tokens_per_s"]),
        (NO_REAL, EvalRecord, ["seconds_s"]),
        (NO_LOSS, Snapshot, ["train_loss"]),
        (NO_LOSS, RoundRecord, ["participants.0.train_loss"]),
        (NO_LOSS, Beat, ["loss"]),
        (NO_LOSS, EvalRecord, ["loss"]),
        ([[HEX, "x"], ["../x"], "x", None], Beat, ["fetching"]),
        (["", "dance", None, 1], Beat, ["phase"]),
        (["", "restart", None], Control, ["action"]),
        ([{"a": None}, {"a": "1"}, {"a": 10**400}, [], None], EvalRecord, ["metrics"]),
        (["abc", "x" * 33, "Abcd1", "ab/cd", "com1", "../x", ""], Manifest, ["run"]),
        (["", "x" * 201, "a\nb", "\x1b[31m", "a\u202eb"], Manifest, ["name", "task.name"]),
        ([{"a": None}, {"a": []}, {"a": 10**5000}], Manifest, ["task.options"]),
        ([[], None, [MANIFEST["tensors"][0]] * 2], Manifest, ["tensors"]),
        ([[MANIFEST["tensors"][0], MANIFEST["tensors"][0] | {"name": "a"}]], Manifest, ["tensors"]),
        ([[MANIFEST["init"][0]] * 2, [REF], None], Manifest, ["init"]),
        (NO_HASH, Manifest, ["files.0.sha256", "files.0.hashes_sha256"]),
        ([*NO_COUNT, 0, MAX_FILE_BYTES + 1], Manifest, ["files.0.size_bytes"]),
        ([*NO_COUNT, 0, MAX_CHUNK_BYTES + 1], Manifest, ["files.0.chunk_bytes"]),
        ([4 * MAX_CHUNKS + 1], Manifest, ["files.0.size_bytes"]),
        (["code", "", None, 1], Manifest, ["files.0.kind"]),
        (NO_FILE, Manifest, ["files.0.name"]),
        ([[FILE, FILE], [FILE, FILE | {"name": "A.TXT"}], [FILE] * 1001, None, {}], Manifest, ["files"]),
        (
            [{"method": "fedsgd"}, {"method": "fedavg", "per_round": 11}, [], {"method": "diloco", "sync_every": 0}],
            Manifest,
            ["algorithm"],
        ),
        ([{"method": "diloco", "sync_every": 2, "fragments": 3}], Manifest, ["algorithm"]),
        (
            NO_COUNT,
            Beat,
            [f"rank.{name}" for name in ("generation", "rank", "size", "share", "memory_bytes")],
        ),
        (NO_COUNT, Beat, ["rank.microbatch_rows"]),
        (NO_REAL, Beat, [f"rank.{name}" for name in ("compute_s", "waiting_s", "exchange_s", "update_s")]),
        (["x" * 201, None, 5], Beat, ["doing"]),
        *(
            (NO_GENERATION, kind, ["generation"])
            for kind in (Member, Probe, Plan, Ready, Started, GenerationEnd, JobLog, JobCheckpoint)
        ),
        (NO_COUNT, JobLog, ["n", "points.0.step", "points.0.iteration", "points.0.trained_tokens"]),
        (NO_COUNT, JobLog, ["evals.0.step", "evals.0.iteration", "evals.0.tokens", "shares.0"]),
        (NO_REAL, JobLog, ["points.0.learning_rate", "points.0.tokens_per_s", "points.0.epoch", "evals.0.seconds_s"]),
        (NO_LOSS, JobLog, ["points.0.train_loss", "evals.0.loss"]),
        (["train", "", None], JobLog, ["evals.0.part"]),
        ([[POINT] * (MAX_POINTS + 1), None, {}], JobLog, ["points"]),
        ([[EVAL_POINT] * (MAX_POINTS + 1), None, {}], JobLog, ["evals"]),
        ([[1] * (MAX_RANKS + 1), None], JobLog, ["shares"]),
        (NO_COUNT, JobCheckpoint, ["step", "iteration", "state.size_bytes", "adapter.size_bytes"]),
        (NO_HASH, JobCheckpoint, ["state.sha256", "adapter.sha256"]),
        (NO_ID, JobCheckpoint, ["by"]),
        *((NO_ID, kind, ["learner"]) for kind in (Member, Probe, Ready, Started)),
        *((NO_COUNT, kind, ["incarnation"]) for kind in (Member, Probe, Ready, Started)),
        (NO_ID, Probe, ["target"]),
        (NO_ID, Plan, ["leader", "seats.0.learner", "refused.0.learner"]),
        (NO_ID, GenerationEnd, ["by"]),
        (NO_COUNT, Member, ["memory_bytes"]),
        (NO_COUNT, Probe, ["target_incarnation"]),
        (NO_COUNT, Plan, ["seats.0.incarnation", "start.step"]),
        (NO_COUNT, Started, ["pid"]),
        (NO_ADDRESS, Member, ["addresses.0.address"]),
        (NO_ADDRESS, Probe, ["links.0.address"]),
        (NO_ADDRESS[1:], Probe, ["links.0.source"]),
        (NO_ADDRESS, Plan, ["seats.0.address"]),
        (NO_PORT, Member, ["addresses.0.probe_port", "ports.0"]),
        (NO_PORT, Plan, ["seats.0.port"]),
        ([*NO_COUNT, 0], Plan, ["seats.0.share"]),
        (NO_REAL, Plan, ["start_s"]),
        (NO_REAL, Member, ["tokens_per_s", "addresses.0.speed_bytes_per_s"]),
        (NO_REAL, Probe, ["links.0.rtt_s", "links.0.bytes_per_s"]),
        (NO_REASON, Ready, ["refusal"]),
        (NO_REASON, GenerationEnd, ["reason"]),
        (NO_REASON, Plan, ["refused.0.reason"]),
        (NO_REASON, Probe, ["links.0.error"]),
        ([[ADDRESS, ADDRESS], [ADDRESS] * 65, None], Member, ["addresses"]),
        ([[21001, 21001], list(range(1, 70))], Member, ["ports"]),
        (["", "short", "x" * 65, "0123456789abcde\n", "é" * 20, None], Member, ["nonce"]),
        ([{"": "1"}, {"a": None}, {"a\nb": "1"}, {str(n): "1" for n in range(21)}], Member, ["versions"]),
        ([{"a": "x"}, {"a": HEX.upper()}, {"": HEX}, {str(n): HEX for n in range(1001)}], Member, ["hashes"]),
        ([["smoke"], None], Member, ["backends"]),
        (["serial", "", None], Member, ["addresses.0.kind"]),
        ([[LINK, LINK]], Probe, ["links"]),
        ([[], [SEAT, SEAT], [SEAT, SEAT | {"learner": "studio"}], [SEAT, SEAT | {"port": 1}], None], Plan, ["seats"]),
        ([[SEAT | {"learner": f"l{n}", "port": n + 1} for n in range(MAX_RANKS + 1)]], Plan, ["seats"]),
        ([["rdma_en1", ""]], Plan, ["seats.0.rdma"]),
        (["jaccl", "smoke", None], Plan, ["backend"]),
        ([-1, 2**63, None], Plan, ["seed"]),
        ([{"generation": 4, "step": 5}, {"generation": 3}, 5], Plan, ["start"]),
        (["explosion", None], GenerationEnd, ["ending"]),
        (["x" * (MAX_TEXT + 1)], LearnerRecord, ["machine", "machine_name", "boot", "process", "version", "device"]),
        (["x" * (MAX_TEXT + 1)], Control, ["by"]),
        (["x" * (MAX_TEXT + 1)], JoinRefusal, ["machine_name", "version", "device"]),
        (NO_ID, JoinRefusal, ["machine"]),
        (["", "x" * 301, None, 5], JoinRefusal, ["reason"]),
        (["x" * (MAX_TEXT + 1)], Manifest, ["created_by", "replay"]),
        ([{str(n): n for n in range(1001)}, {"x" * 201: 1}, {"x": "x" * 100_001}], Manifest, ["task.options"]),
        ([[HEX] * 10_001], Beat, ["fetching"]),
        ([[PARTICIPANT] * 10_001], RoundRecord, ["participants"]),
        ([[{"learner": "a", "unit": "a", "reason": "late", "round": 1}] * 100_001], RoundRecord, ["rejected"]),
        ([{"generation": 5, "step": 5}], GenerationEnd, ["checkpoint"]),
    ]
    for values, kind, places in fields:
        found += [(kind, place, value) for place in places for value in values]
    return found


def swapped(body: Any, place: str, value: Any) -> Any:
    head, _, rest = place.partition(".")
    at: Any = int(head) if head.isdigit() else head
    copy = list(body) if isinstance(body, list) else dict(body)
    copy[at] = swapped(copy.get(at, {}) if isinstance(copy, dict) else copy[at], rest, value) if rest else value
    return copy


def dumps(value: Any) -> str:
    """JSON with integers of any length."""
    try:
        return json.dumps(value)
    except ValueError:  # an integer of more digits than Python writes
        pass
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{dumps(v)}" for k, v in value.items()) + "}"
    return "[" + ",".join(map(dumps, value)) + "]" if isinstance(value, list) else "9" * 5000


@pytest.mark.parametrize("kind", HONEST, ids=lambda kind: kind.__name__)
def test_the_honest_ones_pass(kind: type[msgspec.Struct]) -> None:
    assert isinstance(decode(wire(json.dumps(HONEST[kind])), kind), kind)


def test_no_bad_value_is_decoded() -> None:
    for kind, place, value in bad_values():
        body = dumps(swapped(HONEST[kind], place, value))
        try:
            record = decode(wire(body), kind)
        except RecordError:
            continue
        pytest.fail(f"{kind.__name__} with {place} {value!r:.80} was decoded: {record}")


def test_construction_is_as_strict_as_decoding() -> None:
    """msgspec itself checks types on decoding only; a value of the wrong type must not wait for its reader to fail."""
    beat: dict[str, Any] = {"phase": "train"}
    for bad in ({"step": 1.5}, {"step": True}, {"step": "1"}, {"tokens_per_s": math.nan}, {"tokens_per_s": math.inf}):
        with pytest.raises(ValueError, match=f"^{next(iter(bad))} must be"):
            Beat(**beat | bad)
    with pytest.raises(ValueError, match=r"^loss must be a number or null, got '1'"):
        Beat(phase="train", loss="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^option lr must be finite, got nan"):
        TaskRef(name="x", options={"lr": math.nan})
    with pytest.raises(ValueError, match=r"^learner must be 1 to 64 of"):
        Claim(round=0, learner="Mac", incarnation=1)
    with pytest.raises(ValueError, match=r"^sha256 must be 64 lower-case hex digits"):
        PayloadRef(round=0, sha256="abc", size_bytes=0)


def test_a_file_has_as_many_chunks_as_it_needs() -> None:
    for size, chunk, count in ((1, 1, 1), (8, 4, 2), (9, 4, 3), (3, 4, 1), (MAX_FILE_BYTES, MAX_CHUNK_BYTES, 1 << 14)):
        ref = FileRef(name="a.txt", kind="data", sha256=HEX, size_bytes=size, chunk_bytes=chunk, hashes_sha256=HEX)
        assert ref.chunks == count


@pytest.mark.parametrize("name", ["../x", "a/b", "a\\b", ".hidden", "c:x", "", "a\nb", "x" * 201])
def test_a_data_name_is_no_path(name: str) -> None:
    with pytest.raises(ValueError, match="data name"):
        DataRef(name=name, sha256=HEX, size_bytes=1)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_null_for_the_others(loss: float) -> None:
    beat = Beat(phase="train", loss=loss)
    assert decode(encode(beat, nonce="n"), Beat) == Beat(phase="train", loss=None)
    evaluated = EvalRecord(round=3, learner="mac", loss=loss, metrics={"accuracy": 0.5, "perplexity": loss})
    assert evaluated.metrics == {"accuracy": 0.5}
    assert decode(encode(evaluated, nonce="n"), EvalRecord) == EvalRecord(
        round=3, learner="mac", loss=None, metrics={"accuracy": 0.5}
    )
    for kind, place in ((Snapshot, "train_loss"), (RoundRecord, "participants.0.train_loss")):
        record = msgspec.convert(swapped(HONEST[kind], place, loss), type=kind)
        assert decode(encode(record, nonce="n"), kind) == decode(wire(json.dumps(swapped(HONEST[kind], place, None))), kind)


def test_what_is_only_shown_is_cut_to_a_bound() -> None:
    endless = {"x" * 201: 1.0, "accuracy": 0.5}
    record = EvalRecord(round=1, learner="a", loss=1.0, metrics=endless, sample="é" * 10**6)
    assert (record.metrics, record.sample) == ({"accuracy": 0.5}, "é" * 100_000)
    assert decode(encode(record, nonce=""), EvalRecord) == record


def test_nan_and_infinity_are_no_json() -> None:
    for word in ("NaN", "Infinity", "-Infinity", "1e999"):
        with pytest.raises(RecordError):
            decode(wire('{"phase":"train","tokens_per_s":%s}' % word), Beat)  # noqa: UP031


def test_another_format_says_so_before_its_fields_are_found_wrong() -> None:
    newer = MANIFEST | {"format": FORMAT + 1, "algorithm": {"method": "telepathy"}}
    with pytest.raises(FormatMismatch, match="runs/x has format 2, this swarm reads format 1: upgrade swarm here"):
        decode(wire(json.dumps(newer)), Manifest, where="runs/x")
    with pytest.raises(FormatMismatch):
        decode(wire('{"uuid":"x","format":7}'), Marker)
    # One that can be read is handed over: its reader compares `format`.
    assert decode(wire(json.dumps(MANIFEST | {"format": 2})), Manifest).format == 2
    for fmt in (FORMAT, "2", None, [], 1.5):
        with pytest.raises(RecordError):
            decode(wire(json.dumps(newer | {"format": fmt})), Manifest)
    # Records without that field are not asked.
    with pytest.raises(RecordError):
        decode(wire('{"action":"dance","format":2}'), Control)


def test_errors_say_where_and_what() -> None:
    with pytest.raises(RecordError, match=r"^runs/r/x: learner must be 1 to 64 of .*, got 'Mac' - at `\$.participants\[0\]`"):
        decode(wire(json.dumps(swapped(ROUND, "participants.0.learner", "Mac"))), RoundRecord, where="runs/r/x")
    with pytest.raises(SwarmError, match=r"^record: the body's SHA-256 is not the envelope's"):
        decode(b'{"action":"stop"}\n{"nonce":"n","sha256":"%b"}\n' % HEX.encode(), Control)
    with pytest.raises(RecordError, match=r"^record: damaged: it is not two lines"):
        decode(b'{"action":"stop"}\n', Control)


def test_a_fragment_of_a_manifest_that_is_not_written_yet_has_no_payload() -> None:
    assert msgspec.convert(MANIFEST | {"init": []}, type=Manifest).init == ()
    two = MANIFEST | {"algorithm": {"method": "diloco", "fragments": 2}}
    assert len(msgspec.convert(two, type=Manifest).init) == 1  # one tensor: one fragment


def test_a_fine_tuning_has_no_parameters_of_its_own_and_no_rounds() -> None:
    manifest = decode(wire(json.dumps(FINE_TUNING)), Manifest)
    assert manifest.plan == ()
    assert isinstance(manifest.algorithm, FineTune)
    with pytest.raises(ValueError, match="run tiny is an MLX-LM fine-tuning, which has no rounds"):
        _ = manifest.by_rounds
    for name, value in (
        ("tensors", MANIFEST["tensors"]), ("schema_sha256", HEX), ("init", MANIFEST["init"]), ("rounds", 5),
    ):  # fmt: skip
        with pytest.raises(RecordError, match="an MLX-LM fine-tuning has no tensors, no init and no rounds of its own"):
            decode(wire(json.dumps(FINE_TUNING | {name: value})), Manifest)
    with pytest.raises(RecordError, match="an MLX-LM fine-tuning must name its model"):
        decode(wire(json.dumps(FINE_TUNING | {"model": None})), Manifest)


HUGE = 10**400
FILES = FINE_TUNING["model"]["files"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *(("model.name", value) for value in ("", "x" * 201, "a\nb", "\x1b[31m", None, 5)),
        *(("model.revision", value) for value in ("a/b", "../x", ".x", "x" * 201, "a\nb", None)),
        *(("model.files", value) for value in ([], FILES * 2, [FILES[0], FILES[0] | {"name": "MODEL.safetensors"}], None, {})),
        ("model.files", [FILES[0] | {"name": f"{n}.safetensors"} for n in range(1001)]),
        *(("model.files.0.name", value) for value in ("../x", "a/b", "a\\b", ".hidden", "c:x", "", None)),
        *(("model.files.0.sha256", value) for value in NO_HASH),
        *(("model.files.0.size_bytes", value) for value in NO_COUNT),
        ("algorithm.iters", 0),
        ("algorithm.lora_parameters", {"rank": 0}),
        ("algorithm.lora_parameters", {"rank": 8, "alpha": 16}),
        ("algorithm.optimizer_config", {"adam": {"eps": HUGE}}),
        ("algorithm.optimizer_config", {"adam": {"betas": [0.9, HUGE]}}),
        ("algorithm.optimizer_config", {"adam": {"momentum": 0.9}}),
        ("algorithm.lr_schedule", {"name": "exponential_decay", "arguments": [1, -HUGE]}),
        ("algorithm.lr_schedule", {"name": "exponential_decay", "arguments": [1, True]}),
        ("algorithm.world_size_max", MAX_RANKS + 1),
    ],
)
def test_no_bad_fine_tuning_is_decoded(place: str, value: Any) -> None:
    with pytest.raises(RecordError):
        decode(wire(dumps(swapped(FINE_TUNING, place, value))), Manifest)


def test_a_model_is_known_by_the_names_and_hashes_of_its_files_in_any_order() -> None:
    files = [DataRef(name=name, sha256=sha256, size_bytes=5) for name, sha256 in (("a.json", HEX), ("b.json", HEX[::-1]))]
    model = ModelRef(name="x", files=tuple(files))
    assert model.sha256 == ModelRef(name="y", revision="main", files=tuple(files[::-1])).sha256
    assert model.sha256 == hashlib.sha256(f"a.json {HEX}\nb.json {HEX[::-1]}\n".encode()).hexdigest()
    assert model.sha256 != ModelRef(name="x", files=(files[0], msgspec.structs.replace(files[1], name="c.json"))).sha256


def test_losses_of_a_job_that_are_not_finite_are_null_for_the_others() -> None:
    log = JobLog(
        generation=0,
        n=0,
        points=(msgspec.convert(POINT | {"train_loss": math.nan}, TrainPoint),),
        evals=(msgspec.convert(EVAL_POINT | {"loss": math.inf}, EvalPoint),),
    )
    read = decode(encode(log, nonce="n"), JobLog)
    assert read.points == (msgspec.convert(POINT | {"train_loss": None}, TrainPoint),)
    assert read.evals == (msgspec.convert(EVAL_POINT | {"loss": None}, EvalPoint),)


def test_a_sample_names_somebody() -> None:
    with pytest.raises(ValueError, match="clients must be one, at least"):
        Sample(round=0, clients=())
