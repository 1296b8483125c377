"""FORMAT.md describes the format that there is."""

import hashlib
import hmac
import json
import re
import struct
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from swarm.core import adverts, lines, manifest, ranks, records
from swarm.core.keys import MARKER, RunKeys
from swarm.core.manifest import FORMAT
from swarm.core.records import LearnerPhase, RejectReason
from swarm.core.sightings import LIVES_S
from swarm.network.discovery import USUAL
from swarm.network.hello import CONNECTIONS, PORTS

PATH = Path(records.__file__).parents[1] / "FORMAT.md"
TEXT = PATH.read_text(encoding="utf-8")
KINDS = {
    name: value
    for module in (lines, manifest, records, ranks)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
}
EXAMPLES = re.findall(r"^```json (\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
TREE = dict(
    line.split("  ", 1)
    for block in re.findall(r"^```tree\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
)


@pytest.mark.parametrize(("kind", "example"), EXAMPLES, ids=[kind for kind, _ in EXAMPLES])
def test_an_example_is_decoded_and_shows_every_field(kind: str, example: str) -> None:
    record = msgspec.json.decode(example, type=KINDS[kind])
    assert json.loads(msgspec.json.encode(record)) == json.loads(example)  # nothing unknown, nothing left out


def test_every_record_has_an_example() -> None:
    parts = {"DataRef", "TaskRef", "FileRef", "ModelRef", "PayloadRef", "Participant", "Rejected", "RankBeat"}  # shown within
    parts |= {"Address", "Link", "CheckpointAt", "Refusal", "Seat", "TrainPoint", "EvalPoint", "StoredFile"}  # others
    shown = [kind for kind, _ in EXAMPLES]
    assert set(shown) == {kind for kind in KINDS if not kind.startswith("_")} - parts
    assert all(f"### {kind}\n" in TEXT for kind in shown if kind != "Envelope")


def keys_of(run: RunKeys, v: dict[str, Any]) -> dict[str, str]:
    """What the code makes of the same values, with what stands there."""
    return {
        MARKER: "Marker",
        run.manifest: "Manifest",
        run.init_blob(v["fragment"], v["sha256"]): "payload",
        run.round(v["round"]): "RoundRecord",
        run.round_blob(v["round"], v["sha256"]): "payload",
        run.snapshot(v["round"], unit=v["unit"], learner=v["learner"], incarnation=v["k"], claim=v["claim"]): "Snapshot",
        run.snapshot_blob(v["round"], v["learner"], v["sha256"]): "payload",
        run.claim(v["round"], v["n"]): "Claim",
        run.eval_claim(v["round"]): "Claim",
        run.client_claim(v["round"], v["unit"], v["n"]): "Claim",
        run.sample(v["round"]): "Sample",
        run.learner(v["learner"], v["k"]): "LearnerRecord",
        run.beat(v["learner"], v["k"], v["n"]): "Beat",
        run.refusal(v["machine"], v["n"], v["sha256"]): "JoinRefusal",
        run.control_record(v["n"]): "Control",
        run.eval(v["round"]): "EvalRecord",
        run.file_hashes(v["sha256"]): "payload",
        run.file_chunk(v["sha256"], v["n"]): "chunk",
        run.checkpoint(v["round"]): "Checkpoint",
        run.checkpoint_blob(v["round"], v["fragment"], v["sha256"]): "payload",
        run.member(v["generation"], learner=v["learner"], incarnation=v["k"]): "Member",
        run.probe(
            v["generation"], learner=v["learner"], incarnation=v["k"], target=v["target"], target_incarnation=v["k2"]
        ): "Probe",
        run.lead_claim(v["generation"], v["n"]): "Claim",
        run.rank_plan(v["generation"]): "Plan",
        run.mark(v["generation"], "ready", learner=v["learner"], incarnation=v["k"]): "Ready",
        run.mark(v["generation"], "started", learner=v["learner"], incarnation=v["k"]): "Started",
        run.generation_end(v["generation"]): "GenerationEnd",
        run.job_log(v["generation"], v["part"]): "JobLog",
        run.job_checkpoint(v["generation"], v["step"]): "JobCheckpoint",
        run.job_file(v["generation"], v["step"], v["sha256"]): "file",
    }


@pytest.mark.parametrize("round", [0, 99, 100, 12345])
def test_the_tree_is_the_one_that_is_built(round: int) -> None:
    values: dict[str, Any] = {
        "run": "abcd1234", "fragment": 7, "sha256": "ab" * 32, "round": round, "shard": round // 100, "unit": "client-3",
        "learner": "studio", "k": 12, "claim": 2, "n": 34, "generation": 5, "target": "mac", "k2": 3, "step": 400,
        "part": round, "machine": "0f8b6c0e",
    }  # fmt: skip
    drawn = {
        re.sub(r"<(\w+)(?::(\w+))?>", lambda m: format(values[m[1]], m[2] or ""), key): re.split(r"\W", what.strip())[0]
        for key, what in TREE.items()
    }
    assert drawn == keys_of(RunKeys("abcd1234"), values)


def test_the_signed_example_can_be_recomputed() -> None:
    """By what the page says alone: nothing of the program is asked."""
    [block] = re.findall(r"^```signed\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    shown = dict(line.split(maxsplit=1) for line in block.splitlines())
    salt = b"homeswarm passphrase 1"
    master = hashlib.scrypt(shown["passphrase"].encode(), salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=32)
    key = hmac.new(master, b"records", hashlib.sha256).digest()
    assert (master.hex(), key.hex()) == (shown["master"], shown["records"])
    assert hmac.new(master, b"fingerprint", hashlib.sha256).hexdigest()[:8] == shown["fingerprint"]
    envelope = json.loads(shown["envelope"])
    body = shown["body"].encode()
    assert hashlib.sha256(body).hexdigest() == envelope["sha256"]
    parts = [shown["run"].encode(), shown["key"].encode(), body]
    text = b"".join(struct.pack(">Q", len(part)) + part for part in parts)
    assert hmac.new(key, text, hashlib.sha256).hexdigest() == envelope["signature"]
    assert f"`{salt.decode()}`" in TEXT


def test_every_word_of_the_protocol_is_explained() -> None:
    for word in (
        *get_args(LearnerPhase),
        *get_args(RejectReason),
        *get_args(ranks.Ending),
        *get_args(ranks.Kind),
        *(f"`{name}/`" for name in ("tmp", "trash")),
    ):
        assert f"`{word.strip('`')}`" in TEXT, word
    assert f"# The mailbox, format {FORMAT}\n" in TEXT
    assert f"\n| {FORMAT} | " in TEXT


@pytest.mark.parametrize(("kind", "names"), [("a peer", adverts._PEER), ("a run", adverts._RUN)])
def test_every_key_of_an_advert_stands_in_the_table(kind: str, names: dict[str, str]) -> None:
    (table,) = re.findall(rf"^\| key \| of {kind} \|\n(.*?)\n\n", TEXT, re.MULTILINE | re.DOTALL)
    keys = {key for line in table.splitlines()[1:] for key in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert keys == {"v", *names.values()}


def test_the_hello_is_one_and_shows_every_field() -> None:
    (example,) = re.findall(r"^```hello\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    assert json.loads(msgspec.json.encode(adverts.hello_of(example.encode()))) == json.loads(example)


def test_the_limits_of_adverts_are_those_of_the_code() -> None:
    told = re.sub(r"\s+", " ", TEXT)
    assert f"at most {adverts.MAX_TXT_BYTES:,} bytes of strings of at most {adverts.MAX_STRING_BYTES}" in told
    assert f"every {USUAL.beat_s:.0f} s, and whoever was not heard for {LIVES_S:.0f} s" in told
    assert f"first free port of {PORTS[0]} to {PORTS[-1]}" in told
    assert f"at most {adverts.MAX_HELLO_BYTES >> 10} KiB" in told
    assert f"no more than {CONNECTIONS} are served" in told
