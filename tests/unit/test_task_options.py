"""A task's options, from text that a person typed and from a manifest that a stranger wrote."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from swarm.core.errors import UsageError
from swarm.core.options import options as listed
from swarm.tasks import registry
from swarm.tasks.options import parse


class Spec(msgspec.Struct, frozen=True):
    layers: Annotated[int, Meta(ge=1, le=8)] = 2
    rate: Annotated[float, Meta(gt=0, lt=1)] | None = None
    size: Literal["small", "large"] = "small"
    shuffle: bool = True
    label: str = ""

    def __post_init__(self) -> None:
        if self.size == "small" and self.layers > 4:
            raise ValueError("a small one has at most 4 layers")


def test_text_becomes_the_fields_types() -> None:
    made = parse(Spec, {"layers": "3", "rate": "1e-3", "size": "large", "shuffle": "false", "label": " x "}, task="t")
    assert made == Spec(layers=3, rate=0.001, size="large", shuffle=False, label="x")


def test_nothing_given_is_the_defaults() -> None:
    assert parse(Spec, {}, task="t") == Spec()


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"layers": "0"}, "t: layers must be a whole number >= 1 and <= 8, got '0'"),
        ({"layers": "2.5"}, "t: layers must be a whole number >= 1 and <= 8, got '2.5'"),
        ({"layers": True}, "t: layers must be a whole number >= 1 and <= 8, got True"),
        ({"layers": [1]}, "t: layers must be a whole number >= 1 and <= 8, got [1]"),
        ({"rate": "nan"}, "t: rate must be a number > 0 and < 1, got 'nan'"),
        ({"rate": float("inf")}, "t: rate must be a number > 0 and < 1, got inf"),
        ({"size": "medium"}, "t: size must be one of small, large, got 'medium'"),
        ({"shuffle": "perhaps"}, "t: shuffle must be true or false, got 'perhaps'"),
        ({"layers": "5"}, "t: a small one has at most 4 layers"),
        ({"layer": "1"}, "t has no option 'layer'; did you mean layers?"),
        ({"zzz": "1"}, "t has no option 'zzz'; it has layers, rate, size, shuffle, label"),
    ],
)
def test_an_error_names_the_option_and_what_it_may_be(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(Spec, given_, task="t")
    assert str(caught.value) == message


@given(st.dictionaries(st.text(max_size=300), st.one_of(st.text(max_size=300), st.integers(), st.floats()), max_size=3))
def test_only_usage_errors_of_bounded_length_escape(given_: dict[str, Any]) -> None:
    message = ""
    try:
        parse(Spec, given_, task="t")
    except UsageError as error:
        message = str(error)
    assert len(message) < 250


@pytest.mark.parametrize("name", ["mlp", "charlm"])
def test_a_tasks_filled_in_options_are_what_it_fills_in_again(name: str) -> None:
    task = registry.get(name)
    filled = task.options({})
    assert set(filled) == {option.name for option in listed(task.spec)}
    assert all(isinstance(value, int | float | str) for value in filled.values())  # as a manifest holds them
    assert task.options({key: str(value) for key, value in filled.items()}) == filled


def test_charlms_defaults_come_from_the_size_unless_given() -> None:
    task = registry.get("charlm")
    tiny, base, mixed = (task.options(g) for g in ({}, {"size": "base"}, {"size": "base", "batch_size": "2"}))
    assert (tiny["size"], tiny["seq_len"]) == ("tiny", 64)
    assert base["seq_len"] > tiny["seq_len"]
    assert base["batch_size"] > mixed["batch_size"] == 2
    assert {**base, "batch_size": 2} == mixed
