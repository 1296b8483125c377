"""Adverts: there and back, within a packet, and harmless whatever they say."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.adverts import (
    MAX_STRING_BYTES,
    MAX_TXT_BYTES,
    Hello,
    PeerAdvert,
    RunAdvert,
    hello_of,
    ours,
    peer_of,
    peer_txt,
    run_of,
    run_txt,
    tagged,
)
from swarm.core.errors import AdvertError
from swarm.core.trust import SwarmKey

PEER = PeerAdvert(
    peer="a" * 32,
    name="studio",
    boot="0badcafe",
    version="0.1.0",
    accelerators=("mps Apple M2 Max",),
    memory_bytes=64 << 30,
    state="training",
    mailboxes=("b" * 32,),
    address="192.168.1.7",
    sees=("c" * 8, "d" * 8),
)
RUN = RunAdvert(
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
    share="smb://nas/swarm",
    signed=True,
)
KEY = SwarmKey(b"k" * 32)


def size(txt: dict[str, str]) -> int:
    return sum(len(f"{key}={value}".encode()) + 1 for key, value in txt.items())


def test_there_and_back() -> None:
    assert peer_of(peer_txt(PEER)) == PEER
    assert run_of(run_txt(RUN)) == RUN
    hello = Hello(peer=PEER, runs=(RUN,), clock_s=1.5e9)
    assert hello_of(msgspec.json.encode(hello)) == hello


def test_the_tag_tells_a_swarm_from_another() -> None:
    for advert in (PEER, RUN):
        assert ours(advert, None)
        assert not ours(advert, KEY)
        with_tag = tagged(advert, KEY)
        assert ours(with_tag, KEY)
        assert not ours(with_tag, None)
        assert not ours(with_tag, SwarmKey(b"o" * 32))
    moved = msgspec.structs.replace(tagged(PEER, KEY), peer="f" * 32)
    assert not ours(moved, KEY)
    for other in ({"share": "smb://10.0.0.66/x"}, {"share": ""}, {"mailbox": "e" * 32}):
        assert not ours(msgspec.structs.replace(tagged(RUN, KEY), **other), KEY)


@pytest.mark.parametrize("share", ["", "smb://nas/" + "x" * 230, "smb://nas/" + "x" * 231, "smb://nas/\n"])
def test_the_tag_holds_for_what_arrives_of_the_share(share: str) -> None:
    run = tagged(msgspec.structs.replace(RUN, name="n" * 60, task="t" * 60, share=share), KEY)
    assert ours(run_of(run_txt(run)), KEY)
    hello = hello_of(msgspec.json.encode(Hello(peer=PEER, runs=(run,))))
    assert ours(hello.runs[0], KEY)


@given(name=st.text(), task=st.text(), share=st.text(), sees=st.lists(st.text("0123456789abcdef", min_size=8, max_size=8)))
def test_whatever_a_machine_is_called_its_advert_fits(name: str, task: str, share: str, sees: list[str]) -> None:
    run = msgspec.structs.replace(RUN, name=name, task=task, share=share)
    peer = msgspec.structs.replace(PEER, name=name, sees=tuple(sees), accelerators=(task,) * 9)
    for txt in (run_txt(run), peer_txt(peer)):
        assert size(txt) <= MAX_TXT_BYTES
        assert all(len(f"{key}={value}".encode()) <= MAX_STRING_BYTES for key, value in txt.items())


TXT = st.dictionaries(
    st.sampled_from([*peer_txt(PEER), *run_txt(RUN), "x"]),
    st.one_of(st.none(), st.text(), st.sampled_from(["1", "-1", "9" * 30])),
)


@given(TXT)
def test_no_txt_record_does_harm(txt: dict[str, str | None]) -> None:
    for read, base in ((peer_of, peer_txt(PEER)), (run_of, run_txt(RUN))):
        for whole in (txt, {**base, **txt}):
            try:
                found = read(whole)
            except AdvertError:
                continue
            for value in msgspec.structs.astuple(found):
                texts = value if isinstance(value, tuple) else (value,)
                assert all(
                    not isinstance(text, str) or (text.isprintable() and len(text) <= MAX_STRING_BYTES) for text in texts
                )


@given(st.binary())
def test_no_answer_does_harm(data: bytes) -> None:
    with pytest.raises(AdvertError):
        hello_of(data)
