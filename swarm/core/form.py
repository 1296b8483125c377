"""A new run as a form: its fields, what stands in them as text, what is wrong with it, and the equal command line.

Fields come from the spec classes, a task's options and core/joboptions.py, as the command line's options do. What stands in a
field is text as it would stand on a command line; "" is its default. Pure.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from swarm.core.errors import UsageError
from swarm.core.finetune import FineTune, finetune
from swarm.core.ids import learner_id
from swarm.core.joboptions import NOT_ASKED, TASKS, TURNS, LearnerOptions, Method, RunOptions, TuneOptions
from swarm.core.mounting import told_place
from swarm.core.options import MAX_INT, MAX_REAL, Option, options
from swarm.core.owner import parse_hours
from swarm.core.plaintext import plain
from swarm.core.request import RunRequest, check_run, in_rounds, tuning
from swarm.core.specs import DiLoCo, FedAvg

Part: TypeAlias = Literal["what", "how", "run", "where", "here"]
PARTS: tuple[Part, ...] = ("what", "how", "run", "where", "here")
MAX_TEXT = 4096  # characters of a value

METHOD, TASK, MAILBOX, JOIN = "method", "task", "mailbox", "join"
"""Keys of the fields that are no option of a class."""
SPECS: dict[Method, type[msgspec.Struct]] = {"diloco": DiLoCo, "fedavg": FedAvg, "mlx-lm": FineTune}
COMMON: dict[Method, tuple[str, ...]] = {
    "diloco": ("sync_every", "fragments", "quorum_size", "outer_lr", "delta_dtype"),
    "fedavg": ("clients", "per_round", "partition", "private", "local_epochs", "batch_size", "optimizer", "lr"),
    "mlx-lm": (
        "fine_tune_type",
        "num_layers",
        "lora_rank",
        "batch_size",
        "iters",
        "learning_rate",
        "max_seq_length",
        "mask_prompt",
        "world_size_min",
        "save_every",
    ),
}
"""Fields of a method that stand first; the others are advanced."""
_COMMON_RUN = ("name", "rounds", "eval_every")
_COMMON_HERE = ("device", "workers")
_COMMON_OF_TASK = 4  # the first so many options of a task
_WHAT = ("data", "model", "base_model", "attach", "attach_model", "resume_adapter_file")
_NOT_HERE: dict[Method, tuple[str, ...]] = {"diloco": ("adapter_path",), "fedavg": ("adapter_path", "threads"), "mlx-lm": ()}

_CHECKS: dict[str, Callable[[Any], object]] = {"share": told_place, "hours": parse_hours, "learner_id": learner_id}
"""Of single fields: they raise ValueError or UsageError."""
_BY_DEFAULT = re.compile(r"[Bb]y default ([^;]+)")
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_REAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_TRUTH = {"true": True, "false": False}


class TaskForm(msgspec.Struct, frozen=True, kw_only=True):
    """A task as a form needs it: known without a framework."""

    name: str
    summary: str = ""
    frameworks: tuple[str, ...] = ()
    options: tuple[Option, ...] = ()
    takes_model: bool = False  # it fine-tunes a model that is given
    package: str = ""  # that it comes in; "": swarm's own


class Field(msgspec.Struct, frozen=True, kw_only=True):
    key: str  # 'spec.sync_every', 'run.rounds', 'here.device', 'option.size', or one of the four above
    flag: str  # how a command line says it
    option: Option
    part: Part
    common: bool = True
    needed: bool = False  # it has no default

    @property
    def label(self) -> str:
        return self.option.name.replace("_", " ")


def fields(method: Method, task: TaskForm | None) -> tuple[Field, ...]:
    """All fields of a method's form, in order. `task`: None while it is not known, and of an MLX-LM fine-tuning."""
    try:
        return _fields(method, task)
    except TypeError:  # a task of another package may have a default that has no hash
        return _fields.__wrapped__(method, task)


