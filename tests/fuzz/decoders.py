"""Everything here that reads bytes of another machine, of another program or of a person, each with files as they really are
to begin from, and with the errors that its callers expect."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click
import msgspec
import numpy as np
import pytest

from swarm.core import events, manifest, rankjob, ranks, records, work
from swarm.core.adverts import Hello, PeerAdvert, RunAdvert, hello_of, peer_of, peer_txt, run_of, run_txt
from swarm.core.errors import (
    AdvertError,
    FileError,
    FormatMismatch,
    HeaderError,
    InvalidKey,
    MailboxCorrupt,
    PassphraseError,
    PayloadError,
    RecordError,
    StateMismatch,
    UsageError,
)
from swarm.core.jobs import CreateRun, Export, Generate, Learn, Order, Process
from swarm.core.keys import RunKeys
from swarm.core.lines import decode, encode
from swarm.core.manifest import FileRef, Manifest
from swarm.core.specs import FedAvg
from swarm.tensors.payload import Packed, header_size, parse_header, unpack
from tests.fuzz.mutations import damaged, rewritten

json_of = msgspec.json.encode
GOLDEN = Path(__file__).parents[1] / "golden/records-v1.jsonl"


@dataclass(frozen=True)
class Decoder:
    """`read(data)` uses what it has decoded as its callers do."""

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes], object]
    expected: tuple[type[Exception], ...]
    draw: Callable[[Decoder, Random], bytes] = lambda self, rng: damaged(rng.choice(self.seeds), self.seeds, rng)
    weight: int = 1  # of its cases among all
    documents: tuple[Any, ...] = field(default=())  # of JSON seeds, decoded

    def case(self, rng: Random) -> bytes:
        return self.draw(self, rng)


def _json_case(decoder: Decoder, rng: Random) -> bytes:
    """Half of the cases are JSON still, with something wrong in one place."""
    if rng.random() < 0.5:
        return damaged(rng.choice(decoder.seeds), decoder.seeds, rng)
    return rewritten(rng.choice(decoder.documents), rng).encode("utf-8", "surrogatepass")


def of_json(name: str, seeds: tuple[bytes, ...], read: Callable[[bytes], object], *expected: type[Exception]) -> Decoder:
    return Decoder(name, seeds, read, expected, _json_case, documents=tuple(json.loads(seed) for seed in seeds))


# ---- records

KINDS: dict[str, type[msgspec.Struct]] = {
    name: value
    for module in (manifest, records, ranks)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__module__ == module.__name__
}
SHARED = (
    work.WorkSet(size=40, items_sha256="5" * 64),
    work.Holder(learner="studio", incarnation=3, stint="6" * 32),
)


def _record_seeds() -> dict[type[msgspec.Struct], list[bytes]]:
    found: dict[type[msgspec.Struct], list[bytes]] = {}
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        wire = json.loads(line)
        found.setdefault(KINDS[wire["type"]], []).append(wire["wire"].encode())
    for record in SHARED:
        found[type(record)] = [encode(record, nonce="7" * 32)]
    return found


def sealed(body: bytes) -> bytes:
    """A record with that body, whatever it is: an enemy knows how to hash."""
    return encode(msgspec.Raw(body), nonce="0" * 32)  # type: ignore[arg-type]


def _record_case(decoder: Decoder, rng: Random) -> bytes:
    wire = rng.choice(decoder.seeds)
    kind = rng.random()
    if kind < 0.2:
        return damaged(wire, decoder.seeds, rng)
    body, envelope, _ = wire.split(b"\n")
    if kind < 0.4:
        return sealed(damaged(body, decoder.seeds, rng))
    if kind < 0.5:
        return body + b"\n" + rewritten(json.loads(envelope), rng).encode("utf-8", "surrogatepass") + b"\n"
    return sealed(rewritten(json.loads(body), rng).encode("utf-8", "surrogatepass"))


def _record(type: type[msgspec.Struct]) -> Callable[[bytes], object]:
    def read(data: bytes) -> object:
        record = decode(data, type)
        again = encode(record, nonce="0" * 32)  # whoever holds a record may write it
        assert decode(again, type) == record
        _used(record)
        return record

    return read


def _used(record: msgspec.Struct) -> None:
    """What a reader calculates of a record at once."""
    if isinstance(record, Manifest):
        keys, fragments = RunKeys(record.run), len(record.plan)
        for n, ref in enumerate(record.init):
            keys.init_blob(n, ref.sha256)
        for file in record.files:
            keys.file_chunk(file.sha256, file.chunks - 1)
        assert fragments <= max(1, len(record.tensors))
    elif isinstance(record, records.RoundRecord):
        keys = RunKeys("a1b2c3d4")
        for ref in (record.theta, record.outer, record.update):
            if ref is not None and ref.round >= 0:
                keys.round_blob(ref.round, ref.sha256)
    elif isinstance(record, records.Snapshot):
        RunKeys("a1b2c3d4").snapshot_blob(record.round, record.learner, record.payload.sha256)


def record_decoders() -> list[Decoder]:
    return [
        Decoder(
            f"record {kind.__name__}",
            tuple(seeds),
            _record(kind),
            (RecordError, FormatMismatch) if "format" in kind.__struct_fields__ else (RecordError,),
            _record_case,
            weight=6 if kind in (Manifest, records.RoundRecord) else 2,
        )
        for kind, seeds in _record_seeds().items()
    ]


# ---- payloads


def _payload_seeds() -> tuple[bytes, ...]:
    import ml_dtypes

    return tuple(
        b"".join(bytes(part) for part in Packed(tensors))
        for tensors in (
            {},
            {"w": np.arange(6, dtype="<f4").reshape(2, 3), "b": np.zeros(0, "<f4"), "ln.größe": np.ones((), "<f4")},
            {
                "w": np.ones((4, 2), ml_dtypes.float8_e4m3fn),
                "w.scale": np.ones((), "<f4"),
                "x": np.ones((2, 8), np.uint8),
                "n": np.arange(3, dtype="<i8"),
            },
            {f"layer.{n}.weight": np.full((n, 2), n, "<f2") for n in range(1, 30)},
        )
    )


def _payload_case(decoder: Decoder, rng: Random) -> bytes:
    whole = rng.choice(decoder.seeds)
    if rng.random() < 0.3:
        return damaged(whole, decoder.seeds, rng)
    length = int.from_bytes(whole[:8], "little")
    header, data = whole[8 : 8 + length], whole[8 + length :]
    if rng.random() < 0.5:
        new = damaged(header, decoder.seeds, rng)
    else:
        new = rewritten(json.loads(header), rng).encode("utf-8", "surrogatepass")
    return len(new).to_bytes(8, "little") + new + data


def _payload(data: bytes) -> object:
    header_size(data[:8], len(data))
    entries = parse_header(data, len(data))
    assert sum(entry.end - entry.begin for entry in entries) <= len(data)
    return {name: array.sum(dtype=np.float64) if array.dtype.kind in "fiu" else None for name, array in unpack(data).items()}


# ---- adverts

_PEER = PeerAdvert(
    peer="a" * 32,
    name="studio",
    boot="0badcafe",
    version="0.1.0",
    accelerators=("mps Apple M2 Max", "cpu"),
    memory_bytes=64 << 30,
    state="training",
    mailboxes=("b" * 32,),
    address="192.168.1.7",
    port=22044,
    sees=("c" * 8, "d" * 8),
    tag="e" * 16,
)
_RUN = RunAdvert(
    run="kx7k2m",
    peer="a" * 32,
    name="tiny-lm",
    method="diloco",
    task="charlm",
    mailbox="b" * 32,
    phase="running",
    round=12,
    rounds=40,
    learners=4,
    wanted=1,
    memory_bytes=1 << 30,
    share="smb://nas/swarm",
    signed=True,
    tag="f" * 16,
)


def _txt(data: bytes) -> dict[str, str | None]:
    """As a TXT record comes: strings, of which any may lack its value."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):  # no JSON any more: lines of what it was
        pairs = (part.partition(":") for part in data.decode("utf-8", "replace").split(","))
        return {key.strip(' "{'): value.strip(' "}') for key, _, value in pairs}
    return {key: value if value is None or isinstance(value, str) else str(value)[:4000] for key, value in found.items()}


