"""A new run as a form: one source with the command line, checked as one types, and said again as a command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.api import planning
from swarm.cli import finetune, run, start
from swarm.core.errors import UsageError
from swarm.core.form import (
    COMMON,
    JOIN,
    MAILBOX,
    METHOD,
    SPECS,
    TASK,
    Field,
    TaskForm,
    blamed,
    command_line,
    command_words,
    default_words,
    fields,
    hint_words,
    kept,
    problems,
    range_words,
    request_of,
    value_of,
)
from swarm.core.joboptions import METHODS, Method
from swarm.core.options import options
from swarm.core.request import RunRequest

TASKS = {task.name: task for task in planning.opening().tasks}
MAILBOX_HERE = "/mnt/share/swarm"
Heard = tuple[RunRequest, str | None, bool]


def task_of(method: Method, values: Mapping[str, str]) -> TaskForm | None:
    return None if method == "mlx-lm" else TASKS[values.get(TASK, "") or planning.TASKS[method]]


def texts(field: Field) -> st.SearchStrategy[str]:
    """What a person may type into a field, right or a little wrong."""
    option = field.option
    if option.choices:
        return st.sampled_from(option.choices)
    if option.type is bool:
        return st.sampled_from(["true", "false"])
    if option.type is int:
        return st.integers(-2, 40).map(str)
    if option.type is float:
        return st.sampled_from(["0", "0.1", "0.5", "1e-4", "1", ".25", "3.", "45"])
    if field.option.name == "partition":
        return st.sampled_from(["iid", "dirichlet:0.5", "by-label:3", "dirichlet"])
    if field.option.name == "share":
        return st.sampled_from(["smb://nas/swarm", "nfs://nas/vol"])
    if field.option.name == "hours":
        return st.sampled_from(["22-7", "22:30-7,12-13"])
    if field.option.name in ("learner_id", "name"):
        return st.sampled_from(["a", "my-run", "x9"])
    if field.option.name == "device":
        return st.sampled_from(["cpu", "auto", "cuda:0"])
    return st.sampled_from(["a", "-x", "a b", "it's", "~/data/x.txt", "ü", "$HOME", "a=b", "--name"])


@st.composite
def drafts(draw: st.DrawFn) -> tuple[Method, dict[str, str]]:
    method = draw(st.sampled_from(METHODS))
    values: dict[str, str] = {}
    if method != "mlx-lm":
        values[TASK] = draw(st.sampled_from(sorted(TASKS)))
    every = [field for field in fields(method, task_of(method, values)) if field.key not in (METHOD, TASK)]
    for field in draw(st.lists(st.sampled_from(every), max_size=12, unique_by=lambda field: field.key)):
        values[field.key] = draw(texts(field))
    return method, values


def heard(line: str, monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What the command line asks for, as click and the command take it."""
    caught: list[Heard] = []

    def begin(request: RunRequest, *, mailbox: str | None, detach: bool, as_json: bool) -> int:
        caught.append((request, mailbox, detach))
        return 0

    monkeypatch.setattr(start, "begin", begin)
    monkeypatch.setattr(finetune, "begin", begin)
    swarm, *words = shlex.split(line)
    assert swarm == "swarm"
    assert run(words) == 0, line
    [found] = caught
    return found


@given(drafts())
def test_the_command_line_asks_for_what_the_form_asks_for(draft: tuple[Method, dict[str, str]]) -> None:
    method, values = draft
    task = task_of(method, values)
    try:
        wanted = request_of(method, task, values)
    except UsageError:
        return
    line = command_line(command_words(method, task, values, mailbox=MAILBOX_HERE))
    with pytest.MonkeyPatch.context() as patch:
        request, mailbox, detach = heard(line, patch)
    assert request == wanted, line
    assert mailbox == (values.get(MAILBOX) or None)
    assert detach == wanted.join
    if not problems(method, task, values) and method != "mlx-lm":
        try:
            made = planning.create_order(wanted)
        except UsageError:
            return
        again = planning.create_order(request)
        known = {"run": "", "name": made.name, "seed": made.seed}  # of which only what was said is the same
        assert msgspec.structs.replace(again, **known) == msgspec.structs.replace(made, run="")


@given(drafts())
def test_every_problem_names_its_field_or_none(draft: tuple[Method, dict[str, str]]) -> None:
    method, values = draft
    task = task_of(method, values)
    known = {field.key for field in fields(method, task)}
    found = problems(method, task, values)
    assert set(found) <= known | {""}
    assert all(found.values())
    if not found:
        request_of(method, task, values)


@pytest.mark.parametrize("method", METHODS)
def test_the_form_has_every_option_of_the_method_once(method: Method) -> None:
    every = fields(method, task_of(method, {}))
    keys = [field.key for field in every]
    assert len(keys) == len(set(keys))
    left_out = ("beat_s", "lease_s") if method == "mlx-lm" else ()
    assert {f"spec.{option.name}" for option in options(SPECS[method]) if option.name not in left_out} <= set(keys)
    assert set(COMMON[method]) == {field.option.name for field in every if field.part == "how" and field.common}
    parts = [field.part for field in every]
    assert parts == sorted(parts, key=["what", "how", "run", "where", "here"].index)


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_method_and_task_come_first(task: TaskForm) -> None:
    for method in ("diloco", "fedavg"):
        assert [field.key for field in fields(method, task)][:2] == [METHOD, TASK], "whatever names the task's options have"


