"""A whole job on one machine, and what MLX-LM's tools make of what it writes."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

pytest.importorskip("mlx_lm")

import mlx.core as mx
import msgspec

from swarm.core.errors import CheckpointUnsaved, LossNotFinite, RowTooLarge, SchemaMismatch, StateMismatch, UsageError
from swarm.core.finetune import FineTune, LoraParameters, LrSchedule
from swarm.core.rankjob import (
    Phase,
    RankEvent,
    RankPlan,
    RankReady,
    RankStepped,
    Replanned,
    Reported,
    Saved,
    Smaller,
    Validated,
    decode_event,
    encode_event,
)
from swarm.parallel import checkpoint as checkpoints
from swarm.parallel.group import Alone
from swarm.parallel.step import Step
from swarm.parallel.train import Trainer, prepared
from swarm.tasks.lm import files
from swarm.tasks.lm import model as models
from swarm.tasks.lm.rows import Order, tokens_given
from tests.integration.fake_group import on_ranks
from tests.integration.tiny_llama import completions, make_data, make_model, spec

Told = TypeVar("Told")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("job")
    data = make_data(folder / "data", train=completions(13), valid=completions(5, seed=1), test=completions(3, seed=2))
    return make_model(folder / "model"), data


def plan_for(places: tuple[Path, Path], folder: Path, config: FineTune, **values: Any) -> RankPlan:
    model, data = places
    base: dict[str, Any] = {"rank": 0, "size": 1, "model": str(model), "data": str(data)}
    mine = {"adapter_path": str(folder / "adapters"), "checkpoints": str(folder / "checkpoints")}
    return RankPlan(**{**base, **mine, "spec": config, **values})


def trained(plan: RankPlan, *, steps: int | None = None) -> tuple[Trainer, list[RankEvent]]:
    events: list[RankEvent] = []
    trainer = prepared(plan, Alone(), tell=events.append)
    events.append(trainer.ready())
    if steps is None:
        trainer.run()
    else:
        for _ in range(steps):
            trainer.advance()
        trainer.save()
    return trainer, events


def weights(trainer: Trainer) -> dict[str, Any]:
    return {name: np.array(value) for name, value in models.trainables(trainer.model).items()}


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    both = [np.concatenate([np.ravel(each[name]) for name in one]) for each in (one, other)]
    return float(np.linalg.norm(both[0] - both[1]) / np.linalg.norm(both[0]))


def of(events: list[RankEvent], kind: type[Told]) -> list[Told]:
    return [event for event in events if isinstance(event, kind)]


CONFIGS: dict[str, Callable[[], FineTune]] = {
    "lora": lambda: spec(iters=20, lora_parameters=LoraParameters(dropout=0.2), mask_prompt=True),
    "dora": lambda: spec(iters=20, fine_tune_type="dora", grad_accumulation_steps=2, optimizer="sgd"),
    "full": lambda: spec(
        iters=20,
        fine_tune_type="full",
        num_layers=1,
        optimizer="adamw",
        lr_schedule=LrSchedule(name="cosine_decay", arguments=(1e-2, 20), warmup=4),
    ),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_ten_steps_and_ten_more_are_twenty(places: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    config = CONFIGS[kind]()
    half = config.steps // 2
    whole, _ = trained(plan_for(places, tmp_path / "whole", config), steps=config.steps)
    first, _ = trained(plan_for(places, tmp_path / "first", config), steps=half)
    plan = plan_for(places, tmp_path / "second", config, start=first.saved, generation=1)
    second, events = trained(plan, steps=config.steps - half)
    assert of(events, RankReady)[0].step == half
    assert second.position.step == whole.position.step == config.steps
    assert second.position.trained_tokens == whole.position.trained_tokens
    assert distance(weights(whole), weights(second)) <= 1e-5
    assert distance(weights(whole), weights(first)) > 1e-3  # the second half did something


def test_a_checkpoint_of_other_options_is_refused(places: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = trained(plan_for(places, tmp_path, spec(iters=4)), steps=2)
    for other in (spec(iters=4, seed=5), spec(iters=4, lora_rank=2), spec(iters=4, optimizer="sgd")):
        with pytest.raises(StateMismatch, match="other options"):
            trained(plan_for(places, tmp_path, other, start=first.saved))
    other = make_data(tmp_path / "other", train=completions(13, seed=9))
    with pytest.raises(StateMismatch, match="other training rows"):
        trained(plan_for((places[0], other), tmp_path, spec(iters=4), start=first.saved))
    with pytest.raises(StateMismatch, match="another base model"):
        trained(plan_for(places, tmp_path, spec(iters=4), start=first.saved, base="x"))
    with pytest.raises(StateMismatch, match="other options"):  # its last step might have held two iterations
        trained(plan_for(places, tmp_path, spec(iters=5, grad_accumulation_steps=2), start=first.saved))
    extended, _ = trained(plan_for(places, tmp_path, spec(iters=8, save_every=3), start=first.saved))
    assert extended.position.step == 8
    whole, _ = trained(plan_for(places, tmp_path / "whole", spec(iters=8, save_every=50)))
    assert distance(weights(whole), weights(extended)) <= 1e-5


def test_damaged_checkpoints_are_told(places: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = trained(plan_for(places, tmp_path, spec(iters=2)), steps=1)
    path = Path(str(first.saved))
    data = path.read_bytes()
    for damaged in (b"", data[:20], data[: len(data) // 2], b"{}"):
        path.write_bytes(damaged)
        with pytest.raises(StateMismatch):
            checkpoints.load(path)
    mx.save_safetensors(str(path), {"trainable.x": mx.zeros(3)})
    with pytest.raises(StateMismatch):
        checkpoints.load(path)
    with pytest.raises(StateMismatch):
        checkpoints.load(tmp_path / "absent.safetensors")


def test_two_checkpoints_are_kept_and_all_of_other_generations(places: tuple[Path, Path], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    model, _ = models.load_base(places[0])
    models.prepare(model, spec())
    optimizer = models.make_optimizer(spec(), model)

    def saved(generation: int, step: int) -> list[str]:
        checkpoints.save(folder, model, optimizer, checkpoints.Position(generation=generation, step=step))
        return [f"{path.parent.name[-1]}/{path.stem[-2:]}" for path in files.checkpoints(folder)]

    assert saved(1, 10) == ["1/10"]
    assert saved(1, 20) == ["1/10", "1/20"]
    assert saved(1, 30) == ["1/20", "1/30"]
    assert saved(3, 31) == ["1/20", "1/30", "3/31"]
    assert saved(2, 31) == ["1/20", "1/30", "2/31", "3/31"]  # a generation that is still alive and should not be
    assert saved(3, 32) == ["1/20", "1/30", "2/31", "3/31", "3/32"]
    assert saved(2, 32) == ["1/20", "1/30", "2/31", "2/32", "3/31", "3/32"]
    assert saved(2, 33) == ["1/20", "1/30", "2/32", "2/33", "3/31", "3/32"]
    assert not list(folder.glob("*/.*"))
    (folder / "000001" / ".7-half.safetensors").write_bytes(b"")
    files.remove_checkpoints(folder, before=3)
    assert sorted(path.name for path in folder.iterdir()) == ["000003"]
    assert len(files.checkpoints(folder)) == 2
    files.remove_checkpoints(tmp_path / "absent", before=3)


def test_a_full_disk_keeps_what_was_there(places: tuple[Path, Path], tmp_path: Path) -> None:
    trainer, _ = trained(plan_for(places, tmp_path, spec(iters=4)), steps=1)
    kept, adapter = Path(str(trainer.saved)), tmp_path / "adapters" / "adapters.safetensors"
    before = kept.read_bytes(), adapter.read_bytes()
    trainer.advance()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # a file that grows beyond it fails as on a full disk
    try:
        with pytest.raises(CheckpointUnsaved, match="not written") as caught:
            trainer.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (kept.read_bytes(), adapter.read_bytes()) == before
    assert str(caught.value).startswith("step 2 is not saved: ")
    assert str(caught.value).endswith(f"; the last good checkpoint is that of step 1, {kept}")
    assert trainer.saved == str(kept)
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
    checkpoints.load(kept)


def test_what_rank_0_cannot_write_ends_all_ranks(places: tuple[Path, Path], tmp_path: Path) -> None:
    config = spec(iters=6, save_every=2, optimizer="sgd")

    def work(group: Any) -> tuple[int, str]:
        trainer = prepared(plan_for(places, tmp_path, config, rank=group.rank, size=3), group, tell=lambda _: None)
        trainer.advance()
        trainer.save()
        if group.rank == 0:
            home = tmp_path / "checkpoints" / "000000"
            shutil.rmtree(home)
            home.write_text("no folder")
        with pytest.raises(CheckpointUnsaved) as caught:
            trainer.run()
        return trainer.position.step, str(caught.value)

    (step, words), *others = on_ranks(3, work)
    assert step == 2
    assert "step 2 is not saved" in words
    assert "that of step 1, " in words
    assert set(others) == {(2, "step 2 is not saved: rank 0 could not write it; the last good checkpoint is that of step 1")}


@pytest.mark.parametrize("saved", [False, True])
def test_a_loss_that_is_not_finite_names_step_rows_and_checkpoint(
    places: tuple[Path, Path], tmp_path: Path, saved: bool
) -> None:
    def work(group: Any) -> tuple[str, str]:
        plan = plan_for(places, tmp_path, spec(iters=6, optimizer="sgd"), rank=group.rank, size=2)
        trainer = prepared(plan, group, tell=lambda _: None)
        for _ in range(3):
            trainer.advance()
        if saved:
            trainer.save()
        weight = trainer.model.model.embed_tokens
        weight.weight = mx.full(weight.weight.shape, np.nan)
        with pytest.raises(LossNotFinite) as caught:
            trainer.run()
        batch = Order(trainer.data.train.lengths, batch_size=4, seed=0).batch(3)
        lines = ", ".join(map(str, sorted(int(trainer.data.train.lines[row]) for row in batch)))
        return str(caught.value), f"the loss of step 4 is not finite, from line {lines} of train.jsonl; "

    (one, words), (other, _) = on_ranks(2, work)
    if saved:
        assert other == f"{words}the last good checkpoint is that of step 3"
        assert one == f"{other}, {files.checkpoints(tmp_path / 'checkpoints')[-1]}"
    else:
        assert one == other == f"{words}there is no checkpoint yet"


def test_a_job_tells_what_it_does(places: tuple[Path, Path], tmp_path: Path) -> None:
    config = spec(iters=10, grad_accumulation_steps=3, steps_per_report=4, steps_per_eval=5, save_every=6, test=True)
    trainer, events = trained(plan_for(places, tmp_path, config))
    steps = of(events, RankStepped)
    assert [(each.step, each.iteration) for each in steps] == [(1, 3), (2, 6), (3, 9), (4, 10)]
    assert [each.iteration for each in of(events, Reported)] == [6, 9, 10]
    assert [(each.part, each.iteration) for each in of(events, Validated)] == [
        ("valid", 0),
        ("valid", 6),
        ("valid", 10),
        ("test", 10),
    ]
    written = [each.sample for each in of(events, Validated)]
    assert all(written[:3]), "what the model writes goes on from the first validation row"
    assert not written[3]
    assert all(sample.isprintable() for sample in written)
    assert [(each.step, each.iteration) for each in of(events, Saved)] == [(2, 6), (4, 10)]
    assert sum(each.tokens for each in steps) == trainer.position.trained_tokens == of(events, Reported)[-1].trained_tokens
    # Four batches are an epoch of thirteen rows.
    epoch = int(trainer.data.train.targets.sum())
    assert 2 * epoch < trainer.position.trained_tokens < 3 * epoch
    assert of(events, Reported)[-1].epoch == 2.5
    assert all(decode_event(encode_event(event)) == event for event in events)
    weighted = sum(each.loss * each.tokens for each in steps[:2] if each.loss is not None) / sum(
        each.tokens for each in steps[:2]
    )
    assert of(events, Reported)[0].train_loss == pytest.approx(weighted)
    assert sorted(path.name for path in (tmp_path / "adapters").iterdir()) == [
        "0000006_adapters.safetensors",
        "adapter_config.json",
        "adapters.safetensors",
    ]


def test_validation_is_on_the_same_rows_each_time(places: tuple[Path, Path], tmp_path: Path) -> None:
    config = spec(iters=3, steps_per_eval=1, val_batches=1, learning_rate=1e-30)
    _, events = trained(plan_for(places, tmp_path, config))
    losses = [each.loss for each in of(events, Validated)]
    assert losses == [losses[0]] * 4


@pytest.mark.parametrize("kind", ["lora", "dora", "full", "quantised"])
def test_mlx_lm_reads_the_adapter(places: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    from mlx_lm import load

    model = make_model(tmp_path / "q", hidden=64, bits=4) if kind == "quantised" else places[0]
    config = spec(iters=3, fine_tune_type="lora" if kind == "quantised" else kind, num_layers=1, lora_rank=4)
    trainer, _ = trained(plan_for((model, places[1]), tmp_path, config))
    plain, _ = load(str(model))
    theirs, _ = load(str(model), adapter_path=str(tmp_path / "adapters"))
    trainer.model.eval()
    tokens = mx.array([[1, 7, 8, 9, 3]])
    ours = np.array(trainer.model(tokens))
    assert np.array_equal(np.array(theirs(tokens)), ours)
    assert not np.allclose(np.array(plain(tokens)), ours, atol=1e-4)


def test_mlx_lm_fuses_the_adapter(places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlx_lm import fuse, load

    trainer, _ = trained(plan_for(places, tmp_path, spec(iters=3)))
    fused = tmp_path / "fused"
    arguments = ["--model", str(places[0]), "--adapter-path", str(tmp_path / "adapters"), "--save-path", str(fused)]
    monkeypatch.setattr("sys.argv", ["mlx_lm.fuse", *arguments])
    fuse.main()
    theirs, _ = load(str(fused))
    trainer.model.eval()
    tokens = mx.array([[1, 7, 8, 9, 3]])
    assert np.allclose(np.array(theirs(tokens)), np.array(trainer.model(tokens)), atol=1e-4)


def test_the_adapters_start_as_mlx_lms(places: tuple[Path, Path], tmp_path: Path) -> None:
    """The same seed, the same adapter; and its configuration has what MLX-LM's trainer writes, and nothing else."""
    from mlx_lm import lora
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    config = spec(seed=11, num_layers=1)
    ours, _ = models.load_base(places[0])
    models.prepare(ours, config)
    theirs, _ = load_model(places[0])
    mx.random.seed(11)
    theirs.freeze()
    linear_to_lora_layers(theirs, 1, {"rank": 8, "dropout": 0.0, "scale": 20.0})
    mine, other = models.trainables(ours), models.trainables(theirs)
    assert mine.keys() == other.keys()
    assert all(np.array_equal(np.array(mine[name]), np.array(other[name])) for name in mine)

    trained(plan_for(places, tmp_path, spec(iters=1), names={"model": "org/model"}))
    written = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    unused = {"config", "report_to", "project_name", "trust_remote_code"}
    assert written.keys() == lora.CONFIG_DEFAULTS.keys() - unused
    assert written["model"] == "org/model"


