"""What a run's records tell of FedAvg's clients."""

from __future__ import annotations

import msgspec
import pytest

from swarm.core.clients import client_id, sampled
from swarm.core.events import round_closed
from swarm.core.history import nested, rows
from swarm.core.lease import BeatId
from swarm.core.manifest import Manifest, PayloadRef, TaskRef
from swarm.core.participation import SHOWN, accuracy, confusion_lines, expected, labelled, mean_metrics
from swarm.core.records import Beat, Claim, EvalRecord, Participant, Rejected, RoundRecord, Snapshot
from swarm.core.sentences import refusal, sentence, settings, trained
from swarm.core.specs import DiLoCo, FedAvg
from swarm.core.state import ClientsRead, EvalRead, ManifestRead, Polled, RoundRead, RunState, SnapshotRead, apply
from swarm.core.tensorspec import TensorSpec

SHA = "ab" * 32
REF = PayloadRef(round=0, sha256=SHA, size_bytes=80)
SPEC = FedAvg(clients=4, per_round=2)


def manifest(spec: FedAvg) -> Manifest:
    return Manifest(
        run="abcd1234",
        name="fed",
        algorithm=spec,
        task=TaskRef(name="lenet5"),
        tensors=(TensorSpec("w", "F32", (2,)),),
        schema_sha256=SHA,
        init=(PayloadRef(round=-1, sha256=SHA, size_bytes=80),),
        seed=7,
    )


def part(unit: str, learner: str = "studio", *, samples: int = 80, loss: float | None = 0.5, **metrics: float) -> Participant:
    return Participant(
        learner=learner,
        unit=unit,
        weight=float(samples),
        tokens=samples,
        steps=3,
        train_loss=loss,
        seconds_s=1.5,
        size_bytes=80,
        metrics=metrics,
    )


def record(round: int, *parts: Participant, **more: object) -> RoundRecord:
    fields: dict[str, object] = {"rejected": (), "theta": REF, "outer": None, "closer": "studio"} | more
    return RoundRecord(
        round=round,
        fragment=0,
        step=round + 1,
        version=0,
        parent=None,
        participants=parts,
        **fields,  # type: ignore[arg-type]
    )


def state_of(spec: FedAvg, *records: RoundRecord, live: tuple[str, ...] = ("studio",)) -> RunState:
    state = apply(RunState(run="abcd1234"), ManifestRead(manifest(spec)))
    for each in records:
        state = apply(state, RoundRead(each))
    beats = {who: (BeatId(1, 0), Beat(phase="train")) for who in live}
    return apply(state, Polled(now_s=0.0, beats=beats))


def snapshot(round: int, unit: str, learner: str) -> Snapshot:
    return Snapshot(
        round=round,
        fragment=0,
        learner=learner,
        incarnation=1,
        unit=unit,
        base_sha256=SHA,
        schema_sha256=SHA,
        dtype=None,
        payload=REF,
        tokens=80,
        steps=3,
        train_loss=0.5,
        seconds_s=1.0,
    )


def claim(learner: str) -> Claim:
    return Claim(round=1, learner=learner, incarnation=1)


def test_clients_are_counted_by_the_rounds_in_which_they_took_part() -> None:
    first, second = record(0, part("client-0001"), part("client-0003")), record(1, part("client-0001", "mbp", samples=81))
    state = state_of(SPEC, first, second)
    found = {c.client: c for c in state.clients}
    assert sorted(found) == [client_id(n) for n in range(4)]  # those that never trained, too
    assert (found["client-0001"].rounds, found["client-0001"].samples) == (2, 81)
    assert found["client-0001"].tally is not None
    assert (found["client-0001"].tally.round, found["client-0001"].tally.last.learner) == (1, "mbp")
    assert (found["client-0000"].rounds, found["client-0000"].samples) == (0, None)


def test_of_very_many_clients_only_those_are_listed_of_whom_there_is_something_to_tell() -> None:
    spec = FedAvg(clients=SHOWN + 1, per_round=2)
    state = state_of(spec, record(0, part("client-0007")))
    assert {c.client for c in state.clients} == {"client-0007", *sampled(spec, 7, 1)}


def test_who_trains_what_in_the_open_round() -> None:
    spec = FedAvg(clients=4, per_round=4)
    state = state_of(spec, record(0, part("client-0000")))
    state = apply(state, SnapshotRead(snapshot(1, "client-0000", "mbp")))
    claims = {
        "client-0000": {0: claim("mbp")},
        "client-0001": {0: claim("air"), 1: claim("studio")},
        "client-0002": {0: claim("air")},
    }
    state = apply(state, ClientsRead(1, claims))
    assert [(c.doing, c.by) for c in state.clients] == [
        ("reported", "mbp"),
        ("training", "studio"),  # the newest claim counts
        ("silent", "air"),
        ("waiting", ""),
    ]
    closed = apply(state, RoundRead(record(1, part("client-0000"))))
    assert {c.doing for c in closed.clients} == {"waiting"}, "claims are a round's own"


