"""What was injected, and what became of it: a table and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.soak.faults import TOLD, Injection


def objects(injections: Sequence[Injection]) -> list[dict[str, Any]]:
    return [
        {
            "kind": each.kind,
            "learners": list(each.who),
            "at_s": each.at_s,
            "lasted_s": each.lasts_s,
            "told_after_s": {who: round(s, 1) for who, s in each.told_s.items()},
            "back_told_after_s": {who: round(s, 1) for who, s in each.over_s.items()},
        }
        for each in injections
    ]


def table(injections: Sequence[Injection]) -> Iterator[str]:
    """By kind: how often, for how long in all and at most, and how soon that was told and told again at the latest."""
    yield f"{'fault':<12}{'times':>6}{'of all':>7}{'seconds':>9}{'longest':>9}{'told by':>9}{'over by':>9}"
    for kind in dict.fromkeys(each.kind for each in injections):
        mine = [each for each in injections if each.kind == kind]
        told = [s for each in mine for s in each.told_s.values()]
        over = [s for each in mine for s in each.over_s.values()]
        ends = [f"{max(times):.1f} s" if times and kind in TOLD else "–" for times in (told, over)]
        together = sum(len(each.who) > 1 for each in mine)
        lasted = [each.lasts_s for each in mine]
        yield f"{kind:<12}{len(mine):>6}{together:>7}{sum(lasted):>9.0f}{max(lasted):>9.0f}{ends[0]:>9}{ends[1]:>9}"
