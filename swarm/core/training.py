"""How a client is trained: one meaning in every framework, whatever its optimizers call their options or leave out."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from swarm.core.options import check_ranges

MAX_NATIVE = 50

OptimizerName: TypeAlias = Literal["sgd", "momentum", "adam", "adamw", "rmsprop", "lion"]
TrainingDtype: TypeAlias = Literal["F32", "F16", "BF16"]

OPTIMIZER_OPTIONS: dict[OptimizerName, dict[str, Any]] = {
    "sgd": {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0},
    "momentum": {"momentum": None, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0},
    "adam": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "bias_correction": True},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01, "bias_correction": True},
    "rmsprop": {"alpha": 0.99, "eps": 1e-8},
    "lion": {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0},
}
"""The options that each optimizer has beside the learning rate, with their defaults; None: it must be given."""


class LocalTraining(msgspec.Struct, frozen=True, kw_only=True):
    """Epochs over a client's samples, with an optimizer that is made anew for each client and round."""

    local_epochs: Annotated[int, Meta(ge=1, description="epochs over a client's samples in one round")] = 1
    batch_size: Annotated[int, Meta(ge=1, description="samples of a step")] = 32
    optimizer: Annotated[OptimizerName, Meta(description="of the clients; made anew for each client and round")] = "sgd"
    lr: Annotated[float, Meta(ge=0, le=1e9, description="learning rate of the clients")] = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1, description="sgd, momentum: the latter needs it")] | None = None
    dampening: Annotated[float, Meta(ge=0, le=1, description="sgd, momentum: of the gradient in the momentum")] | None = None
    nesterov: Annotated[bool, Meta(description="sgd, momentum: Nesterov's momentum")] | None = None
    beta1: Annotated[float, Meta(ge=0, lt=1, description="adam, adamw, lion: decay of the mean")] | None = None
    beta2: Annotated[float, Meta(ge=0, lt=1, description="adam, adamw, lion: decay of the second one")] | None = None
    alpha: Annotated[float, Meta(ge=0, lt=1, description="rmsprop: decay of the mean square")] | None = None
    eps: (
        # Far below, the denominator is zero where a gradient is, or a matter of how a framework treats the smallest numbers.
        Annotated[float, Meta(ge=1e-15, le=1e9, description="adam, adamw, rmsprop: added to the denominator")] | None
    ) = None
    weight_decay: Annotated[float, Meta(ge=0, le=1e9, description="sgd, momentum: L2; adamw, lion: decoupled")] | None = None
    bias_correction: Annotated[bool, Meta(description="adam, adamw: of the first steps' means")] | None = None
    native: dict[str, int | float | str | bool] = {}  # options of the framework's own optimizer, under its own names
    schedule: Annotated[
        Literal["constant", "cosine", "step"], Meta(description="of the clients' learning rate, over the rounds")
    ] = "constant"
    schedule_rounds: (
        Annotated[int, Meta(ge=1, description="cosine: rounds until it is zero; step: rounds between two steps")] | None
    ) = None
    schedule_factor: Annotated[float, Meta(ge=0, le=1, description="step: what the rate is multiplied with")] = 0.1
    warmup_rounds: Annotated[int, Meta(ge=0, description="rounds over which the rate grows from zero")] = 0
    clip_grad_norm: (
        Annotated[float, Meta(ge=0, description="L2 norm that a step's gradient is scaled down to; by default none")] | None
    ) = None
    prox_mu: Annotated[float, Meta(ge=0, le=1e9, description="FedProx: μ/2·‖θ − Θ‖² is added to the loss")] = 0.0
    local_dtype: Annotated[
        TrainingDtype, Meta(description="precision that clients compute in; F16, BF16: with F32 master parameters")
    ] = "F32"
    compiled: Annotated[bool, Meta(description="compile the training step, where the framework can")] = False

    def __post_init__(self) -> None:
        check_ranges(self)
        known = OPTIMIZER_OPTIONS[self.optimizer]
        for name in {name for options in OPTIMIZER_OPTIONS.values() for name in options}:
            if getattr(self, name) is not None and name not in known:
                raise ValueError(f"{self.optimizer} has no {name}; it has {', '.join(['lr', *known])}")
        for name, default in known.items():
            if default is None and getattr(self, name) is None:
                raise ValueError(f"{self.optimizer} needs its {name}")
        if self.nesterov and not (self.option("momentum") and self.option("dampening") == 0):
            raise ValueError("nesterov needs a momentum, and no dampening")
        if self.dampening and not self.option("momentum"):
            raise ValueError("dampening needs a momentum")
        if self.schedule != "constant" and self.schedule_rounds is None:
            raise ValueError(f"schedule {self.schedule} needs schedule_rounds")
        if len(self.native) > MAX_NATIVE:
            raise ValueError(f"native options must be at most {MAX_NATIVE}, got {len(self.native)}")
        if self.schedule == "constant" and self.schedule_rounds is not None:
            raise ValueError("schedule_rounds needs a schedule: cosine or step")
        for name, value in self.native.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"native option {name} must be finite, got {value}")

    def option(self, name: str) -> Any:
        """The value of one of the optimizer's options: as given, else its default. Raises KeyError for one it has not."""
        default = OPTIMIZER_OPTIONS[self.optimizer][name]
        given = getattr(self, name)
        return default if given is None else given

    def rate(self, round: int, done: float) -> float:
        """The learning rate of a step. `done`: the part of the client's steps in this round that were made before it, 0 to 1
        (exclusive)."""
        at, factor = round + done, 1.0
        if self.schedule == "cosine":
            assert self.schedule_rounds is not None
            factor = 0.5 * (1.0 + math.cos(math.pi * min(1.0, at / self.schedule_rounds)))
        elif self.schedule == "step":
            assert self.schedule_rounds is not None
            factor = self.schedule_factor ** (round // self.schedule_rounds)
        if at < self.warmup_rounds:
            factor *= at / self.warmup_rounds
        return self.lr * factor
