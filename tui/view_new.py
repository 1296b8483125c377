"""What the New run screen says: a draft in, rows and words out. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from swarm.api import planning as plans
from swarm.api import preview as previews
from tui import text
from tui.commands import KEYS, Place, Table, pressed
from tui.messages import RUNNING_JOB
from tui.states import VERDICTS
from tui.view_run import METHODS
from tui.widgets.form import FormRow

if TYPE_CHECKING:
    from swarm.api import Job
    from swarm.api.planning import Field, Method, Opening, TaskForm
    from tui.widgets.toned import Line, Piece

START = "start"  # key of the button
FOLD = "fold."  # of a fold: this, and the part that it opens
_HEADINGS = {"what": "What is trained", "how": "How", "run": "The run", "where": "Mailbox", "here": "This machine"}
_METHODS: tuple[Method, ...] = ("diloco", "fedavg", "mlx-lm")


@dataclass(frozen=True)
class Draft:
    """What stands in the form. `values`: text by method and by key; '' is a default and is left out."""

    method: Method = "diloco"
    values: dict[str, dict[str, str]] = field(default_factory=dict)
    opening: Opening | None = None  # None: it is being looked up
    open: frozenset[str] = field(default=frozenset(), compare=False)  # parts whose advanced fields are shown

    @property
    def texts(self) -> dict[str, str]:
        return self.values.get(self.method, {})

    @cached_property
    def task(self) -> TaskForm | None:
        """None: it is not known yet, or the method has none."""
        if self.method == "mlx-lm" or self.opening is None:
            return None
        name = self.texts.get(plans.TASK) or plans.TASKS[self.method]
        return next((task for task in self.opening.tasks if task.name == name), None)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return plans.fields(self.method, self.task)

    @cached_property
    def problems(self) -> dict[str, str]:
        """What can be told at once."""
        return plans.problems(self.method, self.task, self.texts)

    @property
    def mailbox(self) -> str:
        return self.opening.mailbox if self.opening is not None else ""

    @cached_property
    def command(self) -> str:
        return plans.command_line(plans.command_words(self.method, self.task, self.texts, mailbox=self.mailbox))

    def opened(self, opening: Opening) -> Draft:
        """With what was remembered, each field as far as the form takes it."""
        method = next((each for each in _METHODS if each == opening.method), self.method)
        draft = replace(self, opening=opening, method=method)
        for each in _METHODS:
            known = opening.values.get(each, {})
            name = known.get(plans.TASK, "") or plans.TASKS.get(each, "")
            task = next((task for task in opening.tasks if task.name == name), None)
            if task is None and each != "mlx-lm":
                known = {key: value for key, value in known.items() if key != plans.TASK}
                task = next((task for task in opening.tasks if task.name == plans.TASKS[each]), None)
            draft = replace(draft, values={**draft.values, each: plans.kept(each, task, known)})
        return draft

    def put(self, key: str, value: str) -> Draft:
        """With another text in a field. Another task has options of its own."""
        if key == plans.METHOD:
            method = next((each for each in _METHODS if each == value), self.method)
            return replace(self, method=method)
        texts = {k: v for k, v in self.texts.items() if k != key}
        if key == plans.TASK:
            texts = {k: v for k, v in texts.items() if not k.startswith("option.")}
        if value and not (key == plans.TASK and value == plans.TASKS.get(self.method)):
            texts[key] = value
        return replace(self, values={**self.values, self.method: texts})

    def cleared(self) -> Draft:
        return replace(self, values={**self.values, self.method: {}})

    def folded(self, part: str | None) -> Draft:
        """With a part opened or closed; None: all of them."""
        if part is None:
            return replace(self, open=frozenset() if self.open else frozenset(_HEADINGS))
        return replace(self, open=self.open ^ {part})


def rows(draft: Draft, problems: dict[str, str], *, reason: str) -> tuple[FormRow, ...]:
    """`reason`: why nothing can be started; '': it can."""
    found: list[FormRow] = []
    every = draft.fields
    for part, heading in _HEADINGS.items():
        inside = [each for each in every if each.part == part]
        found.append(FormRow(f"heading.{part}", "heading", heading))
        found += [_row(each, draft, problems) for each in inside if each.common]
        more = [each for each in inside if not each.common]
        if not more:
            continue
        opened = part in draft.open
        said = sum(bool(draft.texts.get(each.key)) for each in more)
        wrong = sum(each.key in problems for each in more)
        words = f"{'fewer' if opened else f'{len(more)} more'}" + (f", {said} set" if said else "")
        words += f", {wrong} wrong" if wrong else ""
        found.append(FormRow(f"{FOLD}{part}", "fold", words, "▾" if opened else "▸"))
        # What is wrong is never hidden.
        found += [_row(each, draft, problems) for each in more if opened or each.key in problems]
    joins = draft.texts.get(plans.JOIN) != "no"
    label = "Start the run" if joins else "Make the run"
    found.append(FormRow("heading.end", "heading", ""))
    found.append(FormRow(START, "button", label, problem=reason, tone="dim" if reason else "good"))
    return tuple(found)


def _row(each: Field, draft: Draft, problems: dict[str, str]) -> FormRow:
    option, value = each.option, draft.texts.get(each.key, "")
    problem = text.plain(problems.get(each.key, ""), 300)
    if each.key == plans.METHOD:
        return FormRow(each.key, "choice", "method", draft.method, choices=_METHODS)
    if each.key == plans.TASK:
        names = tuple(task.name for task in draft.opening.tasks) if draft.opening is not None else ()
        chosen = value or plans.TASKS[draft.method]
        return FormRow(each.key, "choice", "task", chosen, choices=names, problem=problem)
    hint = plans.hint_words(option)
    if each.key == plans.MAILBOX:
        hint = draft.mailbox
    choices: tuple[str, ...] = ()
    if option.type is bool:
        choices = ("", "true", "false") if option.optional else ("", "false" if option.default is True else "true")
    elif option.choices:
        choices = ("", *(each for each in option.choices if each != option.default))
    hint = hint or ("needed" if each.needed else "–")
    return FormRow(each.key, "choice" if choices else "text", each.label, value, hint, choices, problem)


def headline(draft: Draft, *, starting: bool) -> Line:
    pieces: list[Piece] = [("swarm ▸ ", "dim"), ("new run", "strong"), (f"  {METHODS[draft.method]}", "")]
    if starting:
        pieces.append(("  ◌ starting", "accent"))
    elif draft.opening is None:
        pieces.append(("  looking up the tasks …", "dim"))
    return tuple(pieces)


def help_lines(draft: Draft, key: str, problems: dict[str, str], keys: Table = KEYS) -> tuple[Line, ...]:
    """One line on the field under the cursor: what it is, its range and default; and what is wrong with it."""
    each = next((each for each in draft.fields if each.key == key), None)
    if each is None:
        if key.startswith(FOLD):
            every = pressed(keys, Place.NEW, "advanced")
            return (((f"enter opens and closes: fields that few people need; {every}: all of them", "dim"),),)
        return ((("enter makes the run as it stands here", "dim"),),) if key == START else ((),)
    option = each.option
    help = text.plain(option.help, 300).rstrip(".")
    facts = []
    if option.choices and each.key not in (plans.METHOD, plans.TASK):
        facts.append(", ".join(option.choices))
    elif words := plans.range_words(option):
        facts.append(words)
    default = draft.mailbox if each.key == plans.MAILBOX else plans.default_words(option)
    if default and each.key not in (plans.METHOD, plans.TASK):
        facts.append(f"default {text.plain(default, 60)}")
    line: Line = ((help[:1].upper() + help[1:], ""), (f"  [{'; '.join(facts)}]" if facts else "", "dim"))
    problem = text.plain(problems.get(key, ""), 300)
    return (((f"✗ {each.label}: {problem}", "bad"),), line) if problem else (line,)


def blocked(draft: Draft, problems: dict[str, str], *, looked: bool, starting: bool) -> str:
    """Why nothing can be started now, in words; '': it can."""
    if starting:
        return "it is being made"
    if draft.opening is None:
        return "the tasks are being looked up"
    if problems:
        key, words = next(iter(problems.items()))
        label = next((each.label for each in draft.fields if each.key == key), "")
        first = f"{label}: {words}" if label else words
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return text.plain(first, 300) + more
    return "" if looked else "it is being looked at"


def outlook(
    draft: Draft, *, reason: str, starting: bool, failed: str, jobs: tuple[Job, ...], keys: Table = KEYS
) -> tuple[Line, ...]:
    """What is next, in a line."""
    if starting:
        job = next((job for job in jobs if job.state in RUNNING_JOB and job.doing), None)
        doing = f": {text.plain(job.doing, 200)}" if job is not None else " …"
        return ((("◌ the run is being made", "accent"), (doing, "")),)
    if failed:
        return ((("✗ it was not made: ", "bad"), (text.plain(failed, 400), "")),)
    if reason:
        return ((("◌ not yet: ", "warn"), (reason, "")),)
    joins = draft.texts.get(plans.JOIN) != "no"
    key = pressed(keys, Place.NEW, "start")
    return ((("✓ ", "good"), (key, "accent"), (" makes it, and trains on this machine" if joins else " makes it", "")),)


def command_lines(draft: Draft, *, width: int, most: int) -> tuple[Line, ...]:
    """The equal command line, wrapped at blanks."""
    parts = textwrap.wrap(f"$ {text.plain(draft.command, 4000)}", max(20, width), break_on_hyphens=False)
    if len(parts) > most:
        parts = [*parts[: most - 1], parts[most - 1][: max(20, width) - 1] + "…"]
    return tuple(((part, "dim"),) for part in parts)


# The preview


def preview_lines(shown: previews.Preview | None, *, width: int) -> tuple[Line, ...]:
    if shown is None:
        return ((("◌ looking …", "dim"),),)
    found: list[Line] = [(("Who can take part", "accent"),)]
    for fit in shown.fits:
        found += _fit_lines(fit, width)
    others = [fit for fit in shown.fits if not fit.itself]
    if not others:
        found += _wrapped("no other machine is seen just now; any that reaches the mailbox can join later", width, "dim", 2)
    else:
        found += _wrapped("what is installed there shows when they join", width, "dim", 2)
    found += [(), (("Estimated", "accent"),)]
    found += _estimates(shown, width)
    return tuple(found)


def _fit_lines(fit: previews.Fit, width: int) -> Iterator[Line]:
    mark, tone = VERDICTS[fit.verdict]
    good = [tick.detail for tick in fit.ticks if tick.verdict == "ok" and tick.detail]
    name = text.plain(fit.name, 40) + ("*" if fit.itself else "")
    first, *more = _cut(", ".join(good), width - len(name) - 5)
    yield ((f"{mark} ", tone), (name, "strong"), (f"  {first}", "dim"))
    for line in more:
        yield ((f"{' ' * (len(name) + 4)}{line}", "dim"),)
    for tick in fit.ticks:
        if tick.verdict != "ok":
            mark, tone = VERDICTS[tick.verdict]
            words = f"{mark} {tick.name}: {text.plain(tick.detail, 300)}"
            yield from _wrapped(words, width, tone if tick.verdict == "failed" else "warn", 2)
            if tick.remedy:
                yield from _wrapped(f"→ {text.plain(tick.remedy, 200)}", width, "", 4)


def _estimates(shown: previews.Preview, width: int) -> Iterator[Line]:
    if shown.parameters is None:
        why = shown.no_shape or (
            "the model is being built to be measured" if not shown.measured else "what is wrong is put right"
        )
        until = f"unknown: {why}" if shown.no_shape else f"unknown until {why}" if shown.measured else f"unknown yet: {why}"
        yield from _fact("parameters", until, width, dim=True)
    else:
        yield from _fact("parameters", f"{text.short(float(shown.parameters))} that are trained", width)
    if shown.memory_bytes is not None:
        yield from _fact("memory", f"about {previews.amount(shown.memory_bytes)} a learner, and what a batch takes", width)
    if shown.gradient_bytes is not None:
        yield from _fact(
            "exchange", f"{previews.amount(shown.gradient_bytes)} of gradients a step, between the machines", width
        )
    found = shown.estimate
    if found is not None:
        parts = f" (the largest of {found.fragments} fragments)" if found.fragments > 1 else ""
        yield from _fact(
            "payload", f"{previews.amount(found.up_bytes)} up, {previews.amount(found.down_bytes)} down a round{parts}", width
        )
        yield from _fact("transfer", _transfer(found, shown), width, dim=found.up_s is None)
        yield from _fact("round", _round(found, shown), width, dim=found.round_s is None)
        yield from _fact("disk", f"up to {previews.amount(found.disk_bytes)} in the mailbox, without attached files", width)
    if shown.link is not None:
        up, down = previews.amount(int(shown.link.write_bytes_per_s)), previews.amount(int(shown.link.read_bytes_per_s))
        yield from _fact("mailbox", f"takes {up}/s, gives {down}/s, measured here", width)
    elif shown.no_link:
        yield from _fact("mailbox", f"speed unknown: {text.plain(shown.no_link, 200)}", width, dim=True)
    elif shown.location:
        yield from _fact("mailbox", "its speed is being measured", width, dim=True)


def _transfer(found: previews.Estimate, shown: previews.Preview) -> str:
    if found.up_s is None or found.down_s is None or found.close_s is None:
        return "unknown: the mailbox's speed is not known" + ("" if shown.measured else " yet")
    return f"{_span(found.up_s)} up, {_span(found.down_s)} down; {_span(found.close_s)} for whoever closes"


def _round(found: previews.Estimate, shown: previews.Preview) -> str:
    if shown.pace is None:
        return "unknown until it trains: nothing like it has trained here"
    if found.round_s is None or found.train_s is None:
        return f"{text.span(found.train_s or 0.0)} of training, as in {text.plain(shown.pace.run, 40)}"
    return f"about {text.span(found.round_s)}: {text.span(found.train_s)} of training, as in {text.plain(shown.pace.run, 40)}"


def _cut(words: str, width: int) -> list[str]:
    """At blanks: names of runs and packages have hyphens."""
    return textwrap.wrap(words, max(16, width), break_on_hyphens=False) or [""]


def _span(seconds_s: float) -> str:
    return text.span(seconds_s) if seconds_s >= 0.1 else "under 0.1 s"


def _fact(name: str, words: str, width: int, *, dim: bool = False) -> Iterator[Line]:
    first, *more = _cut(words, width - 13)
    yield ((f"  {name:<10} ", "dim"), (first, "dim" if dim else ""))
    for line in more:
        yield ((f"{' ' * 13}{line}", "dim" if dim else ""),)


def _wrapped(words: str, width: int, tone: str, indent: int) -> Iterator[Line]:
    for n, line in enumerate(_cut(words, width - indent - 2)):
        yield ((" " * (indent + (2 if n else 0)) + line, tone),)
