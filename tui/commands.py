"""The key table. Bindings, footer, palette and the help page are all made from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from textual.binding import Binding, BindingType


class Place(Enum):
    """Where a key works; the value is its heading on the help page."""

    EVERYWHERE = "Everywhere"
    LISTS = "Lists"
    HOME = "Home"
    JOIN = "Join"
    RUN = "Run"
    ROUND = "Round"
    LEARNER = "Learner"
    LOG = "Log"
    SAMPLES = "Samples"
    NETWORK = "Network"


@dataclass(frozen=True)
class Key:
    keys: str  # as Textual names them, comma-separated; the first one stands in the footer
    action: str
    label: str  # one or two words
    help: str  # one sentence
    group: str | None = None  # neighbours with the same one share this word in the footer
    priority: bool = False  # works over dialogs and text fields too
    footer: bool = True
    pinned: bool = False  # stands at the right end of the footer, however narrow that is


_PANES, _MOVE = "panes", "go"


def _panes(*names: str) -> tuple[Key, ...]:
    return tuple(
        Key(str(n), f"pane({n})", f"{name} pane", f"Go to the pane: {name}.", _PANES) for n, name in enumerate(names, 1)
    )


_SCROLL = (
    Key("j,down", "scroll(1)", "down", "One line down.", footer=False),
    Key("k,up", "scroll(-1)", "up", "One line up.", footer=False),
    Key("pagedown,space", "page(1)", "page down", "One page down.", footer=False),
    Key("pageup", "page(-1)", "page up", "One page up.", footer=False),
)

KEYS: dict[Place, tuple[Key, ...]] = {
    Place.EVERYWHERE: (
        Key("question_mark", "help", "help", "All keys, on one page.", pinned=True),
        Key("q", "leave_app", "quit", "Quit; asks whether this machine's jobs go on.", pinned=True),
        Key("ctrl+c,ctrl+q", "leave_app", "quit", "Quit, over a dialog too; twice: at once.", priority=True, footer=False),
        Key("f8", "picture", "svg", "Save the screen as an SVG file in the current folder."),
        Key("f12", "facts", "facts", "A page of facts to paste into a bug report."),
        Key("ctrl+p", "command_palette", "commands", "Find any command by its name.", priority=True, pinned=True),
    ),
    Place.HOME: (
        Key("enter", "open", "open", "Join the run under the cursor, or watch it if this machine takes part or cannot."),
        Key("w", "watch", "watch", "Watch the run under the cursor, or that of the job under it, without joining."),
        Key("J", "join", "join", "Look what stands between this machine and the run under the cursor, and join it."),
        Key("P", "pause", "pause", "Let all learners of the run under the cursor rest, and go on again."),
        Key("S", "stop", "stop", "Stop the run under the cursor, for everybody."),
        Key("l", "log", "log", "The whole log of the job under the cursor."),
        Key("r", "rescan", "rescan", "Look at all mailboxes again now."),
        Key("p", "peer", "add peer", "Add a machine by its address, where the network does not tell of it by itself."),
        Key("d", "network", "network", "The other machines, and what swarm doctor finds here."),
        *_panes("runs", "jobs", "machines"),
    ),
    Place.JOIN: (
        Key("enter", "join", "join", "Train this run on this machine, in a worker process of its own."),
        Key("m", "mount", "mount", "Mount the share that holds the run's mailbox; this goes on when it appears."),
        Key("w", "watch", "watch", "Watch the run without joining."),
        Key("r", "again", "look again", "Look again now."),
        Key("j,down", "scroll(1)", "down", "One line down.", footer=False),
        Key("k,up", "scroll(-1)", "up", "One line up.", footer=False),
        Key("escape", "back", "back", "Back, without joining."),
    ),
    Place.RUN: (
        Key("enter", "open", "open", "Open the learner under the cursor; on the rounds, the round; on the log, the whole log."),
        Key("J", "join", "join", "Look what stands between this machine and the run, and join it."),
        Key("L", "leave", "leave", "Take this machine out of the run; the others go on."),
        Key("space", "freeze", "freeze", "Freeze the view, never the job; again to go on."),
        Key("l", "log", "log", "The whole log of this machine's worker, or what has happened since this run was opened here."),
        Key("S", "stop", "stop", "Stop the run, for everybody."),
        Key("escape", "back", "back", "Back to the list of runs."),
        Key("P", "pause", "pause", "Let all learners rest, and go on again."),
        Key("x", "drop", "drop", "Drop the learner under the cursor: it is asked to leave, and waited for no more."),
        Key("plus", "extend", "rounds", "Give the run another number of rounds."),
        Key("e", "export", "export", "Write the run's parameters, or the history of its rounds, to a file."),
        Key("v", "samples", "samples", "What the model wrote at its evaluations, newest first."),
        *_panes("learners", "loss", "rounds", "log"),
        Key("5", "clients", "clients pane", "Go to the pane: clients, of a FedAvg run.", _PANES),
        Key("d", "details", "details", "A FedAvg run's last round; a data-parallel job's plan, preflight and refusals."),
        Key("m", "metric", "metric", "From the accuracy to the losses, and back, where both are known."),
    ),
    Place.ROUND: (
        Key("left,h,left_square_bracket", "older", "older", "The round before."),
        Key("right,l,right_square_bracket", "newer", "newer", "The round after."),
        Key("g,home", "first", "first", "The first round."),
        Key("G,end", "newest", "newest", "The newest round; it stays the newest one as rounds close."),
        Key("r", "number", "number", "Go to a round by its number."),
        *_SCROLL,
        Key("escape", "back", "back", "Back to the run."),
    ),
    Place.LEARNER: (
        Key("left,h,left_square_bracket", "other(-1)", "before", "The learner before."),
        Key("right,right_square_bracket", "other(1)", "next", "The learner after."),
        Key("l", "log", "log", "Its whole log, if it is a worker of this machine."),
        Key("x", "drop", "drop", "Drop it: it is asked to leave, and waited for no more."),
        Key("g,home", "first", "top", "The first line.", footer=False),
        Key("G,end", "last", "bottom", "The last line.", footer=False),
        *_SCROLL,
        Key("escape", "back", "back", "Back to the run."),
    ),
    Place.LOG: (
        Key("slash", "filter", "filter", "Show only the lines that contain a text; esc shows all again."),
        Key("i", "level", "level", "All lines, or warnings and worse, or errors alone."),
        Key("n", "other(1)", "next log", "The log of this machine's next worker in the run."),
        Key("g,home", "first", "top", "The first line that was read; the log goes on below."),
        Key("G,end", "last", "follow", "The last line, and follow the log again."),
        *_SCROLL,
        Key("escape", "back", "back", "Back."),
    ),
    Place.SAMPLES: (
        Key("g,home", "first", "newest", "The newest one."),
        Key("G,end", "last", "oldest", "The oldest one that is held."),
        *_SCROLL,
        Key("escape", "back", "back", "Back to the run."),
    ),
    Place.NETWORK: (
        Key("r", "check", "check", "Look at everything again: this machine, its network and the share."),
        Key("c", "copy", "copy", "Copy a report for a bug report: without names, paths and secrets."),
        Key("escape", "back", "back", "Back to the list of runs."),
        *_panes("peers", "checks"),
    ),
    Place.LISTS: (
        Key("s", "sort", "sort", "Sort by the next column; the sorted heading is marked."),
        Key("slash", "filter", "filter", "Show only the rows that contain a text; esc shows all again."),
        Key("j,down", "down", "down", "One row down.", _MOVE),
        Key("k,up", "up", "up", "One row up.", _MOVE),
        Key("g,home", "first", "first", "The first row.", _MOVE),
        Key("G,end", "last", "last", "The last row.", _MOVE),
        Key("pagedown", "page(1)", "page down", "One page down.", footer=False),
        Key("pageup", "page(-1)", "page up", "One page up.", footer=False),
    ),
}  # fmt: skip


def bindings(place: Place) -> list[BindingType]:
    return [
        Binding(
            key.keys,
            key.action,
            key.label,
            show=key.footer,
            priority=key.priority,
            tooltip=key.help,
            key_display=None,
        )
        for key in KEYS[place]
        if key.action != "command_palette"  # Textual binds it itself
    ]


_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "escape": "esc",
    "pagedown": "pgdn",
    "pageup": "pgup",
    "ctrl+p": "^p",
    "plus": "+",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left": "←",
    "right": "→",
}


def key_name(key: str) -> str:
    """A key as people write it."""
    return _NAMES.get(key, key)


def key_names(key: Key) -> str:
    return ", ".join(key_name(k) for k in key.keys.split(","))
