"""Four learners over shares that fail in every way, for an hour or so: `python -m tests.soak --minutes 10 --seed 7`.

At the end `swarm mailbox verify` finds nothing, the tape says what the learners were told, they and the mailbox hold the same
parameters, nothing is an orphan for longer than two cycles, and nothing was written where a share should have been mounted.
What was injected and when it was told is printed, and written to soak-report.json; with what broke, the folder is kept. Ctrl-C
ends the storm early, and all is checked; a second one ends it at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from swarm import api
from swarm.core.errors import INTERRUPTED
from swarm.core.events import ShareBack, ShareLost
from swarm.core.specs import DiLoCo
from tests.process.machines import new_run
from tests.soak import report, whole
from tests.soak.faults import TOLD, Injection, plan
from tests.soak.stage import Stage, environment, staged

DAY_S = 86_400.0
CAST = {"ann": ("torch", 0.0), "bob": ("mlx", DAY_S), "cyn": ("mlx", -DAY_S), "dan": ("mlx", 0.0)}
KEEP_S = 20.0
SPEC = DiLoCo(
    sync_every=60, fragments=2, quorum_size=2, alignment="carry", delta_dtype="F8_E4M3", beat_s=1.0, lease_s=8.0, keep_s=KEEP_S
)
TOLD_S = 10.0
CALM_S = 300.0  # for whatever has to be caught up with, on a machine that is busy


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long faults are injected (60)")
    parser.add_argument("--seed", type=int, default=None, help="what decides which, when and whose; one is drawn and printed")
    parser.add_argument("--report", type=Path, default=Path("soak-report.json"), help="where the JSON goes (soak-report.json)")
    asked = parser.parse_args()
    seed = random.SystemRandom().randrange(10_000) if asked.seed is None else asked.seed
    folder = Path(tempfile.mkdtemp(prefix="swarm-soak-"))
    coming = plan(seed, learners=tuple(CAST), seconds_s=60.0 * asked.minutes)
    say(f"seed {seed}, {asked.minutes:g} minutes, {len(coming)} faults; in {folder}")
    injections: list[Injection] = []
    os.nice(5)
    started_s = time.monotonic()
    with environment(
        SWARM_STATE_DIR=str(folder / "state"),
        SWARM_CACHE_DIR=str(folder / "cache"),
        SWARM_CONFIG=str(folder / "settings.toml"),
        SWARM_DISCOVERY="0",
    ):
        try:
            with Interrupt() as interrupt:
                wrongs, facts = soak(folder, coming=coming, begun=injections, interrupt=interrupt)
        except KeyboardInterrupt:
            say(f"interrupted; what there is lies in {folder}")
            return INTERRUPTED
    found = {
        "seed": seed,
        "minutes": asked.minutes,
        "took_s": round(time.monotonic() - started_s, 1),
        "ended_early": interrupt.came,
        "survived": not wrongs,
        "wrongs": wrongs,
        **facts,
        "injected": report.objects(injections),
    }
    asked.report.write_text(json.dumps(found, indent=1) + "\n")
    for line in report.table(injections):
        print(line)
    if wrongs:
        for wrong in wrongs:
            print(f"BROKEN  {wrong}")
        print(f"seed {seed}; everything is kept in {folder}, the learners' logs in {folder / 'state' / 'jobs'}")
        return 1
    print(f"survived: {facts.get('rounds')} rounds, {facts.get('starts')} starts, one SHA-256 everywhere; {asked.report}")
    shutil.rmtree(folder)
    return 0


class Interrupt:
    """The first Ctrl-C is noted, the second one is as ever."""

    came = False

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, *_: object) -> None:
        self.came = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        say("interrupted: no more faults; all is checked (Ctrl-C again ends it at once)")


def soak(
    folder: Path, *, coming: list[Injection], begun: list[Injection], interrupt: Interrupt
) -> tuple[list[str], dict[str, Any]]:
    """(what broke, figures). `begun` gets those of `coming` that were."""
    run = new_run(rounds=None, algorithm=SPEC)
    over: list[tuple[Injection, float, float]] = []
    with staged(folder, run, CAST) as stage:
        try:
            _begin(stage)
            _storm(stage, coming=coming, begun=begun, over=over, interrupt=interrupt)
            ends = _calm(stage)
        except Broken as error:
            return [*stage.wrongs, str(error)], {}
        finally:
            stage.look()
            _when_told(stage, over)
        wrongs = stage.wrongs + _untold(begun)
        wrongs += [f"{path}: written where nothing was mounted" for seat in stage.seats.values() for path in seat.stray]
        told = [event for seat in stage.seats.values() for event in seat.rounds]
        say("the mailbox is checked")
        more, facts = whole.wrongs(stage.mailbox, run.run, params=ends, told=told, lying_s=4 * KEEP_S)
        return wrongs + more, facts | {"starts": sum(seat.starts for seat in stage.seats.values())}


class Broken(Exception):
    pass


def _begin(stage: Stage) -> None:
    first, *others = stage.seats.values()
    first.start(stage.run, create=True)
    _until(stage, lambda: first.joined, "the first learner joins")
    for seat in others:
        seat.start(stage.run)
    _until(stage, lambda: all(seat.joined and seat.closed >= 1 for seat in stage.seats.values()), "all have joined")
    say("all have joined")


def _storm(
    stage: Stage,
    *,
    coming: list[Injection],
    begun: list[Injection],
    over: list[tuple[Injection, float, float]],
    interrupt: Interrupt,
) -> None:
    started_s = time.monotonic()
    coming, under_way = list(coming), list[tuple[Injection, float]]()
    while (coming and not interrupt.came) or under_way:
        _look(stage)
        at_s = time.monotonic() - started_s
        # Whoever was killed has to be back first, and whoever lost the share: each fault is to be seen for itself.
        while coming and coming[0].at_s <= at_s and not interrupt.came:
            hit = {name for injection, _ in under_way for name in injection.who}
            if any(name in hit or not stage.seats[name].ready for name in coming[0].who):
                break
            injection = coming.pop(0)
            newest = max(seat.closed for seat in stage.seats.values())
            say(f"{at_s:6.0f} s  round {newest:>4}  {injection.kind:<10} {', '.join(injection.who)}, {injection.lasts_s:.0f} s")
            begun.append(injection)
            stage.begin(injection)
            under_way.append((injection, time.monotonic()))
        for injection, since_s in list(under_way):
            if interrupt.came:
                injection.lasts_s = min(injection.lasts_s, round(time.monotonic() - since_s, 1))
            if time.monotonic() - since_s >= injection.lasts_s:
                stage.end(injection)
                under_way.remove((injection, since_s))
                over.append((injection, since_s, time.monotonic()))
        time.sleep(0.1)
    _until(stage, lambda: all(seat.ready for seat in stage.seats.values()), "all are back")


def _when_told(stage: Stage, over: list[tuple[Injection, float, float]]) -> None:
    """How soon each fault and its end were told. `over`: when each began and ended."""
    for injection, since_s, ended_s in over:
        for seat in (stage.seats[name] for name in injection.who):
            lost_s = seat.first(ShareLost, since_s)
            if lost_s is not None and lost_s <= ended_s:
                injection.told_s[seat.name] = lost_s - since_s
                back_s = seat.first(ShareBack, max(lost_s, ended_s))
                if back_s is not None:
                    injection.over_s[seat.name] = back_s - ended_s


def _calm(stage: Stage) -> set[str]:
    """Let everybody catch up, and what is to be swept be swept; then stop the run. What the learners ended with."""
    say("calm: everybody catches up")
    began_s, newest = time.monotonic(), max(seat.closed for seat in stage.seats.values())
    wanted = newest + 6 * SPEC.fragments

    def caught_up() -> bool:
        swept = time.monotonic() - began_s > 3 * KEEP_S
        return swept and all(seat.joined and seat.closed >= wanted for seat in stage.seats.values())

    _until(stage, caught_up, "everybody has caught up")
    asyncio.run(api.stop_run(str(stage.mailbox), stage.run.run))
    params = set()
    for seat in stage.seats.values():
        assert seat.machine is not None
        code = seat.machine.wait()
        ended = seat.machine.ended
        if code != 0 or ended is None or ended.reason != "stopped":
            stage.wrongs.append(f"{seat.name} ended with code {code}: {seat.machine.words()}")
        else:
            params.add(ended.params_sha256)
        seat.look()
        seat.machine = None
    return params


def _untold(injections: list[Injection]) -> list[str]:
    """What lasted long enough and was not told in time."""
    return [
        f"{each.kind} at {each.at_s:.0f} s: {name} told it after {each.told_s.get(name, float('nan')):.1f} s"
        for each in injections
        if each.kind in TOLD and each.lasts_s > TOLD_S + 2
        for name in each.who
        if each.told_s.get(name, 1e9) > TOLD_S
    ]


def _until(stage: Stage, there: Any, what: str) -> None:
    until_s = time.monotonic() + CALM_S
    while not there():
        _look(stage)
        if time.monotonic() > until_s:
            said = {name: [told.event for told in seat.told[-4:]] for name, seat in stage.seats.items()}
            raise Broken(f"{what}: not within {CALM_S:.0f} s; {said}")
        time.sleep(0.1)


def _look(stage: Stage) -> None:
    stage.look()
    if stage.wrongs:
        raise Broken("a learner ended")


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