def _harmless(record: object) -> None:
    for value in texts(record):
        assert value.isprintable(), value
        assert len(value) <= 255


def texts(value: object) -> list[str]:
    """All texts within, of records in records too."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, msgspec.Struct):
        return [text for name in value.__struct_fields__ for text in texts(getattr(value, name))]
    if isinstance(value, tuple | list):
        return [text for inner in value for text in texts(inner)]
    if isinstance(value, Mapping):
        return [text for pair in value.items() for text in texts(pair)]
    return []


def _peer_txt(data: bytes) -> object:
    found = peer_of(_txt(data), port=22044)
    _harmless(found)
    return found


def _run_txt(data: bytes) -> object:
    found = run_of(_txt(data))
    _harmless(found)
    return found


def _hello(data: bytes) -> object:
    found = hello_of(data)
    _harmless(found)
    return found


# ---- what a worker and a rank write

_EVENTS: tuple[events.WorkerEvent, ...] = (
    events.Building(what="charlm"),
    events.Created(run="a1b2c3d4", name="charlm-brave-otter"),
    events.ShareLost(reason="Host is down"),
    events.Trouble(message="the framework is slow"),
    events.Failed(error="Dropped", message="learner 'a' was dropped", exit_code=1),
)
_LEARN = Learn(
    mailbox="/mnt/share/swarm",
    run="a1b2c3d4",
    create=CreateRun(
        run="a1b2c3d4",
        name="charlm-brave-otter",
        task="charlm",
        options={"size": "tiny", "layers": 2, "dropout": 0.5, "bias": True},
        algorithm=FedAvg(native={"amsgrad": True}),
        rounds=3,
        seed=1,
    ),
    learner="studio",
    may_rename=True,
)
_ORDERS = (
    _LEARN,
    Export(mailbox="/mnt/share/swarm", run="a1b2c3d4", file="m.safetensors", round=3),
    Generate(mailbox="m", run="a1b2c3d4", prompt="In the beginning", max_tokens=5, temperature=0.5, seed=0),
)
_RANK_EVENTS: tuple[rankjob.RankEvent, ...] = (
    rankjob.Phase(what="meeting"),
    rankjob.Reported(iteration=10, train_loss=2.5, learning_rate=1e-5, tokens_per_s=400.0, trained_tokens=4000, epoch=0.5),
    rankjob.Replanned(step=5, shares=(3, 1)),
    rankjob.RankEnded(reason="done", step=10, checkpoint="/c", error="", again=False),
)


def _worker_events(folder: Path) -> Callable[[bytes], object]:
    from swarm.core.sentences import sentence
    from swarm.launcher import EventTail

    path = folder / "events.jsonl"

    def read(data: bytes) -> object:
        path.write_bytes(data.replace(b"\n", b" ") + b"\n")
        return [sentence(event) for event in EventTail(path).read()]

    return read


def _job_file(folder: Path, name: str, type: object) -> Callable[[bytes], object]:
    from swarm import launcher

    path = folder / name

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return launcher._read(path, type)

    return read


# ---- what a person writes

_SETTINGS = (
    b'# mine\nmailboxes = ["/mnt/share/swarm", "/mnt/other"]\nascii = true\n',
    b'peers = ["studio.local"]\ninterfaces = ["en0"]\nidle_only = true\nhours = "22-7,12-13"\nnice = 10\n',
    b'mailboxes = [\n  "/a",  # one\n]\n[table]\nx = 1\n',
    b'theme = "nord"\nnotify = ["notify-send"]\ninterval_s = 2.5\n[keymap]\npause = "p"  # mine\ndown = ["n", "down"]\n',
    b"",
)
_JOBS = (
    b'task = "lenet5"\nrounds = 30\nworkers = 2\nclients = 10\nper-round = 2\noptimizer = "adam"\nlr = 0.001\n',
    b'[fedavg]\ntask = "mlp"\npartition = "dirichlet:0.5"\n[options]\nsize = "s"\n[optimizer-options]\namsgrad = true\n',
    b'method = "fedavg"\nname = """a\nb"""\neval-every = 0x10\nlr = inf\n[options]\nwhen = 1979-05-27T07:32:00Z\n',
)
_SHARES = (b"smb://nas/swarm", b"nfs://nas.local:2049/srv/swarm", b"afp://[fe80::1]/Gr%C3%B6%C3%9Fe/a b", b"SMB://NAS/$swarm")
_KEY_FILES = (
    b'# ours\npassphrase = "7k3qd-x9m2v-40ht8-bznr5-6wjcy"\nstretched = "00"\nfits = "00"\n',
    b'passphrase = "correct horse"',
)
_YAML = (
    b"model: mlx-community/SmolLM2\ntrain: true\ndata: rows\nseed: 0\nnum_layers: 16\nbatch_size: 4\niters: 600\n"
    b"learning_rate: 1e-5\nlora_parameters:\n  keys: [self_attn.q_proj, self_attn.v_proj]\n  rank: 8\n  scale: 20.0\n"
    b"lr_schedule:\n  name: cosine_decay\n  warmup: 100\n  arguments: [1e-5, 1000, 1e-7]\n",
    b"optimizer: adamw\noptimizer_config:\n  adamw: {betas: [0.9, 0.98], eps: 1.0e-6}\nmask_prompt: !!bool true\n",
    b"a: &x [1, 2]\nb: *x\n<<: {c: 1}\n? [1, 2]\n: 3\n",
)
_TEXT_TOKENS = (
    b"\n[[[[[[[[", b"= = =", b"[" * 5000, b"a." * 3000, b"{a=" * 2000, b"0x" + b"f" * 6000, b"9" * 6000, b"9999-99-99", b'"""',
    b"\x1b[2J", "\u202e".encode(), b"\n- " * 500, b"&a [*a]", b"*a", b"!!python/object/apply:os.system ['true']", b"!!int 0x",
    b"!!timestamp 2001-99-99", b"!!binary x", b"? ", b"1:59:59:59:59", b"<<: [", b"%YAML 9.9\n---\n", b"\xef\xbb\xbf", b"\x00",
    b'"\\ud800"', b'"\\UFFFFFFFF"', b"[x]\n[x]\n", b"x=1\nx=1\n", b"nan", b"-inf", b"1e99999",
)  # fmt: skip


