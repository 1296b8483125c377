"""Whether a mailbox is whole after all that happened to it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swarm.core.lines import body_sha256
from swarm.exchange import Exchange
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.folder import FolderMailbox
from swarm.manifests import read_manifest
from swarm.runtime.inner import params_sha256
from swarm.runtime.parameters import newest


def wrongs(mailbox: Path, run: str, *, params: set[str], lying_s: float) -> tuple[list[str], dict[str, object]]:
    """(what is wrong with it, figures). `params`: what the learners ended with. `lying_s`: nothing in tmp/ and trash/ may be
    older."""
    found: list[str] = []
    facts = asyncio.run(_tape(mailbox, run, params, found))
    found += _objects(mailbox / "runs" / run)
    found += _orphans(mailbox / "runs" / run, facts)
    now_s = time.time()
    for place in ("tmp", "trash"):
        for path in (mailbox / place).iterdir():
            if now_s - path.lstat().st_ctime > lying_s:
                found.append(f"{place}/{path.name}: lies there for {now_s - path.lstat().st_ctime:.0f} s")
    return found, {name: facts[name] for name in ("rounds", "sha256")}


async def _tape(mailbox: Path, run: str, params: set[str], found: list[str]) -> dict[str, object]:
    """The chain of rounds from the first on, and whether the newest parameters are everybody's."""
    store = FolderMailbox(mailbox)
    await store.open()
    exchange = Exchange(store, await read_manifest(store, run))
    last = await exchange.newest_round()
    kept: set[str] = set()
    parent, fragments = None, len(exchange.plan)
    for round in range(last + 1):
        data = await store.read(exchange.keys.round(round))
        record = None if data is None else await exchange.round(round)
        if data is None or record is None:
            found.append(f"round {round} of {last} is missing")
            continue
        if record.parent != parent:
            found.append(f"round {round} does not follow the record of round {round - 1}")
        parent = body_sha256(data)
        if round > last - 2 * fragments:
            kept |= {ref.sha256 for ref in (record.theta, record.outer, record.update) if ref is not None}
    _, theta = await newest(exchange)
    sha256 = params_sha256(NumpyAdapter({name: np.array(array) for name, array in theta.items()}))
    if params != {sha256}:
        found.append(f"the learners ended with {sorted(params)}, the mailbox holds {sha256}")
    return {"rounds": last + 1, "sha256": sha256, "kept": kept, "fragments": fragments}


def _objects(folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        if path.suffix == ".safetensors":
            if hashlib.sha256(path.read_bytes()).hexdigest() != path.stem:
                yield f"{path}: is not what its name says"
        elif path.suffix == ".json":
            try:
                body, envelope, rest = path.read_bytes().split(b"\n")
                if rest or json.loads(envelope)["sha256"] != hashlib.sha256(body).hexdigest():
                    yield f"{path}: a record that is not what its envelope says"
            except ValueError:
                yield f"{path}: no record"
        elif path.is_file():
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
