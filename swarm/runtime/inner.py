"""The training side of a learner: counts inner steps, makes deltas when a round is due, takes over what was committed.

No thread, no clock, no I/O.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import NotFinite
from swarm.core.fragments import Schedule
from swarm.core.specs import DiLoCo
from swarm.learners.contract import Adapter
from swarm.runtime.handoff import Aligned, Publication, Tensors
from swarm.runtime.work import Fragment, Work, publication
from swarm.tensors import codec
from swarm.tensors.align import align
from swarm.tensors.blocks import copies
from swarm.tensors.precision import DTYPES

GROUP_BYTES = 32 << 20  # parameters are aligned in groups of about so many bytes: no second copy of a fragment


class InnerLoop:
    def __init__(
        self,
        adapter: Adapter,
        spec: DiLoCo,
        *,
        plan: tuple[tuple[str, ...], ...],
        schedule: Schedule,
        start: Aligned,
        owns: bool = False,
    ) -> None:
        """`start` holds every fragment; the adapter's parameters become these. `owns`: nobody else holds the arrays that come
        with `start` and later commits, and a run of this `spec` can do without an anchor once a delta is made of it
        (`rests_between`). Then a delta takes its place, and only the next commit brings another one."""
        self.adapter, self.spec, self.plan, self.schedule = adapter, spec, plan, schedule
        self.tensors = adapter.schema()
        self.newest = start.newest  # the last round that was taken over
        self.round = start.newest + 1  # being worked on
        self.step = 0  # inner steps done in it
        self.parts: list[Fragment] = []
        for fragment in range(len(plan)):
            sha256, theta = start.fragments[fragment]
            adapter.apply(theta)
            self.parts.append(Fragment(base_sha256=sha256, anchor=theta))
        self._in_flight = min(spec.in_flight, len(plan))
        self._owns = owns

    # Steps

    @property
    def steps_before(self) -> int:
        """Inner steps that the round takes."""
        return self.schedule.steps_before(self.round)

    @property
    def pending(self) -> tuple[int, ...]:
        """The rounds that were reported to and are not committed yet."""
        return tuple(sorted(part.pending.round for part in self.parts if part.pending is not None))

    @property
    def waits(self) -> bool:
        """Whether the next inner step must wait for a pending round."""
        full = len(self.pending) >= self._in_flight
        return full and self.step >= min(self.spec.overlap_steps, self.steps_before)

    def count(self, *, tokens: int, loss: float | None, seconds_s: float) -> None:
        """One inner step was made. `tokens`: in the run's weight_unit."""
        self.step += 1
        done = Work(
            tokens=tokens,
            steps=1,
            loss_sum=loss * tokens if loss is not None else 0.0,
            loss_tokens=tokens if loss is not None else 0,
            seconds_s=seconds_s,
        )
        for part in self.parts:
            part.work += done

    # Reporting

    def due(self, *, flush: bool, hurried: bool = False) -> Publication | None:
        """What to publish now, if anything. After that the next round is worked on, and this one is pending.

        With a delta that is not finite all local steps are given up, of every fragment: the publication says so, and where. If
        it was being made in the place of the anchor, its fragment is `lacking` from then on, and its parameters are as they
        were until they are committed or given to `take_committed`."""
        fragment = self.schedule.fragment(self.round)
        part, pending = self.parts[fragment], self.pending
        if len(pending) >= self._in_flight or part.pending is not None:
            return None
        early = not pending and (flush or (hurried and part.work.steps > 0))
        if not (early or (self.step >= self.steps_before and part.work.steps > 0)):
            return None
        flaw = ""
        delta: dict[str, NDArray[Any]] = {}
        kept: dict[str, NDArray[Any]] = {}
        theta: Tensors | None = None
        try:
            delta, kept, theta = self._encoded(part, self.plan[fragment])
        except NotFinite as error:
            flaw = error.name
        made = publication(fragment, part, part.report(self.round, kept=kept, theta=theta), delta, flaw=flaw)
        if flaw:
            self.give_up()
        elif self._owns:
            part.anchor = {}
        self.round, self.step = self.round + 1, 0
        return made

    def _encoded(
        self, part: Fragment, names: Collection[str]
    ) -> tuple[dict[str, NDArray[Any]], dict[str, NDArray[Any]], Tensors | None]:
        """(the payload's arrays, the residual once it is accepted, the parameters if they are needed). Raises NotFinite."""
        spec = self.spec
        here, anchors = self.adapter.snapshot(names), part.anchor
        delta = self._room(part, names)
        kept: dict[str, NDArray[Any]] = {}
        for name in names:
            tensor, anchor = self.tensors[name], anchors[name]
            loses = spec.error_feedback and (spec.delta_dtype or tensor.dtype) != "F32"
            if loses:
                kept[name] = np.empty(anchor.shape, DTYPES[spec.residual_dtype])
            codec.encode(
                anchor,
                here[name],
                spec=tensor,
                dtype=spec.delta_dtype,
                residual=part.residual.get(name),
                kept=kept.get(name),
                out=delta,
            )
        # Only for steps that are made before the commit, and are kept then as far as they go on from here.
        goes_on = self._in_flight > 1 or spec.overlap_steps > 0
        match spec.alignment:
            case "carry" | "adaptive" if goes_on:
                return delta, kept, copies(here)
            case "blend" if goes_on:
                return delta, kept, anchors  # which half of all steps are told from
            case _:
                return delta, kept, None

    def _room(self, part: Fragment, names: Collection[str]) -> dict[str, NDArray[Any]]:
        """Arrays for the delta: the anchor's own, where it is not needed any more and the delta is of its dtype. Then the
        anchor is gone: whether the delta is finite is known once it stands there, and a pass to know it before would cost every
        round what a fetch costs the rare one."""
        dtype = self.spec.delta_dtype
        specs = [self.tensors[name] for name in names if self._owns and not self.tensors[name].buffer]
        same = [spec.name for spec in specs if spec.dtype == (dtype or spec.dtype)]
        found = {name: part.anchor[name] for name in same}
        if found:
            part.anchor = {}
        for array in found.values():
            array.flags.writeable = True
        others = [self.tensors[name] for name in names if name not in found]
        return found | (codec.room(others, dtype) if others else {})

    # Taking over

    def align(self, aligned: Aligned) -> None:
        """Take over committed parameters. What becomes of local steps is up to the run's alignment; those that a record has
        counted are in the committed parameters, and never kept."""
        first = max(self.newest + 1, aligned.newest + 1 - len(self.plan))
        changed = {self.schedule.fragment(round) for round in range(first, aligned.newest + 1)}
        for fragment in sorted(changed & aligned.fragments.keys()):
            sha256, theta = aligned.fragments[fragment]
            part = self.parts[fragment]
            verdicts = {r: v for r, v in aligned.verdicts.items() if self.schedule.fragment(r) == fragment}
            start = part.settle(aligned.newest, verdicts)
            before, part.base_sha256, part.anchor = part.anchor, sha256, theta
            if start is None or self.spec.alignment == "overwrite":
                part.work = Work()
                self.adapter.apply(theta)
            elif not self._keep(self.plan[fragment], before=before, start=start, committed=theta):
                part.work = Work()
        self.newest = max(self.newest, aligned.newest)
        if aligned.newest + 1 > self.round:  # the others went on without this learner
            self.round = aligned.newest + 1
            if self.spec.follow:
                self.step = 0

    def _keep(self, names: Iterable[str], *, before: Tensors, start: Tensors, committed: Tensors) -> bool:
        """Set the parameters to the committed ones with the local steps since `start`, as far as the alignment keeps them;
        whether it keeps anything. In groups: a snapshot is only valid until the next apply, and may be a copy from a device."""
        kept = False
        for group in _groups(names, committed):
            here = self.adapter.snapshot(group)
            merged = {name: np.array(here[name]) for name in group}
            for name, theta in merged.items():
                share = align(
                    theta,
                    committed[name],
                    alignment=self.spec.alignment,
                    published=start[name],
                    anchor=before[name],
                )
                kept = kept or share > 0
            self.adapter.apply(merged)
        return kept

    def give_up(self) -> None:
        """Give up all local steps: every parameter as it was last committed, but for those that are lacking."""
        self.take_committed()
        for part in self.parts:
            part.give_up()

    @property
    def lacking(self) -> tuple[int, ...]:
        """Fragments whose committed parameters are not held: a delta was made of them, and its round is pending."""
        return tuple(k for k, part in enumerate(self.parts) if not part.anchor)

    def committed(self) -> Tensors:
        """The newest committed parameters of the whole model, but for those that are lacking."""
        return {name: array for part in self.parts for name, array in part.anchor.items()}

    def take_committed(self, lacking: Mapping[int, Tensors] | None = None) -> None:
        """Every parameter as it was last committed. `lacking`: the newest committed ones of fragments that are; they are not
        kept, for the commit that is awaited brings others."""
        for theta in (*(part.anchor for part in self.parts), *(lacking or {}).values()):
            if theta:
                self.adapter.apply(theta)

    @contextlib.contextmanager
    def as_committed(self) -> Iterator[None]:
        """The model with its parameters as they were last committed; the local ones come back. Only fragments with local
        steps are copied for that."""
        moved = [(part, names) for part, names in zip(self.parts, self.plan, strict=True) if part.local.steps]
        here = self.adapter.snapshot([name for _, names in moved for name in names])
        local = copies(here)
        try:
            for part, _ in moved:
                self.adapter.apply(part.anchor)
            yield
        finally:
            self.adapter.apply(local)


def rests_between(spec: DiLoCo) -> bool:
    """Whether a learner makes no step between its report and the commit that overwrites whatever it has: only the delta is
    of use meanwhile. An update of a commit would need what it starts from."""
    return spec.alignment == "overwrite" and spec.in_flight == 1 and spec.overlap_steps == 0 and spec.commit_dtype is None


def _groups(names: Iterable[str], tensors: Tensors) -> Iterator[list[str]]:
    group: list[str] = []
    size_bytes = 0
    for name in names:
        if group and size_bytes + tensors[name].nbytes > GROUP_BYTES:
            yield group
            group, size_bytes = [], 0
        group.append(name)
        size_bytes += tensors[name].nbytes
    if group:
        yield group


def params_sha256(adapter: Adapter) -> str:
    """SHA-256 over all parameters' bytes, sorted by name: equal for two learners that hold the same parameters."""
    sha256 = hashlib.sha256()
    snapshot = adapter.snapshot()
    for name in sorted(snapshot):
        sha256.update(np.ascontiguousarray(snapshot[name]).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()
