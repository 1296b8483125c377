"""Every key that is built is known again, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core import keys
from swarm.core.catalog import place_of
from swarm.core.keys import MARKER, RunKeys

RUN = RunKeys("abcd1234")
SHA = "ab" * 32
WHO = {"learner": "studio", "incarnation": 12}
EVERY = {
    RUN.manifest: ("manifest", "Manifest", 0, 0),
    RUN.round(12345): ("round", "RoundRecord", 12345, 0),
    RUN.snapshot(7, unit="client-3", claim=2, **WHO): ("snapshot", "Snapshot", 7, 0),
    RUN.claim(7, 3): ("claim", "Claim", 7, 0),
    RUN.eval_claim(7): ("claim", "Claim", 7, 0),
    RUN.client_claim(7, "client-3", 1): ("claim", "Claim", 7, 0),
    RUN.sample(7): ("sample", "Sample", 7, 0),
    RUN.learner("studio", 12): ("learner", "LearnerRecord", 0, 0),
    RUN.beat("studio", 12, 99): ("beat", "Beat", 0, 0),
    RUN.refusal("0f8b6c0e", 3, SHA): ("refusal", "JoinRefusal", 0, 0),
    RUN.control_record(3): ("control", "Control", 3, 0),
    RUN.eval(101): ("evaluation", "EvalRecord", 101, 0),
    RUN.checkpoint(7): ("checkpoint", "Checkpoint", 7, 0),
    RUN.member(4, **WHO): ("generation", "Member", 4, 0),
    RUN.probe(4, target="mac", target_incarnation=3, **WHO): ("generation", "Probe", 4, 0),
    RUN.lead_claim(4, 0): ("generation", "Claim", 4, 0),
    RUN.rank_plan(4): ("generation", "Plan", 4, 0),
    RUN.mark(4, "ready", **WHO): ("generation", "Ready", 4, 0),
    RUN.mark(4, "started", **WHO): ("generation", "Started", 4, 0),
    RUN.generation_end(4): ("generation", "GenerationEnd", 4, 0),
    RUN.job_log(4, 123): ("log", "JobLog", 4, 123),
    RUN.job_checkpoint(4, 400): ("job-checkpoint", "JobCheckpoint", 4, 400),
    keys.work_set(RUN.queue("jobs")): ("work", "WorkSet", 0, 0),
    keys.work_claim(RUN.queue("jobs"), 5, 1): ("work", "Holder", 0, 0),
    keys.work_done(RUN.queue("jobs"), 5): ("work", "Holder", 0, 0),
    keys.work_set(RUN.ranks("data")): ("work", "WorkSet", 0, 0),
    keys.work_claim(RUN.ranks("data"), 5, 1): ("work", "Holder", 0, 0),
    RUN.arrival("all", 2, **WHO): ("work", "Holder", 0, 0),
    RUN.barrier_open("all", 2): ("work", "Holder", 0, 0),
    RUN.init_blob(2, SHA): ("init", "", 0, 2),
    RUN.round_blob(7, SHA): ("round-blob", "", 7, 0),
    RUN.snapshot_blob(7, "studio", SHA): ("delta", "", 7, 0),
    RUN.checkpoint_blob(7, 2, SHA): ("checkpoint-blob", "", 7, 2),
    RUN.job_file(4, 400, SHA): ("job-file", "", 4, 400),
    RUN.file_hashes(SHA): ("hashes", "", 0, 0),
    RUN.file_chunk(SHA, 9): ("chunk", "", 9, 0),
}


@pytest.mark.parametrize(("key", "what"), EVERY.items(), ids=list(EVERY))
def test_what_is_built_is_known_again(key: str, what: tuple[str, str, int, int]) -> None:
    place = place_of(key)
    assert place is not None
    assert (place.kind, place.record.__name__ if place.record else "", place.number, place.second) == what
    assert place.sha256 == ("" if place.record else SHA)
    if place.record is not None:
        assert place.said.keys() <= {*place.record.__struct_fields__}


def test_what_a_record_must_say_follows_from_its_key() -> None:
    place = place_of(RUN.snapshot(7, unit="client-3", claim=2, **WHO))
    assert place is not None
    assert place.said == {"round": 7, "unit": "client-3", "learner": "studio", "incarnation": 12, "claim": 2}


@pytest.mark.parametrize(
    "key",
    [
        MARKER,
        "runs/abcd1234/desktop.ini",
        "runs/x/manifest/record.json",
        f"{RUN.manifest}/x",
        RUN.round(12345).replace("/00000123/", "/00000124/"),
        RUN.round(7).replace("record.json", "notes.json"),
        RUN.round(7).replace("0000000007", "7"),
        RUN.claim(7, 3).replace("/003/", "/03/"),
        RUN.beat("studio", 1, 2).replace("-0000000002", "-02"),
        RUN.round_blob(7, SHA).replace("ab", "AB"),
        RUN.round_blob(7, SHA).removesuffix("s"),
        RUN.job_log(4, 123).replace("/00000001/", "/00000000/"),
        f"{RUN.root}/claims/{'9' * 5000}/000/record.json",
        f"{RUN.root}/claims/²/000/record.json",
        f"{RUN.root}/ranks/000004",
    ],
)
def test_what_no_swarm_writes_is_unknown(key: str) -> None:
    assert place_of(key) is None


@given(
    st.text(max_size=60) | st.lists(st.sampled_from([*"".join(EVERY), *"/".join(EVERY).split("/")]), max_size=12).map("/".join)
)
def test_any_text_has_a_place_of_its_own_or_none(text: str) -> None:
    place = place_of(text)
    assert place is None or place.key == text