def test_an_adapter_is_taken_up(places: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = trained(plan_for(places, tmp_path, spec(iters=3)))
    path = tmp_path / "adapters" / "adapters.safetensors"
    second = prepared(plan_for(places, tmp_path, spec(iters=3), start_adapter=str(path)), Alone(), tell=lambda _: None)
    assert distance(weights(first), weights(second)) == 0
    assert second.position.step == 0
    with pytest.raises(SchemaMismatch, match="not of this model"):
        prepared(plan_for(places, tmp_path, spec(lora_rank=2), start_adapter=str(path)), Alone(), tell=lambda _: None)
    with pytest.raises(UsageError, match="no adapter"):
        prepared(plan_for(places, tmp_path, spec(), start_adapter=str(tmp_path / "x")), Alone(), tell=lambda _: None)


def test_a_model_with_code_of_its_own_is_refused(places: tuple[Path, Path], tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    (folder / "config.json").write_text(json.dumps({**config, "model_file": "evil.py"}))
    with pytest.raises(UsageError, match="code of its own"):
        models.load_base(folder)
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "evil.Config"}}))
    tokens = json.loads((folder / "tokenizer_config.json").read_text())
    tokens |= {"auto_map": {"AutoTokenizer": ["evil.T", None]}, "tokenizer_class": "T"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    with contextlib.suppress(UsageError):  # transformers may find another class to read the tokenizer with
        models.load_base(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("damage", ["config.json", "model.safetensors", "tokenizer.json", "all"])
def test_a_damaged_model_is_told_in_one_line(tmp_path: Path, damage: str) -> None:
    folder = make_model(tmp_path / "model")
    if damage == "all":
        folder = tmp_path / "absent"
    else:
        (folder / damage).write_text("{")
    with pytest.raises(UsageError) as caught:
        models.load_base(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (spec(num_layers=5), "the model has 2 layers"),
        (spec(lora_parameters=LoraParameters(keys=("nothing",))), "nothing to fine-tune"),
    ],
)
def test_what_does_not_fit_the_model_is_told(places: tuple[Path, Path], config: FineTune, words: str) -> None:
    model, _ = models.load_base(places[0])
    with pytest.raises(UsageError, match=words):
        models.prepare(model, config)


def test_an_optimizer_that_takes_other_values_is_told(places: tuple[Path, Path]) -> None:
    model, _ = models.load_base(places[0])
    models.prepare(model, spec())
    with pytest.raises(UsageError, match="sgd"):  # Nesterov's needs a momentum
        models.make_optimizer(spec(optimizer="sgd", optimizer_config={"sgd": {"nesterov": True}}), model)


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "muon", "sgd", "adafactor"])
def test_every_optimizer_resumes(places: tuple[Path, Path], tmp_path: Path, optimizer: str) -> None:
    config = spec(iters=4, optimizer=optimizer, lora_parameters=LoraParameters(keys=("self_attn.q_proj",)))
    whole, _ = trained(plan_for(places, tmp_path / "whole", config))
    first, _ = trained(plan_for(places, tmp_path / "first", config), steps=2)
    second, _ = trained(plan_for(places, tmp_path / "second", config, start=first.saved))
    assert distance(weights(whole), weights(second)) <= 1e-5


