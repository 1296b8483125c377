"""What commands say of the time, the memory and the energy that training takes, and of how far learners agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from swarm import api
from swarm.core import spent
from swarm.core.sentences import plain
from swarm.host import settings

ROUNDS = 10  # whose cosines are averaged


def lines(state: api.RunState) -> Iterator[str]:
    """Of the whole run, as far as there is anything to tell."""
    words = []
    if (found := spent.drawn(state)) is not None:
        paid = settings.load()[0]
        told = spent.drawn_words(found, price_per_kwh=paid.price_per_kwh, currency=plain(paid.currency, 8))
        words.append(f"energy {told}")
    several = any(len(record.participants) > 1 for record in state.rounds[-ROUNDS:])  # one alone agrees with itself
    if several and (cosine := _cosine(state)) is not None and (counted := min(ROUNDS, len(state.series.cosine.values))):
        words.append(f"cosine {cosine:.2f} over the last {counted} round{'s' if counted > 1 else ''}")
    if words:
        yield "  ".join(words)


def agreement(cosines: Sequence[float | None]) -> str:
    """Of one round: how far its deltas agree with what they came to; '' of one alone, which does."""
    known = [cosine for cosine in cosines if cosine is not None]
    return f"cos {sum(known) / len(known):.2f}" if len(known) > 1 else ""


def heads(state: api.RunState) -> tuple[str, ...]:
    return ("GOODPUT", "MEMORY", *(("POWER", "ENERGY") if _tells(state) else ()))


def cells(state: api.RunState, view: api.LearnerView) -> tuple[str, ...]:
    """Of one learner, below `heads`."""
    beat = view.beat if view.role != "syncer" else None
    total = 0 if view.record is None else view.record.memory_bytes
    known = spent.percent(spent.goodput(beat)), spent.memory_words(spent.used_bytes(view), total)
    if not _tells(state):
        return known
    power_w = beat.power_w if beat is not None and view.live else None
    return (*known, spent.power_words(power_w), spent.energy_words(beat.energy_wh if beat is not None else None))


def of_learner(view: api.LearnerView) -> dict[str, Any]:
    """For --json."""
    beat = view.beat if view.role != "syncer" else None
    energy_wh = None if beat is None else beat.energy_wh
    return {
        "goodput": spent.goodput(beat),
        "memory_bytes": spent.used_bytes(view),
        "memory_total_bytes": (view.record.memory_bytes if view.record is not None else 0) or None,
        "power_w": beat.power_w if beat is not None and view.live else None,
        "energy_wh": energy_wh,
        "cost": spent.cost(energy_wh, settings.load()[0].price_per_kwh),
    }


def of_run(state: api.RunState) -> dict[str, Any]:
    """For --json."""
    found, paid = spent.drawn(state), settings.load()[0]
    return {
        "energy_wh": None if found is None else found.energy_wh,
        "energy_of": 0 if found is None else found.told,
        "cost": None if found is None else spent.cost(found.energy_wh, paid.price_per_kwh),
        "currency": paid.currency or None,
        "cosine": _cosine(state),
    }


def of_job(job: api.Job, used: int | None) -> dict[str, Any]:
    """For --json. `used`: bytes of memory."""
    taken = job.spent
    return {
        "goodput": spent.goodput(taken),
        "memory_bytes": used,
        "memory_total_bytes": job.memory_bytes or None,
        "power_w": taken.power_w if job.state == "running" else None,
        "energy_wh": taken.energy_wh,
        "cost": spent.cost(taken.energy_wh, settings.load()[0].price_per_kwh),
    }


def job_heads(jobs: Sequence[api.Job]) -> tuple[str, ...]:
    found: tuple[str, ...] = ("GOODPUT", "MEMORY")
    if any(job.spent.energy_wh is not None for job in jobs):
        found += ("POWER", "ENERGY") if settings.load()[0].price_per_kwh is None else ("POWER", "ENERGY", "COST")
    return found


def job_cells(job: api.Job, used: int | None, *, among: Sequence[api.Job]) -> tuple[str, ...]:
    """Of one of these jobs, below `job_heads`."""
    told, paid = of_job(job, used), settings.load()[0]
    every = {
        "GOODPUT": spent.percent(told["goodput"]),
        "MEMORY": spent.memory_words(used, job.memory_bytes),
        "POWER": spent.power_words(told["power_w"]),
        "ENERGY": spent.energy_words(told["energy_wh"]),
        "COST": spent.cost_words(told["cost"], plain(paid.currency, 8)),
    }
    return tuple(every[head] for head in job_heads(among))


def _tells(state: api.RunState) -> bool:
    """Whether any machine tells what it draws."""
    return spent.drawn(state) is not None


def _cosine(state: api.RunState) -> float | None:
    hidden = state.manifest is not None and api.private(state.manifest.algorithm)
    return None if hidden else spent.cosine(state, ROUNDS)
