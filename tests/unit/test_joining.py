"""What stands between a machine and a run: every reason has its tick, and every tick its remedy."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from swarm.core.adverts import RunAdvert
from swarm.core.finetune import FineTune
from swarm.core.joining import Fault, JoinFacts, join_ticks
from swarm.core.manifest import FORMAT, DataRef, FileRef, Manifest, ModelRef, PayloadRef, TaskRef
from swarm.core.needs import memory_needed
from swarm.core.specs import DiLoCo, FedAvg
from swarm.core.tensorspec import TensorSpec
from swarm.core.ticks import Tick, passed

MAILBOX = "a1b2c3d4" + "0" * 24
HASH = "0" * 64


def manifest(**more: Any) -> Manifest:
    values: dict[str, Any] = {
        "run": "k4m7q2xw",
        "name": "calm-otter",
        "algorithm": DiLoCo(),
        "task": TaskRef(name="charlm"),
        "tensors": (TensorSpec("w", "F32", (1000, 1000)),),
        "schema_sha256": HASH,
        "init": (PayloadRef(round=-1, sha256=HASH, size_bytes=4_000_000),),
    }
    return Manifest(**{**values, **more})


FINE_TUNING = manifest(
    algorithm=FineTune(),
    task=TaskRef(name="mlx-lm"),
    tensors=(),
    schema_sha256="",
    init=(),
    model=ModelRef(name="org/model", files=(DataRef(name="model.safetensors", sha256=HASH, size_bytes=8 << 30),)),
)
ADVERT = RunAdvert(run="k4m7q2xw", peer="0" * 32, name="calm-otter", method="diloco", task="charlm", mailbox=MAILBOX)
GOOD = JoinFacts(
    name="calm-otter",
    mailbox=MAILBOX,
    listened=True,
    told_by=("studio", "mbp"),
    advert=ADVERT,
    looked=True,
    location="/mnt/swarm",
    share_words="4 ms",
    manifest=manifest(),
    their_format=FORMAT,
    phase="running",
    phase_words="running, round 3",
    trains=True,
    their_versions=("0.2.0",),
    passphrase="open",
    version="0.2.0",
    task_words="charlm, with torch",
    free_bytes=8 << 30,
    total_bytes=16 << 30,
)


def ticks(**more: Any) -> dict[str, Tick]:
    return {tick.name: tick for tick in join_ticks(msgspec.structs.replace(GOOD, **more))}


def test_when_all_is_well_every_tick_is_ok() -> None:
    found = ticks()
    assert list(found) == [
        "seen", "share mounted here", "share writable", "run open", "task installed", "schema matches", "data",
        "version matches", "passphrase right", "enough memory",
    ]  # fmt: skip
    assert {tick.verdict for tick in found.values()} == {"ok"}
    assert passed(found.values())
    assert "studio, mbp" in found["seen"].detail


WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("share mounted here", {"location": None, "mounting": ("mount it", "  open smb://nas/swarm")}, "a1b2c3d4…", "open smb"),
    ("share mounted here", {"location": None, "mounting": ("x",), "hanging": ("/mnt/nas",)}, "/mnt/nas does not answer", "x"),
    ("share writable", {"share_fault": Fault("/mnt/swarm: read-only", "mount it anew")}, "read-only", "mount it"),
    ("run open", {"ended": True, "phase": "done", "phase_words": "has all its 40 rounds"}, "has all its 40", "swarm start"),
    ("task installed", {"task_fault": Fault("no task 'x' is installed here", "install the package")}, "no task", "install"),
    ("schema matches", {"manifest": None, "run_fault": Fault("damaged", "swarm doctor")}, "damaged", "doctor"),
    ("data", {"data_fault": "the run trains on my.txt, which is nowhere"}, "my.txt", "--data"),
    ("data", {"manifest": manifest(algorithm=FedAvg(private=True))}, "private", "--data"),
    ("version matches", {"their_format": FORMAT + 1, "their_versions": ("9.9.9",)}, "9.9.9", "upgrade swarm here"),
    ("version matches", {"manifest": None, "their_format": None, "advert": msgspec.structs.replace(ADVERT, format=FORMAT + 1)},
     f"format {FORMAT + 1}", "upgrade swarm here"),
    ("version matches", {"their_format": 0, "their_versions": ("0.0.1",)}, "0.0.1", "on the machines"),
    ("passphrase right", {"passphrase": "missing"}, "no passphrase", "swarm key import"),
    ("passphrase right", {"passphrase": "wrong", "fingerprint": "1234abcd"}, "1234abcd", "swarm key import"),
    ("passphrase right", {"passphrase": "unasked", "fingerprint": "1234abcd"}, "open", "without"),
    ("enough memory", {"total_bytes": 100 << 20, "free_bytes": 50 << 20}, "this machine has", "--role syncer"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "facts", "detail", "remedy"), WRONG, ids=[f"{w[0]}-{n}" for n, w in enumerate(WRONG)])
def test_each_reason_has_a_tick_of_its_own_with_a_remedy(name: str, facts: dict[str, Any], detail: str, remedy: str) -> None:
    found = ticks(**facts)
    assert found[name].verdict == "failed"
    assert detail in found[name].detail
    assert remedy in found[name].remedy
    assert [tick.name for tick in found.values() if tick.verdict == "failed"] == [name]
    assert not passed(found.values())


DOUBTFUL: list[tuple[str, dict[str, Any], str]] = [
    ("seen", {"told_by": ()}, "no machine on the network"),
    ("share writable", {"share_warning": Fault("200 MB free", "make room")}, "200 MB"),
    ("schema matches", {"options_fault": "unknown option"}, "unknown option"),
    ("data", {"manifest": FINE_TUNING}, "Hugging Face"),
    ("version matches", {"their_versions": ("0.3.0",)}, "0.3.0"),
    ("enough memory", {"free_bytes": 10 << 20}, "needed"),
]


@pytest.mark.parametrize(("name", "facts", "detail"), DOUBTFUL, ids=[w[0] for w in DOUBTFUL])
def test_what_is_only_doubtful_keeps_nobody_out(name: str, facts: dict[str, Any], detail: str) -> None:
    found = ticks(**facts)
    assert found[name].verdict == "warning"
    assert detail in found[name].detail
    assert passed(found.values())


def test_before_the_share_is_mounted_the_rest_is_not_known() -> None:
    found = ticks(
        location=None, manifest=None, phase=None, share_words=None, passphrase=None, their_format=None, mounting=("x",)
    )
    assert found["share mounted here"].verdict == "failed"
    for name in ("share writable", "run open", "schema matches", "passphrase right"):
        assert found[name].verdict == "checking"
        assert "mounted" in found[name].detail
    assert found["task installed"].verdict == "ok"  # the advert names it
    assert found["version matches"].verdict == "ok"


def test_while_it_is_looked_for_nothing_has_failed() -> None:
    found = ticks(location=None, looked=False, listened=False, told_by=(), manifest=None, advert=None, phase=None,
                  share_words=None, passphrase=None, task_words=None, their_format=None)  # fmt: skip
    assert {tick.verdict for tick in found.values()} == {"checking"}


def test_a_syncer_needs_neither_task_nor_data() -> None:
    found = ticks(role="syncer", task_fault=Fault("no task", "x"), data_fault="no data")
    assert passed(found.values())
    assert "task installed" not in found


def test_what_the_run_brings_along_is_told_with_its_size() -> None:
    ref = FileRef(name="my.txt", kind="data", sha256=HASH, size_bytes=5 << 20, chunk_bytes=1 << 20, hashes_sha256=HASH)
    found = ticks(manifest=manifest(files=(ref,)))
    assert "my.txt" in found["data"].detail
    assert "5.24 MB" in found["data"].detail


def test_a_data_parallel_job_takes_in_who_comes_late_with_its_next_generation() -> None:
    found = ticks(manifest=FINE_TUNING, own_model=True)
    assert found["next generation"].verdict == "ok"
    assert "waits for the next generation" in found["next generation"].detail
    assert "next generation" not in ticks()


def test_what_strangers_wrote_is_shown_as_plain_text() -> None:
    nasty = "x\x1b[31m\u202e\n" + "y" * 500
    found = ticks(told_by=(nasty,), name=nasty, ended=True, phase_words="ended", their_versions=(nasty,), data_fault=nasty)
    for tick in found.values():
        assert tick.detail.isprintable()
        assert len(tick.detail) < 500


def test_memory_grows_with_the_model_and_with_what_the_method_keeps() -> None:
    small, large = manifest(), manifest(tensors=(TensorSpec("w", "F32", (4000, 1000)),))
    assert memory_needed(large) - memory_needed(small) == 3_000_000 * (4 + 4 + 8 + 4 + 4 + 12)
    narrow = manifest(algorithm=DiLoCo(delta_dtype="F4"))
    assert memory_needed(narrow) > memory_needed(small) > memory_needed(small, "learner") > memory_needed(small, "syncer")
    half = manifest(tensors=(TensorSpec("w", "BF16", (1000, 1000)),))
    assert memory_needed(half) == memory_needed(small)  # gradients and weights are halves, the master copy is more
    assert memory_needed(FINE_TUNING) > 8 << 30
