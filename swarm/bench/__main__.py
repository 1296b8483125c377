"""`python -m swarm.bench PART OPTIONS`: one measurement, told as one JSON object on standard output. PART `all`: every one."""

from __future__ import annotations

import sys

import msgspec

from swarm.bench.options import Options
from swarm.core.errors import SwarmError


def main(part: str, options: Options) -> dict[str, object]:
    match part:
        case "all":
            from swarm.bench.report import measure

            return measure(options, lambda text: print(text, file=sys.stderr, flush=True))
        case "limits":
            from swarm.bench.limits import limits

            return dict(limits(options))
        case "phases":
            from swarm.bench.phases import phases

            return phases(options)
        case "create":
            from swarm.bench.rounds import create

            return create(options)
        case "learn":
            from swarm.bench.rounds import learn

            return learn(options)
        case "rate":
            from swarm.bench.rate import rate

            return rate(options)
        case "busy":
            from swarm.bench.rate import busy

            return busy(options)
        case "history":
            from swarm.bench.history import history

            return history(options)
    raise ValueError(f"no part {part!r}")


if __name__ == "__main__":
    try:
        found = main(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Options))
    except SwarmError as error:
        print(f"swarm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
