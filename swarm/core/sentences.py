"""What a worker tells, in words: the same on the command line and in a job's log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import assert_never

from swarm.core.events import (
    ORDINARY,
    Building,
    Created,
    Ended,
    Evaluated,
    Failed,
    Freed,
    Gathering,
    GenerationOver,
    Held,
    JobReported,
    JobSaved,
    JobStepped,
    JobValidated,
    Joined,
    Mended,
    OwnerFirst,
    Paused,
    Published,
    RankPlaced,
    Restored,
    Resumed,
    RoundClosed,
    ShareBack,
    ShareLost,
    Stepped,
    Trained,
    Training,
    Transfer,
    Trouble,
    Waiting,
    WorkerEvent,
)
from swarm.core.finetune import FineTune
from swarm.core.plaintext import plain as plain
from swarm.core.records import Rejected, RejectReason, RoundRecord
from swarm.core.specs import Algorithm, DiLoCo, FedAvg


def sentence(event: WorkerEvent) -> str | None:
    """The event in words; None for one that is not worth a line."""
    match event:
        case Building():
            return f"preparing {plain(event.what)} …"
        case Created():
            return f"made run {plain(event.name)} ({event.run})"
        case Transfer():
            return _transfer(event) if event.line else None
        case Joined():
            again = f", incarnation {event.incarnation}" if event.incarnation > 1 else ""
            if event.role == "syncer":
                return f"joined {plain(event.name)} as {event.learner}{again} to close its rounds, at round {event.round}"
            return f"joined {plain(event.name)} as {event.learner}{again} on {plain(event.device)}, at round {event.round}"
        case Restored():
            return f"goes on at round {event.round}, step {event.step}, with {plain(event.what, 200)}"
        case Waiting():
            return f"round {event.round}: {plain(event.reason, 200)}" if event.reason.startswith("waiting") else None
        case Paused():
            by = f" by {plain(event.by)}" if event.by else ""
            return f"round {event.round}: the run is paused{by}, until somebody resumes it"
        case Resumed():
            return f"round {event.round}: the run goes on"
        case OwnerFirst():
            return plain(event.words, 300)
        case Held():
            return f"paused here: {plain(event.reason, 200)}"
        case Freed():
            return "goes on here"
        case RoundClosed():
            return _closed(event)
        case Evaluated():
            metrics = "".join(f"  {plain(k)} {v:.3f}" for k, v in event.metrics.items())
            return f"round {event.round}: validation loss {number(event.loss, 4)}{plain(metrics, 300)}"
        case ShareLost():
            return f"{without(event)}: training goes on, and it is tried again"
        case ShareBack():
            return f"the mailbox is back after {event.after_s:.0f} s"
        case Trouble():
            return plain(event.message, 300)
        case Mended():
            return f"{plain(event.what, 200)} after {event.after_s:.0f} s"
        case Ended():
            words = {"done": "the run is done", "stopped": "the run was stopped", "left": "left the run"}
            done = counted(event.rounds, "round") if event.iterations is None else counted(event.iterations, "iteration")
            adapter = f"; the adapter is in {plain(event.adapter, 300)}" if event.adapter else ""
            chat = f"\n  {plain(event.chat, 500)}" if event.chat else ""
            return f"{words.get(event.reason, event.reason)} after {done}{adapter}{chat}"
        case Failed():
            return f"swarm: {plain(event.message, 500)}"
        case Training():
            taken = f"takes over {event.unit}, {counted(event.samples, 'sample')}: whoever had begun with it is gone"
            return f"round {event.round}: {taken}" if event.claim else None
        case Trained():
            return f"round {event.round}: {event.unit} is given up, half trained" if event.given_up and event.steps else None
        case Gathering():
            return f"generation {event.generation}: {plain(event.reason, 200)}"
        case RankPlaced():
            return _placed(event)
        case JobReported():
            rate = f"{event.learning_rate:.3e}, {event.tokens_per_s:,.0f} tokens/s, {event.trained_tokens:,} tokens"
            memory = f", {amount(event.memory_bytes)}" if event.memory_bytes else ""
            loss = number(event.train_loss, 3)
            return f"iteration {event.iteration} of {event.iters}: train loss {loss}, learning rate {rate}{memory}"
        case JobValidated():
            what = "validation" if event.part == "valid" else "test"
            return f"iteration {event.iteration}: {what} loss {number(event.loss, 3)}, in {event.seconds_s:.1f} s"
        case JobSaved():
            if event.adapter:
                return f"iteration {event.iteration}: saved the adapter to {plain(event.adapter, 300)}"
            return f"iteration {event.iteration}: checkpoint, {amount(event.size_bytes)}, is in the mailbox"
        case GenerationOver():
            return f"generation {event.generation} is over ({event.ending}): {plain(event.reason, 200)}"
        case Published() | Stepped() | JobStepped():
            return None


def without(lost: ShareLost) -> str:
    """What keeps a worker from its mailbox."""
    words = {
        "silent": "the mailbox does not answer",
        "full": "the mailbox is full",
        "read-only": "the mailbox is read-only",
        "gone": "the mailbox is not there",
    }
    return f"{words[lost.how]} ({plain(lost.reason, 200)})"


def _placed(event: RankPlaced) -> str:
    after = f", after step {event.step}" if event.step else ""
    refused = f"  without {plain('; '.join(event.refused), 300)}" if event.refused else ""
    if event.size == 1:
        return f"generation {event.generation}: trains alone{after}{refused}"
    others = plain(", ".join(event.machines), 200)
    where = f"rank {event.rank} of {event.size} at {event.address} over {event.backend}, which knows no passwords"
    return f"generation {event.generation}: {where}, with {others}{after}{refused}"


def transferred(event: Transfer) -> str:
    """For a line that is painted over."""
    doing = {"attach": "attaching", "fetch": "fetching", "have": "checking"}[event.how]
    share = 100 * event.done_bytes // max(1, event.size_bytes)
    return f"{doing} {plain(event.file)}  {share} % of {amount(event.size_bytes)}"


def _transfer(event: Transfer) -> str:
    size = f"{plain(event.file)}, {amount(event.size_bytes)}"
    if event.how == "have":
        return f"{size}, is on this machine already: nothing to fetch"
    if event.done_bytes >= event.size_bytes:
        return f"{'attached' if event.how == 'attach' else 'fetched'} {size}"
    if event.done_bytes == 0:
        return f"{'attaching' if event.how == 'attach' else 'fetching'} {size} …"
    return transferred(event)


def _closed(event: RoundClosed) -> str:
    of = f" ({event.round + 1} of {event.rounds})" if event.rounds else ""
    refused = (r.rpartition(": ") for r in event.rejected)
    words = "; ".join(f"{learner}: {_REASON_WORDS.get(reason, reason)}" for learner, _, reason in refused)
    rejected = f"  rejected: {plain(words, 300)}" if words else ""
    why = "" if event.reason in ORDINARY else f"  {plain(event.reason, 200)}"
    if not event.participants:
        return f"round {event.round} closed{of} unchanged: nothing that counts was reported{why}{rejected}"
    if event.clients:
        who = f": {trained((c.client, c.samples, c.learner) for c in event.clients)}"
    else:
        who = f" with {plain(', '.join(event.participants), 200)}"
    loss = f"  train loss {number(event.train_loss, 4)}" if event.train_loss is not None or not event.clients else ""
    shown = dict(event.metrics)
    first, last = shown.pop("first_loss", None), shown.pop("last_loss", None)  # of the clients' steps
    if first is not None and last is not None:
        loss += f" ({number(first)} → {number(last)})"
    metrics = plain("".join(f"  {plain(name)} {number(value)}" for name, value in shown.items()), 300)
    return f"round {event.round} closed{of}{who}{loss}{metrics}{why}{rejected}"


def trained(clients: Iterable[tuple[str, int, str]]) -> str:
    """Clients with their samples and who trained them: 'client-0002 (84 samples, studio), client-0007 (90, mbp)'. Of a
    private one, which is its learner, the name is not said twice."""
    every = list(clients)
    words = []
    for n, (client, samples, learner) in enumerate(every[:CLIENTS_NAMED]):
        count = counted(samples, "sample") if n == 0 else str(samples)
        words.append(f"{client} ({count}{'' if learner == client else f', {learner}'})")
    rest = every[CLIENTS_NAMED:]
    if rest:
        words.append(f"and {len(rest)} more ({sum(samples for _, samples, _ in rest)})")
    return plain(", ".join(words), 1000)


REASONS: Mapping[RejectReason, str] = {
    "stale": "started from other parameters",
    "late": "came after the round had closed",
    "zero_steps": "no step was trained",
    "tokens": "trained on no data",
    "schema": "other tensors or precision than the run",
    "corrupt": "damaged: not what its hash says",
    "missing": "its file is gone",
    "nonfinite": "holds NaN or infinite numbers",
    "norm": "over max_delta_norm, or too large to add",
    "duplicate": "another one of this unit counts",
    "unsampled": "this client is not of the round",
}
"""Why a snapshot was rejected, in words that need no manual."""
DIFFERENT = "two learners trained it to different bytes: replay is not exact"
_REASON_WORDS: Mapping[str, str] = {  # an event holds the reason as text
    str(reason): words for reason, words in REASONS.items()
}
CLIENTS_NAMED = 8  # in a line


def refusal(rejected: Rejected) -> str:
    """Whose snapshot was rejected, and why."""
    if rejected.differs:
        return f"{plain(rejected.unit, 64)}: {DIFFERENT}"
    who = rejected.learner if rejected.unit == rejected.learner else f"{rejected.unit} of {rejected.learner}"
    return f"{plain(who, 140)}: {REASONS[rejected.reason]}"


def settings(algorithm: Algorithm) -> str:
    """What tells one run from another of its method, in a few characters: 'H=100 P=4 q=2 F8+ef', 'N=10 K=2 E=1 adam
    dirichlet:0.5'."""
    match algorithm:
        case DiLoCo():
            return _diloco_settings(algorithm)
        case FedAvg():
            return _fedavg_settings(algorithm)
        case FineTune():
            return _finetune_settings(algorithm)
        case _:
            assert_never(algorithm)