@functools.lru_cache(32)  # asked for with every key that is pressed
def _fields(method: Method, task: TaskForm | None) -> tuple[Field, ...]:
    made = [_choice(METHOD, tuple(SPECS), "What is averaged, and when: DiLoCo and FedAvg in rounds; MLX-LM after every step.")]
    if method != "mlx-lm":
        made.append(_choice(TASK, (), task.summary if task is not None else "What to train.", default=TASKS[method]))
        made += _of_task(task)
    help = "The folder that all machines reach; by default the one last used."
    made.append(_text(MAILBOX, help, metavar="DIR"))
    turn = TURNS.get(method, "")
    for option in options(TuneOptions if method == "mlx-lm" else RunOptions):
        where = "here" if _is_learner(option.name) else "run"
        made.append(_plain(option, where, turn=turn, method=method, task=task))
    if method != "mlx-lm":
        for option in options(LearnerOptions):
            if option.name not in _NOT_HERE[method]:
                made.append(_plain(option, "here", method=method, task=task))
    for option in options(SPECS[method]):
        if method != "mlx-lm" or option.name not in NOT_ASKED:
            common = option.name in COMMON[method]
            made.append(Field(key=f"spec.{option.name}", flag=_flag(option), option=option, part="how", common=common))
    made.append(_choice(JOIN, ("yes", "no"), "Whether this machine takes part at once; no: the run is only made.", part="here"))
    order = {name: n for n, name in enumerate((*COMMON[method], *_COMMON_RUN))}
    place = {part: n for n, part in enumerate(PARTS)}

    def rank(field: Field) -> tuple[int, bool, int]:
        # A task's option may have the name of one of the method's: it stays among the task's own.
        ordered = field.common and not field.key.startswith("option.")
        return place[field.part], not field.common, order.get(field.option.name, 99) if ordered else 99

    return tuple(sorted(made, key=rank))


def _is_learner(name: str) -> bool:
    return name in LearnerOptions.__struct_fields__ and name not in ("data", "model")


def _plain(option: Option, where: str, *, method: Method, task: TaskForm | None, turn: str = "") -> Field:
    """A field of the run, or of the learner here."""
    name = option.name
    option = msgspec.structs.replace(option, help=option.help.replace("{turn}", turn))
    tuned = method == "mlx-lm" or (task is not None and task.takes_model)
    part: Part = "run"
    if name in _WHAT or name == "share":
        part = "where" if name == "share" else "what"
    elif where == "here" or name == "workers":
        part = "here"
    needed = (name == "model" and tuned) or (name == "data" and method == "mlx-lm")
    common = (
        name in (*_COMMON_RUN, *_COMMON_HERE, "data", "share")
        or (name == "model" and tuned)
        or (name == "workers" and method != "mlx-lm")
    )
    key = f"{'here' if where == 'here' else 'run'}.{name}"
    return Field(key=key, flag=_flag(option), option=option, part=part, common=common, needed=needed)


def _of_task(task: TaskForm | None) -> Iterator[Field]:
    for n, option in enumerate(task.options if task is not None else ()):
        yield Field(key=f"option.{option.name}", flag="-o", option=option, part="what", common=n < _COMMON_OF_TASK)


def _flag(option: Option) -> str:
    return f"--{option.name.replace('_', '-')}"


def _choice(name: str, choices: tuple[str, ...], help: str, *, part: Part = "what", default: str | None = None) -> Field:
    first = default or next(iter(choices), "")
    option = Option(name=name, type=str, default=first, optional=False, choices=choices, minimum=None, help=help)
    return Field(key=name, flag=f"--{name}", option=option, part=part)


def _text(name: str, help: str, *, metavar: str) -> Field:
    option = Option(name=name, type=str, default=None, optional=True, choices=(), minimum=None, help=help, metavar=metavar)
    return Field(key=name, flag=f"--{name}", option=option, part="where")


# What stands in a field


