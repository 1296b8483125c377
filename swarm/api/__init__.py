"""Read model and commands for every front end: command line, screens, user scripts.

Nothing here imports numpy or a framework: whatever touches tensors runs in a worker process. And what a name stands for is
imported when it is first asked for: a screen is painted before it has a mailbox, and needs none of that for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from swarm import __version__

if TYPE_CHECKING:
    from swarm.advertising import discovers
    from swarm.api.exporting import HISTORIES, export_run
    from swarm.api.finding import (
        check_joinable,
        checkpoints,
        find_run,
        foreign_program,
        joinable,
        live_learners,
        settings_faults,
        settled,
        survey,
        surveyed,
        whole_run,
    )
    from swarm.api.joining import Joining, JoinWatch, mount, remember, remember_peer
    from swarm.api.reading import ClosedRound, held_round, read_round
    from swarm.api.steering import (
        check_new_name,
        drop_learner,
        extend_run,
        learn_order,
        learn_orders,
        leave,
        log_tail,
        new_finetuning,
        new_run,
        pause_run,
        remove_run,
        resume_run,
        start_join,
        stop_run,
    )
    from swarm.api.welcoming import look_at_folder, look_at_machine, set_up
    from swarm.core.adverts import PeerAdvert, PeerState, RunAdvert
    from swarm.core.comparison import differing, totals, unit_of
    from swarm.core.comparison import history as run_history
    from swarm.core.errors import MailboxError, NothingToJoin, RunNotFound, SwarmError, UsageError
    from swarm.core.events import ORDINARY
    from swarm.core.finetune import FineTune
    from swarm.core.history import nested as nested_history
    from swarm.core.history import rows as history_rows
    from swarm.core.manifest import Manifest
    from swarm.core.mounting import Way
    from swarm.core.oddities import oddities
    from swarm.core.participation import ClientView, accuracy, confusion_lines, expected, labelled, mean_metrics
    from swarm.core.ranks import EvalPoint, Link, TrainPoint
    from swarm.core.rankstate import Generation
    from swarm.core.rankview import OPEN_RING, Checked, Progress, RankView, checked, job_rows, progress, rank_views
    from swarm.core.records import Beat, EvalRecord, LearnerRecord, Participant, Rejected, Role, RoundRecord, Snapshot
    from swarm.core.rounds import grace_s
    from swarm.core.sentences import REASONS, norms, refusal, trained
    from swarm.core.sentences import settings as settings_words
    from swarm.core.series import Curve, Figure, Series, longest_s, measured, steps_made
    from swarm.core.sightings import SeenPeer, SeenRun, Sightings
    from swarm.core.specs import Algorithm, DiLoCo, FedAvg, private
    from swarm.core.spent import cost as money
    from swarm.core.spent import cost_words, drawn, drawn_words, energy_words, goodput, power_words, used_bytes
    from swarm.core.state import LearnerView, RunState, participants, rejections, train_loss
    from swarm.core.ticks import Tick
    from swarm.host.crash import note_crash
    from swarm.host.notify import notify
    from swarm.host.paths import settings_file as settings_path
    from swarm.host.settings import Described, Settings, first_start, mailbox_location
    from swarm.host.settings import checked as checked_setting
    from swarm.host.settings import described as described_settings
    from swarm.host.settings import load as load_settings
    from swarm.host.settings import save as save_setting
    from swarm.host.tending import held_by, manners
    from swarm.launcher import Job, jobs
    from swarm.learners.devices import installed_frameworks
    from swarm.neighbours import Neighbourhood, look_around
    from swarm.watch import Home, HomeWatch, MailboxView, RunWatch, known_mailboxes

__all__ = [
    "HISTORIES",
    "OPEN_RING",
    "ORDINARY",
    "REASONS",
    "Algorithm",
    "Beat",
    "Checked",
    "ClientView",
    "ClosedRound",
    "Curve",
    "Described",
    "DiLoCo",
    "EvalPoint",
    "EvalRecord",
    "FedAvg",
    "Figure",
    "FineTune",
    "Generation",
    "Home",
    "HomeWatch",
    "Job",
    "JoinWatch",
    "Joining",
    "LearnerRecord",
    "LearnerView",
    "Link",
    "MailboxError",
    "MailboxView",
    "Manifest",
    "Neighbourhood",
    "NothingToJoin",
    "Participant",
    "PeerAdvert",
    "PeerState",
    "Progress",
    "RankView",
    "Rejected",
    "Role",
    "RoundRecord",
    "RunAdvert",
    "RunNotFound",
    "RunState",
    "RunWatch",
    "SeenPeer",
    "SeenRun",
    "Series",
    "Settings",
    "Sightings",
    "Snapshot",
    "SwarmError",
    "Tick",
    "TrainPoint",
    "UsageError",
    "Way",
    "__version__",
    "accuracy",
    "check_joinable",
    "check_new_name",
    "checked",
    "checked_setting",
    "checkpoints",
    "confusion_lines",
    "cost_words",
    "described_settings",
    "differing",
    "discovers",
    "drawn",
    "drawn_words",
    "drop_learner",
    "energy_words",
    "expected",
    "export_run",
    "extend_run",
    "find_run",
    "first_start",
    "foreign_program",
    "goodput",
    "grace_s",
    "held_by",
    "held_round",
    "history_rows",
    "installed_frameworks",
    "job_rows",
    "jobs",
    "joinable",
    "known_mailboxes",
    "labelled",
    "learn_order",
    "learn_orders",
    "leave",
    "live_learners",
    "load_settings",
    "log_tail",
    "longest_s",
    "look_around",
    "look_at_folder",
    "look_at_machine",
    "mailbox_location",
    "manners",
    "mean_metrics",
    "measured",
    "money",
    "mount",
    "nested_history",
    "new_finetuning",
    "new_run",
    "norms",
    "note_crash",
    "notify",
    "oddities",
    "participants",
    "pause_run",
    "power_words",
    "private",
    "progress",
    "rank_views",
    "read_round",
    "refusal",
    "rejections",
    "remember",
    "remember_peer",
    "remove_run",
    "resume_run",
    "run_history",
    "save_setting",
    "set_up",
    "settings_faults",
    "settings_path",
    "settings_words",
    "settled",
    "start_join",
    "steps_made",
    "stop_run",
    "survey",
    "surveyed",
    "totals",
    "train_loss",
    "trained",
    "unit_of",
    "used_bytes",
    "whole_run",
]

_PLACES = {
    "swarm.advertising": "discovers",
    "swarm.api.exporting": "HISTORIES export_run",
    "swarm.api.finding": (
        "check_joinable checkpoints find_run foreign_program joinable live_learners settings_faults settled "
        "survey surveyed whole_run"
    ),
    "swarm.api.joining": "Joining JoinWatch mount remember remember_peer",
    "swarm.api.reading": "ClosedRound held_round read_round",
    "swarm.api.steering": (
        "check_new_name drop_learner extend_run learn_order learn_orders leave log_tail new_finetuning "
        "new_run pause_run remove_run resume_run start_join stop_run"
    ),
    "swarm.api.welcoming": "look_at_folder look_at_machine set_up",
    "swarm.core.adverts": "PeerAdvert PeerState RunAdvert",
    "swarm.core.comparison": "differing totals unit_of run_history=history",
    "swarm.core.errors": "MailboxError NothingToJoin RunNotFound SwarmError UsageError",
    "swarm.core.events": "ORDINARY",
    "swarm.core.finetune": "FineTune",
    "swarm.core.history": "nested_history=nested history_rows=rows",
    "swarm.core.manifest": "Manifest",
    "swarm.core.mounting": "Way",
    "swarm.core.oddities": "oddities",
    "swarm.core.participation": "ClientView accuracy confusion_lines expected labelled mean_metrics",
    "swarm.core.ranks": "EvalPoint Link TrainPoint",
    "swarm.core.rankstate": "Generation",
    "swarm.core.rankview": "OPEN_RING Checked Progress RankView checked job_rows progress rank_views",
    "swarm.core.records": "Beat EvalRecord LearnerRecord Participant Rejected Role RoundRecord Snapshot",
    "swarm.core.rounds": "grace_s",
    "swarm.core.sentences": "REASONS norms refusal trained settings_words=settings",
    "swarm.core.series": "Curve Figure Series longest_s measured steps_made",
    "swarm.core.sightings": "SeenPeer SeenRun Sightings",
    "swarm.core.spent": "cost_words drawn drawn_words energy_words goodput power_words used_bytes money=cost",
    "swarm.core.specs": "Algorithm DiLoCo FedAvg private",
    "swarm.core.state": "LearnerView RunState participants rejections train_loss",
    "swarm.core.ticks": "Tick",
    "swarm.host.crash": "note_crash",
    "swarm.host.notify": "notify",
    "swarm.host.paths": "settings_path=settings_file",
    "swarm.host.settings": (
        "Described Settings first_start mailbox_location checked_setting=checked described_settings=described "
        "load_settings=load save_setting=save"
    ),
    "swarm.host.tending": "held_by manners",
    "swarm.launcher": "Job jobs",
    "swarm.learners.devices": "installed_frameworks",
    "swarm.neighbours": "Neighbourhood look_around",
    "swarm.watch": "Home HomeWatch MailboxView RunWatch known_mailboxes",
}
"""What comes from where, as it is imported above for type checkers; `name=theirs` where it has another name there."""

_NAMES = {
    name: (module, theirs or name)
    for module, names in _PLACES.items()
    for name, _, theirs in (each.partition("=") for each in names.split())
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, theirs = _NAMES[name]
    globals()[name] = value = getattr(import_module(module), theirs)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
