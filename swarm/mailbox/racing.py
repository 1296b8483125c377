"""The second process of a trial of a share (mailbox/trial.py): it sees what the first one writes, and has processes of its own
race over records.

python -m swarm.mailbox.racing. Asked and answered in JSON, an object a line, on standard input and output. When its input
ends, for the first process is done or dead, it removes the place of the trial and ends.
"""

from __future__ import annotations

import hashlib
import os
import select
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn
from uuid import uuid4

import msgspec

from swarm.core.errors import MailboxUnavailable, RecordError, SwarmError
from swarm.core.fitness import FEW, Answer, Race, judged
from swarm.core.lines import encode, taken_apart
from swarm.mailbox.folder_write import FolderFiles, Staged
from swarm.mailbox.trial_place import remove_tree

ANSWER_S = 8.0  # of one process, in a race
LONGEST_S = 150.0  # after which each process here is ended by the system, whatever it waits for
TRIES, PAUSE_S = 4, 0.1  # of a creation, while the share says that it may go better later
LOOK_S = 0.002
SLOW = 3  # times as long, at most, until enough records were raced for
GOODBYE_S = 2.0


class Bid(msgspec.Struct):
    process: int
    record: int
    filling: str


class Line:
    """JSON objects, one a line, to and from another process of this machine."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._file = end.makefile("rb")

    def send(self, message: object) -> None:
        with suppress(OSError):  # whoever is gone is found out by its answer
            self.end.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """None: the other one is gone."""
        try:
            line = self._file.readline()
        except OSError:
            return None
        return msgspec.json.decode(line, type=dict[str, Any]) if line.endswith(b"\n") else None

    def close(self) -> None:
        self._file.close()
        self.end.close()


class _Entrant:
    """A process of the race, as its referee sees it."""

    def __init__(self, number: int, pid: int, line: Line) -> None:
        self.number, self.pid, self.line = number, pid, line


class _LinedUp(FolderFiles):
    """The mailbox's own creation, which waits for the others once the record is staged: all publish at the same moment."""

    def __init__(self, root: str, line: Line) -> None:
        super().__init__(root)
        self._line = line
        self.waits = False  # whether the next creation does: a second try is this process's alone

    def stage_record(self, staged: Staged, record: bytes) -> None:
        super().stage_record(staged, record)
        if self.waits:
            self.waits = False
            self._line.send({"staged": True})
            if self._line.receive() is None:
                os._exit(0)


def race(
    place: str,
    *,
    processes: int,
    records: int,
    limit_s: float,
    answer_s: float = ANSWER_S,
    over: Callable[[], bool] = lambda: False,
) -> Race:
    """Have `processes` processes create up to `records` records below `place`, a mailbox. No other record begins after
    `limit_s`, or once it is `over`; of the first few, on a slow share, none after three times that."""
    running = _entered(place, processes)
    began_s = time.monotonic()
    found: dict[str, list[str]] = {"doubles": [], "unwon": [], "changed": [], "errors": []}
    done = stuck = 0
    try:
        while done < records and len(running) > 1 and not over():
            if time.monotonic() - began_s > limit_s * (1 if done >= FEW else SLOW):
                break
            answers, silent = _round(running, done, answer_s)
            stuck = len(silent)
            lost = len(running) - len(answers) - stuck
            if stuck:
                break
            if not lost:  # else one that ended may have won
                for kind, words in judged(
                    f"{done:06d}", {entrant.number: answer for entrant, answer in answers.items()}
                ).items():
                    found[kind].append(words)
                done += 1
            running = list(answers)
            if lost:
                break
    finally:
        left = _sent_home(running)
    return Race(
        processes=processes,
        records=done,
        doubles=tuple(found["doubles"]),
        unwon=tuple(found["unwon"]),
        changed=tuple(found["changed"]),
        errors=tuple(found["errors"]),
        ended=0 if stuck else processes - len(running),
        stuck=max(stuck, left),
        took_s=time.monotonic() - began_s,
    )


def _round(running: Sequence[_Entrant], record: int, answer_s: float) -> tuple[dict[_Entrant, Answer], list[_Entrant]]:
    """One record. (What those say who came to the end, those who do not answer)"""
    said: dict[_Entrant, dict[str, Any]] = {}
    for step in ("create", "publish", "look"):
        asked = [each for each in (said if step != "create" else running) if "error" not in said.get(each, {})]
        for entrant in asked:
            entrant.line.send({"do": step, "record": record})
        heard, silent = _heard(asked, answer_s)
        if silent:
            return {}, silent
        gone = set(asked) - set(heard)
        said = {each: said.get(each, {}) | heard.get(each, {}) for each in (said or heard) if each not in gone}
    return {each: msgspec.convert(words, Answer) for each, words in said.items()}, []


