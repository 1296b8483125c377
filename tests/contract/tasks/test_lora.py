"""The task lora is one like the others: what every task promises, over a tiny model and its tokenizer."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx_lm")

from swarm.core.errors import DataMissing, StateMismatch, UsageError
from swarm.core.finetune import FineTuneOptimizer
from swarm.core.specs import FedAvg
from swarm.tasks import registry
from swarm.tasks.contract import Exporter, Federated, Resumable, TaskState
from tests.contract.tasks import test_resuming, test_trainables
from tests.contract.tasks.test_federated import trained
from tests.contract.tasks.trainables import LORA, build, parameters, tiny_llama, write


@pytest.fixture
def task() -> str:
    return "lora"


@pytest.fixture
def framework() -> str:
    return "mlx"


# pytest collects them here, with this module's fixtures.
test_it_says_what_it_is = test_trainables.test_it_says_what_it_is
test_evaluating = test_trainables.test_evaluating_changes_neither_model_nor_optimizer_nor_stream
test_a_stream = test_trainables.test_a_stream_starts_anew_and_differs_by_learner_and_incarnation
test_what_is_applied = test_trainables.test_what_is_applied_is_what_is_trained_on
test_threads = test_trainables.test_each_call_may_come_from_another_thread
test_resumed = test_resuming.test_a_resumed_learner_makes_the_steps_that_would_have_followed
test_put_back = test_resuming.test_a_trained_learner_can_be_put_back
test_callers_again = test_resuming.test_what_was_loaded_is_the_callers_again
test_without_the_state = test_resuming.test_without_the_state_it_would_train_otherwise
test_arrays = test_resuming.test_the_arrays_are_named_by_parameter_and_hold_still


def place() -> dict[str, Any]:
    model, data = tiny_llama()
    made = registry.get("lora")
    options, refs = made.options(LORA), made.data(data)
    return {
        "framework": "mlx",
        "device": "cpu",
        "options": options,
        "data": refs,
        "data_path": data,
        "seed": 0,
        "model_path": model,
    }


def test_fresh_adapters_come_from_the_seed_and_change_nothing_yet() -> None:
    """Whatever was drawn before; the base model is neither trained nor exchanged."""
    import mlx.core as mx

    one = parameters(build("lora", "mlx", seed=3))
    mx.random.seed(99)
    assert parameters(build("lora", "mlx", seed=3)) == one
    other = parameters(build("lora", "mlx", seed=4))
    assert {name.rpartition(".")[2] for name in one} == {"lora_a", "lora_b"}
    assert all((one[name] != other[name]) == name.endswith("lora_a") for name in one)
    assert all(not any(data) for name, data in one.items() if name.endswith("lora_b"))


def test_no_global_random_state_is_touched() -> None:
    before = test_trainables.global_random_states()
    trainable = build("lora", "mlx")
    trainable.use_stream("a", 1)
    trainable.step()
    trainable.load(trainable.state())
    trainable.evaluate()
    write(trainable, b"the cat", n=3)
    assert test_trainables.global_random_states() == before


@pytest.mark.parametrize("kind", ["lora", "dora"])
def test_training_lowers_the_token_weighted_loss(kind: str) -> None:
    trainable = build("lora", "mlx", fine_tune_type=kind, lora_dropout="0", sample_tokens="0")
    trainable.use_stream("a", 1)
    before = trainable.evaluate()
    results = [trainable.step() for _ in range(40)]
    after = trainable.evaluate()
    assert after.loss < before.loss - 0.1
    assert np.mean([r.loss for r in results[-10:]]) < np.mean([r.loss for r in results[:10]])
    assert after.metrics == {"perplexity": pytest.approx(np.exp(after.loss))}
    assert {r.samples for r in results} == {4}
    assert len({r.tokens for r in results}) > 1, "rows differ in length, and padding does not count"


def test_the_loss_is_a_mean_over_learned_tokens_whatever_the_batches() -> None:
    losses = [build("lora", "mlx", batch_size=size, val_batches="-1").evaluate().loss for size in ("1", "5", "12")]
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


def test_masked_prompts_are_not_learned() -> None:
    whole, answers = (build("lora", "mlx", mask_prompt=masked) for masked in ("false", "true"))
    for trainable in (whole, answers):
        trainable.use_stream("a", 1)
    assert sum(answers.step().tokens for _ in range(15)) < sum(whole.step().tokens for _ in range(15))


@pytest.mark.parametrize("optimizer", FineTuneOptimizer.__args__)  # type: ignore[attr-defined]
def test_every_optimizer_is_resumed(optimizer: str) -> None:
    first = build("lora", "mlx", optimizer=optimizer)
    for _ in range(2):
        first.step()
    theta = {name: array.copy() for name, array in first.adapter.snapshot().items()}
    state = test_resuming.kept(first.state())
    expected = [first.step() for _ in range(2)]
    second = build("lora", "mlx", optimizer=optimizer)
    second.adapter.apply(theta)
    second.load(state)
    assert [second.step() for _ in range(2)] == expected


@pytest.mark.parametrize("random", [None, [1], [1, -1], [1, "2"], [1 << 70, 0], {"seed": 1}])
def test_a_wrong_position_is_refused_before_anything_changes(random: Any) -> None:
    trainable = build("lora", "mlx")
    assert isinstance(trainable, Resumable)
    state = test_resuming.kept(trainable.state())
    with pytest.raises(StateMismatch, match="position in a stream of rows"):
        trainable.load(TaskState(arrays=state.arrays, values={**state.values, "random": random}))
    assert test_resuming.kept(trainable.state()).values == state.values


# Clients


SPEC = FedAvg(clients=5, per_round=2, batch_size=4, optimizer="adam", lr=0.01, training_seed=29)


def test_rows_are_dealt_out_and_a_client_is_trained_again_to_the_same_bytes() -> None:
    one = build("lora", "mlx")
    assert isinstance(one, Federated)
    assert one.deal(SPEC, seed=3) == (12,) * 5
    first = trained(one, [1, 4])
    assert trained(build("lora", "mlx"), [4, 2, 1]) == first | {2: trained(one, [2])[2]}
    assert first[1] != first[4]


@pytest.mark.parametrize("partition", ["dirichlet:0.5", "by-label:2"])
def test_rows_have_no_labels_to_be_dealt_out_by(partition: str) -> None:
    with pytest.raises(
        UsageError, match=f"^partition {partition} goes by the samples' labels, and this task's have none: iid$"
    ):
        build("lora", "mlx").deal(FedAvg(clients=5, per_round=2, partition=partition), seed=3)


def test_a_private_client_trains_on_its_own_rows_and_evaluates_on_none() -> None:
    how = place() | {"data": []}
    trainable = registry.build(registry.get("lora"), private=True, **how)
    assert trainable.deal(FedAvg(private=True), seed=3) == (60,)  # type: ignore[attr-defined]
    with pytest.raises(DataMissing, match="nothing to evaluate on"):
        trainable.evaluate()
    without = registry.build(registry.get("lora"), private=True, **how | {"data_path": None})
    with pytest.raises(UsageError, match="pass data of your own with --data"):
        without.deal(FedAvg(private=True), seed=3)  # type: ignore[attr-defined]


# Writing, and what is refused


def test_writing_depends_on_prompt_temperature_and_seed_alone() -> None:
    trainable = build("lora", "mlx")
    text = write(trainable, b"the cat")
    assert text
    trainable.use_stream("z", 9)
    trainable.evaluate()
    assert write(trainable, b"the cat") == text
    assert write(trainable, b"the cat", seed=1) != text
    assert write(trainable, b"the cat", temperature=0, seed=0) == write(trainable, b"the cat", temperature=0, seed=1)
    assert text.startswith(write(trainable, b"the cat", n=2))
    assert write(trainable, b"", n=0) == b""
    assert write(trainable, b"the cat sees " * 400, n=1), "longer than what is read at once"
    for wrong in ({"max_tokens": -1}, {"temperature": float("nan")}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            trainable.generate(b"the", **({"max_tokens": 1, "temperature": 1.0, "seed": 0} | wrong))


def test_without_data_it_writes_only() -> None:
    trainable = registry.get("lora").build(**place() | {"data": [], "data_path": None})
    assert write(trainable, b"the cat")
    with pytest.raises(DataMissing, match="nothing to train on"):
        trainable.step()


def test_what_is_missing_or_wrong_is_said_before_the_model_is_loaded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.tasks.lora import mlx as backend

    task, how = registry.get("lora"), place()
    monkeypatch.setattr(backend, "tuned", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "train.jsonl").write_text('{"text": "the cat"}\n')
    for wrong, error, words in (
        ({"framework": "torch"}, UsageError, "no model for 'torch'"),
        ({"model_path": None}, UsageError, "pass its folder with --model"),
        ({"options": {"val_batches": 0}}, UsageError, "--eval-every 0"),
        ({"options": {"layers": 1}}, UsageError, "layers"),
        ({"options": {"batch_size": 10**9}}, UsageError, "batch_size"),
        ({"data_path": None}, DataMissing, "the run trains on train.jsonl"),
        ({"data_path": tmp_path}, DataMissing, "train.jsonl is not the one that the run was made with"),
    ):
        with pytest.raises(error, match=words):
            task.build(**how | wrong)
    for path, words in ((None, "pass a folder"), (tmp_path / "train.jsonl", "no folder"), (tmp_path, "holds no valid.jsonl")):
        with pytest.raises(UsageError, match=words):
            task.data(path)


def test_an_exported_folder_names_the_adapters_shape_without_a_framework() -> None:
    task = registry.get("lora")
    assert isinstance(task, Exporter)
    name, files = task.exported(task.options({"lora_rank": "4", "lora_keys": "self_attn.q_proj"}), model=None)
    assert name == "adapters.safetensors"
    config = json.loads(files["adapter_config.json"])
    assert config["lora_parameters"] == {"rank": 4, "dropout": 0.0, "scale": 20.0, "keys": ["self_attn.q_proj"]}
    assert (config["fine_tune_type"], config["num_layers"]) == ("lora", 16)
