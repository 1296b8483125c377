"""FedAvg on the command line, over a real folder and without any worker: what is ordered, and what a run's records show."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from swarm.cli import narrate
from swarm.core.clients import sampled
from swarm.core.jobs import Learn
from swarm.core.records import Rejected
from swarm.core.specs import DiLoCo, FedAvg
from tests.integration.handmade import (
    FEDERATED,
    claim_client,
    evaluate,
    make_mailbox,
    make_run,
    write_fed_rounds,
    write_rounds,
)
from tests.integration.test_commands import Swarm

PRIVATE = FedAvg(private=True, per_round=2, beat_s=0.2, lease_s=2.0)
DEADLINE = "the deadline is over: 2 of 3 clients"
TWICE = Rejected(learner="mbp", unit="client-0001", reason="duplicate", round=2, differs=True)


@pytest.fixture
def swarm(capsys: pytest.CaptureFixture[str], state_dir: Path) -> Swarm:
    return Swarm(capsys)


@pytest.fixture
def mailbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    location = make_mailbox(tmp_path / "mailbox")
    monkeypatch.setenv("SWARM_MAILBOX", location)
    return location


@pytest.fixture
def ordered(mailbox: str, monkeypatch: pytest.MonkeyPatch) -> list[Learn]:
    """What workers were told to do; none is started."""
    orders: list[Learn] = []

    def note(told: list[Learn], **_: object) -> int:
        orders[:] = told
        return 0

    monkeypatch.setattr(narrate, "follow", note)
    monkeypatch.setattr(narrate, "detach", note)
    return orders


@pytest.fixture
def fed(mailbox: str) -> str:
    """A run of three rounds, its fourth begun with."""
    manifest = make_run(mailbox, "fed-one", "aaaa1111", algorithm=FEDERATED, rounds=10)
    write_fed_rounds(mailbox, manifest, 3, rejected=(TWICE,), reason=DEADLINE)
    for round in range(3):
        evaluate(mailbox, "aaaa1111", round, accuracy=0.7 + 0.1 * round)
    claim_client(mailbox, "aaaa1111", 3, sampled(FEDERATED, manifest.seed, 3)[0], "studio")
    return mailbox


def begun(orders: list[Learn]) -> FedAvg:
    create = orders[0].create
    assert create is not None
    assert isinstance(create.algorithm, FedAvg)
    return create.algorithm


# Starting


def test_every_option_reaches_the_run(swarm: Swarm, ordered: list[Learn]) -> None:
    argv = "--clients 12 --per-round 3 --local-epochs 2 --batch-size 16 --optimizer Adam --lr 0.001 --clip-grad-norm 2.0"
    seeds = "--model-seed 17 --training-seed 29 --partition dirichlet:0.5 --outer fedadam --deadline-s 60 --min-clients 2"
    native = "--optimizer-option amsgrad=true --optimizer-option decay=0.5 --optimizer-option steps=3 --optimizer-option mode=x"
    more = "--task mlp --rounds 7 --threads 2 --no-bias-correction"
    assert swarm("start", "fedavg", *argv.split(), *seeds.split(), *native.split(), *more.split()) == 0, swarm.err
    assert begun(ordered) == FedAvg(
        clients=12,
        per_round=3,
        local_epochs=2,
        batch_size=16,
        optimizer="adam",
        lr=0.001,
        clip_grad_norm=2.0,
        model_seed=17,
        training_seed=29,
        partition="dirichlet:0.5",
        outer="fedadam",
        deadline_s=60.0,
        min_clients=2,
        threads=2,
        bias_correction=False,
        native={"amsgrad": True, "decay": 0.5, "steps": 3, "mode": "x"},
    )
    [order] = ordered
    assert order.create is not None
    assert (order.create.rounds, order.create.seed, order.threads) == (7, 17, 2)


def test_what_is_not_said_is_the_methods_own(swarm: Swarm, ordered: list[Learn]) -> None:
    assert swarm("start", "fedavg", "--task", "mlp") == 0, swarm.err
    assert begun(ordered) == FedAvg()


def test_private_clients_train_on_their_own_data(swarm: Swarm, ordered: list[Learn], mailbox: str, tmp_path: Path) -> None:
    assert swarm("start", "fedavg", "--task", "mlp", "--clients", "private", "--per-round", "20") == 0, swarm.err
    assert (begun(ordered).private, begun(ordered).per_round) == (True, 20)
    make_run(mailbox, "hush", "bbbb1111", algorithm=PRIVATE)
    mine = tmp_path / "mine"
    mine.mkdir()
    assert swarm("join", "hush", "--data", str(mine)) == 0, swarm.err
    assert [order.data for order in ordered] == [str(mine)]
    assert "--workers" in swarm.fails(2, "join", "hush", "--data", str(mine), "--workers", "2")
    assert "--workers" in swarm.fails(2, "start", "fedavg", "--task", "mlp", "--clients", "private", "--workers", "2")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("digits", "digits"), ("mnist:{here}/x", "mnist:{here}/x"), ("mnist:x", "mnist:{here}/x"), ("./digits", "{here}/digits")],
)
def test_a_word_that_the_task_knows_is_no_path(
    swarm: Swarm, ordered: list[Learn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, meant: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert swarm("start", "fedavg", "--task", "mlp", "--data", given.format(here=tmp_path)) == 0, swarm.err
    assert ordered[0].data == meant.format(here=tmp_path)
    name = given.format(here=tmp_path).replace("/", "-")
    (tmp_path / name).touch()
    assert swarm("start", "fedavg", "--task", "mlp", "--data", name) == 0, swarm.err
    assert ordered[0].data == str(tmp_path / name), "a file of that name is meant where there is one"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--clients", "3", "--per-round", "4"), "per_round must be <= clients (3), got 4"),
        (("--clients", "many"), "'many' is neither a number nor 'private'"),
        (("--clients", "0"), "clients must be >= 1, got 0"),
        (("--optimizer", "momentum"), "momentum needs its momentum"),
        (("--optimizer", "adam", "--momentum", "0.9"), "adam has no momentum"),
        (("--partition", "dirichlet:0"), "partition must be iid"),
        (("--optimizer-option", "x"), "--optimizer-option 'x' is not KEY=VALUE"),
        (("--optimizer-option", "x=nan"), "native option x must be finite"),
        (("--seed", "1", "--model-seed", "2"), "give one of them"),
        (("--task", "lenet6"), "no task 'lenet6'"),
    ],
)
def test_a_wrong_option_is_named(swarm: Swarm, mailbox: str, argv: tuple[str, ...], words: str) -> None:
    task = () if "--task" in argv else ("--task", "mlp")
    assert swarm("start", "fedavg", *task, *argv) == 2
    assert words in swarm.err


def test_several_learners_of_one_machine(swarm: Swarm, ordered: list[Learn], mailbox: str) -> None:
    for method in ("diloco", "fedavg"):
        argv = ("start", method, "--task", "mlp", "--workers", "3", "--learner-id", "studio")
        assert swarm(*argv) == 0, swarm.err
        assert [(o.learner, o.create is not None, o.may_rename) for o in ordered] == [
            ("studio", True, False),
            ("studio-2", False, False),
            ("studio-3", False, False),
        ]
        assert len({(o.run, o.run_name) for o in ordered}) == 1
    assert swarm(*argv, "--no-join") == 0
    assert [o.join for o in ordered] == [False]
    make_run(mailbox, "mlp-one", "aaaa1111")
    assert swarm("join", "mlp-one", "--workers", "2", "--learner-id", "x" * 64) == 0
    assert [o.learner for o in ordered] == ["x" * 64, "x" * 62 + "-2"]


# A job in a file

JOB = """
method = "fedavg"
task = "mlp"
rounds = 20
name = "digits"
workers = 2
clients = 12

