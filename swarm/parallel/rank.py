"""A rank as a process: `python -m swarm.parallel.rank JSON`, with the plan as JSON (core/rankjob.py) or `-` for a line on
standard input. Events go to standard output, everything else to standard error. On a leash, commands are read from standard
input, one JSON object a line.

Exit codes: 0 done; 75 the group is broken, and 76 halted as told: a new generation can go on; 2 something that a person gave is
wrong; 1 else.
Ended by SIGALRM, and so without last words: the ranks did not come together in time, and a new generation can try again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import BinaryIO, NoReturn, assert_never

from swarm.core.errors import INTERRUPTED, GroupBroken, SwarmError, UsageError
from swarm.core.rankjob import (
    HALTED,
    Halt,
    Phase,
    RankEnded,
    RankEvent,
    RankPlan,
    RankReady,
    RankStepped,
    Saved,
    decode_command,
    decode_plan,
    encode_event,
)
from swarm.host.crash import note_crash
from swarm.parallel.hangs import advice
from swarm.parallel.watchdog import Watchdog


class Voice:
    """Standard output, for events alone: whatever a library prints goes to standard error."""

    def __init__(self) -> None:
        self._out: BinaryIO = os.fdopen(os.dup(1), "wb", buffering=0)
        self._lock = threading.Lock()
        self._silent = False
        self._step = 0
        self.saved: str | None = None
        """The last good checkpoint."""

    def claim(self) -> None:
        os.dup2(2, 1)

    def tell(self, event: RankEvent) -> None:
        with self._lock:
            if self._silent:
                return
            match event:
                case RankReady() | RankStepped():
                    self._step = event.step
                case Saved():
                    self.saved = event.checkpoint
                case _:
                    pass
            try:
                self._out.write(encode_event(event))
            except OSError:  # nobody reads any more
                os._exit(GroupBroken.exit_code)

    def last(self, reason: str, *, error: str = "", again: bool = False) -> None:
        self.tell(RankEnded(reason=reason, step=self._step, checkpoint=self.saved, error=error, again=again))
        self._silent = True


def main(argv: list[str]) -> NoReturn:
    voice = Voice()
    voice.claim()
    try:
        if len(argv) != 1:
            raise UsageError("usage: python -m swarm.parallel.rank JSON")
        plan = decode_plan(sys.stdin.buffer.readline() if argv[0] == "-" else argv[0])
        voice.saved = plan.start
        done = _run(plan, voice)
        voice.last("done" if done else "halted", again=not done)
        code = 0 if done else HALTED
    except KeyboardInterrupt:
        voice.last("interrupted")
        code = INTERRUPTED
    except SwarmError as error:
        print(error, file=sys.stderr)
        voice.last(str(error), error=type(error).__name__, again=isinstance(error, GroupBroken))
        code = error.exit_code
    except Exception as error:
        where = note_crash()
        voice.last(f"{type(error).__name__}: {' '.join(str(error).split()):.300}; {where}", error=type(error).__name__)
        code = 1
    sys.stderr.flush()
    os._exit(code)  # a broken group's destructors may hang


def _run(plan: RankPlan, voice: Voice) -> bool:
    """Whether all steps are done; if not, the ranks were told to halt."""
    watchdog = Watchdog(lambda words: voice.last(words, error="GroupBroken", again=True))
    watchdog.start()
    halt = threading.Event()
    if plan.leash:  # through the same buffer as the plan's line, with which more may have come
        watchdog.leash(sys.stdin.buffer, lambda line: _heed(line, halt))
    # With PyTorch, if it is there, the Hugging Face libraries would take seconds and 230 MB more, for nothing.
    sys.modules["torch"] = None  # type: ignore[assignment]  # that means: not there
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}  # before Hugging Face's libraries read them
    voice.tell(Phase(what="meeting"))
    try:
        from swarm.parallel.group import initialised
    except ImportError as error:
        raise UsageError(f"MLX-LM is not installed here (pip install 'homeswarm[mlx-lm]'): {error}") from error
    # While MLX waits for the others it holds Python's lock, so that no other thread runs: only the system can end it then.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, plan.meet_s)
    group = initialised(plan.backend, rank=plan.rank, size=plan.size)
    signal.setitimer(signal.ITIMER_REAL, 0)
    watchdog.expect("preparing, or waiting for the other ranks to be prepared", plan.prepare_s)
    try:
        from swarm.parallel.train import prepared
    except ImportError as error:
        raise UsageError(f"MLX-LM is not installed here (pip install 'homeswarm[mlx-lm]'): {error}") from error
    stepping = False

    def tell(event: RankEvent) -> None:
        nonlocal stepping
        watchdog.sign()
        if isinstance(event, RankStepped) and not stepping:
            stepping = True
            words = "a step, or waiting for the other ranks in it"
            watchdog.expect(words, plan.silence_s, grows=True, advice=advice(plan.backend, plan.size))
        voice.tell(event)

    trainer = prepared(plan, group, tell=tell, progressed=watchdog.sign, halting=halt.is_set)
    tell(trainer.ready())
    tell(Phase(what="training"))
    try:
        return trainer.run()
    finally:
        voice.saved = trainer.saved


def _heed(line: bytes, halt: threading.Event) -> None:
    try:
        match decode_command(line):
            case Halt():
                halt.set()
            case unknown:
                assert_never(unknown)
    except UsageError as error:  # whoever started this rank may know more commands
        print(error, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