def _text_case(decoder: Decoder, rng: Random) -> bytes:
    """TOML and YAML: a line's value, or a piece of it, is something else."""
    seed = rng.choice(decoder.seeds)
    if rng.random() < 0.5:
        return damaged(seed, decoder.seeds, rng)
    lines = seed.split(b"\n")
    n = rng.randrange(len(lines))
    separator = b"=" if b"=" in lines[n] else b":"
    key, _, _ = lines[n].partition(separator)
    lines[n] = key + separator + b" " + rng.choice(_TEXT_TOKENS)
    if rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines) + 1), rng.choice(_TEXT_TOKENS))
    return b"\n".join(lines)


def _settings(folder: Path) -> Callable[[bytes], object]:
    from swarm.host import settings
    from tui.commands import Place
    from tui.keymap import keymap

    path = settings.settings_file()
    assert str(path).startswith(str(folder)), path

    def read(data: bytes) -> object:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        found, faults = settings.load()
        keymap(found.keymap, ((Place.HOME, Place.LISTS), (Place.RUN, Place.LISTS)))
        assert all(len(fault) < 2000 and "\n" not in fault for fault in faults), faults
        with contextlib.suppress(UsageError):
            settings.remember_mailbox("/mnt/new")
            settings.save("keymap", {"pause": "z"})
            again = settings.load()[0]
            assert (again.mailboxes[0], again.keymap) == ("/mnt/new", {"pause": "z"})
        return found

    return read


