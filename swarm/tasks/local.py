"""Local training of FedAvg's clients: what its tasks need of a framework, and what of it is the same in all of them.

A step: the batch's mean loss and its gradient; with `prox_mu`, μ(θ − Θ) is added to the gradient, Θ being what the model held
when training began; the gradient's global L2 norm, which must be finite; with `clip_grad_norm` c, a gradient that is longer is
multiplied with c/norm; then the optimizer (descent.py). A parameter that the loss does not depend on has a gradient of zero.

`local_dtype` F16 or BF16: forward and backward pass in half precision; the loss, the parameters and the optimizer in F32.
PyTorch does it by autocast, which leaves some operations in F32; in MLX the trainable parameters and floating inputs are cast,
frozen ones are not. Evaluation is in F32.

On the CPU, equal seeds give equal bytes if the number of threads is equal (PyTorch: torch.set_num_threads) and PyTorch uses
deterministic kernels (torch.use_deterministic_algorithms): that is for whoever owns the process to set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from swarm.core.errors import UsageError
from swarm.core.training import OPTIMIZER_OPTIONS, LocalTraining
from swarm.learners.contract import Adapter
from swarm.tasks.net import Array


class LocalNet(Protocol):
    """A model on one device that clients train one after the other. The first axis of every array is the batch. Calls may come
    from different threads, one at a time."""

    @property
    def adapter(self) -> Adapter: ...

    @property
    def device(self) -> str: ...

    def begin(self, spec: LocalTraining) -> None:
        """Train a client: with a fresh optimizer, from what the model holds now, which is what FedProx pulls to. Ends the
        client before, if nobody did. Raises UsageError, and changes nothing, for what cannot be done here: an option of
        `native` that the framework's optimizer lacks, a precision or `compiled` where it is refused, no F32 parameters."""
        ...

    def step(self, x: Array, y: Array, *, lr: float) -> float:
        """One step at a learning rate ≥ 0, every submodule in training mode; the batch's mean loss before it, without FedProx's
        term. Each submodule gets its mode back. Raises NotFinite, which names the parameter, if a gradient or the norm of all
        is not finite: parameters, buffers and optimizer are then as they were."""
        ...

    def end(self) -> None:
        """Nothing of the client is kept but the model. Also after something was raised, and more than once."""
        ...

    def loss(self, x: Array, y: Array) -> float:
        """The batch's mean loss in evaluation mode; nothing changes, and every submodule gets its mode back."""
        ...

    def predict(self, x: Array) -> Array:
        """The model's outputs on the host, in evaluation mode; nothing changes, and every submodule gets its mode back."""
        ...

    def seeded(self, seed: int | None) -> AbstractContextManager[None]:
        """What is drawn inside, in this thread, follows from `seed` (seeding.seeded): dropout in `step`, too."""
        ...


def check_trainable(dtypes: Mapping[str, Any]) -> None:
    """Raises UsageError unless there are parameters to train, and all of them are F32. `dtypes`: the framework's, by name."""
    if not dtypes:
        raise UsageError("the model has no trainable parameters")
    for name, dtype in dtypes.items():
        if not str(dtype).endswith("float32"):
            kind = str(dtype).rpartition(".")[2]
            raise UsageError(f"{name} is {kind}: parameters are float32, and local_dtype sets what is computed in")


def check_rate(lr: float) -> None:
    if not 0 <= lr < math.inf:
        raise ValueError(f"the learning rate must be finite and >= 0, got {lr}")


def clip_factor(spec: LocalTraining, norm: float) -> float:
    """What the gradient is multiplied with; `norm`: its L2 norm, finite."""
    limit = spec.clip_grad_norm
    if limit == 0:
        return 0.0  # also of a gradient so small that its squares, and so its norm, are zero
    return 1.0 if limit is None or norm <= limit else limit / norm


class LossScale:
    """What the loss is multiplied with in F16, so that small gradients do not become zero: dynamic, and deterministic.

    It begins at 2¹⁵. When a gradient is not finite, it is halved and the batch is computed again, down to 1: no batch is left
    out, and what is not finite then is the model's fault. After 100 steps without that it is doubled, up to where it began.
    Always a power of two: where nothing underflows, gradients are those of the unscaled loss to the bit.
    """

    _FIRST, _PATIENCE = 2.0**15, 100

    def __init__(self, spec: LocalTraining) -> None:
        self.value = self._FIRST if spec.local_dtype == "F16" else 1.0
        self._limit = self.value
        self._good = 0

    def halved(self) -> bool:
        """After a gradient that was not finite: whether the batch is worth another try."""
        self._good = 0
        if self.value <= 1.0:
            return False
        self.value /= 2
        return True

    def kept(self) -> None:
        """After a finite one."""
        self._good += 1
        if self._good >= self._PATIENCE and self.value < self._limit:
            self.value *= 2
            self._good = 0


def native_arguments(spec: LocalTraining, *, kind: str, accepted: Iterable[str]) -> dict[str, Any]:
    """What the framework's own optimizer `kind` is made with, the learning rate left out: the spec's options under its names,
    and those of `native` as they are. `accepted`: the names that it has. Raises UsageError for an option that it lacks, and for
    one that is given twice."""
    names = sorted(accepted)
    for name in spec.native:
        if name not in names:
            raise UsageError(f"native option {name!r:.60} is none of {kind}; it has {', '.join(names)}")
    options = {name: spec.option(name) for name in OPTIMIZER_OPTIONS[spec.optimizer]}
    for name in options:
        theirs = "betas" if name in ("beta1", "beta2") else name
        if theirs in spec.native and getattr(spec, name) is not None:
            raise UsageError(f"{name} is given twice: as an option, and as {theirs} in native")
    if "beta1" in options:
        options["betas"] = (options.pop("beta1"), options.pop("beta2"))
    for name in options.keys() - set(names):
        if name == "bias_correction" and options.pop(name):
            continue  # it corrects always
        raise UsageError(f"{kind} has no {name}: leave it out, or native")
    return {**options, **spec.native}
