"""What peers write is shown as one plain line, whatever it is; figures stay short."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui import text
from tui.filters import asciify

HOSTILE = {
    "markup": ("[bold red]air[/] [@click=app.quit]x[/]", "[bold red]air[/] [@click=app.quit]x[/]"),
    "colour": ("\x1b[31mair\x1b[0m", "air"),
    "title": ("\x1b]0;you were had\x07air", "air"),
    "c1": ("\x9b31mair", "air"),
    "cursor": ("air\x1b[2J\x1b[H", "air"),
    "right to left": ("air\u202egnp.exe", "airgnp.exe"),
    "zero width": ("a\u200bi\u200dr\ufeff", "air"),
    "lines": ("air\r\nroot# \tx", "air root# x"),
    "separators": ("air\u2028\u2029x", "air x"),
    "marks": ("a" + "\u0301" * 50 + "ir", "\u00e1\u0301\u0301ir"),
    "private": ("air\ue000\U000f0000", "air"),
    "surrogate": ("air\udc80", "air"),
    "nothing": ("\x00\x1b[0m\u200b", ""),
}


@pytest.mark.parametrize(("wrote", "shown"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_is_made_harmless(wrote: str, shown: str) -> None:
    assert text.plain(wrote) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert text.plain("x" * 100_000, 40) == "x" * 39 + "…"


@given(st.text(), st.integers(1, 100))
def test_any_text_becomes_one_bounded_line(wrote: str, limit: int) -> None:
    line = text.plain(wrote, limit)
    assert len(line) <= limit
    assert line == line.strip()
    assert not any(unicodedata.category(c)[0] == "C" or unicodedata.category(c) in ("Zl", "Zp") for c in line)


@given(st.text(), st.integers(0, 60), st.booleans())
def test_fitted_text_has_exactly_the_width(wrote: str, width: int, right: bool) -> None:
    assert cell_len(text.fit(text.plain(wrote), width, right=right)) == width


@given(st.text())
def test_ascii_has_the_same_width(wrote: str) -> None:
    line = text.plain(wrote)
    assert asciify(line).isascii()
    assert cell_len(asciify(line)) == sum(map(cell_len, line))


@pytest.mark.parametrize(
    ("seconds_s", "shown"),
    [
        (-1, "0.0 s"),
        (0.42, "0.4 s"),
        (9.96, "10 s"),
        (34, "34 s"),
        (59.7, "1m00"),
        (125, "2m05"),
        (4000, "1h06"),
        (200_000, "2d07"),
    ],
)
def test_durations(seconds_s: float, shown: str) -> None:
    assert text.span(seconds_s) == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(0, "0"), (820, "820"), (999.6, "1.00k"), (1920, "1.92k"), (12_345, "12.3k"), (7.6e6, "7.60M")]
)
def test_short_numbers(number: float, shown: str) -> None:
    assert text.short(number) == shown


@given(st.floats(0, 1e15))
def test_short_numbers_stay_short(number: float) -> None:
    assert len(text.short(number)) <= 5


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(1, 80), st.integers(1, 3))
def test_bars_have_their_size(values: list[float], width: int, rows: int) -> None:
    chart = text.bars(values, width, rows=rows)
    assert len(chart) == rows
    assert {len(line) for line in chart} == {width}
    assert (" " * width == chart[-1]) == (not values)


def test_bars_rise_with_the_values() -> None:
    assert text.bars([0, 1, 2, 3, 4, 5, 6, 7], 8) == ("▁▂▃▄▅▆▇█",)
    assert text.bars([0, 15], 3, rows=2) == ("  █", " ▁█")
    assert text.bars([8, 8, 0], 3, low=0) == ("██▁",)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 80))
def test_thinning_keeps_the_range_and_the_width(values: list[float], width: int) -> None:
    thinned = text.thin(values, width)
    assert len(thinned) == min(len(values), width)
    assert min(values) - 1e-6 <= min(thinned)
    assert max(thinned) <= max(values) + 1e-6
