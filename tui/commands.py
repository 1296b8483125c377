"""The key table. Bindings, footer, palette and the help page are all made from it."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from textual.binding import Binding, BindingType


class Place(Enum):
    """Where a key works; the value is its heading on the help page."""

    EVERYWHERE = "Everywhere"
    LISTS = "Lists"
    HOME = "Home"
    JOIN = "Join"
    NEW = "New run"
    RUN = "Run"
    COMPARE = "Compare"
    PLOT = "Plot"
    ROUND = "Round"
    LEARNER = "Learner"
    LOG = "Log"
    SAMPLES = "Samples"
    NETWORK = "Network"
    SETTINGS = "Settings"
    WELCOME = "First start"


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
    late: bool = False  # in the footer after all others of the screen: where there is room

    @property
    def id(self) -> str:
        """What the settings' keymap calls it. The same in several places means the same there."""
        return self.label.replace(" ", "-") if "(" in self.action else self.action

    @property
    def fixed(self) -> bool:
        """Whether no keymap changes it: the way out, and the palette, which Textual binds itself."""
        return self.priority or self.action == "command_palette"


_PANES, _MOVE, _PLOT = "panes", "go", "plot"


def _panes(*names: str, late: bool = False) -> tuple[Key, ...]:
    return tuple(
        Key(str(n), f"pane({n})", f"{name} pane", f"Go to the pane: {name}.", _PANES, late=late)
        for n, name in enumerate(names, 1)
    )


_SCROLL = (
    Key("j,down", "scroll(1)", "down", "One line down.", footer=False),
    Key("k,up", "scroll(-1)", "up", "One line up.", footer=False),
    Key("pagedown,space", "page(1)", "page down", "One page down.", footer=False),
    Key("pageup", "page(-1)", "page up", "One page up.", footer=False),
)

Table: TypeAlias = Mapping[Place, tuple[Key, ...]]

