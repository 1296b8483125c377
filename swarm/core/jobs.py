"""What a worker process is told to do: written as JSON into its job folder by the launcher, read by the worker."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from swarm.core.owner import OwnerRules
from swarm.core.records import Role
from swarm.core.specs import Algorithm


class CreateRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be made before it is joined."""

    run: str
    name: str
    task: str
    options: dict[str, int | float | str | bool]
    algorithm: Algorithm
    rounds: int | None
    seed: int
    eval_every: int = 1
    checkpoint_every: int = 0
    checkpoints_kept: int = 3
    base_model: str | None = None  # Safetensors file on this machine that Θ⁰ is read from; None: freshly initialised
    attach: bool | None = None  # the data given with the order; None: if that is small enough
    attach_model: bool = False  # the base model given with the order
    adapter: str | None = None  # of an MLX-LM fine-tuning: Safetensors file on this machine that the adapter begins with
    share: str = ""  # URL of the share that holds the mailbox, for machines that have not mounted it


class Learn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Take part in a run; make it first if `create` is given."""

    mailbox: str
    run: str
    run_name: str = ""
    create: CreateRun | None = None
    join: bool = True  # False: only make the run
    learner: str
    may_rename: bool  # `learner` is only the default: take the next free id if it is held
    framework: str = "auto"
    device: str = "auto"
    data: str | None = None  # path of the task's data on this machine
    model: str | None = None  # of a run that fine-tunes one: folder on this machine, or a Hugging Face repository
    interface: str | None = None  # the network interface to tell others over, and for the rank of a job; None: the best
    adapter_path: str | None = None  # of an MLX-LM fine-tuning: folder on this machine that adapters are written to
    threads: int | None = None  # CPU threads of the framework; None: as it likes
    role: Role = "both"  # a syncer needs neither framework nor data
    owner: OwnerRules = OwnerRules()  # when this machine is to hold still
    nice: int = 0  # of the worker and its ranks: the higher, the more others come first


class Export(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write committed parameters to one Safetensors file."""

    mailbox: str
    run: str
    file: str
    round: int | None = None  # those after this round: a checkpoint, or the newest one; None: the newest


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write text with the newest committed parameters, to stdout."""

    mailbox: str
    run: str
    prompt: str
    max_tokens: int
    temperature: float
    seed: int
    framework: str = "auto"
    device: str = "auto"
    data: str | None = None
    model: str | None = None


Order: TypeAlias = Learn | Export | Generate


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """The worker that holds a job: its pid, and when it started."""

    pid: int
    process: str
    boot: str
