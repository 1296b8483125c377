"""Keys: builders give keys, parsers invert builders, and nothing else gets through."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.core import keys
from swarm.core.errors import InvalidKey, SwarmError
from swarm.core.ids import WINDOWS_DEVICES, is_learner_id
from swarm.core.keys import RunKeys, check_key, check_prefix, is_key, is_sha256

RUN = RunKeys("abcd1234")

ids = st.from_regex(r"[a-z0-9-]{1,64}", fullmatch=True).filter(lambda text: text not in WINDOWS_DEVICES)
hashes = st.text("0123456789abcdef", min_size=64, max_size=64)


def numbers(digits: int) -> st.SearchStrategy[int]:
    """Numbers that fit, their edges, and some that need more digits than are padded to."""
    edges = [0, 1, 10**digits - 1, 10**digits, 10**18 - 1]
    return st.sampled_from(edges) | st.integers(0, 10**18 - 1) | st.integers(0, 10**digits - 1)


def numbered(key: str, place: int) -> int:
    return int(key.split("/")[place])


def incarnation(found: tuple[int, str, int]) -> dict[str, Any]:
    return {"learner": found[1], "incarnation": found[2]}


REBUILT: dict[Callable[[str], Any], Callable[[RunKeys, str, Any], str]] = {
    keys.parse_beat: lambda run, _, found: run.beat(*found),
    keys.parse_learner: lambda run, _, found: run.learner(*found),
    keys.parse_snapshot: lambda run, _, found: run.snapshot(
        found[0], unit=found[1], learner=found[2], incarnation=found[3], claim=found[4]
    ),
    keys.parse_round: lambda run, _, found: run.round(found),
    keys.parse_claim: lambda run, key, found: run.claim(numbered(key, 3), found),
    keys.parse_client_claim: lambda run, _, found: run.client_claim(*found),
    keys.parse_control: lambda run, _, found: run.control_record(found),
    keys.parse_eval: lambda run, _, found: run.eval(found),
    keys.parse_checkpoint: lambda run, _, found: run.checkpoint(found),
    keys.parse_manifest: lambda run, _, found: RunKeys(found).manifest,
    keys.parse_refusal: lambda run, _, found: run.refusal(*found),
    keys.parse_file_chunk: lambda run, _, found: run.file_chunk(*found),
    keys.parse_work_claim: lambda run, key, found: keys.work_claim("/".join(key.split("/")[:4]) + "/", *found),
    keys.parse_arrival: lambda run, key, found: run.arrival(key.split("/")[3], found[0], **incarnation(found)),
    keys.parse_member: lambda run, _, found: run.member(found[0], **incarnation(found)),
    keys.parse_probe: lambda run, _, found: run.probe(
        found[0], learner=found[1], incarnation=found[2], target=found[3], target_incarnation=found[4]
    ),
    keys.parse_lead_claim: lambda run, _, found: run.lead_claim(*found),
    keys.parse_mark: lambda run, key, found: run.mark(
        found[0], "ready" if key.split("/")[4] == "ready" else "started", **incarnation(found)
    ),
    keys.parse_job_log: lambda run, _, found: run.job_log(*found),
    keys.parse_job_checkpoint: lambda run, _, found: run.job_checkpoint(*found),
    keys.parse_job_file: lambda run, key, found: run.job_file(*found, key[-76:-12]),
}
"""What each parser inverts, given the run and the key, too: a parser leaves out what its caller knows."""
PARSERS = list(REBUILT)


def test_every_parser_is_tried() -> None:
    assert {parse.__name__ for parse in PARSERS} == {name for name in vars(keys) if name.startswith("parse_")}


@given(round=numbers(10), n=numbers(3), k=numbers(4), g=numbers(6), learner=ids, unit=ids, sha256=hashes)
def test_builders_give_keys_that_their_parsers_invert(
    round: int, n: int, k: int, g: int, learner: str, unit: str, sha256: str
) -> None:
    parsed: dict[str, tuple[Callable[[str], object], object]] = {
        RUN.manifest: (keys.parse_manifest, "abcd1234"),
        RUN.round(round): (keys.parse_round, round),
        RUN.claim(round, n): (keys.parse_claim, n),
        RUN.control_record(n): (keys.parse_control, n),
        RUN.eval(round): (keys.parse_eval, round),
        RUN.learner(learner, k): (keys.parse_learner, (learner, k)),
        RUN.beat(learner, k, n): (keys.parse_beat, (learner, k, n)),
        RUN.snapshot(round, unit=unit, learner=learner, incarnation=k, claim=n): (
            keys.parse_snapshot,
            (round, unit, learner, k, n),
        ),
        RUN.eval_claim(round): (keys.parse_claim, None),
        RUN.init_blob(n, sha256): (keys.parse_round, None),
        RUN.round_blob(round, sha256): (keys.parse_round, None),
        RUN.snapshot_blob(round, learner, sha256): (keys.parse_snapshot, None),
        RUN.refusal(learner, g, sha256): (keys.parse_refusal, (learner, g, sha256)),
        RUN.file_chunk(sha256, n): (keys.parse_file_chunk, (sha256, n)),
        RUN.file_hashes(sha256): (keys.parse_file_chunk, None),
        RUN.member(g, learner=learner, incarnation=k): (keys.parse_member, (g, learner, k)),
        RUN.probe(g, learner=learner, incarnation=k, target=unit, target_incarnation=n): (
            keys.parse_probe,
            (g, learner, k, unit, n),
        ),
        RUN.lead_claim(g, n): (keys.parse_lead_claim, (g, n)),
        RUN.mark(g, "ready", learner=learner, incarnation=k): (keys.parse_mark, (g, learner, k)),
        RUN.mark(g, "started", learner=learner, incarnation=k): (keys.parse_mark, (g, learner, k)),
        RUN.rank_plan(g): (keys.parse_mark, None),
        RUN.generation_end(g): (keys.parse_mark, None),
        RUN.job_log(g, round): (keys.parse_job_log, (g, round)),
        RUN.job_checkpoint(g, round): (keys.parse_job_checkpoint, (g, round)),
        RUN.job_file(g, round, sha256): (keys.parse_job_file, (g, round)),
        RUN.checkpoint(round): (keys.parse_checkpoint, round),
        RUN.client_claim(round, unit, n): (keys.parse_client_claim, (round, unit, n)),
        keys.work_claim(RUN.queue(unit), round, n): (keys.parse_work_claim, (round, n)),
        keys.work_claim(RUN.ranks(unit), round, n): (keys.parse_work_claim, (round, n)),
        keys.work_done(RUN.queue(unit), round): (keys.parse_work_claim, None),
        RUN.arrival(unit, round, learner=learner, incarnation=k): (keys.parse_arrival, (round, learner, k)),
        RUN.barrier_open(unit, round): (keys.parse_arrival, None),
    }
    assert len(parsed) == 32  # no two builders give one key
    for key, (parse, expected) in parsed.items():
        assert check_key(key) == key
        assert parse(key) == expected
        assert [other(key) for other in PARSERS if other is not parse] == [None] * (len(PARSERS) - 1)
    for prefix in (RUN.shard(n), RUN.snapshots(round), RUN.claims(round), RUN.beats_of(learner), RUN.beats, RUN.learners):
        assert check_prefix(prefix) == prefix
    assert RUN.round(round).startswith(RUN.shard(round // keys.SHARD))
    assert RUN.beat(learner, k, n).startswith(RUN.beats_of(learner))
    assert RUN.claim(round, n).startswith(RUN.claims(round))
    assert RUN.job_log(g, round).startswith(RUN.job_log_shard(g, round // keys.SHARD))
    assert RUN.job_checkpoint(g, round).startswith(RUN.job_checkpoints(g))
    assert RUN.job_checkpoint(g, round).startswith(RUN.checkpoints)
    assert RUN.job_file(g, round, sha256).startswith(RUN.job_files_of(g, round))
    assert RUN.job_files_of(g, round).startswith(RUN.job_files(g))


@pytest.mark.parametrize(
    ("build", "digits"),
    [
        (RUN.round, 10),
        (RUN.eval, 10),
        (RUN.snapshots, 10),
        (RUN.claims, 10),
        (RUN.control_record, 6),
        (RUN.shard, 8),
        (lambda n: RUN.claim(7, n), 3),
        (lambda n: RUN.learner("mac", n), 4),
        (lambda n: RUN.beat("mac", 1, n), 10),
        (lambda n: RUN.beat("mac", n, 1), 4),
        (lambda n: RUN.file_chunk("0" * 64, n), 6),
        (RUN.generation, 6),
        (lambda n: RUN.lead_claim(1, n), 3),
        (lambda n: RUN.job_log(1, n), 10),
        (lambda n: RUN.job_log_shard(1, n), 8),
        (RUN.job_checkpoints, 6),
        (lambda n: RUN.job_checkpoint(1, n), 10),
        (RUN.job_files, 6),
        (lambda n: RUN.job_files_of(1, n), 10),
    ],
)
def test_byte_order_is_numeric_order(build: Callable[[int], str], digits: int) -> None:
    @given(st.integers(0, 10**digits - 1), st.integers(0, 10**digits - 1))
    @example(9, 10)
    @example(99, 100)
    def check(a: int, b: int) -> None:
        assert (build(a).encode() < build(b).encode()) == (a < b)

    check()


@given(st.integers(max_value=-1))
def test_a_negative_number_has_no_key(n: int) -> None:
    for build in (RUN.round, RUN.shard, RUN.snapshots, RUN.claims, RUN.eval, RUN.control_record, RUN.generation):
        with pytest.raises(InvalidKey, match=">= 0"):
            build(n)
    for build in (RUN.job_checkpoints, RUN.job_files, lambda n: RUN.job_log(1, n), lambda n: RUN.job_checkpoint(1, n)):
        with pytest.raises(InvalidKey, match=">= 0"):
            build(n)
    with pytest.raises(InvalidKey):
        RUN.job_file(1, n, "0" * 64)
    with pytest.raises(InvalidKey):
        RUN.snapshot(1, unit="mac", learner="mac", incarnation=n)
    with pytest.raises(InvalidKey):
        RUN.beat("mac", 1, n)
    with pytest.raises(InvalidKey):
        RUN.file_chunk("0" * 64, n)


hostile = st.sampled_from(["", "..", "a/b", "../../x", "a/../b", "Mac", "a.b", "con", "a\n", "٣", "x" * 65, "a\0"])


@given(hostile | st.text().filter(lambda text: not is_learner_id(text)))
def test_no_id_of_a_peer_names_another_place(text: str) -> None:
    for build in (
        lambda: RUN.learner(text, 1),
        lambda: RUN.beats_of(text),
        lambda: RUN.beat(text, 1, 1),
        lambda: RUN.snapshot(1, unit=text, learner="mac", incarnation=1),
        lambda: RUN.snapshot(1, unit="mac", learner=text, incarnation=1),
        lambda: RUN.snapshot_blob(1, text, "0" * 64),
        lambda: RUN.member(0, learner=text, incarnation=1),
        lambda: RUN.mark(0, "ready", learner=text, incarnation=1),
        lambda: RUN.probe(0, learner=text, incarnation=1, target="mac", target_incarnation=1),
        lambda: RUN.probe(0, learner="mac", incarnation=1, target=text, target_incarnation=1),
    ):
        with pytest.raises(InvalidKey):
            build()


@given(hostile | st.text().filter(lambda text: not is_sha256(text)) | st.just("A" * 64) | st.just("0" * 64 + "\n"))
def test_no_hash_of_a_peer_names_another_place(text: str) -> None:
    for build in (
        lambda: RUN.init_blob(0, text),
        lambda: RUN.round_blob(1, text),
        lambda: RUN.snapshot_blob(1, "mac", text),
        lambda: RUN.file_chunk(text, 0),
        lambda: RUN.file_hashes(text),
        lambda: RUN.job_file(1, 1, text),
    ):
        with pytest.raises(InvalidKey):
            build()


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/a",
        "a/",
        "a//b",
        "..",
        "../a",
        "a/../b",
        "a/./b",
        ".hidden",
        "a/.b",
        "a.",
        "a./b",
        "A",
        "a/B",
        "a b",
        "a\\b",
        "a:b",
        "a\n",
        "a\0",
        "é",
        "٣",
        "x" * 121,
        "a/" + "x" * 121,
        "con",
        "a/nul",
        "aux.json",
        "com1.tar.gz",
        "lpt9.x/a",
        "c:/a",
        "~/a",
        "%2e%2e/a",
    ],
)
def test_is_no_key(key: str) -> None:
    assert not is_key(key)
    with pytest.raises(InvalidKey, match="is no key"):
        check_key(key)
    with pytest.raises(InvalidKey):
        check_prefix(f"{key}/")


@pytest.mark.parametrize(
    "key", ["a", "a/b", "a.b", "a..b", "x" * 120, "_", "-", "con-1", "xcon", "a.con", "com10", keys.MARKER]
)
def test_is_a_key(key: str) -> None:
    assert check_key(key) == key
    assert check_prefix(f"{key}/") == f"{key}/"


def test_a_prefix_is_empty_or_ends_with_a_slash() -> None:
    assert check_prefix("") == ""
    for prefix in ("a", "/", "//", "a//", "../"):
        with pytest.raises(InvalidKey):
            check_prefix(prefix)


@given(st.text() | st.text("abcn.019_-/A \\:\n"))
def test_a_key_stays_below_the_mailbox(key: str) -> None:
    if is_key(key):
        parts = key.split("/")
        assert all(part and part[0] != "." and part[-1] != "." and len(part.encode()) <= 120 for part in parts)
        assert key == key.lower()
        assert key.isascii()
    else:
        with pytest.raises(InvalidKey) as caught:
            check_key(key)
        assert isinstance(caught.value, SwarmError)
        assert isinstance(caught.value, ValueError)


FRAGMENTS = [
    *("runs", "abcd1234", "x", "..", "beats", "learners", "snapshots", "rounds", "claims", "control", "evals", "manifest"),
    *("mac", "con", "Mac", "0001", "٠٠٠١", "00001", "1", "-1", "0000000001", "00000000", "00000001", "0" * 30, "9" * 5000),
    *("ranks", "000001", "members", "probes", "ready", "started", "log", "plan", "end", "checkpoints", "queues", "barriers"),
    *("done", "arrived", "clients", "mac.1.json", "0000000001.json", "0000000100.json", "0000000100", "9" * 18, "9" * 19),
    *(
        "0001-0000000001.json",
        "0001-1.json",
        "files",
        "a" * 64,
        "000001",
        "mac.1.0.json",
        "mac.01.0.json",
        "mac.1.json",
        "record.json",
        "Record.json",
        "",
    ),
]


SHA = "a" * 64
WRITTEN = [
    *(RUN.manifest, RUN.round(101), RUN.claim(7, 2), RUN.client_claim(7, "client-3", 2), RUN.control_record(1), RUN.eval(101)),
    *(RUN.learner("mac", 1), RUN.beat("mac", 1, 1), RUN.snapshot(1, unit="mac", learner="mac", incarnation=1)),
    *(
        RUN.checkpoint(1),
        RUN.file_chunk(SHA, 1),
        keys.work_claim(RUN.queue("mac"), 1, 1),
        keys.work_claim(RUN.ranks("mac"), 1, 1),
    ),
    *(RUN.arrival("mac", 1, learner="mac", incarnation=1), RUN.member(1, learner="mac", incarnation=1), RUN.lead_claim(1, 1)),
    RUN.probe(1, learner="mac", incarnation=1, target="mac", target_incarnation=1),
    *(RUN.mark(1, "ready", learner="mac", incarnation=1), RUN.mark(1, "started", learner="mac", incarnation=1)),
    *(RUN.job_log(1, 101), RUN.job_checkpoint(1, 1), RUN.job_file(1, 1, SHA), RUN.refusal("mac", 1, SHA)),
]


@st.composite
def nearly(draw: st.DrawFn) -> str:
    """A key that is written, with one component swapped."""
    parts = draw(st.sampled_from(WRITTEN)).split("/")
    parts[draw(st.integers(0, len(parts) - 1))] = draw(st.sampled_from(FRAGMENTS))
    return "/".join(parts)


def test_each_parser_takes_a_key_that_is_written() -> None:
    assert {parse.__name__ for key in WRITTEN for parse in PARSERS if parse(key) is not None} == {p.__name__ for p in PARSERS}


@given(st.text() | st.lists(st.sampled_from(FRAGMENTS), max_size=7).map("/".join) | st.sampled_from(WRITTEN) | nearly())
@example("runs/abcd1234/beats/mac/0001-" + "9" * 5000 + ".json")
@example("runs/abcd1234/beats/mac/٠٠٠١-٠٠٠٠٠٠٠٠٠١.json")
@example("runs/abcd1234/rounds/00000001/0000000001/record.json")  # in another round's shard
@example("runs/abcd1234/control/0000001/record.json")
@example("runs/abcd1234/learners/con/0001/record.json")
@example("runs/../learners/mac/0001/record.json")
@example("runs/com1/manifest/record.json")
def test_parsers_never_raise_and_take_only_what_a_builder_writes(key: str) -> None:
    found = [(parse, parse(key)) for parse in PARSERS]
    for parse, value in found:
        if value is not None:
            assert REBUILT[parse](RunKeys(key.split("/")[1]), key, value) == key
    assert sum(value is not None for _, value in found) <= 1


@pytest.mark.parametrize(
    "key",
    [
        "runs/abcd1234/beats/mac/1-0000000001.json",
        "runs/abcd1234/beats/mac/00001-0000000001.json",
        "runs/abcd1234/beats/con/0001-0000000001.json",
        "runs/abcd1234/beats/mac/0001-0000000001.json.tmp",
        "runs/abcd1234/rounds/00000001/0000000001/record.json",
        "runs/abcd1234/rounds/00000000/000000001/record.json",
        "runs/abcd1234/snapshots/0000000001/mac/mac.01.0.json",
        "runs/abcd1234/snapshots/0000000001/mac/mac.1.json",
        "runs/abcd1234/snapshots/0000000001/aux/mac.1.0.json",
        "runs/abcd1234/claims/0000000001/eval/record.json",
        "runs/abcd1234/control/-00001/record.json",
        "runs/abcd1234/learners/mac/٠٠٠١/record.json",
        "runs/abcd1234/files/" + "a" * 64 + "/hashes",
        "runs/abcd1234/files/" + "a" * 64 + "/0000001",
        "runs/abcd1234/files/" + "A" * 64 + "/000001",
        "runs/abcd1234/files/" + "a" * 63 + "/000001",
        "runs/abc/manifest/record.json",
        "runs/com1/manifest/record.json",
        "x/runs/abcd1234/manifest/record.json",
        "runs/abcd1234/ranks/000001/log/00000001/0000000001.json",
        "runs/abcd1234/ranks/000001/log/00000000/000000001.json",
        "runs/abcd1234/ranks/00001/log/00000000/0000000001.json",
        "runs/abcd1234/ranks/000001/log/00000000/0000000001/record.json",
        "runs/abcd1234/checkpoints/000001/000000001/record.json",
        "runs/abcd1234/checkpoints/00001/0000000001/record.json",
        "runs/abcd1234/checkpoints/000001/0000000001/record.json.tmp",
        "runs/abcd1234/blobs/checkpoints/000001/0000000001/" + "a" * 63 + ".safetensors",
    ],
)
def test_foreign_names_are_nobodys(key: str) -> None:
    assert [parse(key) for parse in PARSERS] == [None] * len(PARSERS)


@given(st.text(st.sampled_from("aAbBzZ09._-/ſKİß"), max_size=12))
def test_no_two_keys_are_one_on_a_share_that_folds_case(text: str) -> None:
    """Were one key another's double there, both would have to be keys: only one of all that fold to the same text is."""
    assert not is_key(text) or text == text.lower() == text.casefold()
    assert not is_key(text) or text.isascii()  # nor do forms of Unicode matter, which macOS changes