KEYS: Table = {
    Place.EVERYWHERE: (
        Key("question_mark", "help", "help", "All keys, on one page.", pinned=True),
        Key("q", "leave_app", "quit", "Quit; asks whether this machine's jobs go on.", pinned=True),
        Key("ctrl+c,ctrl+q", "leave_app", "quit", "Quit, over a dialog too; twice: at once.", priority=True, footer=False),
        Key("f8", "picture", "svg", "Save the screen as an SVG file in the current folder."),
        Key("f12", "facts", "facts", "A page of facts to paste into a bug report."),
        Key("comma", "settings", "settings", "This machine's settings: colours, keys, when it trains.", footer=False),
        Key("ctrl+p", "command_palette", "commands", "Find any command by its name.", priority=True, pinned=True),
    ),
    Place.HOME: (
        Key("enter", "open", "open", "Join the run under the cursor, or watch it if this machine takes part or cannot."),
        Key("w", "watch", "watch", "Watch the run under the cursor, or that of the job under it, without joining."),
        Key("J", "join", "join", "Look what stands between this machine and the run under the cursor, and join it."),
        Key("P", "pause", "pause", "Let all learners of the run under the cursor rest, and go on again."),
        Key("S", "stop", "stop", "Stop the run under the cursor, for everybody."),
        Key("n", "new", "new run", "Make a run: a form with all that can be set, and a preview of what comes of it."),
        Key("l", "log", "log", "The whole log of the job under the cursor."),
        Key("r", "rescan", "rescan", "Look at all mailboxes again now."),
        Key("p", "peer", "add peer", "Add a machine by its address, where the network does not tell of it by itself."),
        Key("c", "compare", "compare", "Mark the run under the cursor; then, on another one, draw both in one plot."),
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
    Place.NEW: (
        Key("ctrl+s", "start", "start", "Make the run as the form has it, and train it on this machine."),
        Key("escape", "back", "back", "Back, without making a run; what was typed is kept while this app is open."),
        Key("f2", "advanced", "advanced", "Show the fields that few people need, and hide them again."),
        Key("ctrl+y", "copy", "copy command", "Copy the command line that does the same."),
        Key("ctrl+r", "reset", "defaults", "Every field of this method back to its default."),
        Key("f5", "measure", "look again", "Look again who can take part, and how fast the mailbox is."),
        Key("f6", "pane", "preview", "Go to the preview, and back to the form."),
        Key("down,tab", "move(1)", "next", "The next field, or line.", footer=False),
        Key("up,shift+tab", "move(-1)", "before", "The field before, or the line.", footer=False),
        Key("pagedown", "page(1)", "page down", "One page down.", footer=False),
        Key("pageup", "page(-1)", "page up", "One page up.", footer=False),
    ),
    Place.RUN: (
        Key("enter", "open", "open", "Open the learner under the cursor; on the rounds, the round; on the log, the whole log."),
        Key("J", "join", "join", "Look what stands between this machine and the run, and join it."),
        Key("L", "leave", "leave", "Take this machine out of the run; the others go on."),
        Key("space", "freeze", "freeze", "Freeze the view, never the job; again to go on."),
        Key("l", "log", "log", "The whole log of this machine's worker, or what has happened since this run was opened here."),
        Key("S", "stop", "stop", "Stop the run, for everybody."),
        Key("escape", "back", "back", "Back to the list of runs.", late=True),
        Key("P", "pause", "pause", "Let all learners rest, and go on again."),
        Key("x", "drop", "drop", "Drop the learner under the cursor: it is asked to leave, and waited for no more.", late=True),
        Key("plus", "extend", "rounds", "Give the run another number of rounds.", late=True),
        Key("e", "export", "export", "Write the run's parameters, or the history of its rounds, to a file.", late=True),
        Key("v", "samples", "samples", "What the model wrote at its evaluations, newest first.", late=True),
        *_panes("learners", "loss", "rounds", "log", late=True),
        Key("5", "clients", "clients pane", "Go to the pane: clients, of a FedAvg run.", _PANES, late=True),
        Key("d", "details", "details", "A FedAvg run's last round; a data-parallel job's plan and preflight.", late=True),
        Key("c", "compare", "compare", "Draw this run and another one, of any mailbox, in one plot.", late=True),
        Key("o", "overlay", "each learner", "Draw each learner's curve instead of the mean, and back: six at most.", late=True),
    ),
    Place.COMPARE: (
        Key("escape", "back", "back", "Back to where you came from."),
        *_panes("figures", "plot"),
    ),
    Place.PLOT: (
        Key("m", "metric", "metric", "Draw the next of what is known: loss, accuracy, cosine, speed, bytes, times.", _PLOT),
        Key("a", "axis", "axis", "Draw by rounds, by inner steps, or by the time that they took.", _PLOT),
        Key("y", "log_axis", "log", "A logarithmic vertical axis, and back.", _PLOT),
        Key("t", "window", "window", "Draw all, or the newest part: 100 or 20 rounds, of time an hour or 10 minutes.", _PLOT),
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
    Place.SETTINGS: (
        Key("enter", "change", "change", "Change the setting under the cursor; switch it, if it is on or off."),
        Key("backspace", "default", "default", "Take the setting under the cursor back to its default."),
        Key("escape", "back", "back", "Back, where you came from."),
    ),
    Place.WELCOME: (
        Key("enter", "next", "next", "Take what stands here, and go on."),
        Key("escape", "skip", "skip", "Leave this step out; at the end, leave all as it is."),
        Key("down", "go(1)", "step down", "The next step.", footer=False),
        Key("up", "go(-1)", "step up", "The step before.", footer=False),
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


# The places whose keys work on one screen, of every screen, loaded or not; those of EVERYWHERE always do.
TOGETHER: tuple[tuple[Place, ...], ...] = (
    (),
    (Place.HOME, Place.LISTS),
    (Place.JOIN,),
    (Place.NEW,),
    (Place.RUN, Place.PLOT, Place.LISTS),
    (Place.COMPARE, Place.PLOT, Place.LISTS),
    (Place.ROUND,),
    (Place.LEARNER,),
    (Place.LOG,),
    (Place.SAMPLES,),
    (Place.NETWORK, Place.LISTS),
    (Place.SETTINGS, Place.LISTS),
    (Place.WELCOME,),
)


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
            id=None if key.fixed else key.id,
        )
        for key in KEYS[place]
        if key.action != "command_palette"  # Textual binds it itself
    ]


_NAMES = {
    "question_mark": "?",
    "slash": "/",
    "comma": ",",
    "plus": "+",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left": "←",
    "right": "→",
    "escape": "esc",
    "pagedown": "pgdn",
    "pageup": "pgup",
    "ctrl+p": "^p",
    "ctrl+r": "^r",
    "ctrl+s": "^s",
    "ctrl+y": "^y",
}


def key_name(key: str) -> str:
    """A key as people write it."""
    if "_" in key and key not in _NAMES:
        with contextlib.suppress(KeyError):  # 'left_square_bracket'
            return unicodedata.lookup(key.replace("_", " "))
    return _NAMES.get(key, key)


def pressed(keys: Table, place: Place, action: str) -> str:
    """What to press for an action, as people write it: the first of its keys."""
    return next(key_name(key.keys.partition(",")[0]) for key in keys[place] if key.action == action)


def key_names(key: Key) -> str:
    return ", ".join(key_name(k) for k in key.keys.split(","))
