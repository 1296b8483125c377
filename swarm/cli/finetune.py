"""`swarm start mlx-lm`: MLX-LM's own options, and a few of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from swarm import api
from swarm.cli.common import (
    LearnerChoice,
    OwnerChoice,
    json_option,
    mailbox_option,
    owner_options,
    remember,
    share_option,
    wait_for,
    where,
)
from swarm.cli.specoptions import spec_options
from swarm.core.errors import UsageError
from swarm.core.finetune import FineTune, Places, finetune

NOT_ASKED = ("beat_s", "lease_s")
ADAPTER_PATH = "adapters"  # MLX-LM's default


@click.command("mlx-lm")
@click.option(
    "-c",
    "--config",
    metavar="FILE",
    help="A YAML file as `mlx_lm.lora -c` takes it; what stands on the command line wins.",
)
@click.option("--model", metavar="DIR|REPO", help="The base model: a folder, or a Hugging Face repository.")
@click.option("--data", metavar="DIR", help="A folder with train.jsonl, valid.jsonl and test.jsonl: chat, completions or text.")
@click.option("--adapter-path", metavar="DIR", help=f"Where the adapter is written.  [default: {ADAPTER_PATH}]")
@click.option("--resume-adapter-file", metavar="FILE", help="An adapter that the training begins with.")
@spec_options(FineTune, but=NOT_ASKED)
@click.option("--name", help="Name of the run; by default the kind of fine-tuning and two words.")
@click.option(
    "--attach/--no-attach",
    default=None,
    help="Put the data into the mailbox, for those who join; by default if it is under 1 GiB.",
)
@share_option
@click.option("--no-join", is_flag=True, help="Only make the run.")
@click.option("--detach", is_flag=True, help="Train in the background; `swarm jobs` shows it.")
@click.option(
    "--interface",
    metavar="NAME",
    help="The network interface to exchange over, and over which machines find each other, as en0; by default the best.",
)
@click.option("--learner-id", metavar="ID", help="Name of this machine in the run; by default the host's name.")
@owner_options
@mailbox_option
@json_option
def mlx_lm(
    *,
    config: str | None,
    model: str | None,
    data: str | None,
    adapter_path: str | None,
    resume_adapter_file: str | None,
    name: str | None,
    attach: bool | None,
    share: str | None,
    no_join: bool,
    detach: bool,
    interface: str | None,
    learner_id: str | None,
    owner: OwnerChoice,
    mailbox: str | None,
    as_json: bool,
    **fields: Any,
) -> int:
    """Fine-tune a language model of MLX-LM, data parallel: every step's batch is divided among the machines that take part, and
    their gradients are summed. Machines may come and go: the job goes on from its last checkpoint with those that are there."""
    from swarm.cli import narrate

    values, places = _read(config)
    algorithm = finetune(values | {key: value for key, value in fields.items() if value is not None})
    model, data = model or places.model, data or places.data
    if model is None or data is None:
        what = "--model, a folder or a Hugging Face repository" if model is None else "--data, a folder with train.jsonl"
        raise UsageError(f"a fine-tuning needs {what}")
    location = where(mailbox)
    adapter = resume_adapter_file or places.resume_adapter_file
    create = api.new_finetuning(algorithm, name=name, attach=attach, adapter=adapter, share=share)
    wait_for(api.check_new_name(location, create.name))
    remember(location)
    learner: LearnerChoice = {
        "learner_id": learner_id,
        "framework": "mlx",
        "device": "auto",
        "data": data,
        "model": model,
        "adapter_path": adapter_path or places.adapter_path or ADAPTER_PATH,
        "interface": interface,
        "role": "both",
        "threads": None,
        **owner,
    }
    order = api.learn_order(location, create.run, create=create, join=not no_join, **learner)
    if detach and not no_join:
        return narrate.detach([order], name=create.name, as_json=as_json)
    return narrate.follow([order], as_json=as_json)


def _read(config: str | None) -> tuple[dict[str, Any], Places]:
    if config is None:
        return {}, Places()
    from swarm.parallel.config import read_config

    return read_config(Path(config).expanduser())
