from __future__ import annotations

import pytest

from swarm.core.errors import RunConfigMismatch
from swarm.core.records import LearnerRecord
from swarm.core.specs import DiLoCo
from swarm.learners.numpy import NumpyAdapter
from swarm.mailbox.memory import MemoryMailbox, MemoryStore
from swarm.runtime.session import Session
from tests.integration.simulation import model, new_run, virtually


def test_another_configuration_than_the_runs_is_refused_by_name() -> None:
    store = MemoryStore()
    manifest = virtually(new_run(store, DiLoCo(sync_every=20, fragments=2), rounds=3))
    before = dict(store.objects)
    me = LearnerRecord(learner="a", incarnation=1, machine="m", machine_name="m", boot="b", pid=1, process="1", version="0")

    def session(algorithm: DiLoCo) -> Session:
        return Session(
            NumpyAdapter(model(1)),
            mailbox=MemoryMailbox(store),
            manifest=manifest,
            algorithm=algorithm,
            me=me,
            gone=lambda other: False,
            alive=lambda other: False,
        )

    session(DiLoCo(sync_every=20, fragments=2))
    with pytest.raises(RunConfigMismatch, match="fragments is 1 here, 2 in the run"):
        session(DiLoCo(sync_every=20, fragments=1))
    assert store.objects == before
