"""The options of an MLX-LM fine-tuning: MLX-LM's names, defaults and configuration files."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from swarm.core.errors import UsageError
from swarm.core.finetune import (
    OPTIMIZER_ARGUMENTS,
    PLACES,
    REFUSED,
    SCHEDULE_ARGUMENTS,
    FineTune,
    LoraParameters,
    LrSchedule,
    finetune,
    from_config,
)
from swarm.core.options import options
from swarm.parallel.config import read_config

OURS = {"lora_rank", "world_size_min", "world_size_max", "gradient_buckets", "attach_model", "beat_s", "lease_s"}
UNLISTED = {
    "prompt_feature",
    "completion_feature",
    "chat_feature",
    "text_feature",
}  # MLX-LM reads them, and has no defaults for them


def fields() -> dict[str, Any]:
    return {field.name: getattr(FineTune(), field.name) for field in msgspec.structs.fields(FineTune)}


def test_names_and_defaults_are_those_of_mlx_lm() -> None:
    lora = pytest.importorskip("mlx_lm.lora")
    theirs = dict(lora.CONFIG_DEFAULTS)
    assert theirs.keys() <= fields().keys() | set(PLACES) | set(REFUSED)
    ours = {name: value for name, value in fields().items() if name not in OURS | UNLISTED}
    assert ours.keys() == theirs.keys() - set(PLACES) - set(REFUSED)
    parameters = ours.pop("lora_parameters")
    assert {name: value for name, value in msgspec.structs.asdict(parameters).items() if value is not None} == theirs.pop(
        "lora_parameters"
    )
    assert not any(theirs.pop("optimizer_config").values())
    assert not ours.pop("optimizer_config")
    assert ours == {name: theirs[name] for name in ours}


def test_every_option_of_the_command_is_known() -> None:
    lora = pytest.importorskip("mlx_lm.lora")
    parser = lora.build_parser()
    actions = {action.dest: action for action in parser._actions if action.dest != "help"}
    assert actions.keys() <= fields().keys() | set(PLACES) | set(REFUSED)
    mine = {option.name: option for option in options(FineTune)}
    for name, action in actions.items():
        if name in mine and action.choices:
            assert set(mine[name].choices) == set(action.choices)
        if name in mine and action.type in (int, float):
            assert mine[name].type is action.type, name


def test_optimizers_and_schedules_take_these_arguments() -> None:
    optim = pytest.importorskip("mlx.optimizers")
    for name, known in OPTIMIZER_ARGUMENTS.items():
        kind = {"adam": "Adam", "adamw": "AdamW", "muon": "Muon", "sgd": "SGD", "adafactor": "Adafactor"}[name]
        assert set(inspect.signature(getattr(optim, kind)).parameters) - {"learning_rate"} == set(known)
    for schedule, (fewest, most) in SCHEDULE_ARGUMENTS.items():
        parameters = inspect.signature(getattr(optim, schedule)).parameters.values()
        assert len(parameters) == most
        assert sum(each.default is inspect.Parameter.empty for each in parameters) == fewest


CONFIG = """
model: "mlx-community/SmolLM"
train: true
data: data
fine_tune_type: dora
optimizer: adamw
optimizer_config:
  adamw:
    betas: [0.9, 0.98]
    eps: 1e-6
num_layers: -1
learning_rate: 1e-5
resume_adapter_file: null
adapter_path: "adapters"
lora_parameters:
  keys: ["self_attn.q_proj", "self_attn.v_proj"]
  rank: 4
  scale: 10.0
  dropout: 0.1
lr_schedule:
  name: cosine_decay
  warmup: 100
  warmup_init: 1e-7
  arguments: [1e-5, 1000, 1e-7]