def test_two_ranks_train_as_one(places: tuple[Path, Path], tmp_path: Path) -> None:
    """Also when only rank 0 has the checkpoint that the job goes on from."""
    config = spec(iters=5, optimizer="sgd", learning_rate=0.1, grad_accumulation_steps=2)
    alone, told = trained(plan_for(places, tmp_path / "alone", config))
    first, _ = trained(plan_for(places, tmp_path / "first", config), steps=1)

    def work(group: Any) -> tuple[dict[str, Any], list[RankEvent]]:
        plan = plan_for(
            places,
            tmp_path / "both",
            config,
            rank=group.rank,
            size=2,
            shares=(3, 1),
            start=first.saved if group.rank == 0 else None,
        )
        events: list[RankEvent] = []
        trainer = prepared(plan, group, tell=events.append)
        assert trainer.position.step == 1
        trainer.run()
        return weights(trainer), events

    (one, events), (other, others) = on_ranks(2, work)
    assert distance(one, other) == 0
    assert distance(weights(alone), one) <= 1e-5
    assert of(events, Validated)[-1].loss == pytest.approx(of(told, Validated)[-1].loss, rel=1e-5)
    assert not of(others, Validated)
    assert not of(others, Saved)
    assert not of(events, Smaller)
    both = zip(of(events, RankStepped), of(others, RankStepped), strict=True)
    assert all(mine.own_tokens + theirs.own_tokens == mine.tokens for mine, theirs in both)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_halted_ranks_go_on_where_they_all_were(places: tuple[Path, Path], tmp_path: Path, size: int) -> None:
    dropout = LoraParameters(dropout=0.2)
    config = spec(iters=6, save_every=4, optimizer="sgd", learning_rate=0.1, lora_parameters=dropout)
    plan = plan_for(places, tmp_path, config, size=size)

    def work(group: Any, start: str | None, halt_after: int | None) -> tuple[bool, Trainer, list[RankEvent]]:
        events: list[RankEvent] = []
        mine = msgspec.structs.replace(plan, rank=group.rank, start=start if group.rank == 0 else None)
        told = group.rank == size - 1 and halt_after is not None

        def halting() -> bool:
            return told and len(of(events, RankStepped)) >= halt_after

        trainer = prepared(mine, group, tell=events.append, halting=halting)
        return trainer.run(), trainer, events

    def run(start: str | None, halt_after: int | None) -> list[tuple[bool, Trainer, list[RankEvent]]]:
        return on_ranks(size, lambda group: work(group, start, halt_after))

    halted = run(None, 2)
    assert {(done, trainer.position.step) for done, trainer, _ in halted} == {(False, 3)}
    saved = of(halted[0][2], Saved)
    assert [each.step for each in saved] == [3]
    assert checkpoints.load(Path(saved[0].checkpoint)).position.step == 3
    at_once = run(saved[0].checkpoint, 0)
    assert {(done, trainer.position.step) for done, trainer, _ in at_once} == {(False, 3)}
    assert not of(at_once[0][2], Saved)
    rest = run(saved[0].checkpoint, None)
    whole = run(None, None)
    assert {done for done, *_ in (*rest, *whole)} == {True}
    assert distance(weights(whole[0][1]), weights(rest[0][1])) <= 1e-5
    last = run(None, 5)  # with the last step the job is done
    assert {(done, trainer.position.step) for done, trainer, _ in last} == {(True, 6)}


