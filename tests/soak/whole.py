"""Whether a mailbox is whole after all that happened to it: `swarm mailbox verify`, and what that leaves open."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from swarm.core.catalog import place_of
from swarm.core.events import RoundClosed, round_closed
from swarm.exchange import Exchange
from swarm.host.children import python
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.folder import FolderMailbox
from swarm.manifests import read_manifest
from swarm.runtime.inner import params_sha256
from swarm.runtime.parameters import newest


def wrongs(
    mailbox: Path, run: str, *, params: set[str], told: Iterable[RoundClosed], lying_s: float
) -> tuple[list[str], dict[str, object]]:
    """(what is wrong with it, figures). `params`: what the learners ended with. `told`: all rounds that they were told of.
    `lying_s`: nothing in tmp/ and trash/ may be older."""
    found, verified = _verified(mailbox)
    if found:  # what follows takes a whole one for granted
        return found, verified
    facts = asyncio.run(_tape(mailbox, run, params, told, found))
    found += _strangers(mailbox)
    found += _orphans(mailbox / "runs" / run, facts)
    now_s = time.time()
    for place in ("tmp", "trash"):
        for path in (mailbox / place).iterdir():
            if now_s - path.lstat().st_ctime > lying_s:
                found.append(f"{place}/{path.name}: lies there for {now_s - path.lstat().st_ctime:.0f} s")
    return found, {name: facts[name] for name in ("rounds", "sha256")} | verified


def _verified(mailbox: Path) -> tuple[list[str], dict[str, object]]:
    """What the product's own checker says: every record, every payload, every reference, the chain of rounds."""
    command = python("swarm", "mailbox", "verify", "--json", "--mailbox", str(mailbox))
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = [json.loads(line) for line in ended.stdout.splitlines()]
    if ended.returncode not in (0, 1) or not said or "unknown" not in said[-1]:
        return [f"`swarm mailbox verify` ended with {ended.returncode}: {ended.stderr[-2000:]}"], {}
    *faults, summary = said
    found = [f"verify: {fault['fault']}: {fault['what']}: {fault['key']}" for fault in faults]
    found += [f"verify: {note}" for note in summary["notes"]]
    if summary["unknown"] or bool(faults) != bool(ended.returncode):
        found.append(f"`swarm mailbox verify` ended with {ended.returncode}: {ended.stderr[-2000:]}")
    return found, {"verified": {name: summary[name] for name in ("objects", "bytes", "unneeded", "seconds_s")}}


async def _tape(mailbox: Path, run: str, params: set[str], told: Iterable[RoundClosed], found: list[str]) -> dict[str, object]:
    """Whether the tape says of each round what the learners were told, and its newest parameters are everybody's."""
    store = FolderMailbox(mailbox)
    await store.open()
    exchange = Exchange(store, await read_manifest(store, run))
    last, fragments = await exchange.newest_round(), len(exchange.plan)
    for event in told:
        record = await exchange.round(event.round)
        said = None if record is None else round_closed(record, exchange.manifest.algorithm, rounds=event.rounds)
        if said != event:
            found.append(f"round {event.round} of {last} was told as {event}, the tape says {said}")
    kept: set[str] = set()
    for round in range(max(0, last + 1 - 2 * fragments), last + 1):
        record = await exchange.round(round)
        assert record is not None
        kept |= {ref.sha256 for ref in (record.theta, record.outer, record.update) if ref is not None}
    _, theta = await newest(exchange)
    sha256 = params_sha256(NumpyAdapter({name: np.array(array) for name, array in theta.items()}))
    if params != {sha256}:
        found.append(f"the learners ended with {sorted(params)}, the mailbox holds {sha256}")
    return {"rounds": last + 1, "sha256": sha256, "kept": kept, "fragments": fragments}


def _strangers(mailbox: Path) -> Iterator[str]:
    """What no swarm writes, also under names that a mailbox does not see."""
    for path in (mailbox / "runs").rglob("*"):
        if path.is_file() and place_of(str(path.relative_to(mailbox))) is None:
            yield f"{path}: no swarm writes that"


def _orphans(folder: Path, facts: dict[str, object]) -> Iterator[str]:
    """What is older than two cycles and nothing needs."""
    rounds, fragments, kept = facts["rounds"], facts["fragments"], facts["kept"]
    assert isinstance(rounds, int)
    assert isinstance(fragments, int)
    assert isinstance(kept, set)
    # Swept once a cycle, by whoever closes its last round.
    swept = (rounds // fragments * fragments - 1) - 2 * fragments
    for kind in ("blobs/rounds", "blobs/snapshots", "snapshots", "claims"):
        for path in (folder / kind).glob("*"):
            if re.fullmatch(r"\d+", path.name) and int(path.name) <= swept:
                left = [str(each.relative_to(folder)) for each in path.rglob("*") if each.is_file() and each.stem not in kept]
                yield from (f"{each}: an orphan, older than two cycles at round {rounds}" for each in left)
