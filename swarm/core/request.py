"""A run as a person asks for it, and this machine's part in it: what a command line and a form both come to. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from swarm.core.checks import MAX_ROUND, MAX_SEED
from swarm.core.errors import UsageError
from swarm.core.finetune import FineTune
from swarm.core.ids import is_learner_id
from swarm.core.joboptions import ADAPTER_PATH, LearnerOptions, RunOptions, TuneOptions
from swarm.core.specs import Algorithm, ByRounds, FedAvg


def check_run(run: RunOptions) -> None:
    """Raises UsageError for values that no manifest can hold."""
    if run.rounds is not None and not 1 <= run.rounds <= MAX_ROUND:
        raise UsageError(f"rounds must be 1 to {MAX_ROUND}, got {run.rounds}")
    if run.name is not None and not is_learner_id(run.name):  # the same grammar: safe to type, to show and to compare
        raise UsageError(f"{run.name!r} is no name for a run: 1 to 64 of a-z, 0-9 and '-', and no Windows device name")
    if run.seed is not None and not 0 <= run.seed <= MAX_SEED:
        raise UsageError(f"seed must be 0 to {MAX_SEED}, got {run.seed}")
    if not 0 <= run.eval_every <= MAX_ROUND:
        raise UsageError(f"eval_every must be 0 to {MAX_ROUND}, got {run.eval_every}")
    if not 0 <= run.checkpoint_every <= MAX_ROUND:
        raise UsageError(f"checkpoint_every must be 0 to {MAX_ROUND}, got {run.checkpoint_every}")
    if not 1 <= run.keep_checkpoints <= MAX_ROUND:
        raise UsageError(f"checkpoints_kept must be 1 to {MAX_ROUND}, got {run.keep_checkpoints}")


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    algorithm: Algorithm
    task: str
    options: dict[str, str] = {}  # of the task, as they stand on a command line
    run: RunOptions = RunOptions()
    learner: LearnerOptions = LearnerOptions()
    adapter: str | None = None  # of an MLX-LM fine-tuning: that it begins with
    join: bool = True  # False: only make it


def in_rounds(
    algorithm: ByRounds,
    *,
    task: str,
    options: Mapping[str, str],
    run: RunOptions,
    learner: LearnerOptions,
    join: bool = True,
) -> RunRequest:
    """Raises UsageError for what does not go together."""
    if isinstance(algorithm, FedAvg):
        learner = msgspec.structs.replace(learner, threads=algorithm.threads)
        if algorithm.model_seed is not None:
            if run.seed not in (None, algorithm.model_seed):
                raise UsageError("--seed and --model-seed both say how the fresh model is drawn: give one of them")
            run = msgspec.structs.replace(run, seed=algorithm.model_seed)
    if run.attach and learner.data is None:
        raise UsageError("--attach needs a file: pass it with --data FILE")
    if run.attach_model and learner.model is None:
        raise UsageError("--attach-model needs a model: pass it with --model")
    if isinstance(algorithm, FedAvg) and algorithm.private and run.workers > 1:
        raise UsageError("private clients have data of their own, each learner its own: --workers would give all the same")
    return RunRequest(algorithm=algorithm, task=task, options=dict(options), run=run, learner=learner, join=join)


def tuning(algorithm: FineTune, tune: TuneOptions, *, join: bool = True) -> RunRequest:
    """Raises UsageError."""
    if tune.model is None or tune.data is None:
        what = "--model, a folder or a Hugging Face repository" if tune.model is None else "--data, a folder with train.jsonl"
        raise UsageError(f"a fine-tuning needs {what}")
    return RunRequest(
        algorithm=algorithm,
        task="mlx-lm",
        run=RunOptions(name=tune.name, attach=tune.attach, share=tune.share),
        learner=LearnerOptions(
            learner_id=tune.learner_id,
            framework="mlx",
            data=tune.data,
            model=tune.model,
            adapter_path=tune.adapter_path or ADAPTER_PATH,
            interface=tune.interface,
            idle_only=tune.idle_only,
            on_ac_only=tune.on_ac_only,
            hours=tune.hours,
            nice=tune.nice,
        ),
        adapter=tune.resume_adapter_file,
        join=join,
    )
