"""What is asked before anything that matters: each of these opens a dialog, and does what the answer says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.app import SuspendNotSupported

from swarm import api
from tui import text
from tui.screens.dialogs import CANCEL, Ask, Choice, Option
from tui.view_run import resting

if TYPE_CHECKING:
    from swarm.api import Job, RunState, Way
    from tui.app import SwarmApp
    from tui.messages import JoinShown, RunAt


def ask_peer(app: SwarmApp) -> None:
    words = (
        (("Another machine, by its name or address: studio.local, 192.168.1.7", ""),),
        (("It must run swarm. Where the network lets machines find each other, this is not needed.", "dim"),),
    )

    def answered(answer: str | None) -> None:
        if answer:
            app.feed.add_peer(answer)

    app.push_screen(Ask("Add a machine", words, placeholder="HOST or HOST:PORT"), answered)


def ask_stop(app: SwarmApp, at: RunAt, state: RunState) -> None:
    name = text.plain(state.name, 40)
    words = (
        ((f"Stop {name} for everybody?", "strong"),),
        ((f"All its learners end, {len(state.live)} of them live now, on every machine.", ""),),
        (("They report what they have, and that round is the last. What was trained stays.", "dim"),),
    )

    def answered(answer: str | None) -> None:
        if answer == "stop":
            app.feed.stop(at)

    app.push_screen(Choice("Stop", words, (Option("stop", "Stop it for everybody"), CANCEL), focus="cancel"), answered)


def ask_pause(app: SwarmApp, at: RunAt, state: RunState) -> None:
    name = text.plain(state.name, 40)
    if resting(state):
        app.feed.resume(at)
        app.toast(f"{name} goes on")
        return
    words = (
        ((f"Let {name} rest?", "strong"),),
        (("Its learners report what they have, then all machines wait until it is resumed.", ""),),
    )

    def answered(answer: str | None) -> None:
        if answer == "pause":
            app.feed.pause(at)

    app.push_screen(Choice("Pause", words, (Option("pause", "Pause it for everybody"), CANCEL), focus="cancel"), answered)


def ask_drop(app: SwarmApp, at: RunAt, state: RunState, learner: str) -> None:
    who = text.plain(learner, 64)
    words = (
        ((f"Drop {who} from {text.plain(state.name, 40)}?", "strong"),),
        (("It is asked to leave, and the others wait for it no more. It may join again.", ""),),
    )

    def answered(answer: str | None) -> None:
        if answer == "drop":
            app.feed.drop(at, learner)

    app.push_screen(Choice("Drop", words, (Option("drop", f"Drop {who}"), CANCEL), focus="cancel"), answered)


def ask_rounds(app: SwarmApp, at: RunAt, state: RunState) -> None:
    """How many rounds the run is to have, in all."""
    now = state.asked_rounds
    words = (
        ((f"How many rounds shall {text.plain(state.name, 40)} have, in all?", "strong"),),
        ((f"It has had {state.open_round}, of {'as many as it takes' if now is None else now}.", ""),),
        (("Fewer than it has had end it with the round under way. Nothing: until it is stopped.", "dim"),),
    )

    def answered(answer: str | None) -> None:
        if answer is None:
            return
        rounds = answer.replace(",", "").replace("_", "")
        if not rounds and now is None:
            return
        if not rounds:
            _confirm_rounds(app, at, state, None)
        elif rounds.isascii() and rounds.isdecimal() and len(rounds) < 12 and int(rounds) > 0:
            if int(rounds) > state.open_round:
                app.feed.extend(at, int(rounds))
            else:
                _confirm_rounds(app, at, state, int(rounds))
        else:
            app.toast(f"{text.plain(answer, 20)} is no number of rounds", "warning")

    app.push_screen(Ask("Rounds", words, value="" if now is None else str(now), empty=True), answered)


def _confirm_rounds(app: SwarmApp, at: RunAt, state: RunState, rounds: int | None) -> None:
    """Of an answer that ends the run for everybody, or lets it go on for ever."""
    name = text.plain(state.name, 40)
    if rounds is None:
        words, label = f"Let {name} go on until somebody stops it?", "No limit"
    else:
        words, label = f"{name} has had {text.count(state.open_round, 'round')}: end it with the one under way?", "End it"

    def answered(answer: str | None) -> None:
        if answer == "yes":
            app.feed.extend(at, rounds)

    app.push_screen(Choice("Rounds", (((words, "strong"),),), (Option("yes", label), CANCEL), focus="cancel"), answered)


def ask_file(app: SwarmApp, state: RunState, chosen: Callable[[str], None]) -> None:
    """Where to export to."""
    words = (
        ((f"Write {text.plain(state.name, 40)} to which file?", "strong"),),
        (("FILE.safetensors gets the newest parameters that were committed.", ""),),
        (("FILE.csv and FILE.jsonl get the history: a row for each round.", ""),),
        (("A name without a folder is one in the folder in which this screen was started.", "dim"),),
    )

    def answered(answer: str | None) -> None:
        if answer:
            chosen(answer)

    app.push_screen(Ask("Export", words, value=f"{text.plain(state.name, 64)}.safetensors"), answered)


def ask_overwrite(app: SwarmApp, at: RunAt, file: str) -> None:
    words = ((("There is such a file already. Write over it?", "strong"),), ((text.plain(file, 300), ""),))

    def answered(answer: str | None) -> None:
        if answer == "write":
            begin_export(app, at, file)

    app.push_screen(Choice("Export", words, (Option("write", "Write over it"), CANCEL), focus="cancel"), answered)


def begin_export(app: SwarmApp, at: RunAt, file: str) -> None:
    app.feed.export(at, file)
    app.toast(f"exporting to {file}")


def ask_leave(app: SwarmApp, jobs: tuple[Job, ...]) -> None:
    """All of this machine's jobs in one run."""
    who = ", ".join(text.plain(job.learner, 64) for job in jobs)
    words = (
        ((f"Take {who} out of {text.plain(jobs[0].run_name, 64)}?", "strong"),),
        (("The other machines go on. You can join again.", "dim"),),
    )

    def answered(answer: str | None) -> None:
        if answer == "leave":
            for job in jobs:
                app.feed.leave(job.id)

    app.push_screen(Choice("Leave", words, (Option("leave", "Leave the run"), CANCEL), focus="cancel"), answered)


def ask_mount(app: SwarmApp, shown: JoinShown) -> None:
    """Mount what is missing, once a person agrees if anybody may have said where it is."""
    joining, way = shown.joining, shown.joining.way
    if way is None:
        return
    if not joining.unsure:
        _mount(app, shown.at, way)
        return
    words = (
        ((f"Run {text.plain(' '.join(way.argv or ()), 200)}?", "strong"),),
        *(((line, ""),) for line in text.plain(joining.unsure, 400).split(": ")),
    )

    def answered(answer: str | None) -> None:
        if answer == "mount":
            _mount(app, shown.at, way)

    app.push_screen(Choice("Mount", words, (Option("mount", "Mount it"), CANCEL), focus="cancel"), answered)


def _mount(app: SwarmApp, at: RunAt, way: Way) -> None:
    """What may ask for a password does so in the terminal, which is its for that time."""
    if not way.asks:
        app.feed.mount(at, way)
        return
    try:
        with app.suspend():
            print(" ".join(way.argv or ()), flush=True)
            problem = api.mount(way, quiet=False)
    except SuspendNotSupported:
        app.feed.mount(at, way)
        return
    if problem:
        app.toast(f"could not mount: {problem}", "error")
