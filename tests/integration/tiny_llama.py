"""A random Llama of a few thousand parameters with a tokenizer of its own, as MLX-LM reads them, and data for it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from swarm.core.finetune import FineTune
from swarm.tasks.lm.rows import Rows

WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sees",
    "hears",
    "sleeps",
    "runs",
    "and",
    "or",
    "who",
    "what",
    "where",
    "red",
    "blue",
    "green",
    "big",
    "small",
    "yes",
    "no",
]
SPECIAL = ["<unk>", "<s>", "</s>", "<user>", "<assistant>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' ' }}"
    "{% if message['role'] == 'assistant' %}{{ '</s>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)


def make_model(folder: Path, *, layers: int = 2, hidden: int = 32, seed: int = 0, bits: int | None = None) -> Path:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama

    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "vocab_size": len(SPECIAL) + len(WORDS),
        "tie_word_embeddings": False,
        "eos_token_id": 2,
    }
    mx.random.seed(seed)
    model = llama.Model(llama.ModelArgs.from_dict(config))
    if bits is not None:
        nn.quantize(model, group_size=32, bits=bits)
        config["quantization"] = {"group_size": 32, "bits": bits}
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(model.parameters())), metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    _make_tokenizer(folder)
    return folder


def _make_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: k for k, word in enumerate([*SPECIAL, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def words(rng: random.Random, least: int, most: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(least, most)))


def completions(count: int, *, seed: int = 0, most: int = 20) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [{"prompt": words(rng, 1, 6), "completion": words(rng, 1, most)} for _ in range(count)]


def make_data(folder: Path, *, train: Iterable[Any], valid: Iterable[Any] = (), test: Iterable[Any] = ()) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", train), ("valid", valid), ("test", test)):
        lines = [json.dumps(row) for row in rows]
        if lines:
            (folder / f"{part}.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def random_rows(lengths: Iterable[int], *, offsets: Iterable[int] = (), seed: int = 0) -> Rows:
    """Rows of random words, of the given lengths in tokens."""
    rng = np.random.default_rng(seed)
    sizes = list(lengths)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    tokens = rng.integers(3, len(SPECIAL) + len(WORDS), starts[-1]).astype(np.int32)
    masked = np.zeros(len(sizes), np.int32)
    given = list(offsets)
    masked[: len(given)] = given
    return Rows(tokens, starts, masked, np.arange(1, len(sizes) + 1), 0)


def spec(**values: Any) -> FineTune:
    defaults: dict[str, Any] = {
        "batch_size": 4,
        "iters": 4,
        "learning_rate": 1e-2,
        "steps_per_report": 1,
        "steps_per_eval": 100,
        "val_batches": 2,
        "max_seq_length": 64,
        "num_layers": -1,
    }
    return FineTune(**{**defaults, **values})
