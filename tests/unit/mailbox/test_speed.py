"""How fast a mailbox is: with a clock that goes on by what is moved, so that no figure hangs on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm.core.errors import MailboxUnavailable
from swarm.mailbox import disk, speed
from tests.integration.handmade import make_mailbox


class Share:
    """A clock that counts what is written, synced and read at a fixed speed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, write_bytes_per_s: float, read_bytes_per_s: float) -> None:
        self.now_s = 0.0
        self.written = 0
        write_all, read = disk.write_all, os.read

        def written(fd: int, data: bytes) -> int:
            self.now_s += len(data) / write_bytes_per_s
            self.written += len(data)
            return write_all(fd, data)

        def was_read(fd: int, size: int) -> bytes:
            data = read(fd, size)
            self.now_s += len(data) / read_bytes_per_s
            return data

        monkeypatch.setattr(disk, "write_all", written)
        monkeypatch.setattr(speed.os, "read", was_read)

    def now(self) -> float:
        return self.now_s


@pytest.fixture
def mailbox(tmp_path: Path) -> str:
    return make_mailbox(tmp_path / "mailbox")


@pytest.mark.parametrize("bytes_per_s", [1e4, 1e6, 50e6, 1e9])
def test_any_speed_is_measured_within_its_time(monkeypatch: pytest.MonkeyPatch, mailbox: str, bytes_per_s: float) -> None:
    share = Share(monkeypatch, write_bytes_per_s=bytes_per_s, read_bytes_per_s=2 * bytes_per_s)
    found = speed.measure(mailbox, now=share.now)
    assert found.write_bytes_per_s == pytest.approx(bytes_per_s, rel=1e-6)
    assert found.read_bytes_per_s == pytest.approx(2 * bytes_per_s, rel=1e-6)
    assert share.now_s <= max(speed.LIMIT_S, 2 * speed.FIRST_BYTES / bytes_per_s)  # the first block is needed in any case
    assert share.written <= speed.MOST_BYTES
    assert os.listdir(f"{mailbox}/tmp") == []


def test_where_there_is_no_mailbox_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(MailboxUnavailable, match="No such file"):
        speed.measure(str(tmp_path / "nowhere"))
    assert os.listdir(tmp_path) == []


def test_a_share_that_is_nearly_full_is_left_alone(monkeypatch: pytest.MonkeyPatch, mailbox: str) -> None:
    monkeypatch.setattr(speed, "ROOM_BYTES", 1 << 80)
    with pytest.raises(MailboxUnavailable, match="nearly full"):
        speed.measure(mailbox)


def test_nothing_is_left_when_the_share_fails_midway(monkeypatch: pytest.MonkeyPatch, mailbox: str) -> None:
    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "sync", fails)
    with pytest.raises(MailboxUnavailable, match="Input/output error"):
        speed.measure(mailbox)
    assert os.listdir(f"{mailbox}/tmp") == []
