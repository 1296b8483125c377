"""What this machine can train on, for people of other machines, told without loading a framework."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

import psutil


class Card(NamedTuple):
    """One of NVIDIA's, as a framework tells of it."""

    uuid: str  # 'GPU-…'; '': it is not told
    memory_bytes: int  # 0: it is not told


def accelerators() -> tuple[tuple[str, ...], int]:
    """(names such as 'mps Apple M2 Max' or 'cuda RTX 3090', memory in bytes that training can use: of the largest accelerator,
    or of the machine). May ask a program for it: some tenths of a second."""
    if sys.platform == "darwin":
        if platform.machine() != "arm64":
            return (), _memory_bytes()
        return (f"mps {_asked('/usr/sbin/sysctl', '-n', 'machdep.cpu.brand_string').strip() or 'Apple'}",), _memory_bytes()
    cards = parse_cards(_asked("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"))
    if cards:
        return tuple(f"cuda {name}" for name, _ in cards), max(size for _, size in cards)
    return (), _memory_bytes()


def parse_cards(text: str) -> list[tuple[str, int]]:
    """(name, bytes) of each line of nvidia-smi: 'NVIDIA GeForce RTX 3090, 24576'."""
    found = []
    for line in text.splitlines():
        name, comma, size = line.rpartition(",")
        if comma and size.strip().isdecimal():
            found.append((re.sub(r"^(NVIDIA )?(GeForce )?", "", name.strip()), int(size) << 20))
    return found


def training_memory(cards: Sequence[Card]) -> int:
    """What a training can use, in bytes: of these cards, or of the machine if it trains on none. A Mac's GPU has the machine's.
    0: it cannot be told."""
    if not cards:
        return _memory_bytes()
    return sum(card.memory_bytes for card in cards) if all(card.memory_bytes for card in cards) else 0


def _memory_bytes() -> int:
    return psutil.virtual_memory().total


def _asked(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