mask_prompt: false
trust_remote_code: false
report_to: null
"""


def test_a_config_file_as_mlx_lm_has_it(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "lora.yaml"
    path.write_text(CONFIG)
    values, places = read_config(path)
    spec = finetune(values)
    assert spec == FineTune(
        fine_tune_type="dora",
        optimizer="adamw",
        optimizer_config={"adamw": {"betas": [0.9, 0.98], "eps": 1e-6}},
        num_layers=-1,
        learning_rate=1e-5,
        lora_parameters=LoraParameters(keys=("self_attn.q_proj", "self_attn.v_proj"), rank=4, scale=10.0, dropout=0.1),
        lr_schedule=LrSchedule(name="cosine_decay", warmup=100, warmup_init=1e-7, arguments=(1e-5, 1000, 1e-7)),
    )
    assert (places.model, places.data, places.adapter_path) == ("mlx-community/SmolLM", "data", "adapters")
    assert msgspec.json.decode(msgspec.json.encode(spec), type=FineTune) == spec
    # A command line goes before the file.
    assert finetune({**values, "num_layers": 2, "lora_rank": 16}).lora.rank == 16


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_layer: 4", "did you mean num_layers?"),
        ("foo: 4", "'foo' is no option of mlx_lm.lora"),
        ("trust_remote_code: true", "never runs"),
        ("hf_dataset: {path: x}", "train.jsonl"),
        ("train: false", "swarm trains"),
        ("iters: many", "iters"),
        ("iters: 0", "iters"),
        ("batch_size: 2.5", "batch_size"),
        ("lora_parameters: {rank: 8, alpha: 16}", "alpha"),
        ("lr_schedule: {name: join_schedules, arguments: [1]}", "lr_schedule"),
        ("lr_schedule: {name: cosine_decay, arguments: [1e-5]}", "2 or 3 arguments"),
        ("optimizer_config: {adam: {beta: 1}}", "adam has no 'beta'"),
        ("optimizer_config: {lion: {}}", "no optimizer 'lion'"),
        ("model: 7", "model must be a text"),
        ("- 1", "keys and values"),
        ("a: [", "no YAML"),
        ("a: !!python/object/apply:os.system [true]", "no YAML"),
        ("learning_rate: .nan", "learning_rate"),
    ],
)
def test_what_is_wrong_in_a_config_file_is_said_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "lora.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_config(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_config_file_is_all_defaults(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "lora.yaml"
    path.write_text("# nothing\n")
    assert finetune(read_config(path)[0]) == FineTune()
    with pytest.raises(UsageError, match="No such file"):
        read_config(tmp_path / "absent.yaml")


def test_an_option_may_be_as_large_as_its_own_limit() -> None:
    assert finetune({"clear_cache_threshold": 10**15}).clear_cache_threshold == 10**15
    with pytest.raises(ValueError, match="clear_cache_threshold must be a whole number of at most 1000000000000000"):
        FineTune(clear_cache_threshold=10**15 + 1)
    with pytest.raises(ValueError, match="iters must be a whole number of at most 1000000000,"):
        FineTune(iters=10**9 + 1)


def test_keys_that_are_no_texts_are_told() -> None:
    with pytest.raises(UsageError, match="7 is no option"):
        from_config({7: 8})


@pytest.mark.parametrize(
    "values",
    [
        {"world_size_min": 3, "world_size_max": 2},
        {"optimizer_config": {"adam": {"eps": math.nan}}},
        {"lora_parameters": LoraParameters(), "iters": 1.5},
        {"num_layers": -2},
    ],
)
def test_invalid_values_cannot_exist(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        FineTune(**values)


def test_the_last_step_holds_what_is_left_of_the_iterations() -> None:
    spec = FineTune(iters=10, grad_accumulation_steps=4, steps_per_report=5)
    assert spec.steps == 3
    assert [spec.iterations(step) for step in range(4)] == [0, 4, 8, 10]
    assert [spec.due(5, step) for step in range(3)] == [False, True, True]
    assert [FineTune(iters=6).due(4, step) for step in range(6)] == [False, False, False, True, False, True]


def test_nested_options_are_not_single_values() -> None:
    names = {option.name for option in options(FineTune)}
    assert names == fields().keys() - {"optimizer_config", "lora_parameters", "lr_schedule"}
    assert all(option.help for option in options(FineTune))


def test_an_adapter_has_a_name_of_its_own_wherever_another_save_follows() -> None:
    # Steps of 4 iterations: none of them ends at a multiple of 10, and each that is saved keeps its file all the same.
    config = FineTune(iters=50, save_every=10, grad_accumulation_steps=4)
    saved = [step + 1 for step in range(config.steps) if config.due(config.save_every, step)]
    assert [config.iterations(steps) for steps in saved] == [12, 20, 32, 40, 50]
    assert all(config.numbered(steps) for steps in saved)
    assert not config.numbered(0)
    assert not config.numbered(1)  # as a halt may leave
    assert not FineTune(iters=45, save_every=10).numbered(45)
