"""A whole job on one machine, and what MLX-LM's tools make of what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx_lm")

import mlx.core as mx
import msgspec

from swarm.core.errors import CheckpointUnsaved, SchemaMismatch, StateMismatch, UsageError
from swarm.core.finetune import FineTune, LoraParameters, LrSchedule
from swarm.core.rankjob import RankEvent, RankPlan, RankStepped, Ready, Reported, Saved, Smaller, Validated, decode_event, encode_event
from swarm.parallel import checkpoint as checkpoints
from swarm.parallel import model as models
from swarm.parallel.group import Alone
from swarm.parallel.train import Trainer, prepared
from tests.integration.fake_group import on_ranks
from tests.integration.tiny_llama import completions, make_data, make_model, spec


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


def of[T](events: list[RankEvent], kind: type[T]) -> list[T]: ...


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
    assert of(events, Ready)[0].step == half
    assert second.position.step == whole.position.step == config.steps
    assert second.position.trained_tokens == whole.position.trained_tokens
    assert distance(weights(whole), weights(second)) <= 1e-5
    assert distance(weights(whole), weights(first)) > 1e-3  # the second half did something
