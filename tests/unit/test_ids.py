"""Ids: one grammar, safe on every file system."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import UsageError
from swarm.core.ids import (
    WINDOWS_DEVICES,
    free_learner_id,
    is_learner_id,
    is_run_id,
    learner_id,
    learner_id_from_host,
    run_id,
)
from swarm.core.keys import is_key

ids = st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True).filter(lambda text: text not in WINDOWS_DEVICES)
near_misses = st.text(st.sampled_from("abcz09-_.A/ é٣\n\0"), max_size=70)


@given(ids)
def test_what_the_grammar_allows_is_a_learner_id_and_a_component_of_a_key(text: str) -> None:
    assert learner_id(text) == text
    assert is_key(text)
    assert is_key(f"{text}.0.0.json")


@given(near_misses | st.text())
def test_nothing_else_is_a_learner_id(text: str) -> None:
    allowed = re.match(r"[a-z0-9-]{1,64}\Z", text) is not None and text not in WINDOWS_DEVICES
    assert is_learner_id(text) == allowed
    if not allowed:
        with pytest.raises(UsageError, match="no learner id"):
            learner_id(text)


@given(near_misses | st.text())
def test_a_run_id_has_4_to_32_letters_and_digits(text: str) -> None:
    allowed = re.match(r"[a-z0-9]{4,32}\Z", text) is not None and text not in WINDOWS_DEVICES
    assert is_run_id(text) == allowed
    if allowed:
        assert run_id(text) == text
    else:
        with pytest.raises(UsageError, match="no run id"):
            run_id(text)


@pytest.mark.parametrize("name", ["con", "prn", "aux", "nul", "com0", "com1", "com9", "lpt1", "lpt9"])
def test_windows_devices_are_no_ids(name: str) -> None:
    assert not is_learner_id(name)
    assert not is_run_id(name)
    assert is_learner_id(f"{name}-1")
    assert learner_id_from_host(f"{name.upper()}.local") == f"{name}-1"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("MacBook-Pro.local", "macbook-pro"),
        ("Anna's Mac Studio", "anna-s-mac-studio"),
        ("nas_2.example.org", "nas-2"),
        ("", "learner"),
        (".local", "learner"),
        ("日本", "learner"),
        ("x" * 80, "x" * 60),
    ],
)
def test_the_default_id_is_the_host_name(host: str, expected: str) -> None:
    assert learner_id_from_host(host) == expected


@given(st.text())
def test_every_host_name_gives_an_id(host: str) -> None:
    assert is_learner_id(learner_id_from_host(host))


@given(ids, st.sets(ids, max_size=8))
def test_a_free_id_is_valid_and_free(wanted: str, others: set[str]) -> None:
    assert free_learner_id(wanted, others - {wanted}) == wanted
    taken = {wanted, *others}
    for _ in range(4):  # several machines of one name, one after the other
        free = free_learner_id(wanted, taken)
        assert is_learner_id(free)
        assert free not in taken
        taken.add(free)


def test_free_ids_count_on_from_2() -> None:
    assert free_learner_id("mac", {"mac"}) == "mac-2"
    assert free_learner_id("mac", {"mac", "mac-2", "mac-3"}) == "mac-4"
    long = "x" * 64
    assert free_learner_id(long, {long, f"{'x' * 58}-2"}) == f"{'x' * 58}-3"


def test_a_free_id_for_nonsense_is_refused() -> None:
    with pytest.raises(UsageError):
        free_learner_id("No Id", set())
