"""Commands that look at a mailbox run in a child process, so that a share that hangs keeps nobody.

A call that a file system in user space (sshfs, rclone, …) has taken ends when that answers, and not before: no signal ends it,
nor the process that made it. So what a person started waits for the child's last word, and not for its end; the child goes
when the kernel lets it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from swarm.cli import INTERRUPTS
from swarm.core.errors import INTERRUPTED

HELD_S = 1.0  # after which a child that was interrupted twice is held by something
_tell: int | None = None  # in such a child: where its last word goes


def aside(work: Callable[[], int]) -> NoReturn:
    """End with the exit code that `work` gives in a child process; or as that was killed. Called before there is any thread."""
    told, tell = os.pipe()
    lives, life = os.pipe()  # of this process: the child sees its end
    child = os.fork()
    if child == 0:
        os.close(told)
        os.close(life)
        _child(work, tell, lives)
    os.close(tell)
    os.close(lives)
    _forward_signals(child)
    code = os.read(told, 1)
    if code:
        os._exit(code[0])
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended < 0:
        with contextlib.suppress(OSError):  # SIGKILL has nothing else
            signal.signal(-ended, signal.SIG_DFL)
        os.kill(os.getpid(), -ended)
    os._exit(abs(ended))


def end_now(code: int) -> NoReturn:
    """End this process there and then: nothing is waited for, tidied up, or said."""
    if _tell is not None:
        # Whoever reads our output sees its end now, whatever holds this process.
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        with contextlib.suppress(OSError):
            os.write(_tell, bytes([code]))
    os._exit(code)


def _child(work: Callable[[], int], tell: int, lives: int) -> NoReturn:
    global _tell
    _tell = tell
    os.setpgid(0, 0)  # so that a Ctrl-C comes once, from the process that waits
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may write to the terminal all the same

    def watch() -> None:
        os.read(lives, 1)
        os._exit(INTERRUPTED)

    threading.Thread(target=watch, daemon=True).start()
    try:
        _end(work())
    except KeyboardInterrupt:  # at the last moment; a second one does not come
        _end(INTERRUPTED)


def _end(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    end_now(code)


def _forward_signals(child: int) -> None:
    """The child gets the first alone, and deals with it in peace. A second one gives it a moment to have done so."""
    times = 0

    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    def forward(number: int, _: FrameType | None) -> None:
        nonlocal times
        times += 1
        if times == 1:
            send(number)
        elif times == 2:
            signal.setitimer(signal.ITIMER_REAL, HELD_S)

    def leave(*_: object) -> None:
        send(signal.SIGKILL)
        os.write(2, b"\nswarm: interrupted\n")
        os._exit(INTERRUPTED)

    def pause(*_: object) -> None:
        send(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        send(signal.SIGCONT)  # we go on

    for number in INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, forward)
    signal.signal(signal.SIGALRM, leave)
    if signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, pause)