def slowed(trainer: Trainer, speeds: tuple[float, ...]) -> None:
    """Let the ranks have taken as long as machines of these speeds would (tokens/s)."""
    step = trainer.stepper.step

    def measured(batches: Any, *, shares: Any, **values: Any) -> Step:
        given = tokens_given(batches, trainer.data.train.lengths, shares)
        seconds = tuple(tokens / speed for tokens, speed in zip(given, speeds, strict=True))
        return step(batches, shares=shares, **values)._replace(compute_s=seconds)

    trainer.stepper.step = measured  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("speeds", "batch_size"),
    [((3.0, 1.0), 9), ((1.0, 4.0, 2.0), 13), ((1.0, 1.0), 5)],  # rows that cannot be divided by the number of ranks
)
def test_rows_go_to_the_faster_ranks_and_the_result_stays(
    places: tuple[Path, Path], tmp_path: Path, speeds: tuple[float, ...], batch_size: int
) -> None:
    size = len(speeds)
    config = spec(iters=14, batch_size=batch_size, optimizer="sgd", learning_rate=0.02, save_every=14, steps_per_eval=14)
    alone, told = trained(plan_for(places, tmp_path / "alone", config))

    def work(group: Any, replan: bool) -> tuple[dict[str, Any], list[RankEvent]]:
        events: list[RankEvent] = []
        plan = plan_for(places, tmp_path / "all", config, rank=group.rank, size=size, replan=replan)
        trainer = prepared(plan, group, tell=events.append)
        slowed(trainer, speeds)
        trainer.run()
        return weights(trainer), events

    found = on_ranks(size, lambda group: work(group, True))
    one, events = found[0]
    steps = [of(mine, RankStepped) for _, mine in found]
    changes = of(events, Replanned)
    assert not [event for _, mine in found[1:] for event in of(mine, Replanned)]
    if len(set(speeds)) == 1:
        assert not changes
    else:
        assert [change.step for change in changes] == [9]
        shares = changes[0].shares
        assert [share / sum(shares) for share in shares] == pytest.approx([v / sum(speeds) for v in speeds], abs=0.01)
        assert [mine[-1].share for mine in steps] == [share / sum(shares) for share in shares]
        assert {mine[8].share for mine in steps} == {1 / size}
        learned = [(sum(each.positions for each in mine[9:]), speed) for mine, speed in zip(steps, speeds, strict=True)]
        assert max(learned)[1] == max(speeds)
    assert all(sum(each.own_tokens for each in row) == row[0].tokens for row in zip(*steps, strict=True))
    assert all(distance(one, other) == 0 for other, _ in found)
    assert distance(weights(alone), one) <= 1e-5
    assert of(events, Validated)[-1].loss == pytest.approx(of(told, Validated)[-1].loss, rel=1e-5)
    kept = on_ranks(size, lambda group: work(group, False))
    assert not of(kept[0][1], Replanned)


