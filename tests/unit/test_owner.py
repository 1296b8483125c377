"""A home machine's owner comes first: the policy, on a fake clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.owner import DAY_MIN, IDLE_S, UNTOLD, Hours, OwnerRules, Senses, held, parse_hours

AWAY, THERE = Senses(idle_s=IDLE_S, on_battery=False), Senses(idle_s=IDLE_S - 1, on_battery=False)
minutes = st.integers(0, DAY_MIN - 1)


@pytest.mark.parametrize(
    ("rules", "senses", "reason"),
    [
        (OwnerRules(), Senses(idle_s=0.0, on_battery=True), ""),
        (OwnerRules(), Senses(), ""),
        (OwnerRules(idle_only=True), AWAY, ""),
        (OwnerRules(idle_only=True), THERE, "somebody is at the keyboard"),
        (OwnerRules(idle_only=True), Senses(on_battery=True), "it cannot be told whether somebody is at the keyboard"),
        (OwnerRules(on_ac_only=True), Senses(idle_s=0.0, on_battery=False), ""),
        (OwnerRules(on_ac_only=True), Senses(on_battery=True), "it runs on battery"),
        (OwnerRules(on_ac_only=True), Senses(), "it cannot be told whether it runs on battery"),
        (OwnerRules(hours=parse_hours("22-7,12-13")), Senses(minute=22 * 60), ""),
        (OwnerRules(hours=parse_hours("22-7,12-13")), Senses(minute=12 * 60 + 59), ""),
        (OwnerRules(hours=parse_hours("22-7,12-13")), Senses(minute=13 * 60), "outside of 22:00–7:00, 12:00–13:00"),
        (OwnerRules(idle_only=True, on_ac_only=True), Senses(idle_s=0.0, on_battery=True), "somebody is at the keyboard"),
        (OwnerRules(idle_only=True, on_ac_only=True), Senses(idle_s=1e6, on_battery=True), "it runs on battery"),
    ],
)
def test_when_a_machine_holds_still(rules: OwnerRules, senses: Senses, reason: str) -> None:
    assert held(rules, senses) == reason


def test_what_cannot_be_told_names_the_option_that_does_without() -> None:
    assert UNTOLD[held(OwnerRules(idle_only=True), Senses())] == "--no-idle-only"
    assert UNTOLD[held(OwnerRules(on_ac_only=True), Senses())] == "--no-on-ac-only"


@given(minutes, minutes, minutes)
def test_hours_and_those_that_are_left_are_the_whole_day(first: int, end: int, minute: int) -> None:
    if first == end:
        with pytest.raises(ValueError, match="different"):
            Hours(first, end)
        return
    assert Hours(first, end).holds(minute) is not Hours(end, first).holds(minute)
    assert Hours(first, end).holds(first)
    assert not Hours(first, end).holds(end)


@given(st.lists(st.tuples(minutes, minutes).filter(lambda pair: pair[0] != pair[1]), max_size=5))
def test_hours_are_read_as_they_are_written(ranges: list[tuple[int, int]]) -> None:
    every = tuple(Hours(first, end) for first, end in ranges)
    assert parse_hours(", ".join(map(str, every))) == every


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),
        ("22-7", (Hours(1320, 420),)),
        ("22:30 - 7:15", (Hours(1350, 435),)),
        ("0-24", (Hours(0, 1440),)),
        ("24-7", (Hours(0, 420),)),
        ("9-12,13-17", (Hours(540, 720), Hours(780, 1020))),
    ],
)
def test_hours(text: str, found: tuple[Hours, ...]) -> None:
    assert parse_hours(text) == found
    if text == "0-24":
        assert all(found[0].holds(minute) for minute in range(DAY_MIN))


@pytest.mark.parametrize(
    "text", ["22", "22-", "25-7", "22:60-7", "24:01-7", "9-9", "night", "22-7;8-9", "-1-5", ",".join(["1-2"] * 25)]
)
def test_what_are_no_hours(text: str) -> None:
    with pytest.raises(ValueError, match=r"hours|time of the day|begins"):
        parse_hours(text)


def test_rules_in_words() -> None:
    assert not OwnerRules()
    assert OwnerRules().words() == ""
    rules = OwnerRules(idle_only=True, on_ac_only=True, hours=parse_hours("22-7"))
    assert rules
    assert rules.words() == "trains only while nobody was at the keyboard for 3 min, on mains power, from 22:00–7:00"