def test_claims_on_another_round_change_nothing() -> None:
    state = state_of(SPEC)
    assert apply(state, ClientsRead(1, {"client-0000": {0: claim("studio")}})) == state
    damaged = apply(state, ClientsRead(0, {sampled(SPEC, 7, 0)[0]: {0: Claim(round=0, learner="", incarnation=0)}}))
    assert {c.doing for c in damaged.clients} == {"", "waiting"}


def test_private_clients_are_those_that_the_record_before_names() -> None:
    spec = FedAvg(private=True, per_round=2)
    state = state_of(spec, live=("air", "mbp"))
    assert state.sampled == ()
    named = apply(state, ClientsRead(0, {}, ("air", "mbp", "studio")))
    assert [(c.client, c.doing) for c in named.clients] == [("air", "training"), ("mbp", "training"), ("studio", "silent")]
    later = apply(named, RoundRead(record(0, part("air", "air"), clients=("mbp",))))
    assert later.sampled == ("mbp",)


def test_an_ended_run_has_no_open_round() -> None:
    made = msgspec.structs.replace(manifest(SPEC), rounds=1)
    state = apply(apply(RunState(run="abcd1234"), ManifestRead(made)), RoundRead(record(0, part("client-0001"))))
    assert {c.doing for c in state.clients} == {""}


def test_metrics_are_averaged_by_samples_over_those_that_all_have() -> None:
    parts = [part("a", samples=30, accuracy=0.5, odd=1.0), part("b", samples=10, accuracy=0.9), part("c", samples=0)]
    assert mean_metrics(parts) == {"accuracy": pytest.approx(0.6)}
    assert mean_metrics([]) == {}
    assert accuracy({"accuracy": 0.5}) == 0.5
    assert accuracy({"r2": 0.5}) is None


def test_of_how_many_a_round_counts() -> None:
    twice = Rejected(learner="mbp", unit="client-0001", reason="duplicate", round=0)
    one = record(0, part("client-0001"), rejected=(twice,))
    assert expected(SPEC, one, one.rejected, None) == 2, "as many as were sampled, and nobody twice"
    private = FedAvg(private=True, per_round=9)
    assert expected(private, one, (), record(0, clients=("a", "b", "c"))) == 3
    assert expected(private, one, (), None) == 1
    assert expected(DiLoCo(), one, one.rejected, None) == 2


def test_whose_model_was_evaluated() -> None:
    found = EvalRecord(round=0, learner="studio", loss=0.5)
    assert labelled(found, SPEC) == "evaluated by studio"
    assert labelled(found, FedAvg(buffers="local")) == "with studio's own buffers"


def test_a_confusion_matrix_is_aligned_and_never_too_wide() -> None:
    matrix = ((30, 2, 0), (0, 131, 1), (0, 0, 0))
    assert confusion_lines(matrix, width=80) == [
        "label   0   1   2 right",
        "    0  30   2   ·  94 %",
        "    1   · 131   1  99 %",
        "    2   ·   ·   ·     –",
    ]
    assert confusion_lines((), width=80) == []
    digits = tuple(tuple(1000 if a == b else 100 for b in range(10)) for a in range(10))
    assert max(map(len, confusion_lines(digits, width=80))) <= 80


def test_a_matrix_that_finds_no_room_tells_the_most_frequent_mistakes() -> None:
    matrix = [[0] * 100 for _ in range(100)]
    matrix[4][9], matrix[7][2] = 12, 30
    (line,) = confusion_lines(tuple(map(tuple, matrix)), width=80)
    assert line == "100 labels; most often mistaken: 7 for 2 (30), 4 for 9 (12)"
    crowded = tuple(tuple(a + b for b in range(100)) for a in range(100))
    assert all(len(line) <= 80 for line in confusion_lines(crowded, width=80))
    (line,) = confusion_lines(((0,) * 100,) * 100, width=80)
    assert line == "100 labels; none was mistaken"