def _heard(asked: Sequence[_Entrant], limit_s: float) -> tuple[dict[_Entrant, dict[str, Any]], list[_Entrant]]:
    """(one answer of each who gives one, those who are silent for so long); the others are gone."""
    found: dict[_Entrant, dict[str, Any]] = {}
    until_s = time.monotonic() + limit_s
    waiting = set(asked)
    with selectors.DefaultSelector() as selector:
        for entrant in asked:
            selector.register(entrant.line.end, selectors.EVENT_READ, entrant)
        while waiting and (left_s := until_s - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                entrant = key.data
                selector.unregister(entrant.line.end)
                waiting.discard(entrant)
                if (answer := entrant.line.receive()) is not None:
                    found[entrant] = answer
    return found, sorted(waiting, key=lambda entrant: entrant.number)


def _entered(place: str, processes: int) -> list[_Entrant]:
    entrants: list[_Entrant] = []
    for number in range(processes):
        ours, theirs = socket.socketpair()
        pid = os.fork()  # this process has one thread: whatever it holds is held by nobody in the new one
        if pid == 0:
            for other in entrants:  # else their other ends would never see that this process is gone
                other.line.close()
            ours.close()
            _bid(place, number, Line(theirs))
        theirs.close()
        entrants.append(_Entrant(number, pid, Line(ours)))
    return entrants


def _sent_home(entrants: Sequence[_Entrant]) -> int:
    """End them; how many do not end, for the share holds them."""
    for entrant in entrants:
        entrant.line.close()
    pids = {entrant.pid for entrant in entrants}
    for number in (0, signal.SIGKILL):
        until_s = time.monotonic() + GOODBYE_S / 2
        for pid in pids if number else ():
            os.kill(pid, number)
        while pids and time.monotonic() < until_s:
            pids = {pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0}
            time.sleep(LOOK_S)
    return len(pids)


def _bid(place: str, number: int, line: Line) -> NoReturn:
    """What a process of the race does, to its end."""
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    files = _LinedUp(place, line)
    try:
        while (asked := line.receive()) is not None:
            _bid_once(files, number, int(asked["record"]), line)
    finally:
        os._exit(0)  # not a second time through what the process that was forked has still to do


def _bid_once(files: _LinedUp, number: int, n: int, line: Line) -> None:
    key = f"runs/race/{n:06d}/record.json"
    record = encode(Bid(number, n, "x" * (n % 7 * 1000)), nonce=uuid4().hex)
    wrote = hashlib.sha256(record).hexdigest()
    files.waits = True
    try:
        won = _patiently(lambda: files.create(key, record))
    except SwarmError as error:
        line.send({"wrote": wrote, "error": str(error)})
        return
    line.send({"wrote": wrote, "won": won})
    if line.receive() is None:
        return
    try:
        data = _patiently(lambda: files.read(key)) or b""
    except SwarmError as error:
        line.send({"error": str(error)})
        return
    whole = True
    try:
        taken_apart(data)
    except RecordError:
        whole = False
    line.send({"read": hashlib.sha256(data).hexdigest() if data else "", "whole": whole})


def _patiently(call: Callable[[], Any]) -> Any:
    for _ in range(TRIES - 1):
        with suppress(MailboxUnavailable):
            return call()
        time.sleep(PAUSE_S)
    return call()


def watch(place: str, key: str, limit_s: float, over: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """When `key` shows in a listing and can be read, on the clock that all processes of a machine share; None: not in time."""
    files = FolderFiles(place)
    until_s = time.monotonic() + limit_s
    folder = key.rpartition("/")[0] + "/"
    while time.monotonic() < until_s and not over():
        with suppress(MailboxUnavailable):
            if key in files.list(folder, "") and files.read(key) is not None:
                return {"seen_s": time.monotonic()}
        time.sleep(LOOK_S)
    return {"seen_s": None}


def _answer(asked: dict[str, Any], say: Callable[[object], None]) -> None:
    place = asked["place"]
    match asked["do"]:
        case "open":
            say({"id": FolderFiles(place).open()})
        case "race":
            sizes = {name: asked[name] for name in ("processes", "records", "limit_s")}
            say(race(place, **sizes, over=_left_alone))
        case "watch":
            say({"watching": True})
            say(watch(place, asked["key"], asked["limit_s"], over=_left_alone))
        case other:
            say({"error": f"unknown request {other!r}"})


def _left_alone() -> bool:
    """Whether there is something to read before this process has answered: that nobody waits for it any more."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> int:
    signal.setitimer(signal.ITIMER_REAL, LONGEST_S)
    place = ""

    def say(message: object) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    try:
        say({"ready": True})
        for line in sys.stdin.buffer:
            asked = msgspec.json.decode(line, type=dict[str, Any])
            place = asked["place"]
            try:
                _answer(asked, say)
            except SwarmError as error:
                say({"error": str(error)})
    except BrokenPipeError:
        pass
    finally:
        if place:
            remove_tree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
