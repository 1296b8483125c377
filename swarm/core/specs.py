"""What a run is configured with: its algorithm. Defaults, ranges and one-line help stand here once (core/options.py)."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta

from swarm.core.finetune import FineTune
from swarm.core.options import check_ranges
from swarm.core.training import LocalTraining

DeltaDtype = Literal["F32", "F16", "BF16", "F8_E4M3", "F4"]
_PLAIN_NUMBER = re.compile(r"[0-9.eE+-]{1,30}")
WideDtype = Literal["F32", "F16", "BF16"]


class DiLoCo(msgspec.Struct, frozen=True, tag="diloco", tag_field="method"):
    """Distributed low-communication training (arXiv:2311.08105; by fragments arXiv:2501.18512, with a quorum
    arXiv:2604.21428): inner steps on each learner, one outer step per round."""

    sync_every: Annotated[int, Meta(ge=1, description="inner steps between two rounds of one fragment (H)")] = 100
    fragments: Annotated[int, Meta(ge=1, description="parts of the model, synchronised in turn (P)")] = 1
    in_flight: Annotated[
        int, Meta(ge=1, description="rounds that a learner may have reported to before they are committed")
    ] = 1
    overlap_steps: Annotated[
        int, Meta(ge=0, description="inner steps a learner may go on before it waits for the round it reported to")
    ] = 0
    quorum_size: Annotated[int, Meta(ge=1, description="snapshots that may close a round")] = 1
    start_learners: Annotated[int, Meta(ge=1, description="learners that round 0 waits for; by default the quorum")] | None = (
        None
    )
    grace_s: (
        Annotated[float, Meta(ge=0, description="wait for the others after the quorum, in s; by default from past rounds")]
        | None
    ) = None
    follow: Annotated[
        bool, Meta(description="a learner that missed a round starts on the open one anew; else it goes on counting its steps")
    ] = True
    alignment: Annotated[
        Literal["overwrite", "blend", "carry", "adaptive"],
        Meta(
            description="what becomes of inner steps made since the report: given up, averaged in, kept, or kept as they agree"
        ),
    ] = "overwrite"
    merge: Annotated[
        Literal["mean", "rda"], Meta(description="weighted mean, or its direction with the weighted mean of the norms")
    ] = "mean"
    partition: Annotated[
        Literal["bytes", "strided"], Meta(description="fragments of equal size, or of every P-th transformer block")
    ] = "bytes"
    outer_lr: Annotated[float, Meta(gt=0, description="learning rate of the outer Nesterov step")] = 0.7
    outer_momentum: Annotated[float, Meta(ge=0, lt=1, description="momentum of the outer Nesterov step")] = 0.9
    delta_dtype: (
        Annotated[DeltaDtype, Meta(description="precision of published deltas; by default each parameter's own")] | None
    ) = None
    commit_dtype: (
        Annotated[DeltaDtype, Meta(description="precision of updates committed beside the parameters; by default none are")]
        | None
    ) = None
    momentum_dtype: Annotated[WideDtype, Meta(description="precision in which the outer momentum is stored")] = "F32"
    master_dtype: Annotated[
        WideDtype, Meta(description="precision of the master copy of parameters that are F16 or BF16, or committed as updates")
    ] = "F32"
    residual_dtype: Annotated[WideDtype, Meta(description="precision of what error feedback keeps back")] = "F32"
    error_feedback: Annotated[bool, Meta(description="what rounding a delta loses is added to the next one")] = True
    global_batch_size: (
        Annotated[
            int, Meta(ge=1, description="samples of an inner step over all start-learners; by default the task's for each")
        ]
        | None
    ) = None
    flush_on_close: Annotated[bool, Meta(description="a learner that leaves reports the steps it has made")] = False
    max_delta_norm: (
        Annotated[float, Meta(gt=0, description="L2 norm above which a delta is rejected; by default none")] | None
    ) = None
    weight_unit: Annotated[Literal["tokens", "samples"], Meta(description="what a learner's work is counted in")] = "tokens"
    beat_s: Annotated[float, Meta(ge=0.01, le=60, description="seconds between two signs of life")] = 5.0
    lease_s: Annotated[float, Meta(gt=0, le=3600, description="seconds without one after which a learner counts as gone")] = (
        30.0
    )
    keep_s: Annotated[float, Meta(gt=0, description="seconds after which an unused payload may be deleted")] = 600.0

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.fragments > self.sync_every:
            raise ValueError(f"fragments must be <= sync_every ({self.sync_every}), got {self.fragments}")
        if self.in_flight > self.fragments:
            raise ValueError(f"in_flight must be <= fragments ({self.fragments}), got {self.in_flight}")
        if self.overlap_steps >= self.sync_every:
            raise ValueError(f"overlap_steps must be < sync_every ({self.sync_every}), got {self.overlap_steps}")
        _check_lease(self)
        if self.global_batch_size is not None and self.global_batch_size < self.starters:
            raise ValueError(f"global_batch_size must be >= start_learners ({self.starters}), got {self.global_batch_size}")

    @property
    def starters(self) -> int:
        """Live learners that round 0 waits for."""
        return self.quorum_size if self.start_learners is None else self.start_learners

    @property
    def batch_size(self) -> int | None:
        """Samples of one learner's inner step: its equal part of `global_batch_size`, rounded up; None: the task's own."""
        return None if self.global_batch_size is None else -(-self.global_batch_size // self.starters)


class FedAvg(LocalTraining, frozen=True, kw_only=True, tag="fedavg", tag_field="method"):
    """Federated averaging (arXiv:1602.05629), with the server's optimizers of FedOpt (arXiv:2003.00295) and the local term of
    FedProx (arXiv:1812.06127): in each round some of the clients train from the committed parameters, and their mean, by
    samples, is what the outer optimizer goes by."""

    clients: Annotated[int, Meta(ge=1, le=10_000, description="parts of the data, each a client (N); `private`: see there")] = (
        10
    )
    private: Annotated[bool, Meta(description="each learner is one client, with data of its own that stays where it is")] = (
        False
    )
    per_round: Annotated[int, Meta(ge=1, le=10_000, description="clients that are sampled for a round (K)")] = 2
    partition: Annotated[
        str, Meta(description="how the data is dealt out: iid, dirichlet:ALPHA (label skew), by-label:K (K labels a client)")
    ] = "iid"
    outer: Annotated[
        Literal["fedavg", "fedavgm", "fedadam", "fedyogi"], Meta(description="the outer optimizer, on the clients' mean")
    ] = "fedavg"
    outer_lr: (
        Annotated[
            float, Meta(gt=0, description="learning rate of the outer optimizer; by default 1, of fedadam and fedyogi 0.1")
        ]
        | None
    ) = None  # once it is made: a number
    outer_momentum: Annotated[float, Meta(ge=0, lt=1, description="fedavgm: momentum")] = 0.9
    outer_beta1: Annotated[float, Meta(ge=0, lt=1, description="fedadam, fedyogi: decay of the mean")] = 0.9
    outer_beta2: Annotated[float, Meta(ge=0, lt=1, description="fedadam, fedyogi: decay of the second one")] = 0.99
    outer_eps: Annotated[float, Meta(gt=0, description="fedadam, fedyogi: added to the denominator (τ)")] = 1e-3
    merge: Annotated[
        Literal["mean", "median", "trimmed"],
        Meta(description="mean by samples; or, against clients that lie, the median or the trimmed mean of each number"),
    ] = "mean"
    trim: Annotated[float, Meta(ge=0, lt=0.5, description="trimmed: the part that is left out at either end")] = 0.1
    buffers: Annotated[
        Literal["averaged", "local"], Meta(description="BatchNorm statistics and the like: averaged too, or each learner's own")
    ] = "averaged"
    delta_dtype: (
        Annotated[DeltaDtype, Meta(description="precision of published deltas; by default each parameter's own")] | None
    ) = None
    max_delta_norm: (
        Annotated[float, Meta(gt=0, description="L2 norm above which a client's delta is rejected; by default none")] | None
    ) = None
    deadline_s: (
        Annotated[float, Meta(gt=0, description="seconds after which a round closes without stragglers; by default never")]
        | None
    ) = None
    min_clients: Annotated[int, Meta(ge=1, description="clients that a round needs to close at its deadline")] = 1
    model_seed: Annotated[int, Meta(ge=0, description="seed of the fresh model")] | None = None
    training_seed: Annotated[int, Meta(ge=0, description="seed of what clients draw: order of samples, dropout")] | None = None
    selection_seed: Annotated[int, Meta(ge=0, description="seed of the sampling of clients")] | None = None
    partition_seed: Annotated[int, Meta(ge=0, description="seed of how the data is dealt out")] | None = None
    threads: (
        Annotated[int, Meta(ge=1, description="CPU threads of every learner; by default 1 if training is seeded")] | None
    ) = None
    beat_s: Annotated[float, Meta(ge=0.01, le=60, description="seconds between two signs of life")] = 5.0
    lease_s: Annotated[float, Meta(gt=0, le=3600, description="seconds without one after which a learner counts as gone")] = (
        30.0
    )
    keep_s: Annotated[float, Meta(gt=0, description="seconds after which an unused payload may be deleted")] = 600.0

    def __post_init__(self) -> None:
        LocalTraining.__post_init__(self)
        _check_lease(self)
        if not self.private and self.per_round > self.clients:
            raise ValueError(f"per_round must be <= clients ({self.clients}), got {self.per_round}")
        if self.min_clients > self.per_round:
            raise ValueError(f"min_clients must be <= per_round ({self.per_round}), got {self.min_clients}")
        dealing(self.partition)
        if self.outer_lr is None:  # said here, so that a manifest says it and the same run is always equal
            msgspec.structs.force_setattr(self, "outer_lr", 0.1 if self.outer in ("fedadam", "fedyogi") else 1.0)

    commit_dtype: ClassVar[None] = None  # no updates are committed beside the parameters
    weight_unit: ClassVar[Literal["samples"]] = "samples"
    flush_on_close: ClassVar[bool] = False  # a client counts when all of it was trained, or not at all

    @property
    def seeded(self) -> bool:
        """Whether a replay gives the same bytes: everything that is drawn follows from the manifest."""
        return self.training_seed is not None


ByRounds: TypeAlias = DiLoCo | FedAvg
"""Methods that exchange parameters in rounds, through the mailbox."""
Algorithm: TypeAlias = ByRounds | FineTune


def dealing(partition: str) -> tuple[Literal["iid", "dirichlet", "by-label"], float]:
    """How a FedAvg's data is dealt out, with α or the number of labels (0 for iid). Raises ValueError."""
    kind, colon, text = partition.partition(":")
    try:
        if kind == "iid" and not colon:
            return "iid", 0.0
        # float() takes blanks of every kind, and any number of digits
        if kind == "dirichlet" and _PLAIN_NUMBER.fullmatch(text) and 0 < float(text) <= 1e6:
            return "dirichlet", float(text)
        if kind == "by-label" and text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 10_000:
            return "by-label", float(text)
    except ValueError:
        pass
    raise ValueError(f"partition must be iid, dirichlet:ALPHA with ALPHA > 0, or by-label:K with K >= 1, got {partition!r:.60}")


def _check_lease(spec: ByRounds) -> None:
    if spec.lease_s < 2 * spec.beat_s:
        raise ValueError(f"lease_s must be >= 2 × beat_s ({2 * spec.beat_s:g}), got {spec.lease_s:g}")


def private(spec: Algorithm) -> bool:
    """Whether nothing is told of a participant's data but how much there is."""
    return isinstance(spec, FedAvg) and spec.private