@pytest.mark.parametrize("method", METHODS)
def test_defaults_are_said_as_they_would_be_typed(method: Method) -> None:
    for field in fields(method, task_of(method, {})):
        if words := default_words(field.option):
            assert value_of(field.option, words) == field.option.default
        assert value_of(field.option, "  ") == field.option.default


@pytest.mark.parametrize(
    ("method", "values", "key", "words"),
    [
        ("diloco", {"spec.sync_every": "x"}, "spec.sync_every", "must be a whole number >= 1"),
        ("diloco", {"spec.sync_every": "0"}, "spec.sync_every", "must be >= 1"),
        ("diloco", {"spec.fragments": "200"}, "spec.fragments", "must be <= sync_every (100), got 200"),
        ("diloco", {"spec.outer_momentum": "1"}, "spec.outer_momentum", "must be >= 0 and < 1"),
        ("diloco", {"spec.outer_lr": "1e999"}, "spec.outer_lr", "must be a number > 0"),
        ("diloco", {"run.name": "My Run"}, "run.name", "'My Run' is no name for a run"),
        ("diloco", {"run.seed": str(2**70)}, "run.seed", "must be 0 to"),
        ("diloco", {"run.attach": "true"}, "run.attach", "--attach needs a file"),
        ("diloco", {"run.share": "nowhere"}, "run.share", ""),
        ("diloco", {"here.hours": "25-99"}, "here.hours", ""),
        ("diloco", {"here.learner_id": "No Id"}, "here.learner_id", ""),
        ("diloco", {"run.workers": "65"}, "run.workers", "must be >= 1 and <= 64"),
        ("fedavg", {"spec.momentum": "0.5", "spec.optimizer": "adam"}, "spec.momentum", "adam has no momentum"),
        ("fedavg", {"spec.partition": "fair"}, "spec.partition", "must be iid"),
        ("fedavg", {"spec.private": "true", "run.workers": "2"}, "run.workers", "private clients"),
        ("fedavg", {"spec.model_seed": "1", "run.seed": "2"}, "run.seed", "--seed and --model-seed"),
        ("mlx-lm", {"run.data": "d"}, "run.model", "is needed: the base model"),
        ("mlx-lm", {"run.data": "d", "run.model": "m", "spec.world_size_min": "3", "spec.world_size_max": "2"},
         "spec.world_size_max", "must be >= world_size_min"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_beside_its_field(method: Method, values: dict[str, str], key: str, words: str) -> None:
    found = problems(method, task_of(method, values), values)
    assert list(found) == [key]
    assert found[key].startswith(words)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("charlm: seq_len must be a whole number >= 8 or text, got 3", "option.seq_len"),
        ("Expected `int` >= 1 - at `batch_size`", "option.batch_size"),
        ("nobody knows", ""),
    ],
)
def test_errors_are_laid_to_the_field_that_they_name(words: str, key: str) -> None:
    assert blamed(words, fields("diloco", TASKS["charlm"]))[0] == key


def test_values_from_elsewhere_are_taken_one_by_one() -> None:
    values: dict[str, Any] = {
        "spec.sync_every": "50",
        "spec.fragments": "many",
        "spec.merge": "worst",
        "run.rounds": 7,
        "nonsense": "1",
        METHOD: "fedavg",
        JOIN: "no",
    }
    assert kept("diloco", TASKS["charlm"], values) == {"spec.sync_every": "50", JOIN: "no"}


def test_a_private_run_has_no_number_of_clients() -> None:
    values = {"spec.private": "true", "spec.clients": "7", JOIN: "no"}
    assert command_line(command_words("fedavg", TASKS["lenet5"], values)) == "swarm start fedavg --clients private --no-join"
    assert (
        request_of("fedavg", TASKS["lenet5"], values).algorithm
        == request_of("fedavg", TASKS["lenet5"], {"spec.private": "true"}).algorithm
    )


def test_what_does_not_go_together_is_told_beside_what_is_wrong_by_itself() -> None:
    found = problems("diloco", None, {"spec.fragments": "200", "run.rounds": "forty"})
    assert found == {
        "run.rounds": "must be a whole number >= 1",
        "spec.fragments": "must be <= sync_every (100), got 200",
    }


def test_a_field_says_what_holds_where_nothing_is_typed() -> None:
    by_name = {field.option.name: field.option for field in fields("diloco", TASKS["charlm"])}
    assert hint_words(by_name["sync_every"]) == "100"
    assert hint_words(by_name["seq_len"]) == "from the size"
    assert hint_words(by_name["rounds"]) == "it goes on until it is stopped"
    assert hint_words(by_name["delta_dtype"]) == "each parameter's own"
    assert hint_words(by_name["share"]) == ""


def test_ranges_are_said_as_they_are() -> None:
    by_name = {field.option.name: field.option for field in fields("diloco", None)}
    assert range_words(by_name["outer_momentum"]) == ">= 0 and < 1"
    assert range_words(by_name["workers"]) == ">= 1 and <= 64"
    assert range_words(by_name["merge"]) == ""