def _fedavg_settings(algorithm: FedAvg) -> str:
    words = ["private"] if algorithm.private else [f"N={algorithm.clients}"]
    words += [f"K={algorithm.per_round}", f"E={algorithm.local_epochs}", algorithm.optimizer]
    if not algorithm.private:
        words.append(algorithm.partition)
    if algorithm.outer != "fedavg":
        words.append(algorithm.outer)
    if algorithm.merge != "mean":
        words.append(algorithm.merge)
    if algorithm.prox_mu:
        words.append(f"μ={algorithm.prox_mu:g}")
    if algorithm.local_dtype != "F32":
        words.append(algorithm.local_dtype)
    if algorithm.buffers == "local":
        words.append("local-buffers")
    if algorithm.delta_dtype is not None:
        words.append(f"Δ{algorithm.delta_dtype.partition('_')[0]}")
    return " ".join(words)


def _finetune_settings(spec: FineTune) -> str:
    rank = "" if spec.fine_tune_type == "full" else f" r={spec.lora.rank}"
    layers = "all" if spec.num_layers == -1 else spec.num_layers
    return f"{spec.fine_tune_type}{rank} L={layers} B={spec.batch_size} {spec.optimizer}"


def _diloco_settings(algorithm: DiLoCo) -> str:
    words = [f"H={algorithm.sync_every}"]
    if algorithm.fragments > 1:
        words.append(f"P={algorithm.fragments}")
    words.append(f"q={algorithm.quorum_size}")
    if algorithm.merge != "mean":
        words.append(algorithm.merge)
    if algorithm.delta_dtype is not None:
        feedback = "+ef" if algorithm.error_feedback and algorithm.delta_dtype != "F32" else ""
        words.append(algorithm.delta_dtype.partition("_")[0] + feedback)
    return " ".join(words)


