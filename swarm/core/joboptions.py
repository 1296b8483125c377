"""What a person says of a run beside its algorithm and its task, and of this machine's part in it: defaults, ranges and help
stand here once, for the command line and for forms (core/options.py). Values that only the whole can judge, as a run's name,
are checked where the run is made."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from swarm.core.records import Role

Method: TypeAlias = Literal["diloco", "fedavg", "mlx-lm"]
METHODS: tuple[Method, ...] = ("diloco", "fedavg", "mlx-lm")
TASKS: dict[Method, str] = {"diloco": "charlm", "fedavg": "lenet5"}
"""What a run of a method trains unless it is said."""
TURNS: dict[Method, str] = {"diloco": "Turns through all fragments", "fedavg": "Rounds"}
"""What evaluations and checkpoints of a method are counted in; its word stands for {turn} in a help text."""
ADAPTER_PATH = "adapters"  # MLX-LM's default
NOT_ASKED = ("beat_s", "lease_s")  # fields of FineTune

MAX_WORKERS = 64
_ATTACH = "; by default if it is under 1 GiB."
_SHARE = "Where other machines mount the folder that holds the mailbox, as smb://nas/swarm: those that have not yet are told."


def _of(metavar: str) -> dict[str, str]:
    """What stands for the value in a command's help."""
    return {"metavar": metavar}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run in rounds."""

    rounds: (
        Annotated[int, Meta(ge=1, description="Rounds that the run has; by default it goes on until it is stopped.")] | None
    ) = None
    name: Annotated[str, Meta(description="Name of the run; by default the task and two words.")] | None = None
    seed: Annotated[int, Meta(ge=0, description="Seed of model and data; by default a random one.")] | None = None
    eval_every: Annotated[int, Meta(ge=0, description="{turn} per evaluation; 0: none.")] = 1
    checkpoint_every: Annotated[
        int, Meta(ge=0, description="{turn} after which the parameters are kept for good; 0: never.")
    ] = 0
    keep_checkpoints: Annotated[int, Meta(ge=1, description="How many of these are kept.")] = 3
    attach: (
        Annotated[bool, Meta(description=f"Put the file of --data into the mailbox, for those who join{_ATTACH}")] | None
    ) = None
    attach_model: Annotated[
        bool, Meta(description="Put the model of --model into the mailbox, for those who join and do not have it.")
    ] = False
    base_model: (
        Annotated[
            str,
            Meta(
                description="A Safetensors file with the parameters that the run begins with, as `swarm export` writes it; by "
                "default they are freshly initialised.",
                extra=_of("FILE"),
            ),
        ]
        | None
    ) = None
    share: Annotated[str, Meta(description=_SHARE, extra=_of("URL"))] | None = None
    workers: Annotated[
        int,
        Meta(ge=1, le=MAX_WORKERS, description="Learners on this machine, each a process of its own: ID, ID-2, …."),
    ] = 1


class OwnerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker treats whoever owns its machine."""

    idle_only: (
        Annotated[
            bool,
            Meta(
                description="Train only while nobody is at this machine's keyboard: hold still within seconds, go on by "
                "itself. By default as the settings have it, like the three that follow."
            ),
        ]
        | None
    ) = None
    on_ac_only: Annotated[bool, Meta(description="Train only on mains power, not on battery.")] | None = None
    hours: (
        Annotated[
            str,
            Meta(
                description="Train only at this time of the day, as in 22-7 or 22:30-7,12-13; local time.",
                extra=_of("FROM-TO"),
            ),
        ]
        | None
    ) = None
    nice: (
        Annotated[
            int,
            Meta(ge=0, le=19, description="The higher, the more other programs come first; by default 0, and 10 with --wait."),
        ]
        | None
    ) = None


class LearnerOptions(OwnerOptions, frozen=True, kw_only=True):
    """Of the learner that a worker is to be."""

    learner_id: (
        Annotated[str, Meta(description="Name of this learner in the run; by default the host's name.", extra=_of("ID"))] | None
    ) = None
    framework: Annotated[Literal["auto", "torch", "mlx"], Meta(description="What to train with.")] = "auto"
    device: Annotated[str, Meta(description="auto, cpu, mps, metal, cuda or cuda:N.", extra=_of("DEVICE"))] = "auto"
    data: (
        Annotated[str, Meta(description="The task's data, if it is not the shipped one: a file or folder.", extra=_of("FILE"))]
        | None
    ) = None
    model: (
        Annotated[
            str,
            Meta(
                description="Of a run that fine-tunes a model: where it is on this machine, a folder or a Hugging Face "
                "repository.",
                extra=_of("DIR|REPO"),
            ),
        ]
        | None
    ) = None
    adapter_path: (
        Annotated[
            str, Meta(description="Of an MLX-LM fine-tuning: where this machine is to write the adapter.", extra=_of("DIR"))
        ]
        | None
    ) = None
    interface: (
        Annotated[
            str,
            Meta(
                description="The network interface over which machines find each other, as en0, and an MLX-LM fine-tuning "
                "exchanges; by default the best.",
                extra=_of("NAME"),
            ),
        ]
        | None
    ) = None
    role: Annotated[
        Role,
        Meta(
            description="both: train and close rounds; learner: train only; syncer: close rounds only, which needs no "
            "framework; either: train, and close rounds while no syncer is live."
        ),
    ] = "both"
    threads: Annotated[int, Meta(ge=1, description="CPU threads of the framework; by default as it likes.")] | None = None


class TuneOptions(OwnerOptions, frozen=True, kw_only=True):
    """Of an MLX-LM fine-tuning, and of this machine's part in it."""

    model: (
        Annotated[str, Meta(description="The base model: a folder, or a Hugging Face repository.", extra=_of("DIR|REPO"))]
        | None
    ) = None
    data: (
        Annotated[
            str,
            Meta(
                description="A folder with train.jsonl, valid.jsonl and test.jsonl: chat, completions or text.",
                extra=_of("DIR"),
            ),
        ]
        | None
    ) = None
    adapter_path: (
        Annotated[str, Meta(description=f"Where the adapter is written.  [default: {ADAPTER_PATH}]", extra=_of("DIR"))] | None
    ) = None
    resume_adapter_file: (
        Annotated[str, Meta(description="An adapter that the training begins with.", extra=_of("FILE"))] | None
    ) = None
    name: Annotated[str, Meta(description="Name of the run; by default the kind of fine-tuning and two words.")] | None = None
    attach: Annotated[bool, Meta(description=f"Put the data into the mailbox, for those who join{_ATTACH}")] | None = None
    share: Annotated[str, Meta(description=_SHARE, extra=_of("URL"))] | None = None
    interface: (
        Annotated[
            str,
            Meta(
                description="The network interface to exchange over, and over which machines find each other, as en0; by "
                "default the best.",
                extra=_of("NAME"),
            ),
        ]
        | None
    ) = None
    learner_id: (
        Annotated[str, Meta(description="Name of this machine in the run; by default the host's name.", extra=_of("ID"))] | None
    ) = None