def test_a_closed_round_names_its_clients_their_samples_and_who_trained_them() -> None:
    twice = Rejected(learner="mbp", unit="client-0002", reason="duplicate", round=3)
    parts = (part("client-0002", samples=84, accuracy=0.9), part("client-0007", "mbp", samples=90, accuracy=0.96))
    closed = record(3, *parts, rejected=(twice,), reason="the deadline is over: 2 of 3 clients")
    event = round_closed(closed, SPEC, rounds=10)
    assert event.participants == ("client-0002", "client-0007")
    assert sentence(event) == (
        "round 3 closed (4 of 10): client-0002 (84 samples, studio), client-0007 (90, mbp)  train loss 0.5000  accuracy 0.931"
        "  the deadline is over: 2 of 3 clients  rejected: client-0002 of mbp: another one of this unit counts"
    )
    ordinary = msgspec.structs.replace(closed, reason="every client has reported", rejected=())
    assert "every client" not in (sentence(round_closed(ordinary, SPEC, rounds=None)) or "")
    nobody = record(3, reason="the deadline is over: 0 of 3 clients")
    assert sentence(round_closed(nobody, SPEC, rounds=None)) == (
        "round 3 closed unchanged: nothing that counts was reported  the deadline is over: 0 of 3 clients"
    )


def test_a_closed_round_tells_how_far_its_clients_losses_fell() -> None:
    closed = record(0, part("client-0002", first_loss=0.7, last_loss=0.3), part("client-0003", first_loss=0.9, last_loss=0.3))
    assert (sentence(round_closed(closed, SPEC, rounds=None)) or "").endswith("  train loss 0.5000 (0.800 → 0.300)")


def test_of_private_clients_only_counts_are_told() -> None:
    spec = FedAvg(private=True, per_round=2)
    closed = record(0, part("air", "air", accuracy=0.9), part("mbp", "mbp", samples=1))
    assert sentence(round_closed(closed, spec, rounds=None)) == "round 0 closed: air (80 samples), mbp (1)"
    (row,) = rows(state_of(spec, closed))
    assert (row["samples"], row["train_loss"], row["train_s"]) == (81, None, None)
    assert not [name for name in row if name.startswith("train_") and row[name] is not None]
    (deep,) = nested(state_of(spec, closed))
    assert deep["participants"][0] == {"unit": "air", "learner": "air", "samples": 80}


def test_a_long_list_of_clients_is_cut() -> None:
    assert trained((client_id(n), 1, "a") for n in range(10)).endswith("client-0007 (1, a), and 2 more (2)")
    assert trained([("client-0000", 1, "a")]) == "client-0000 (1 sample, a)"


def test_a_duplicate_that_differs_says_what_that_means() -> None:
    refused = Rejected(learner="mbp", unit="client-0003", reason="duplicate", round=0, differs=True)
    assert refusal(refused) == "client-0003: two learners trained it to different bytes: replay is not exact"
    assert refusal(msgspec.structs.replace(refused, differs=False, reason="norm")).startswith("client-0003 of mbp: over max")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (FedAvg(), "N=10 K=2 E=1 sgd iid"),
        (FedAvg(optimizer="adam", partition="dirichlet:0.5", local_epochs=3), "N=10 K=2 E=3 adam dirichlet:0.5"),
        (FedAvg(private=True, per_round=5), "private K=5 E=1 sgd"),
        (
            FedAvg(outer="fedadam", merge="median", prox_mu=0.1, local_dtype="BF16", buffers="local", delta_dtype="F8_E4M3"),
            "N=10 K=2 E=1 sgd iid fedadam median μ=0.1 BF16 local-buffers ΔF8",
        ),
    ],
)
def test_what_tells_one_run_from_another(spec: FedAvg, words: str) -> None:
    assert settings(spec) == words


def test_a_history_has_a_row_for_each_round_with_the_same_columns() -> None:
    first = record(0, part("client-0001", accuracy=0.5), part("client-0002", samples=20, accuracy=0.7), waited_s=2.5)
    state = state_of(SPEC, first, record(1))
    state = apply(state, EvalRead(EvalRecord(round=1, learner="mbp", loss=0.25, metrics={"accuracy": 0.9, "round": 3.0})))
    one, two = rows(state)
    assert list(one) == list(two)
    assert (one["round"], one["participants"], one["samples"], one["waited_s"]) == (0, 2, 100, 2.5)
    assert (one["train_accuracy"], one["accuracy"], one["val_loss"]) == (pytest.approx(0.54), None, None)
    assert one["train_s"] == 3.0, "one learner trains its clients one after another"
    assert (two["train_accuracy"], two["accuracy"], two["val_loss"], two["evaluated_by"]) == (None, 0.9, 0.25, "mbp")
    assert (two["round"], two["metric_round"], two["changed"]) == (1, 3.0, False), "a metric takes no column's name"
    deep = nested(state)
    assert [p["metrics"] for p in deep[0]["participants"]] == [{"accuracy": 0.5}, {"accuracy": 0.7}]
