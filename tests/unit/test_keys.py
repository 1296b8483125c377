"""Keys: builders give keys, parsers invert builders, and nothing else gets through."""

from collections.abc import Callable

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


PARSERS: list[Callable[[str], object]] = [
    keys.parse_beat,
    keys.parse_learner,
    keys.parse_snapshot,
    keys.parse_round,
    keys.parse_claim,
    keys.parse_control,
    keys.parse_eval,
    keys.parse_manifest,
    keys.parse_file_chunk,
    keys.parse_member,
    keys.parse_probe,
    keys.parse_lead_claim,
    keys.parse_mark,
]


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
    }
    assert len(parsed) == 21  # no two builders give one key
    for key, (parse, expected) in parsed.items():
        assert check_key(key) == key
        assert parse(key) == expected
        assert [other(key) for other in PARSERS if other is not parse] == [None] * (len(PARSERS) - 1)
    for prefix in (RUN.shard(n), RUN.snapshots(round), RUN.claims(round), RUN.beats_of(learner), RUN.beats, RUN.learners):
        assert check_prefix(prefix) == prefix
    assert RUN.round(round).startswith(RUN.shard(round // keys.SHARD))
    assert RUN.beat(learner, k, n).startswith(RUN.beats_of(learner))
    assert RUN.claim(round, n).startswith(RUN.claims(round))


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


@given(st.text() | st.lists(st.sampled_from(FRAGMENTS), max_size=7).map("/".join))
@example("runs/abcd1234/beats/mac/0001-" + "9" * 5000 + ".json")
@example("runs/abcd1234/beats/mac/٠٠٠١-٠٠٠٠٠٠٠٠٠١.json")
@example("runs/abcd1234/rounds/00000001/0000000001/record.json")  # in another round's shard
@example("runs/abcd1234/control/0000001/record.json")
@example("runs/abcd1234/learners/con/0001/record.json")
@example("runs/../learners/mac/0001/record.json")
@example("runs/com1/manifest/record.json")
def test_parsers_never_raise_and_take_only_what_a_builder_writes(key: str) -> None:
    found = [parse(key) for parse in PARSERS]
    if any(value is not None for value in found):
        run = RunKeys(key.split("/")[1])
        beat, learner, snapshot, round, claim, control, evaluation, manifest, chunk = found
        rebuilt = [
            beat and run.beat(*beat),
            learner and run.learner(*learner),
            snapshot
            and run.snapshot(snapshot[0], unit=snapshot[1], learner=snapshot[2], incarnation=snapshot[3], claim=snapshot[4]),
            None if round is None else run.round(round),
            None if claim is None else run.claim(int(key.split("/")[3]), claim),
            None if control is None else run.control_record(control),
            None if evaluation is None else run.eval(evaluation),
            manifest and run.manifest,
            chunk and run.file_chunk(*chunk),
        ]
        assert [k for k in rebuilt if k is not None] == [key]


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
    ],
)
def test_foreign_names_are_nobodys(key: str) -> None:
    assert [parse(key) for parse in PARSERS] == [None] * len(PARSERS)