def test_the_memory_that_a_rank_may_take_is_in_its_plan(places: tuple[Path, Path], tmp_path: Path) -> None:
    config = spec(iters=3, optimizer="sgd")
    alone, _ = trained(plan_for(places, tmp_path / "alone", config))

    def work(group: Any) -> tuple[dict[str, Any], list[RankEvent]]:
        events: list[RankEvent] = []
        values = {"memory_bytes": 10**12} if group.rank == 0 else {"microbatch_tokens": 48}
        trainer = prepared(plan_for(places, tmp_path, config, rank=group.rank, size=2, **values), group, tell=events.append)
        if group.rank == 1:
            accumulate = trainer.stepper._accumulate

            def small(gradients: Any, inputs: mx.array, *rest: mx.array) -> Any:
                if inputs.size > 32:  # the longest row takes as many
                    raise RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory")
                return accumulate(gradients, inputs, *rest)

            trainer.stepper._accumulate = small
        trainer.run()
        return weights(trainer), events

    limit = mx.set_memory_limit(10**12)
    try:
        (one, events), (_, others) = on_ranks(2, work)
    finally:
        mx.set_memory_limit(limit)
    assert distance(weights(alone), one) <= 1e-5
    assert "memory" in [event.what for event in of(events, Phase)]
    assert "memory" not in [event.what for event in of(others, Phase)]
    assert not of(events, Smaller)
    assert {each.microbatch_tokens for each in of(events, RankStepped)} == {None}
    smaller = [each.microbatch_tokens for each in of(others, Smaller)]
    assert smaller
    assert smaller[-1] == of(others, RankStepped)[-1].microbatch_tokens <= 24
    with pytest.raises(RowTooLarge, match="rank 0 may take"):
        prepared(plan_for(places, tmp_path, config, memory_bytes=1), Alone(), tell=lambda _: None)


