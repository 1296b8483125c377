"""Processes racing over one mailbox, through one folder or through two mounts of one share.

    python race.py A [B] [--writers 8] [--keys 200] [--readers 2] [--objects-every 1] [--pause-s 0]

The writers bid for one key after the other, all at the same moment, and put two objects per key (or per tenth key, and so
on), one of which is the same for all; readers read all the while, or pause before each listing. Checked: each key has exactly
one winner, whose record is what everybody reads; no record or object is ever seen torn; nothing that was seen goes away;
nothing is left in tmp/ or trash/. Prints one line of JSON; exit status 1 if something was violated.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from swarm.core.errors import MailboxUnavailable
from swarm.core.keys import RunKeys
from swarm.mailbox.folder import FolderMailbox

KEYS = RunKeys("race")


def bid(writer: int, n: int) -> bytes:
    body = json.dumps({"writer": writer, "n": n, "filling": "x" * (n % 7 * 1000)}).encode()
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + uuid4().hex.encode() + b"\n"


def whole(record: bytes) -> bool:
    body, _, rest = record.partition(b"\n")
    return len(rest) == 97 and rest[:64] == hashlib.sha256(body).hexdigest().encode()


def blob(writer: int, n: int) -> bytes:
    return hashlib.sha256(f"{writer} {n}".encode()).digest() * (500 + n)


def shared_blob(n: int) -> bytes:
    """What all writers put under one key, as syncers do that close the same round."""
    return hashlib.sha256(str(n).encode()).digest() * 4000


async def persist(call):
    """The call's answer, and how often the share had to be asked again."""
    for again in range(100):
        try:
            return await call(), again
        except MailboxUnavailable as error:
            last = error
            await asyncio.sleep(0.05)
    raise last


async def write(folder: Path, writer: int, keys: int, objects_every: int) -> dict:
    mailbox = FolderMailbox(folder)
    await mailbox.open()
    won, wrong, again, took = [], [], 0, []
    for n in range(keys):
        record, key = bid(writer, n), KEYS.round(n)
        print("ready", flush=True)
        sys.stdin.readline()
        started = time.monotonic()
        mine, more = await persist(lambda key=key, record=record: mailbox.create(key, record))
        took.append(time.monotonic() - started)
        again += more
        if mine:
            won.append(n)
        found, more = await persist(lambda key=key: mailbox.read(key))
        again += more
        if found is None or not whole(found) or (found == record) != mine:
            wrong.append(f"writer {writer}, key {n}, won {mine}: read {found!r:.80}")
        if n % objects_every:
            continue
        common = hashlib.sha256(shared_blob(n)).hexdigest()
        for name, data in ((KEYS.beat(f"w{writer}", 1, n), blob(writer, n)), (KEYS.round_blob(n, common), shared_blob(n))):
            _, more = await persist(lambda name=name, data=data: mailbox.put(name, [data[:1000], memoryview(data)[1000:]]))
            again += more
    took.sort()
    return {"won": won, "wrong": wrong, "again": again, "create_ms": round(1000 * took[len(took) // 2], 1)}


async def read(folder: Path, pause_s: float) -> dict:
    """Until told to stop on standard input: list, then read what is new and some of what is old."""
    mailbox = FolderMailbox(folder)
    await mailbox.open()
    stop = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    seen: dict[str, bytes] = {}
    wrong, reads, again = [], 0, 0
    last = False
    while not last:
        if pause_s:
            await asyncio.wait({stop}, timeout=pause_s)
        last = stop.done()
        listed, more = await persist(lambda: mailbox.list(f"{KEYS.root}/"))
        again += more
        if listed != sorted(set(listed)):
            wrong.append("a listing is out of order")
        for n, key in enumerate(listed):
            if key in seen and (n + reads) % 17:
                continue
            data, more = await persist(lambda key=key: mailbox.read(key))
            again += more
            reads += 1
            if data is None:
                wrong.append(f"{key}: listed, then missing")
                continue
            if seen.setdefault(key, data) != data:
                wrong.append(f"{key}: changed")
            parts = key.split("/")
            if parts[2] == "rounds":
                good = whole(data)
            elif parts[2] == "beats":
                good = data == blob(int(parts[3][1:]), int(parts[4][5:15]))
            else:
                good = data == shared_blob(int(parts[4]))
            if not good:
                wrong.append(f"{key}: torn, {len(data)} bytes")
        if missing := set(seen) - set(listed):
            wrong.append(f"{len(missing)} objects gone from the listing, such as {min(missing)}")
    return {"wrong": wrong, "reads": reads, "again": again, "seen": len(seen)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--readers", type=int, default=2)
    parser.add_argument("--objects-every", type=int, default=1, metavar="KEYS")
    parser.add_argument("--pause-s", type=float, default=0.0, metavar="S")
    parser.add_argument("--role", nargs=2, metavar=("ROLE", "N"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        role, n = args.role
        if role == "write":
            work = write(args.folders[0], int(n), args.keys, args.objects_every)
        else:
            work = read(args.folders[0], args.pause_s)
        print(json.dumps(asyncio.run(work)))
        return 0

    name = uuid4().hex
    folders = [folder / name for folder in args.folders]
    asyncio.run(FolderMailbox.init(folders[0]))

    def start(role: str, n: int) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, str(folders[n % len(folders)]), "--role", role, str(n)]
        command += ["--writers", str(args.writers), "--keys", str(args.keys), "--objects-every", str(args.objects_every)]
        command += ["--pause-s", str(args.pause_s)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    started = time.monotonic()
    readers = [start("read", n) for n in range(args.readers)]
    writers = [start("write", n) for n in range(args.writers)]
    for _ in range(args.keys):
        for process in writers:
            process.stdout.readline()
        for process in writers:
            with suppress(BrokenPipeError):  # it failed: seen below
                process.stdin.write("go\n")
                process.stdin.flush()
    outs = [process.communicate()[0] for process in writers]
    outs += [process.communicate()[0] for process in readers]  # closes their standard input: they stop
    failed = [process.returncode for process in (*writers, *readers) if process.returncode]
    if failed:
        print(json.dumps({"violations": [f"{len(failed)} processes failed"]}))
        return 1
    results = [json.loads(out) for out in outs]
    wins = [n for result in results[: args.writers] for n in result["won"]]
    violations = [text for result in results for text in result["wrong"]]
    violations += [f"key {n} has {wins.count(n)} winners" for n in range(args.keys) if wins.count(n) != 1]
    everything = args.keys + len(range(0, args.keys, args.objects_every)) * (args.writers + 1)
    violations += [f"a reader saw {r['seen']} of {everything}" for r in results[args.writers :] if r["seen"] != everything]
    for place in ("tmp", "trash"):
        if left := list((folders[0] / place).iterdir()):
            violations.append(f"{len(left)} left in {place}/")
    print(
        json.dumps(
            {
                "violations": violations[:20],
                "count": len(violations),
                "wins": [len(result["won"]) for result in results[: args.writers]],
                "create_ms": [result["create_ms"] for result in results[: args.writers]],
                "asked_again": sum(result["again"] for result in results),
                "reads": sum(result["reads"] for result in results[args.writers :]),
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
