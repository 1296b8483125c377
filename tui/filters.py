"""What is done to every line on its way out: plain ASCII, for terminals and fonts that have nothing else."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

_SAME_WIDTH = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.,-=+*#", strict=True)),
    **dict.fromkeys("─━═╌┄╍╴╶╸╺▔", "-"),
    **dict.fromkeys("│┃║╵╷╹╻▏▎▍▌▋▊▉▐", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛┣┫┳┻╋╔╗╚╝", "+"),
    "▓": "=",
    "░": ".",
    "●": "*",
    "○": "o",
    "◌": ":",
    "◆": "%",
    "◇": "&",
    "◐": "c",
    "■": "#",
    "‖": "=",
    "✓": "+",
    "✗": "x",
    "⚠": "!",
    "…": "~",
    "—": "-",
    "–": "-",
    "·": ".",
    "×": "x",
    "≠": "#",
    "▸": ">",
    "▾": "v",
    "▴": "^",
    "↑": "^",
    "↓": "v",
    "←": "<",
    "→": ">",
    "’": "'",
    "“": '"',
    "”": '"',
    "−": "-",
    "÷": "/",
    "²": "2",
    "€": "E",
    "Θ": "T",
    "Δ": "d",
    "α": "a",
    "θ": "t",
    "μ": "u",
    "τ": "t",
}
_DOTS = " .:-=+*#@"  # by the number of dots in a braille cell


def _one(char: str) -> str:
    if char in _SAME_WIDTH:
        return _SAME_WIDTH[char]
    if 0x2800 <= ord(char) <= 0x28FF:
        return _DOTS[(ord(char) - 0x2800).bit_count()]
    return "?" * cell_len(char)


@lru_cache(4096)
def asciify(text: str) -> str:
    """`text` in ASCII, in as many cells."""
    return text if text.isascii() else "".join(c if c.isascii() else _one(c) for c in text)


class Ascii(LineFilter):
    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(asciify(text), style, control) for text, style, control in segments]


class Styled(LineFilter):
    """Gives a style to segments that have none, as a plot's: Textual's own filter for NO_COLOR falls over them."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(text, style or _PLAIN, control) for text, style, control in segments]


_PLAIN = Style()
