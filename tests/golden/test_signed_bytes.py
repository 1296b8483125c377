"""The very bytes of signed records in format 1: mailboxes with such bytes exist, so they never change."""

from __future__ import annotations

import pytest

from swarm.core.lines import decode
from swarm.core.records import Control
from swarm.core.trust import SwarmKey, stretched
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.mailbox.signed import SignedMailbox

PASSPHRASE = "7k3qd-x9m2v-40ht8-bznr5-6wjcy"
CONTROL = "runs/k3v9x2m7/control/000001/record.json"
BYTES = (
    b'{"action":"stop","by":"studio","rounds":null,"learner":"","incarnation":0}\n'
    b'{"nonce":"5f0a6c1be2d94c0f8a53d7e6b1c2a3d4",'
    b'"sha256":"a0ef0c47708d81e407c589200aaf1a1bd0de3b39d84e2ec30ce94dee44949e2a",'
    b'"signature":"a7d8f2874fbe4660d043cda7039365ca662c3829bc72dd7a9c2efb4d2588fa77"}\n'
)
UNSIGNED = BYTES.replace(b'"a7d8f2874fbe4660d043cda7039365ca662c3829bc72dd7a9c2efb4d2588fa77"', b"null")


@pytest.fixture(scope="module")
def key() -> SwarmKey:
    return SwarmKey(stretched(PASSPHRASE))


async def test_a_signed_record_is_written_with_these_bytes_and_read_from_them(key: SwarmKey) -> None:
    store = MemoryStore()
    mailbox = SignedMailbox(MemoryMailbox(store), key)
    assert await mailbox.create(CONTROL, UNSIGNED)
    assert store.objects[CONTROL] == BYTES
    assert await mailbox.read(CONTROL) == UNSIGNED
    assert decode(BYTES, Control) == decode(UNSIGNED, Control) == Control(action="stop", by="studio")


def test_the_key_is_what_it_was(key: SwarmKey) -> None:
    assert key.fingerprint == "3d0d4441"
    body = b'{"phase":"train","round":3,"step":7}'
    where = "runs/k3v9x2m7/beats/studio/0001-0000000012.json"
    assert key.signature("k3v9x2m7", where, body) == "ef4ba2c7b4cadf76c7525d46df6ea94f57974bbe4d514c6f403bd814807f9ace"
    assert key.tag("peer", "studio", "k3v9x2m7") == "d2e1d89d94a81039"
