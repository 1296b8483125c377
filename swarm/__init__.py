"""swarm: train one model together on the machines you own, over a shared folder.

    import swarm

    with swarm.Session(model, algorithm=swarm.DiLoCo(sync_every=100), mailbox="/mnt/nas/swarm", rounds=50) as session:
        session.run(train_step, batches)

The root is lazy: importing it pulls in neither numpy nor a framework. What it offers is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swarm.core import errors as errors
    from swarm.core import events as events
    from swarm.core.specs import DiLoCo as DiLoCo
    from swarm.core.specs import FedAvg as FedAvg
    from swarm.learners.layout import Layout as Layout
    from swarm.learners.layout import Permute as Permute
    from swarm.learners.layout import Rename as Rename
    from swarm.learners.layout import Split as Split
    from swarm.library.barrier import Barrier as Barrier
    from swarm.library.base import Result as Result
    from swarm.library.callbacks import narrate as narrate
    from swarm.library.clients import Client as Client
    from swarm.library.clients import ClientSession as ClientSession
    from swarm.library.nets import local_net as local_net
    from swarm.library.parameters import align as align
    from swarm.library.queues import SharedQueue as SharedQueue
    from swarm.library.ranks import Rank as Rank
    from swarm.library.ranks import ranks as ranks
    from swarm.library.session import Session as Session
    from swarm.tasks.contract import TaskState as TaskState

__version__ = "0.1.0"
__all__ = [
    "Barrier",
    "Client",
    "ClientSession",
    "DiLoCo",
    "FedAvg",
    "Layout",
    "Permute",
    "Rank",
    "Rename",
    "Result",
    "Session",
    "SharedQueue",
    "Split",
    "TaskState",
    "__version__",
    "align",
    "errors",
    "events",
    "local_net",
    "narrate",
    "ranks",
]

# As text: what is imported below is nobody's import before it is used.
_PLACES = {
    "Barrier": "swarm.library.barrier",
    "Client": "swarm.library.clients",
    "ClientSession": "swarm.library.clients",
    "DiLoCo": "swarm.core.specs",
    "FedAvg": "swarm.core.specs",
    "Layout": "swarm.learners.layout",
    "Permute": "swarm.learners.layout",
    "Rank": "swarm.library.ranks",
    "Rename": "swarm.learners.layout",
    "Result": "swarm.library.base",
    "Session": "swarm.library.session",
    "SharedQueue": "swarm.library.queues",
    "Split": "swarm.learners.layout",
    "TaskState": "swarm.tasks.contract",
    "align": "swarm.library.parameters",
    "errors": "swarm.core.errors",
    "events": "swarm.core.events",
    "local_net": "swarm.library.nets",
    "narrate": "swarm.library.callbacks",
    "ranks": "swarm.library.ranks",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'swarm' has no attribute {name!r}")
    module = import_module(_PLACES[name])
    value = module if name in ("errors", "events") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