def value_of(option: Option, text: str) -> Any:
    """What a text means; the default for "". Raises ValueError that says what it may be."""
    text = text.strip()
    if not text:
        return option.default
    if len(text) > MAX_TEXT:
        raise ValueError(f"must be at most {MAX_TEXT} characters")
    if option.choices:
        if text not in option.choices:
            raise ValueError(f"must be one of {', '.join(option.choices)}")
        return text
    if option.type is bool:
        if text not in _TRUTH:
            raise ValueError("must be true or false")
        return _TRUTH[text]
    if option.type is int:
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"must be a whole number{_and(option)}")
        return _within(option, int(text))
    if option.type is float:
        if not _REAL.fullmatch(text) or abs(float(text)) > MAX_REAL:
            raise ValueError(f"must be a number{_and(option)}")
        return _within(option, float(text))
    if not text.isprintable():
        raise ValueError("must be one line of text")
    return text


def _within(option: Option, value: Any) -> Any:
    for sign, limit in option.limits:
        fits = {">=": value >= limit, ">": value > limit, "<=": value <= limit, "<": value < limit}[sign]
        if not fits:
            raise ValueError(f"must be {range_words(option)}")
    most = max([MAX_INT, *(limit for sign, limit in option.limits if sign == "<=")])
    if type(value) is int and abs(value) > most and option.name != "seed":
        raise ValueError(f"must be at most {most:g}")
    return value


def _and(option: Option) -> str:
    return f" {words}" if (words := range_words(option)) else ""


def range_words(option: Option) -> str:
    """'>= 1 and <= 64'; '' without limits."""
    return " and ".join(f"{sign} {limit:g}" for sign, limit in option.limits)


def default_words(option: Option) -> str:
    """The default, as it would be typed; '' if there is none that could be."""
    if option.default is None or option.default is msgspec.NODEFAULT or option.default == "":
        return ""
    return (
        str(option.default).lower()
        if option.type is bool
        else f"{option.default:g}"
        if option.type is float
        else str(option.default)
    )


def hint_words(option: Option) -> str:
    """What holds where nothing is typed: the default, or what the help says of it; '' if that is not said."""
    found = _BY_DEFAULT.search(option.help)
    return default_words(option) or (found.group(1).rstrip(".") if found else "")


def problems(method: Method, task: TaskForm | None, values: Mapping[str, str]) -> dict[str, str]:
    """By key of the field what is wrong with it, in words; '' stands for what is no single field's."""
    found: dict[str, str] = {}
    for field in fields(method, task):
        try:
            value = value_of(field.option, values.get(field.key, ""))
        except ValueError as error:
            found[field.key] = str(error)
            continue
        if value is None:
            if field.needed:
                found[field.key] = f"is needed: {field.option.help[:1].lower()}{field.option.help[1:].rstrip('.')}"
        elif (check := _CHECKS.get(field.option.name)) is not None:
            try:
                check(value)
            except (ValueError, UsageError) as error:
                found[field.key] = str(error)
    # What does not go together is told beside what is wrong by itself.
    others = {key: text for key, text in values.items() if key not in found}
    try:
        check_run(request_of(method, task, others).run)
    except UsageError as error:
        key, words = blamed(str(error), fields(method, task))
        if key or not found:
            found.setdefault(key, words)
    return found


def blamed(words: str, known: tuple[Field, ...]) -> tuple[str, str]:
    """(key of the field that an error is about, its words): errors begin with the name of what is wrong. ('', words) if that
    is no field."""
    words = re.sub(r" - at `(\w+)`$", r"", words) if (at := re.search(r" - at `(\w+)`$", words)) else words
    named = at.group(1) if at else ""
    head = words.split(": ", 1)[-1] if ": " in words.split(" must ")[0] else words
    first = re.match(r"(?:--)?([a-z][a-z0-9_-]*)", head)
    name = named or (first.group(1).replace("-", "_") if first else "")
    names = {field.option.name: field for field in known}
    field = names.get(name)
    if field is None:
        # As in 'adam has no momentum', or 'momentum needs its momentum'.
        field = next((names[w] for w in re.findall(r"[a-z_0-9]+", words) if w in names and w not in ("model", "data")), None)
    if field is None:
        return "", words
    # Beside the field its name is not said again.
    return field.key, re.sub(rf"^(?:[a-z0-9_-]+: )?{re.escape(field.option.name)} (?=must|has|is)", "", words)


