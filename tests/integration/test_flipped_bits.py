"""Any one bit of what lies in the mailbox, flipped: it is found out, or changes nothing that anybody goes by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from swarm.core.errors import MailboxCorrupt, PayloadError, SchemaMismatch
from swarm.core.lines import encode
from swarm.core.manifest import PayloadRef
from swarm.core.records import Claim, Control, RoundRecord, Snapshot
from swarm.core.specs import DiLoCo
from swarm.exchange import Exchange
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from tests.integration.simulation import model, new_run, virtually

SPEC = DiLoCo(sync_every=4)


def flipped(data: bytes, bits: int = 1) -> Iterator[bytes]:
    """`data` with one bit flipped: of each byte so many, in turn."""
    for n in range(len(data)):
        for bit in range(n % 8, n % 8 + bits):
            yield data[:n] + bytes([data[n] ^ (1 << bit % 8)]) + data[n + 1 :]


def test_a_round_record_with_a_flipped_bit_is_corrupt_or_says_the_same() -> None:
    async def main() -> None:
        store = MemoryStore()
        exchange = Exchange(MemoryMailbox(store), await new_run(store, SPEC))
        ref = PayloadRef(round=0, sha256="0" * 64, size_bytes=9)
        record = RoundRecord(
            round=0, fragment=0, step=4, version=0, parent=None, participants=(), rejected=(), theta=ref, outer=None
        )
        key, whole = exchange.keys.round(0), encode(record, nonce="n" * 32)
        unnoticed = 0
        for data in flipped(whole, bits=8):
            store.objects[key] = data
            reader = Exchange(MemoryMailbox(store), exchange.manifest)
            with suppress(MailboxCorrupt):
                assert await reader.round(0) == record
                unnoticed += 1
        assert 0 < unnoticed <= 8 * len('"signature":' + "n" * 32), "the nonce alone, or an unknown field's name"
        store.objects[key] = whole
        assert await exchange.round(0) == record

    virtually(main())


def test_a_record_that_only_counts_beside_others_is_passed_over() -> None:
    """A snapshot is nobody's good one, a claim nobody's, a control record unknown: none stops who reads it, none says another
    thing than was written."""

    async def main() -> None:
        store = MemoryStore()
        exchange = Exchange(MemoryMailbox(store), await new_run(store, SPEC))
        keys = exchange.keys
        ref = PayloadRef(round=0, sha256="0" * 64, size_bytes=9)
        snapshot = Snapshot(
            round=0,
            fragment=0,
            learner="a",
            incarnation=0,
            unit="a",
            base_sha256="0" * 64,
            schema_sha256="0" * 64,
            dtype="F32",
            payload=ref,
            tokens=1,
            steps=1,
            train_loss=1.0,
            seconds_s=1.0,
        )
        claim, control = Claim(round=0, learner="a", incarnation=0), Control(action="stop")
        where = keys.snapshot(0, unit="a", learner="a", incarnation=0)
        for data in flipped(encode(snapshot, nonce="n" * 32)):
            store.objects[where] = data
            assert await exchange.snapshots(0, {}) in ({where: None}, {where: snapshot})
        for data in flipped(encode(claim, nonce="n" * 32)):
            store.objects[keys.claim(0, 0)] = data
            assert (await exchange.claims(0))[0] in (claim, Claim(round=0, learner="", incarnation=0))
        for data in flipped(encode(control, nonce="n" * 32)):
            store.objects[keys.control_record(1)] = data
            assert await exchange.controls([]) in ([control], [Control(action="unknown")])

    virtually(main())


def test_a_payload_with_a_flipped_bit_is_never_given_out() -> None:
    async def main() -> None:
        store = MemoryStore()
        exchange = Exchange(MemoryMailbox(store), await new_run(store, SPEC))
        tensors = model(3)
        ref = await exchange.store(0, tensors)
        key = exchange.key_of(0, ref)
        whole = store.objects[key]
        for data in flipped(whole):
            store.objects[key] = data
            with pytest.raises((PayloadError, SchemaMismatch)):
                await exchange.fetch(0, ref)
        store.objects[key] = whole
        found = await exchange.fetch(0, ref)
        assert {name: array.tobytes() for name, array in found.items()} == {
            name: np.ascontiguousarray(array).tobytes() for name, array in tensors.items()
        }

    virtually(main())
