"""Processes that call a mailbox once and may be killed at it: children of one that has loaded everything already.

It reads lines of JSON: {"root": …, "call": [method, key, …]} makes a child and says its process id; {} lets the child call, and
says how it ended, {"status": n}: 0, or minus the signal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from swarm.core.errors import MailboxError
from swarm.mailbox.folder_init import init_folder
from swarm.mailbox.folder_write import FolderFiles

CALLS: dict[str, Callable[[FolderFiles, str], object]] = {
    "create": lambda files, key: files.create(key, b"victim's"),
    "put": lambda files, key: files.put(key, [b"who", b"le"]),
    "delete": lambda files, key: files.delete([key]),
    "init": lambda files, _: init_folder(files.root),
}


def child(root: str, call: str, key: str, gate: int) -> None:
    os.read(gate, 1)
    try:
        CALLS[call](FolderFiles(root, pauses_s=(0.0,) * 6), key)
    except MailboxError:
        os._exit(1)
    os._exit(0)


def say(**words: object) -> None:
    print(json.dumps(words), flush=True)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        gate, opener = os.pipe()
        pid = os.fork()
        if pid == 0:
            child(order["root"], *order["call"], gate)
        say(pid=pid)
        sys.stdin.readline()
        os.write(opener, b"x")
        _, status = os.waitpid(pid, 0)
        os.close(gate)
        os.close(opener)
        say(status=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
