"""A home machine's owner comes first: whether it trains now, or holds still for whoever owns it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from swarm.core.plaintext import plain

IDLE_S = 180.0  # without a key or a mouse move, after which nobody is taken to be there
DAY_MIN = 24 * 60
MAX_RANGES = 24
_HOUR = r"(\d{1,2})(?::(\d{2}))?"
_RANGE = re.compile(rf"{_HOUR}\s*[-–]\s*{_HOUR}")


class Hours(msgspec.Struct, frozen=True):
    """A time of the day, local: from `first_min` until before `end_min`, in minutes since midnight; over midnight if that is
    earlier."""

    first_min: int
    end_min: int

    def __post_init__(self) -> None:
        if not (0 <= self.first_min < DAY_MIN and 0 <= self.end_min <= DAY_MIN) or self.first_min == self.end_min:
            raise ValueError(f"hours must be two different times of a day, got {self.first_min} and {self.end_min} min")

    def holds(self, minute: int) -> bool:
        if self.first_min < self.end_min:
            return self.first_min <= minute < self.end_min
        return minute >= self.first_min or minute < self.end_min

    def __str__(self) -> str:
        return f"{_clock(self.first_min)}–{_clock(self.end_min)}"


class OwnerRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a machine trains; without any rule, whenever it can."""

    idle_only: bool = False  # while nobody is at the keyboard
    on_ac_only: bool = False  # not on battery
    hours: tuple[Hours, ...] = ()  # within one of these

    def __bool__(self) -> bool:
        return self.idle_only or self.on_ac_only or bool(self.hours)

    def words(self) -> str:
        """'' without any rule."""
        said = [f"while nobody was at the keyboard for {IDLE_S / 60:.0f} min"] if self.idle_only else []
        said += ["on mains power"] if self.on_ac_only else []
        said += [f"from {', '.join(map(str, self.hours))}"] if self.hours else []
        return f"trains only {', '.join(said)}" if said else ""


class Senses(msgspec.Struct, frozen=True, kw_only=True):
    """What this machine knows of its owner. None: it cannot be told."""

    idle_s: float | None = None  # since a key was pressed or the mouse was moved
    on_battery: bool | None = None
    minute: int = 0  # of the day, local


def held(rules: OwnerRules, senses: Senses) -> str:
    """Why this machine holds still now, in words; '' if it trains. What cannot be told counts for the owner."""
    if rules.idle_only and senses.idle_s is None:
        return UNTOLD_IDLE
    if rules.idle_only and senses.idle_s is not None and senses.idle_s < IDLE_S:
        return "somebody is at the keyboard"
    if rules.on_ac_only and senses.on_battery is None:
        return UNTOLD_POWER
    if rules.on_ac_only and senses.on_battery:
        return "it runs on battery"
    if rules.hours and not any(hours.holds(senses.minute) for hours in rules.hours):
        return f"outside of {', '.join(map(str, rules.hours))}"
    return ""


UNTOLD_IDLE = "it cannot be told whether somebody is at the keyboard"
UNTOLD_POWER = "it cannot be told whether it runs on battery"
UNTOLD: Mapping[str, str] = {UNTOLD_IDLE: "--no-idle-only", UNTOLD_POWER: "--no-on-ac-only"}
"""Reasons that nobody can do anything about by going away, with the option that does without."""


def parse_hours(text: str) -> tuple[Hours, ...]:
    """'22-7', '22:30-7', '9-12,13-17'; () for ''. Raises ValueError."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ValueError(f"{plain(part, 40)!r} are no hours: 22-7, or 22:30-7:15, several with commas between them")
        first_min, end_min = _minute(match[1], match[2]), _minute(match[3], match[4])
        if first_min == DAY_MIN:
            first_min = 0
        if first_min == end_min:
            raise ValueError(f"{plain(part, 40)!r} begins when it ends: all day is 0-24")
        found.append(Hours(first_min, end_min))
    if len(found) > MAX_RANGES:
        raise ValueError(f"at most {MAX_RANGES} ranges of hours, got {len(found)}")
    return tuple(found)


def _minute(hour: str, minute: str | None) -> int:
    found = int(hour) * 60 + int(minute or 0)
    if int(minute or 0) > 59 or found > DAY_MIN:
        raise ValueError(f"{hour}:{minute or '00'} is no time of the day")
    return found


def _clock(minute: int) -> str:
    return f"{minute // 60}:{minute % 60:02d}"