def test_no_checkpoint_is_made_of_steps_with_different_shares(places: tuple[Path, Path], tmp_path: Path) -> None:
    from swarm.core.errors import ReplicasDiffer

    config = spec(iters=10, save_every=10, optimizer="sgd")

    def work(group: Any) -> str:
        trainer = prepared(plan_for(places, tmp_path, config, rank=group.rank, size=2), group, tell=lambda _: None)
        slowed(trainer, (1.0, 3.0) if group.rank == 0 else (1.0, 5.0))
        with pytest.raises(ReplicasDiffer) as caught:
            trainer.run()
        return str(caught.value)

    assert set(on_ranks(2, work)) == {"the shares of the batches of rank 1 are not those of rank 0"}
    assert not files.checkpoints(tmp_path / "checkpoints")


def test_ranks_that_hold_other_data_do_not_start(places: tuple[Path, Path], tmp_path: Path) -> None:
    from swarm.core.errors import ReplicasDiffer

    other = make_data(tmp_path / "other", train=completions(13, seed=9))

    def work(group: Any) -> str:
        folder = (places[0], other) if group.rank == 1 else places
        with pytest.raises(ReplicasDiffer) as caught:
            prepared(plan_for(folder, tmp_path, spec(), rank=group.rank, size=2), group, tell=lambda _: None)
        return str(caught.value)

    assert set(on_ranks(2, work)) == {"the training rows, or the tokenizers of rank 1 are not those of rank 0"}


