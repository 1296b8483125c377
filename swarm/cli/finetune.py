"""`swarm start mlx-lm`: MLX-LM's own options, and a few of ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from swarm.cli.begin import begin
from swarm.cli.common import OwnerChoice, json_option, mailbox_option, owner_options
from swarm.cli.specoptions import job_option, spec_options
from swarm.core.finetune import FineTune, Places, finetune
from swarm.core.joboptions import NOT_ASKED, TuneOptions
from swarm.core.request import tuning


@click.command("mlx-lm")
@click.option(
    "-c",
    "--config",
    metavar="FILE",
    help="A YAML file as `mlx_lm.lora -c` takes it; what stands on the command line wins.",
)
@job_option(TuneOptions, "model")
@job_option(TuneOptions, "data")
@job_option(TuneOptions, "adapter_path")
@job_option(TuneOptions, "resume_adapter_file")
@spec_options(FineTune, but=NOT_ASKED)
@job_option(TuneOptions, "name")
@job_option(TuneOptions, "attach")
@job_option(TuneOptions, "share")
@click.option("--no-join", is_flag=True, help="Only make the run.")
@click.option("--detach", is_flag=True, help="Train in the background; `swarm jobs` shows it.")
@job_option(TuneOptions, "interface")
@job_option(TuneOptions, "learner_id")
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
    values, places = _read(config)
    algorithm = finetune(values | {key: value for key, value in fields.items() if value is not None})
    tune = TuneOptions(
        model=model or places.model,
        data=data or places.data,
        adapter_path=adapter_path or places.adapter_path,
        resume_adapter_file=resume_adapter_file or places.resume_adapter_file,
        name=name,
        attach=attach,
        share=share,
        interface=interface,
        learner_id=learner_id,
        **owner,
    )
    return begin(tuning(algorithm, tune, join=not no_join), mailbox=mailbox, detach=detach, as_json=as_json)


def _read(config: str | None) -> tuple[dict[str, Any], Places]:
    if config is None:
        return {}, Places()
    from swarm.parallel.config import read_config

    return read_config(Path(config).expanduser())