def request_of(method: Method, task: TaskForm | None, values: Mapping[str, str]) -> RunRequest:
    """What the form asks for. Raises UsageError."""
    given: dict[str, dict[str, Any]] = {"spec": {}, "run": {}, "here": {}, "option": {}}
    for field in fields(method, task):
        group, dot, name = field.key.partition(".")
        if not dot:
            continue
        try:
            value = value_of(field.option, values.get(field.key, ""))
        except ValueError as error:
            raise UsageError(f"{name} {error}") from None
        if group == "option":
            if value != field.option.default:
                given[group][name] = values[field.key].strip()
        elif value is not None:
            given[group][name] = value
    spec, join = _heard(given["spec"]), values.get(JOIN, "") != "no"
    if method == "mlx-lm":
        return tuning(finetune(spec), TuneOptions(**given["run"], **given["here"]), join=join)
    here = given["here"]
    run = RunOptions(**{k: v for k, v in {**given["run"], **here}.items() if k in RunOptions.__struct_fields__})
    learner = LearnerOptions(**{k: v for k, v in {**given["run"], **here}.items() if k in LearnerOptions.__struct_fields__})
    try:
        algorithm = DiLoCo(**spec) if method == "diloco" else FedAvg(**spec)
    except ValueError as error:
        raise UsageError(str(error)) from None
    chosen = values.get(TASK, "").strip() or TASKS[method]
    return in_rounds(algorithm, task=chosen, options=given["option"], run=run, learner=learner, join=join)


def _heard(spec: dict[str, Any]) -> dict[str, Any]:
    """Private clients are not counted: how many logical ones there would be is not asked then."""
    if spec.get("private"):
        spec.pop("clients", None)
    return spec


def command_words(method: Method, task: TaskForm | None, values: Mapping[str, str], *, mailbox: str = "") -> tuple[str, ...]:
    """The equal command line, word by word: what differs from the defaults. `mailbox`: the one that is used unless another is
    named. Text that means nothing is left as it is."""
    words = ["swarm", "start", method]
    private = values.get("spec.private", "").strip() == "true" and method == "fedavg"
    for field in fields(method, task):
        text = plain(values.get(field.key, ""), MAX_TEXT).strip()
        if field.key in (METHOD, JOIN) or not text or (field.key == MAILBOX and text == mailbox):
            continue
        if private and field.key in ("spec.clients", "spec.private"):
            continue
        try:
            if value_of(field.option, text) == field.option.default:
                continue
        except ValueError:
            pass
        words += _said(field, text)
    if private:
        words += ["--clients", "private"]
    return (*words, "--no-join" if values.get(JOIN, "") == "no" else "--detach")


def _said(field: Field, text: str) -> list[str]:
    if field.flag == "-o":
        return ["-o", f"{field.option.name}={text}"]
    if field.option.type is bool and text in _TRUTH:
        return [field.flag if _TRUTH[text] else f"--no-{field.flag[2:]}"]
    return [field.flag, text]


def command_line(words: tuple[str, ...]) -> str:
    """As a shell takes it."""
    return shlex.join(words)


def kept(method: Method, task: TaskForm | None, values: Mapping[str, str]) -> dict[str, str]:
    """Of values from elsewhere those that a field takes; each by itself, so that one that is none takes no other along."""
    found = {}
    for field in fields(method, task):
        text = values.get(field.key)
        if not isinstance(text, str) or not text.strip() or field.key == METHOD:
            continue
        try:
            value_of(field.option, text)
        except ValueError:
            continue
        found[field.key] = text.strip()
    return found
