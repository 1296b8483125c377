"""What a rank says of its work, as this machine's screens and logs are told it."""

from __future__ import annotations

from swarm.core.events import JobReported, JobStepped, JobValidated, Trouble, WorkerEvent
from swarm.core.finetune import FineTune
from swarm.core.rankjob import RankEvent, RankStepped, Reported, Smaller, Validated
from swarm.parallel.gauges import Gauges


def told(event: RankEvent, spec: FineTune, gauges: Gauges) -> WorkerEvent | None:
    """`gauges`: which have taken the event. None: it is not told."""
    match event:
        case RankStepped():
            return JobStepped(
                step=event.step,
                steps=spec.steps,
                iteration=event.iteration,
                loss=event.loss,
                tokens_per_s=gauges.together_per_s,
                spent=gauges.spent(),
            )
        case Reported():
            return JobReported(
                iteration=event.iteration,
                iters=spec.iters,
                train_loss=event.train_loss,
                learning_rate=event.learning_rate,
                tokens_per_s=event.tokens_per_s,
                trained_tokens=event.trained_tokens,
                memory_bytes=gauges.memory_bytes,
            )
        case Validated():
            return JobValidated(part=event.part, iteration=event.iteration, loss=event.loss, seconds_s=event.seconds_s)
        case Smaller():
            words = f"a microbatch was too much for the memory: {event.microbatch_tokens} tokens at once from now on"
            return Trouble(message=words)
        case _:
            return None
