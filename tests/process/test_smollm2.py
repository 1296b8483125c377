"""A real language model is fine-tuned by two ranks: it learns to answer as its rows do."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlx_lm")

from swarm.core.rankjob import RankStepped, Validated
from swarm.tasks.lm import model as models
from tests.integration.tiny_llama import make_data, spec
from tests.process import smollm2
from tests.process.ranks import ranks

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(1800)]

TAUGHT = ["Lyon", "Porto", "Graz", "Oslo", "Turin", "Ghent", "Bern", "Riga", "Malmo", "Cork", "Brno", "Split", "Lodz", "Basel"]
HELD_BACK = ["Seville", "Leeds", "Kyiv", "Tartu"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    try:
        return smollm2.make(smollm2.fetched(folder), folder / "model")
    except smollm2.Unavailable as why:
        pytest.skip(str(why))


def rows(names: list[str]) -> list[dict[str, Any]]:
    """A manner that no model has before it is taught."""
    rng = random.Random(0)
    return [
        {
            "prompt": f"Tell me about {name}.",
            "completion": f"Beep! {name} has {rng.randint(2, 9)} blue towers. Over and out, boop.",
        }
        for name in names
    ]


def test_it_knows_the_capital_of_france(model: Path) -> None:
    """The weights, their names and the tokenizer fit together."""
    from mlx_lm import generate

    network, tokenizer = models.load_base(model)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True
    )
    assert "Paris" in generate(network, tokenizer, prompt, max_tokens=12)


def test_two_ranks_teach_it(model: Path, tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", train=rows(TAUGHT), valid=rows(HELD_BACK))
    config = spec(iters=12, steps_per_eval=12, val_batches=-1, num_layers=4, learning_rate=1e-3, mask_prompt=True)
    with ranks(tmp_path, config, size=2, model=model, data=data) as both:
        for rank in both:
            assert rank.process.wait(1200) == 0, rank.words()
            assert rank.wait() == 0
    before, after = (event.loss for event in both[0].of(Validated))
    assert before is not None
    assert after is not None
    assert after < 0.7 * before
    losses = [event.loss for event in both[0].of(RankStepped)]
    assert losses == [event.loss for event in both[1].of(RankStepped)]
    print(f"validation loss {before:.3f} -> {after:.3f}; train {losses}")
