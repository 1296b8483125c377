"""What the swarm's passphrase signs, and what it does not."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.trust import TAG_DIGITS, Forged, SwarmKey, is_signed_key, kind_of, stretched

KEY = SwarmKey(bytes(range(32)))
OTHER = SwarmKey(bytes(range(1, 33)))
texts = st.text(max_size=8)


def test_a_signature_is_the_hmac_that_the_format_describes() -> None:
    key, body = "runs/k3v9x2m7/claims/0000000001/000/record.json", b'{"a":1}'
    derived = hmac.new(bytes(range(32)), b"records", hashlib.sha256).digest()
    parts = [b"k3v9x2m7", key.encode(), body]
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    assert KEY.signature("k3v9x2m7", key, body) == hmac.new(derived, framed, hashlib.sha256).hexdigest()


@given(st.lists(st.tuples(texts, texts, st.binary(max_size=8)), min_size=2, max_size=2, unique=True))
def test_no_two_places_or_bodies_share_a_signature(signed: list[tuple[str, str, bytes]]) -> None:
    first, second = (KEY.signature(run, key, body) for run, key, body in signed)
    assert first != second


@given(texts, texts, st.binary(max_size=8), st.one_of(st.none(), st.text(max_size=70)))
def test_only_the_signature_itself_verifies(run: str, key: str, body: bytes, guess: str | None) -> None:
    mine = KEY.signature(run, key, body)
    assert KEY.verifies(mine, run=run, key=key, body=body)
    assert not OTHER.verifies(mine, run=run, key=key, body=body)
    assert KEY.verifies(guess, run=run, key=key, body=body) == (guess == mine)
    assert not KEY.verifies(mine.upper(), run=run, key=key, body=body) or mine.isdecimal()


@given(st.lists(texts, max_size=4), st.lists(texts, max_size=4))
def test_a_tag_fits_what_it_was_made_for(told: list[str], other: list[str]) -> None:
    tag = KEY.tag(*told)
    assert len(tag) == TAG_DIGITS
    assert KEY.tagged(tag, *told)
    assert not OTHER.tagged(tag, *told)
    assert KEY.tagged(tag, *other) == (told == other)


def test_one_use_of_the_key_is_not_taken_for_another() -> None:
    assert not KEY.tagged(KEY.signature("run", "key", b"body")[:TAG_DIGITS], "run", "key", "body")


def test_a_passphrase_is_stretched_to_the_same_key_everywhere() -> None:
    master = stretched("correct horse battery staple")
    assert master.hex() == "fc36f12a38e890de769235e34fde5daab8a18d0a74a1309722a3ee04fd70cd86"
    assert stretched("correct horse battery stapler") != master


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_has_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        SwarmKey(bytes(size))


def test_the_fingerprint_tells_keys_apart() -> None:
    assert KEY.fingerprint == SwarmKey(bytes(range(32))).fingerprint != OTHER.fingerprint
    assert len(KEY.fingerprint) == 8


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("runs/r/manifest/record.json", "manifest"),
        ("runs/r/rounds/00000000/0000000001/record.json", "round"),
        ("runs/r/snapshots/0000000001/a/a.1.0.json", "snapshot"),
        ("runs/r/clients/0000000001/a/000/record.json", "claim"),
        ("runs/r/beats/a/0001-0000000001.json", "beat"),
        ("runs/r/ranks/000000/plan/record.json", "generation"),
        ("runs/r/queues/q/set/record.json", "queues"),
    ],
)
def test_every_record_of_a_run_is_signed_and_has_a_kind(key: str, kind: str) -> None:
    assert is_signed_key(key)
    assert kind_of(key) == kind


@pytest.mark.parametrize(
    "key", ["mailbox/record.json", "runs/r/blobs/init/000/ab.safetensors", "runs/r/files/ab/hashes", "runs/x.json"]
)
def test_the_marker_and_payloads_are_not(key: str) -> None:
    assert not is_signed_key(key)


def test_forged_records_are_counted_by_kind() -> None:
    found = Forged()
    for key in (
        "runs/r/claims/0000000001/000/record.json",
        "runs/r/claims/0000000001/001/record.json",
        "runs/r/control/000001/record.json",
    ):
        found = found.and_one(key)
    assert (found.count, found.kinds, found.newest) == (3, {"claim": 2, "control": 1}, "runs/r/control/000001/record.json")