[fedavg]
per_round = 3
optimizer = "adam"
lr = 1
bias-correction = false

[options]
batch_size = 8

[optimizer-options]
amsgrad = true
"""


def test_a_file_may_hold_the_whole_job(swarm: Swarm, ordered: list[Learn], tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    assert swarm("start", "fedavg", "-c", str(job)) == 0, swarm.err
    create = ordered[0].create
    assert create is not None
    assert len(ordered) == 2
    assert (create.task, create.rounds, create.name, create.options["batch_size"]) == ("mlp", 20, "digits", 8)
    adam = {"optimizer": "adam", "lr": 1.0, "bias_correction": False, "native": {"amsgrad": True}}
    assert create.algorithm == FedAvg(clients=12, per_round=3, **adam)  # type: ignore[arg-type]


def test_the_command_line_wins_over_the_file(swarm: Swarm, ordered: list[Learn], tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    argv = "--rounds 3 --clients private --bias-correction --workers 1 -o batch-size=9 --optimizer-option amsgrad=false"
    assert swarm("start", "fedavg", *argv.split(), "-c", str(job)) == 0, swarm.err
    create = ordered[0].create
    assert create is not None
    assert len(ordered) == 1
    assert (create.rounds, create.name, create.options["batch_size"]) == (3, "digits", 9)
    spec = begun(ordered)
    assert (spec.private, spec.bias_correction, spec.optimizer, spec.native) == (True, True, "adam", {"amsgrad": False})


def test_diloco_has_such_files_too(swarm: Swarm, ordered: list[Learn], tmp_path: Path, mailbox: str) -> None:
    job = tmp_path / "job.toml"
    job.write_text(f'task = "mlp"\nsync-every = 20\nmailbox = "{mailbox}"\nrole = "learner"\n[diloco]\nouter_lr = 0.5\n')
    assert swarm("start", "diloco", "--sync-every", "30", "-c", str(job)) == 0, swarm.err
    create = ordered[0].create
    assert create is not None
    assert create.algorithm == DiLoCo(sync_every=30, outer_lr=0.5)
    assert ordered[0].role == "learner"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("clientz = 3", "line 2: unknown key 'clientz': did you mean 'clients'?"),
        ("sync-every = 3", "line 2: unknown key 'sync-every'"),
        ("[fedavg]\nclientz = 3", "line 3: unknown key 'clientz'"),
        ("[fedawg]\nclients = 3", "line 2: unknown key 'fedawg': did you mean 'fedavg'?"),
        ("rounds = 2.5", "line 2: rounds must be a whole number, got 2.5"),
        ("rounds = true", "line 2: rounds must be a whole number, got True"),
        ("rounds = 0", "line 2: rounds: 0 is not in the range"),
        ("lr = 'fast'", "line 2: lr must be a number"),
        ("compiled = 1", "line 2: compiled must be true or false"),
        ("name = 3", "line 2: name must be a text"),
        ("optimizer = 'adm'", "line 2: optimizer: 'adm' is not one of"),
        ("clients = [1]", "line 2: clients must be one value"),
        ("clients = 'many'", "line 2: clients: 'many' is neither a number nor 'private'"),
        ("per-round = 1\nper_round = 1", "line 3: per_round is given twice"),
        ("per-round = 1\n[fedavg]\nper-round = 1", "per-round is given twice"),
        ("options = 3", "line 2: options is a table: [options]"),
        ("[lr]\nx = 1", "line 2: lr is one value, not a table"),
        ("[options]\nwidth = [1]", "[options] width must be one value"),
        ("[options]\nbatch_sise = 3", "did you mean batch_size?"),
        ("method = 'diloco'", "a job for diloco, not for fedavg: `swarm start diloco -c"),
        ("[diloco]\nsync-every = 3", "a job for diloco, not for fedavg"),
        ("method = 'sgd'", "there are diloco and fedavg"),
        ("config = 'x'", "unknown key 'config'"),
        ("per-round = 30", "per_round must be <= clients (10), got 30"),
        ("rounds = ", "no TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_place(
    swarm: Swarm, mailbox: str, tmp_path: Path, line: str, words: str
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(f'task = "mlp"\n{line}\n')
    said = swarm.fails(2, "start", "fedavg", "-c", str(job))
    assert words in said
    if "line" in words:
        assert f"{job}, {words}" in said


def test_a_table_of_fedavg_alone_is_none_of_diloco(swarm: Swarm, mailbox: str, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[optimizer-options]\nx = 1\n")
    assert "no table of a diloco job" in swarm.fails(2, "start", "diloco", "-c", str(job))


def test_a_file_that_cannot_be_read(swarm: Swarm, mailbox: str, tmp_path: Path) -> None:
    assert "nosuch.toml cannot be read: No such file" in swarm.fails(2, "start", "fedavg", "-c", str(tmp_path / "nosuch.toml"))
    assert "cannot be read" in swarm.fails(2, "start", "fedavg", "-c", str(tmp_path))
    (tmp_path / "job.toml").write_bytes(b"\xff\xfe\x00")
    assert "not a text in UTF-8" in swarm.fails(2, "start", "fedavg", "-c", str(tmp_path / "job.toml"))


# What a run's records show


def test_runs_names_the_method(swarm: Swarm, fed: str) -> None:
    make_run(fed, "other", "bbbb1111")
    assert [(r["name"], r["method"]) for r in swarm.objects("runs")] == [("fed-one", "fedavg"), ("other", "diloco")]
    assert swarm("runs") == 0
    assert swarm.out.splitlines()[1].split()[2] == "fedavg"


def test_status_shows_clients_accuracy_and_confusion(swarm: Swarm, fed: str) -> None:
    assert swarm("status", "fed-one") == 0
    lines = swarm.out.splitlines()
    assert lines[0] == "fed-one (aaaa1111)  idle  round 3/10  task mlp  N=4 K=2 E=1 adam dirichlet:0.5  open"
    assert lines[1] == "accuracy 0.900  val 0.250  round 2, evaluated by studio"
    head = next(n for n, line in enumerate(lines) if line.startswith("CLIENT"))
    assert lines[head].split() == ["CLIENT", "ROUNDS", "SAMPLES", "LOSS", "ACC", "SECONDS", "LAST", "BY", "NOW"]
    clients = {line.split()[0]: line.split()[1:] for line in lines[head + 1 : head + 5]}
    assert sorted(clients) == [f"client-000{n}" for n in range(4)]
    claimed, waiting = sampled(FEDERATED, 0, 3)
    assert clients[claimed][-2:] == ["silent", "(studio)"], "nobody is live"
    assert clients[waiting][-1] == "waiting"
    assert sum(int(fields[0]) for fields in clients.values()) == 6
    assert all(len(line) <= 80 for line in lines[head : head + 5])
    last = next(n for n, line in enumerate(lines) if line.startswith("round 2: "))
    one, two = sampled(FEDERATED, 0, 2)
    assert lines[last].startswith(
        f"round 2: {one} (80 samples, studio), {two} (81, mbp)  train 0.291  val 0.250  accuracy 0.900"
    )
    assert lines[last].endswith(DEADLINE)
    assert lines[last + 1] == "  client-0001: two learners trained it to different bytes: replay is not exact"
    assert lines[last + 2 :] == [
        "confusion of round 2 (rows: labels, columns: answers):",
        "label  0  1  2 right",
        "    0 30  2  ·  94 %",
        "    1  · 31  1  97 %",
        "    2  4  · 29  88 %",
    ]


def test_status_tells_programs_the_same(swarm: Swarm, fed: str) -> None:
    [found] = swarm.objects("status", "fed-one")
    assert (found["method"], found["buffers"]) == ("fedavg", "averaged")
    clients = {c["client"]: c for c in found["clients"]}  # type: ignore[attr-defined]
    claimed, waiting = sampled(FEDERATED, 0, 3)
    assert (clients[claimed]["now"], clients[claimed]["by"]) == ("silent", "studio")
    assert (clients[waiting]["now"], clients[waiting]["by"]) == ("waiting", None)
    assert sum(c["rounds"] for c in clients.values()) == 6
    assert found["confusion"] == {"round": 2, "labels_by_answers": [[30, 2, 0], [0, 31, 1], [4, 0, 29]]}
    last = found["history"][-1]  # type: ignore[index]
    assert last["reason"] == DEADLINE
    assert (last["metrics"], last["evaluated_by"]) == ({"accuracy": pytest.approx(0.9)}, "studio")
    assert [(c["learner"], c["samples"]) for c in last["clients"]] == [("studio", 80), ("mbp", 81)]
    assert last["rejected"] == [{"unit": "client-0001", "learner": "mbp", "reason": "duplicate", "round": 2, "differs": True}]


def test_an_accuracy_with_local_buffers_is_that_learners(swarm: Swarm, mailbox: str) -> None:
    manifest = make_run(mailbox, "own", "bbbb1111", algorithm=FedAvg(clients=2, buffers="local", beat_s=0.2, lease_s=2.0))
    write_fed_rounds(mailbox, manifest, 1)
    evaluate(mailbox, "bbbb1111", 0, confusion=False)
    assert swarm("status", "own") == 0
    assert swarm.out.splitlines()[1].endswith("round 0, with studio's own buffers")
    assert "confusion" not in swarm.out


def test_of_private_clients_only_counts_are_shown(swarm: Swarm, mailbox: str, tmp_path: Path) -> None:
    manifest = make_run(mailbox, "hush", "bbbb1111", algorithm=PRIVATE)
    write_fed_rounds(mailbox, manifest, 2)
    assert swarm("status", "hush") == 0
    lines = swarm.out.splitlines()
    assert lines[0].endswith("private K=2 E=1 sgd  open")
    assert lines[1].split() == ["CLIENT", "ROUNDS", "SAMPLES", "LAST", "BY", "NOW"]
    assert lines[2].split() == ["mbp", "2", "80", "mbp", "silent"]
    assert lines[-1] == "round 1: mbp (80 samples), studio (81)  val –  unchanged  up 48 B"
    [found] = swarm.objects("status", "hush")
    assert set(found["clients"][0]) == {"client", "rounds", "last_round", "samples", "learner", "now", "by"}  # type: ignore[index]
    assert found["history"][0]["train_loss"] is None  # type: ignore[index]
    target = tmp_path / "hush.jsonl"
    assert swarm("export", "hush", "--history", str(target)) == 0, swarm.err
    rounds = [json.loads(line) for line in target.read_text().splitlines()]
    assert rounds[0]["participants"] == [
        {"unit": "mbp", "learner": "mbp", "samples": 80},
        {"unit": "studio", "learner": "studio", "samples": 81},
    ]
    assert (rounds[0]["samples"], rounds[0]["train_loss"], rounds[0]["train_s"]) == (161, None, None)


def test_a_history_is_a_table(swarm: Swarm, fed: str, tmp_path: Path) -> None:
    target = tmp_path / "rounds.csv"
    assert swarm("export", "fed-one", "--history", str(target)) == 0, swarm.err
    assert "wrote 3 rounds of fed-one" in swarm.err
    rows = list(csv.DictReader(target.open(newline="")))
    assert [row["round"] for row in rows] == ["0", "1", "2"]
    last = rows[-1]
    assert float(last["accuracy"]) == pytest.approx(0.9)
    assert (last["participants"], last["samples"], last["rejected"], last["reason"]) == ("2", "161", "1", DEADLINE)
    assert (last["waited_s"], last["close_s"], last["val_loss"]) == ("2.5", "0.25", "0.25")
    assert last["units"].split() == list(sampled(FEDERATED, 0, 2))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_history_of_diloco_has_its_own_unit(swarm: Swarm, mailbox: str, tmp_path: Path) -> None:
    write_rounds(mailbox, make_run(mailbox, "one", "run1"), 3)
    target = tmp_path / "rounds.csv"
    target.write_text("before")
    assert swarm("export", "one", "--history", str(target)) == 0, swarm.err
    rows = list(csv.DictReader(target.open(newline="")))
    assert [(row["tokens"], row["learners"]) for row in rows] == [("10", "studio")] * 3


def test_what_keeps_a_history_from_being_written(swarm: Swarm, mailbox: str, tmp_path: Path) -> None:
    manifest = make_run(mailbox, "one", "run1")
    good = tmp_path / "x.csv"
    assert "has no round yet" in swarm.fails(2, "export", "one", "--history", str(good))
    write_rounds(mailbox, manifest, 2)
    assert "FILE" in swarm.fails(2, "export", "one")
    assert ".csv or .jsonl" in swarm.fails(2, "export", "one", "--history", str(tmp_path / "x.txt"))
    assert "No such file or directory" in swarm.fails(2, "export", "one", "--history", str(tmp_path / "no" / "x.csv"))
    assert "--round" in swarm.fails(2, "export", "one", "--history", str(good), "--round", "3")
    good.write_text("before")
    Path(mailbox, "runs/run1/rounds/00000000/0000000001/record.json").write_text("no record")
    assert "could not be read to its end" in swarm.fails(1, "export", "one", "--history", str(good))
    assert good.read_text() == "before"


def test_text_of_other_machines_is_no_formula(swarm: Swarm, mailbox: str, tmp_path: Path) -> None:
    manifest = make_run(mailbox, "fed-one", "aaaa1111", algorithm=FEDERATED)
    write_fed_rounds(mailbox, manifest, 1, reason="=HYPERLINK(1)")
    target = tmp_path / "x.csv"
    assert swarm("export", "fed-one", "--history", str(target)) == 0
    assert next(csv.DictReader(target.open(newline="")))["reason"] == "'=HYPERLINK(1)"


def test_two_federated_runs_side_by_side(swarm: Swarm, fed: str) -> None:
    manifest = make_run(fed, "fed-two", "bbbb1111", algorithm=FedAvg(clients=5, beat_s=0.2, lease_s=2.0))
    write_fed_rounds(fed, manifest, 1)
    assert swarm("compare", "fed-one", "fed-two") == 0
    fields = {line.split("  ")[0]: line.split()[-2:] for line in swarm.out.splitlines() if line}
    assert fields["optimizer"] == ["adam", "sgd"]
    assert fields["clients"] == ["4", "5"]
    assert fields["best accuracy"] == ["0.9000", "–"]
    assert "native" not in fields
    assert any(
        line.split() == ["ROUND", "VAL", "VAL", "DIFF", "ACC", "ACC", "TRAIN", "TRAIN", "WORK", "WORK"]
        for line in swarm.out.splitlines()
    )
    assert [at["accuracy"] for at in swarm.objects("compare", "fed-one", "fed-two")] == [
        *(pytest.approx(0.7 + 0.1 * n) for n in range(3)),
        None,
    ]


def test_runs_of_two_methods_side_by_side(swarm: Swarm, fed: str) -> None:
    write_rounds(fed, make_run(fed, "other", "bbbb1111"), 3)
    assert swarm("compare", "fed-one", "other") == 0
    lines = swarm.out.splitlines()
    assert ["method", "fedavg", "diloco"] in [line.split() for line in lines]
    assert any(line.startswith("settings") and line.endswith("H=10 q=1") for line in lines)
    assert not any(line.startswith(("quorum_size", "optimizer")) for line in lines), "what only one method has is no difference"
