"""A framework tried on each of its devices: `python -m swarm.learners.tryout torch`, a process of its own, since a driver may
hang, and since whoever asks loads no framework. Tells what it does on stdout, a JSON object a line, as it goes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

RIGHT = 4.0 * 8 * (16 + 1)


def main(framework: str) -> int:
    threading.Thread(target=_end_with_input, daemon=True).start()
    match framework:
        case "torch":
            from swarm.learners import torch as found
        case "mlx":
            from swarm.learners import mlx as found  # type: ignore[no-redef]
        case _:
            print(f"no framework: {framework}", file=sys.stderr)
            return 2
    _say({"loaded": framework})
    for name, what, memory_bytes in found.present():
        _say({"begins": name})
        began_s = time.perf_counter()
        error = ""
        try:
            result = found.forward(name)
            if result != RIGHT:
                error = f"a forward pass gives {result}, and not {RIGHT}"
        except Exception as fault:  # whatever a driver has to say
            error = f"{type(fault).__name__}: {fault}"
        took_ms = 1000 * (time.perf_counter() - began_s)
        _say({"name": name, "what": what, "memory_bytes": memory_bytes, "took_ms": took_ms, "error": error[:1000]})
    _say({"done": True})
    return 0


def _say(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    """Whoever asked is gone when the input ends: then nobody waits for a driver that hangs."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
