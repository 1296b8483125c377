"""One of our modules asked a question in a process of its own, which may load a framework, crash or hang without harm."""

from __future__ import annotations

import asyncio
import contextlib

from swarm.core.errors import WorkerFailed
from swarm.host.children import ending, python

MAX_BYTES = 16 << 20  # of an answer


async def asked(module: str, question: bytes, *, limit_s: float) -> bytes:
    """The line with which `module` answers the line `question`. The process is gone when this returns, whatever it was at.
    Raises WorkerFailed, which says how it ended."""
    try:
        process = await asyncio.create_subprocess_exec(
            *python(module),
            stdin=asyncio.subprocess.PIPE,  # it ends with this process: it sees the end of its input
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=MAX_BYTES,
        )
    except OSError as error:
        raise WorkerFailed(f"no process can be started: {error.strerror or error}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    complaints = asyncio.ensure_future(process.stderr.read())  # read on, or it would stand still at a full pipe
    try:
        process.stdin.write(question + b"\n")
        async with asyncio.timeout(limit_s):
            line = await process.stdout.readline()
            if not line:
                code = await process.wait()
                said = (await complaints).decode(errors="replace").strip().splitlines()
                raise WorkerFailed(f"the process {ending(code)}{f': {said[-1][:300]}' if said else ''}")
        return line
    except TimeoutError:
        raise WorkerFailed(f"no answer within {limit_s:.0f} s") from None
    except (ConnectionError, ValueError) as error:  # it is gone, or its answer has no end
        raise WorkerFailed(f"the process does not answer: {error}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 1.0)
        complaints.cancel()