def fewer_fragments(asked: Algorithm, made: Algorithm) -> str:
    """Why a run is not `made` as it was `asked` for (core/fragments.py, `fitted`); '' if it is."""
    if not isinstance(asked, DiLoCo) or not isinstance(made, DiLoCo) or made.fragments == asked.fragments:
        return ""
    has = counted(made.fragments, "parameter")
    if made.partition == "strided":
        has = f"{counted(made.fragments, 'part')} (blocks, and parameters of none)"
    words = f"the model has {has}: {counted(made.fragments, 'fragment')} instead of {asked.fragments}"
    return words if made.in_flight == asked.in_flight else f"{words}, {made.in_flight} in flight instead of {asked.in_flight}"


def norms(record: RoundRecord) -> str:
    """The deltas' L2 norms, from the smallest to the largest; '' if none is known."""
    known = [p.delta_norm for p in record.participants if p.delta_norm is not None]
    if not known:
        return ""
    ends = dict.fromkeys((f"{min(known):.3g}", f"{max(known):.3g}"))
    return "–".join(ends)


def counted(n: int, noun: str) -> str:
    """'1 round', '2 rounds'."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def amount(size_bytes: int) -> str:
    """A size for people, in three digits: '999 bytes', '4.35 MB', '12.3 GB'."""
    size, unit = float(size_bytes), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 999.5:
            break
        size, unit = size / 1000, larger
    if size_bytes == 1:
        return "1 byte"
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 99.95 else f"{size:.{1 if size >= 9.995 else 2}f} {unit}"


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.{digits}e}"  # of a model that diverges