def _toml_job(folder: Path) -> Callable[[bytes], object]:
    from swarm.cli.jobfile import _JobFile
    from swarm.cli.start import start

    path = folder / "job.toml"
    command = start.commands["fedavg"]
    context = click.Context(command, info_name="fedavg")

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return _JobFile(str(path), context).values

    return read


def _yaml_config(folder: Path) -> Callable[[bytes], object]:
    from swarm.parallel.config import read_config

    path = folder / "lora.yaml"

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return read_config(path)

    return read


_ROWS = (
    b'{"messages":[{"role":"user","content":"Who are you?"},{"role":"assistant","content":"Me."}]}',
    '{"prompt":"Größe?","completion":"3 m ☃"}'.encode(),
    b'{"text":"In the beginning"}',
)


def _rows(folder: Path) -> Callable[[bytes], object]:
    from swarm.core.finetune import FineTune
    from swarm.tasks.lm import rows

    def tokens(row: dict[str, Any]) -> tuple[list[int], int]:
        """As MLX-LM's own classes do: they take what is there for what it should be."""
        if "messages" in row:
            return [len(m["content"]) for m in row["messages"]], row["messages"][0]["offset"] if len(row["messages"]) > 9 else 0
        if "prompt" in row:
            return [*map(ord, row["prompt"] + row["completion"])], len(row["prompt"])
        return [*map(ord, row["text"])], 0

    def read(data: bytes) -> object:
        (folder / "train.jsonl").write_bytes(_ROWS[0] + b"\n" + data + b"\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rows, "_processor", lambda data, tokenizer, spec, path: tokens)
            found = rows.read_rows(folder, "train", tokenizer=None, spec=FineTune())
        return found.lengths.sum(), found.digest

    return read


# ---- attached files, local checkpoints


def _attached(folder: Path) -> tuple[tuple[bytes, ...], Callable[[bytes], object]]:
    """The hashes of a file's chunks and the chunks, in one: what the mailbox holds of it, damaged."""
    import hashlib

    from swarm.files.cache import Cache
    from swarm.files.fetch import fetch_file
    from swarm.mailbox.memory import MemoryMailbox, MemoryStore

    text = b'{"text": "In the beginning"}\n' * 20
    size = 100
    chunks = [text[begin : begin + size] for begin in range(0, len(text), size)]
    hashes = b"".join(hashlib.sha256(chunk).digest() for chunk in chunks)
    ref = FileRef(
        name="train.jsonl",
        kind="data",
        sha256=hashlib.sha256(text).hexdigest(),
        size_bytes=len(text),
        chunk_bytes=size,
        hashes_sha256=hashlib.sha256(hashes).hexdigest(),
    )
    keys = RunKeys("a1b2c3d4")

    async def put(mailbox: MemoryMailbox, data: bytes) -> None:
        begin = len(hashes)
        await mailbox.put(keys.file_hashes(ref.sha256), [data[:begin]])
        for n in range(len(chunks)):
            if part := data[begin + n * size : begin + (n + 1) * size]:
                await mailbox.put(keys.file_chunk(ref.sha256, n), [part])

    def read(data: bytes) -> object:
        async def fetch() -> bytes:
            mailbox = MemoryMailbox(MemoryStore())
            await mailbox.open()
            await put(mailbox, data)
            # Whoever wrote the manifest may have promised the damaged hashes.
            honest = hashlib.sha256(data[: len(hashes)]).hexdigest()
            promised = msgspec.structs.replace(ref, hashes_sha256=honest)
            with Cache(folder / "cache") as cache:
                path = await fetch_file(mailbox, "a1b2c3d4", promised, cache)
                found = path.read_bytes()
                path.unlink()
            return found

        found = asyncio.run(fetch())
        assert found == text
        return found

    return (hashes + text,), read


def _plain_files(data: bytes) -> object:
    """What is judged by its content before it is attached, and after it is fetched."""
    from swarm.files.plain import HEAD_BYTES, check_content

    for name in ("a.npy", "a.safetensors", "a.json", "a.parquet", "a.txt"):
        with contextlib.suppress(FileError):
            check_content(name, data[:HEAD_BYTES], data[-8:], size_bytes=len(data))
    return None


def _npy_seeds() -> tuple[bytes, ...]:
    import io

    found = []
    for array in (np.zeros((2, 3), "<f4"), np.zeros(2, [("a", "<f4"), ("b", "O")]), np.zeros(1, object)):
        file = io.BytesIO()
        np.lib.format.write_array(file, array, allow_pickle=True)
        found.append(file.getvalue())
    return (*found, b"\x93NUMPY\1\0\x76\0" + b"{'descr': " + b"(" * 40 + b"'<f4'" + b")" * 40 + b"}")


def _checkpoint_head(folder: Path) -> tuple[tuple[bytes, ...], Callable[[bytes], object]]:
    import hashlib

    from swarm.runtime.sections import Head, Plain, read_head

    head = Head(
        format=1,
        run="a1b2c3d4",
        learner="studio",
        incarnation=2,
        schema_sha256="0" * 64,
        size_bytes=3384,
        sha256="1" * 64,
        sections=["adapter", "optimizer"],
        plain={"optimizer/step": Plain("<u8", (2,)), "adapter/mask": Plain("|b1", ())},
        values={"loop": {"round": 3, "loss": 2.5, "streams": [1, 2, 3]}, "task": None},
    )
    path = folder / "values.json"

    def read(data: bytes) -> object:
        line = data.replace(b"\n", b" ")
        path.write_bytes(line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n")
        return read_head(str(path))

    return (msgspec.json.encode(head),), read


def _checkpoint_arrays(folder: Path) -> tuple[tuple[bytes, ...], Callable[[bytes], object]]:
    import hashlib

    from swarm.runtime.sections import Head, flat, read_arrays

    sections = {
        "adapter": {"w": np.arange(6, dtype="<f4"), "mask": np.ones((2, 2), bool)},
        "optimizer": {"step": np.arange(3, dtype="<u8"), "z": np.ones(2, "<c8"), "odd": np.ones(3, np.uint8)},
    }
    arrays, plain = flat(sections)
    seed = b"".join(bytes(part) for part in Packed(arrays))
    path = folder / "arrays.safetensors"

    def read(data: bytes) -> object:
        path.write_bytes(data)
        head = Head(
            format=1,
            run="a1b2c3d4",
            learner="studio",
            incarnation=1,
            schema_sha256="0" * 64,
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            sections=sorted(sections),
            plain=plain,
            values={},
        )
        return [array.nbytes for _, _, array in read_arrays(str(path), head)]

    return (seed,), read


def _keys(data: bytes) -> object:
    """Names that a listing of a foreign folder gives."""
    from swarm.core import keys

    name = data.decode("utf-8", "surrogateescape")
    for parse in [value for attribute, value in vars(keys).items() if attribute.startswith("parse_")]:
        parse(name)
    keys.is_key(name)
    return keys.check_key(name)


_KEYS = tuple(
    key.encode()
    for place in (RunKeys("a1b2c3d4"),)
    for key in (
        place.manifest,
        place.round(12),
        place.snapshot(12, unit="client-0003", learner="studio", incarnation=2, claim=1),
        place.beat("studio", 1, 77),
        place.client_claim(3, "client-0003", 0),
        place.file_chunk("0" * 64, 3),
        place.refusal("0f8b6c0e", 3, "0" * 64),
        place.job_checkpoint(3, 200),
        place.probe(3, learner="a", incarnation=1, target="b", target_incarnation=2),
    )
)


def _rank_checkpoint(folder: Path) -> tuple[tuple[bytes, ...], Callable[[bytes], object]]:
    """As another machine's rank wrote it. Raises ImportError without MLX."""
    import mlx.core as mx

    from swarm.parallel.checkpoint import Position, load

    path = folder / "rank.safetensors"
    position = json_of(Position(step=20, trained_tokens=900, job="j" * 64, data="d" * 64, base="b" * 64, generation=1, size=2))
    arrays = {"trainable.w": mx.ones((4, 3)), "optimizer.w.m": mx.zeros((2,), mx.bfloat16), "optimizer.n": mx.array([1, 2])}
    mx.save_safetensors(str(path), arrays, metadata={"swarm": position.decode()})

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return load(path)

    return (path.read_bytes(),), read


# ---- the network, and the passphrase


def _packet(data: bytes) -> object:
    """A TXT record as it stands in a packet."""
    from zeroconf import ServiceInfo

    from swarm.core.adverts import PEER_SERVICE, RUN_SERVICE

    for service, read in ((PEER_SERVICE, peer_of), (RUN_SERVICE, run_of)):
        txt = ServiceInfo(service, f"x.{service}", properties=data).decoded_properties
        with contextlib.suppress(AdvertError):
            _harmless(read(txt))
    return None


def _strings(txt: Mapping[str, str]) -> bytes:
    every = (f"{key}={value}".encode() for key, value in txt.items())
    return b"".join(bytes([len(each)]) + each for each in every)


def _share(data: bytes) -> object:
    """A URL that a manifest or an advert names: what is made of it for people and for mount(8)."""
    from swarm.core.mounting import Desktop, parse_share, way

    share = parse_share(data.decode("utf-8", "replace"))
    assert parse_share(share.url) == share
    for desktop in (
        Desktop(system="darwin"),
        Desktop(system="linux", gio=True, user="ann"),
        Desktop(system="linux", user="-x"),
    ):
        how = way(share, desktop)
        assert all(word.isprintable() for word in how.words), how
        assert how.argv is None or not any(word.startswith("-") for word in how.argv[2:]), how
    return share


def _hours(data: bytes) -> object:
    from swarm.core.owner import parse_hours

    return parse_hours(data.decode("utf-8", "replace"))


def _key_file(folder: Path) -> Callable[[bytes], object]:
    from swarm.host import keyfile

    path = keyfile.key_file()
    assert path is not None
    assert str(path).startswith(str(folder)), path

    def read(data: bytes) -> object:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o600)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(keyfile, "stretched", lambda passphrase: b"0" * 32)  # which takes long on purpose
            return keyfile.load_key()

    return read


def _signed() -> tuple[tuple[bytes, ...], Callable[[bytes], object]]:
    """What a signed swarm finds in a mailbox."""
    from swarm.api.joining import passphrase_of
    from swarm.core.trust import SwarmKey
    from swarm.mailbox.memory import MemoryMailbox, MemoryStore
    from swarm.mailbox.signed import SignedMailbox

    key, place = SwarmKey(b"k" * 32), RunKeys("a1b2c3d4").manifest

    async def seeds() -> tuple[bytes, ...]:
        found = []
        for record in (records.Control(action="stop", by="studio"), records.Claim(round=1, learner="a", incarnation=1)):
            inner = MemoryMailbox(MemoryStore())
            await SignedMailbox(inner, key).create(place, encode(record, nonce="0" * 32))
            found.append(await inner.read(place))
        return tuple(each for each in found if each is not None)

    genuine = asyncio.run(seeds())
    bodies = {each.split(b"\n")[0] for each in genuine}

    def read(data: bytes) -> object:
        async def look() -> bytes | None:
            inner = MemoryMailbox(MemoryStore())
            await inner.create(place, data)
            return await SignedMailbox(inner, key).read(place)

        passphrase_of("a1b2c3d4", data, key)
        found = asyncio.run(look())
        assert found is not None
        assert found.split(b"\n")[0] in bodies
        return found

    return genuine, read


def decoders(folder: Path) -> list[Decoder]:
    """`folder`: an empty one, with SWARM_CONFIG in it."""
    from swarm.runtime.sections import Refused

    signed, read_signed = _signed()
    hashes, fetch = _attached(folder)
    heads, read_head = _checkpoint_head(folder)
    arrays, read_arrays = _checkpoint_arrays(folder)
    found = [
        *record_decoders(),
        Decoder("payload", _payload_seeds(), _payload, (HeaderError,), _payload_case, weight=10),
        of_json("peer advert", (json_of(peer_txt(_PEER)),), _peer_txt, AdvertError),
        of_json("run advert", (json_of(run_txt(_RUN)),), _run_txt, AdvertError),
        of_json("hello", (json_of(Hello(peer=_PEER, runs=(_RUN,), clock_s=1.5e9)),), _hello, AdvertError),
        of_json("worker's event", tuple(map(json_of, _EVENTS)), _worker_events(folder)),
        of_json("order", tuple(map(json_of, _ORDERS)), _job_file(folder, "order.json", Order)),
        of_json("process", (json_of(Process(pid=1, process="1.5", boot="b")),), _job_file(folder, "process.json", Process)),
        of_json("rank's event", tuple(map(json_of, _RANK_EVENTS)), rankjob.decode_event, UsageError),
        of_json("rank's command", (rankjob.encode_command(rankjob.Halt()),), rankjob.decode_command, UsageError),
        of_json("rank's plan", (json_of(_rank_plan()),), rankjob.decode_plan, UsageError),
        Decoder("settings", _SETTINGS, _settings(folder), (), _text_case),
        Decoder("job file", _JOBS, _toml_job(folder), (UsageError,), _text_case),
        of_json("row", _ROWS, _rows(folder), UsageError),
        Decoder("attached file", hashes, fetch, (PayloadError, FileError)),
        Decoder("plain file", (*_npy_seeds(), *_payload_seeds(), b'{"a": 1}', b"PAR1xxxxPAR1"), _plain_files, ()),
        of_json("checkpoint's values", heads, read_head, Refused, OSError),
        Decoder("checkpoint's arrays", arrays, read_arrays, (Refused, HeaderError, OSError)),
        Decoder("key", _KEYS, _keys, (InvalidKey,)),
        Decoder("TXT packet", (_strings(peer_txt(_PEER)), _strings(run_txt(_RUN))), _packet, ()),
        Decoder("share", _SHARES, _share, (UsageError,)),
        Decoder("hours", (b"22-7", b"22:30-7,12-13"), _hours, (ValueError,)),
        Decoder("key file", _KEY_FILES, _key_file(folder), (PassphraseError,), _text_case),
        Decoder("signed record", signed, read_signed, (MailboxCorrupt, RecordError), _record_case),
    ]
    with contextlib.suppress(ImportError):
        files, read_checkpoint = _rank_checkpoint(folder)
        found.append(Decoder("rank's checkpoint", files, read_checkpoint, (StateMismatch,), _payload_case))
    with contextlib.suppress(ImportError):
        import yaml  # noqa: F401

        found.append(Decoder("MLX-LM's configuration", _YAML, _yaml_config(folder), (UsageError,), _text_case))
    return found


def _rank_plan() -> rankjob.RankPlan:
    from swarm.core.finetune import FineTune

    return rankjob.RankPlan(
        rank=0,
        size=2,
        spec=FineTune(optimizer_config={"adam": {"betas": [0.9, 0.99]}}),
        model="/m",
        data="/d",
        adapter_path="/a",
        checkpoints="/c",
        names={"model": "m"},
        shares=(3, 1),
    )
