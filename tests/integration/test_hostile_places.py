"""No name that a peer writes leads out of the mailbox, or out of the cache: tried with real folders."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.core.errors import InvalidKey, RecordError, TaskUnknown, UsageError
from swarm.core.ids import learner_id, run_id
from swarm.core.keys import RunKeys
from swarm.core.lines import decode
from swarm.core.manifest import DataRef, FileRef, Manifest, ModelRef
from swarm.core.records import Claim
from swarm.files.cache import Cache
from swarm.files.fetch import fetch_file, fetch_folder
from swarm.mailbox import init_mailbox, open_mailbox
from swarm.runtime.model_files import linked
from swarm.tasks import registry
from tests.fuzz.decoders import sealed
from tests.fuzz.mutations import NASTY, PLACES

NAMES = [*PLACES, "con", "NUL", "com1", "lpt9.txt", "aux", "a\\b", "a:b", "a b", "ä", ".hidden", "x.", NASTY]


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_leads_nowhere_in_a_mailbox(tmp_path: Path, name: str) -> None:
    home = tmp_path / "a" / "b" / "c" / "mailbox"
    home.parent.mkdir(parents=True)
    (tmp_path / "passwd").write_text("secret")

    async def try_all() -> None:
        await init_mailbox(home)
        mailbox = open_mailbox(str(home))
        await mailbox.open()
        before = everything(tmp_path)
        for key in (name, f"runs/{name}", f"runs/{name}/manifest/record.json", f"runs/a1b2c3d4/beats/{name}/record.json"):
            for call in (
                lambda key=key: mailbox.read(key),
                lambda key=key: mailbox.read_part(key, 0, bytearray(10)),
                lambda key=key: mailbox.put(key, [b"x"]),
                lambda key=key: mailbox.create(key, b"x\n"),
                lambda key=key: mailbox.delete([key]),
                lambda key=key: mailbox.list(key + "/"),
            ):
                with pytest.raises((InvalidKey, ValueError)):
                    await call()
        assert everything(tmp_path) == before

    asyncio.run(try_all())


@pytest.mark.parametrize("name", [*NAMES, "-" * 65])
def test_a_name_is_no_id(name: str) -> None:
    keys = RunKeys("a1b2c3d4")
    builders: tuple[Callable[[str], str], ...] = (
        keys.beats_of,
        keys.queue,
        keys.ranks,
        keys.barrier,
        lambda x: keys.learner(x, 1),
        lambda x: keys.snapshot(1, unit=x, learner="a", incarnation=1),
        lambda x: keys.snapshot(1, unit="a", learner=x, incarnation=1),
        lambda x: keys.snapshot_blob(1, "a", x),
        lambda x: keys.round_blob(1, x),
        lambda x: keys.client_claim(1, x, 0),
        lambda x: keys.file_chunk(x, 0),
        lambda x: keys.probe(1, learner="a", incarnation=1, target=x, target_incarnation=1),
        lambda x: keys.job_file(1, 1, x),
    )
    for build in builders:
        with pytest.raises(InvalidKey):
            build(name)
    for parse in (learner_id, run_id):
        with pytest.raises(UsageError):
            parse(name)
    if name:  # "": nobody
        with pytest.raises(ValueError):
            Claim(round=1, learner=name, incarnation=1)


NO_FILES = [
    *(name for name in PLACES if name not in ("~", "a" * 300)),
    "con",
    "NUL.txt",
    "com1",
    "a\\b",
    "a:b",
    "x.",
    "x ",
    NASTY,
]


@pytest.mark.parametrize("name", NO_FILES)
def test_a_name_is_no_file(name: str) -> None:
    with pytest.raises(ValueError):
        FileRef(name=name, kind="data", sha256="1" * 64, size_bytes=1, chunk_bytes=1, hashes_sha256="2" * 64)


@pytest.mark.parametrize("name", [name for name in PLACES if name not in ("~", "con", "aux.txt", "nul")])
def test_data_and_models_have_files_names(name: str) -> None:
    with pytest.raises(ValueError):
        DataRef(name=name, sha256="1" * 64, size_bytes=1)
    with pytest.raises(ValueError):
        ModelRef(name="m", revision=name or "../", files=(DataRef(name="config.json", sha256="1" * 64, size_bytes=1),))


@pytest.mark.parametrize("name", ["~.txt", "a" * 190 + ".txt", "שלום.txt", "$(id).txt", "-rf.txt", "%2e%2e.txt", "`id`.txt"])
def test_whatever_a_file_is_called_it_stays_in_the_cache(tmp_path: Path, state_dir: Path, name: str) -> None:
    text = b"In the beginning\n"
    chunk = hashlib.sha256(text)
    ref = FileRef(
        name=name,
        kind="model",
        sha256=chunk.hexdigest(),
        size_bytes=len(text),
        chunk_bytes=len(text),
        hashes_sha256=hashlib.sha256(chunk.digest()).hexdigest(),
    )
    keys = RunKeys("a1b2c3d4")

    async def fetch() -> None:
        await init_mailbox(tmp_path / "mailbox")
        mailbox = open_mailbox(str(tmp_path / "mailbox"))
        await mailbox.open()
        await mailbox.put(keys.file_hashes(ref.sha256), [chunk.digest()])
        await mailbox.put(keys.file_chunk(ref.sha256, 0), [text])
        before = everything(tmp_path)
        with Cache(tmp_path / "cache") as cache:
            path = await fetch_file(mailbox, "a1b2c3d4", ref, cache)
            assert path == tmp_path / "cache/files" / ref.sha256
            assert os.stat(path).st_mode & 0o111 == 0
            folder = await fetch_folder(mailbox, "a1b2c3d4", (ref,), cache, progress=lambda ref, done: None)
            links = linked(tmp_path / "cache/job", {ref.name: path})
            assert [p.read_bytes() for each in (folder, links) for p in each.iterdir()] == [text, text]
        new = everything(tmp_path) - before
        assert all(path == "cache" or path.startswith("cache/") for path in new)

    asyncio.run(fetch())


@pytest.mark.parametrize("name", ["../evil", "a/b", "CON", "con"])
def test_a_manifest_with_such_an_id_is_none(name: str) -> None:
    with pytest.raises(RecordError):
        decode(sealed(b'{"run":"%s","name":"x"}' % name.encode()), Manifest)


@pytest.mark.parametrize(
    "name", ["os", "swarm.worker", "charlm.torch", "swarm.tasks.charlm", "..charlm", "__main__", "", "con", NASTY]
)
def test_a_task_is_taken_from_the_installed_ones_only(name: str) -> None:
    with pytest.raises(TaskUnknown):
        registry.get(name)
