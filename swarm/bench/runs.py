"""Runs for the measurements: of blank parameters, in a mailbox of their own."""

from __future__ import annotations

import os
from typing import Any
from uuid import uuid4

from swarm.bench.options import Options
from swarm.core.manifest import Manifest, TaskRef
from swarm.core.records import LearnerRecord, Role
from swarm.core.specs import DiLoCo
from swarm.exchange import create_run
from swarm.learners.contract import Adapter
from swarm.mailbox.contract import Mailbox
from swarm.mailbox.folder import FolderMailbox

RUN = "bench"


async def new_run(
    options: Options, adapter: Adapter, *, quorum_size: int = 2, rounds: int | None = None
) -> tuple[Mailbox, Manifest]:
    """A mailbox of its own, and a run of `adapter`'s parameters in it."""
    folder = options.mailbox or os.path.join(options.folder, f"mailbox-{uuid4().hex}")
    await FolderMailbox.init(folder)
    mailbox = FolderMailbox(folder)
    await mailbox.open()
    schema = adapter.schema()
    fields: dict[str, Any] = {"delta_dtype": options.delta_dtype, "merge": options.merge}
    algorithm = DiLoCo(
        sync_every=max(1, options.fragments),
        fragments=options.fragments,
        quorum_size=2,
        error_feedback=False,
        **fields,
    )
    draft = Manifest(
        run=RUN,
        name=RUN,
        algorithm=algorithm,
        task=TaskRef(name="blank"),
        tensors=tuple(schema),
        schema_sha256=schema.digest,
        init=(),
        rounds=rounds,
        eval_every=0,
    )
    theta = adapter.snapshot()
    manifest, _ = await create_run(mailbox, draft, [{name: theta[name] for name in names} for names in draft.plan])
    return mailbox, manifest


def learner_record(name: str, *, role: Role = "both") -> LearnerRecord:
    return LearnerRecord(
        learner=name,
        incarnation=1,
        machine=name,
        machine_name=name,
        boot="bench",
        pid=os.getpid(),
        process=str(os.getpid()),
        version="0",
        role=role,
    )