def test_a_plan_that_contradicts_itself_is_refused() -> None:
    from swarm.core.rankjob import decode_plan

    plan = {
        "rank": 0,
        "size": 2,
        "spec": {"method": "mlx-lm"},
        "model": "m",
        "data": "d",
        "adapter_path": "a",
        "checkpoints": "c",
    }
    assert decode_plan(json.dumps(plan)).divided == (1, 1)
    wrong: list[dict[str, Any]] = [
        {"rank": 2},
        {"shares": [1]},
        {"shares": [0, 0]},
        {"start": "a", "start_adapter": "b"},
        {"meet_s": 0},
    ]
    for values in wrong:
        with pytest.raises(UsageError):
            decode_plan(msgspec.json.encode({**plan, **values}))
    with pytest.raises(UsageError):
        decode_plan("{")


def test_commands_are_read_and_others_refused() -> None:
    from swarm.core.rankjob import Halt, decode_command, encode_command

    assert encode_command(Halt()) == b'{"command":"halt"}\n'
    assert decode_command(encode_command(Halt())) == Halt()
    for line in (b"", b"{}", b"halt\n", b'{"command": "stop"}\n', b"[" * 10_000):
        with pytest.raises(UsageError):
            decode_command(line)


def test_a_job_that_was_done_but_for_its_adapter_writes_it(places: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = trained(plan_for(places, tmp_path / "first", spec(iters=3)))
    second, events = trained(plan_for(places, tmp_path / "second", spec(iters=3), start=first.saved, generation=1))
    assert not of(events, RankStepped)
    assert distance(weights(first), weights(second)) == 0
    assert (tmp_path / "second" / "adapters" / "adapters.safetensors").exists()
