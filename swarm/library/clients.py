"""FedAvg with a model of one's own: this learner trains the clients that it claims, one at a time.

    with swarm.ClientSession(model, algorithm=swarm.FedAvg(clients=10), samples=[120, 80, …], mailbox=…, rounds=20) as session:
        session.run(train_client)

or, step by step:

    with swarm.ClientSession(model, algorithm=…, samples=…, mailbox=…) as session:
        for client in session:
            for x, y in batches(client):
                loss = …  # one step
                if not session.report(samples=len(y), loss=loss):
                    break
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from swarm.core.clients import client_index
from swarm.core.errors import NotFinite, UsageError
from swarm.core.manifest import Manifest
from swarm.core.records import Role
from swarm.core.specs import FedAvg
from swarm.learners.contract import Adapter
from swarm.learners.layout import Layout
from swarm.library.base import BaseSession, Result
from swarm.library.batches import told
from swarm.library.callbacks import Callback
from swarm.library.place import Place
from swarm.runtime.clients import ClientSession as RuntimeClientSession

_LISTED = "samples must be a list of whole numbers >= 0, one for each client"
_ONE = "samples must be a whole number >= 0 in a run whose clients are private: how many this learner has"


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A client that this learner trains now."""

    index: int  # 0 to clients − 1; a private one has 0
    unit: str  # its name in the run: 'client-0003'; a private one has that of its learner
    round: int
    samples: int
    seed: int
    """0 to 2⁶³ − 1, for whatever is drawn: from the run's training_seed, the client and the round, whoever trains it; without
    a training_seed from the system's entropy."""


class ClientSession(BaseSession[RuntimeClientSession]):
    """A learner of a FedAvg run, with a model of the program's own: a torch.nn.Module, an mlx.nn.Module or a dict of NumPy
    arrays.

    Making one does nothing yet. Entering it finds the run or makes it, and joins it. Every client begins with the committed
    parameters in the model, which is never initialised again. Use it from one thread.
    """

    takes = FedAvg

    def __init__(
        self,
        model: Any,
        *,
        samples: Sequence[int] | int,
        algorithm: FedAvg | None = None,
        mailbox: Place = None,
        run: str | None = None,
        rounds: int | None = None,
        learner_id: str | None = None,
        role: Role = "both",
        layout: Layout | str | None = None,
        evaluate: Callable[[], Any] | None = None,
        callbacks: Iterable[Callback] = (),
        seed: int = 0,
        checkpoint_every: int = 0,
        create_mailbox: bool = False,
    ) -> None:
        """`samples`: how many each client has, by its index, the same for all learners; in a run with private clients how many
        this learner has. They are the weights of the mean. `algorithm`: how the run is configured; None: as it is. How clients
        train (local_epochs, batch_size, optimizer, …) is up to the program, which finds it in `algorithm`; `local_net` does as
        it says. With buffers='averaged' what the model keeps beside its parameters, such as BatchNorm's statistics, belongs to
        the run, too. The rest as for Session: what a learner needs to go on after a restart is in the run.

        Entering raises what Session does; RunConfigMismatch, too, if the clients have other samples in the run."""
        super().__init__(
            model,
            algorithm=algorithm,
            mailbox=mailbox,
            run=run,
            rounds=rounds,
            learner_id=learner_id,
            role=role,
            layout=layout,
            evaluate=evaluate,
            callbacks=callbacks,
            seed=seed,
            checkpoint_every=checkpoint_every,
            create_mailbox=create_mailbox,
        )
        self._asked = algorithm
        self._private = not hasattr(samples, "__len__")
        self._samples = _counts(samples)
        if algorithm is not None:
            self._check_samples(algorithm)
        self._client: Client | None = None  # under way
        self._told = False  # whether anything was told of it
        self._steps = self._trained = 0

    def _check_samples(self, spec: FedAvg) -> None:
        if spec.private != self._private:
            raise UsageError(_ONE if spec.private else _LISTED)
        if not spec.private and len(self._samples) != spec.clients:
            raise UsageError(
                f"samples are of {len(self._samples)} clients, and the run has {spec.clients}: one number for each"
            )

    def _options(self) -> Mapping[str, int | str]:
        return {} if self._private else {"samples": sum(self._samples), "samples_sha256": self._digest}

    def _differing(self, manifest: Manifest) -> list[str]:
        spec, there = manifest.algorithm, manifest.task.options
        assert isinstance(spec, FedAvg)
        asked = self._asked
        if asked is None or (asked.private, asked.clients) == (spec.private, spec.clients):
            self._check_samples(spec)  # else that is what differs
        if self._private or there.get("samples_sha256", self._digest) == self._digest:
            return []
        total = sum(self._samples)
        if total != there.get("samples"):
            return [f"samples is {total} in all here, {there.get('samples')} in the run"]
        return ["samples are other ones of the same clients here than in the run, though as many in all"]

    @property
    def _digest(self) -> str:
        return hashlib.sha256(" ".join(map(str, self._samples)).encode()).hexdigest()

    def _joining(self, adapter: Adapter, common: dict[str, Any]) -> RuntimeClientSession:
        return RuntimeClientSession(adapter, samples=self._samples, **common)

    # Training

    def run(self, train_client: Callable[[Client], Iterable[Any] | None]) -> Result:
        """Train until the run ends or this learner leaves; enters and leaves the session if that was not done.

        `train_client(client)` trains from the parameters that are in the model, and yields (loss, samples), or a mapping with
        'loss' and 'samples', after each step: a generator, which is closed early if the client is not wanted any more. One that
        yields nothing calls `report` itself. If it raises swarm.errors.NotFinite, as local_net does, the client counts for
        nothing, and training goes on with the next one."""
        if not self._within:
            with self:
                return self.run(train_client)
        for client in self:
            try:
                self._train(train_client(client))
            except NotFinite as error:
                self.not_finite(error.name)
        return self._ended(steps=self._steps, clients=self._trained)

    def _train(self, steps: Iterable[Any] | None) -> None:
        if steps is None:
            return
        if not isinstance(steps, Iterable):
            raise UsageError(
                f"train_client returned a {type(steps).__name__}: it must yield (loss, samples) after each step, or call report"
            )
        with contextlib.ExitStack() as stack:
            if hasattr(steps, "close"):
                stack.callback(steps.close)
            for step in steps:
                loss, samples = told(step)
                if not self.report(samples=samples, loss=loss):
                    break

    def __iter__(self) -> Iterator[Client]:
        """Yields a client to train, from the committed parameters that are in the model, until the run ends or this learner
        leaves. Tell each step with `report`; asking for the next one hands the client in."""
        session, spec = self._runtime(), self.algorithm
        try:
            for given in session:
                self._callbacks.check()
                index = 0 if spec.private else client_index(given.unit)
                assert index is not None
                client = Client(
                    index=index,
                    unit=given.unit,
                    round=given.round,
                    samples=self._samples[index],
                    seed=_seed(spec, given.unit, given.round),
                )
                self._client, self._told = client, False
                yield client
                if client.samples and not self._told and session.wanted:
                    raise UsageError(
                        f"{client.unit} has {client.samples} samples, and no step on it was told: call report(…) after each, "
                        "and say samples=0 for a client that has nothing to train on"
                    )
                self._trained += session.wanted
        finally:
            self._client = None

    def report(self, *, samples: int, loss: float | None = None, steps: int | None = None) -> bool:
        """One step was made on the client under way, on so many samples; both may be numbers of any library. `steps`: how many
        the client takes in all, if that is known, for whoever watches. Whether to go on with it: not if its round is closed, or
        this learner is to leave."""
        session = self._runtime()
        if self._client is None:
            raise UsageError("report tells of a step on a client: `for client in session:`")
        amount = operator.index(samples)
        if amount < 0:
            raise UsageError(f"samples must be >= 0, got {amount}")
        self._told = True
        self._steps += 1
        return session.report(samples=amount, loss=None if loss is None else float(loss), steps=steps)

    def not_finite(self, name: str) -> None:
        """The client under way has numbers that are not finite, in what `name` says: nothing of it counts. Needed only where
        that does not show in its parameters, which are looked through anyway."""
        if self._client is None:
            raise UsageError("not_finite tells of a client: `for client in session:`")
        self._told = True
        self._runtime().not_finite(name)

    @property
    def algorithm(self) -> FedAvg:
        """How the run is configured."""
        spec = self.manifest.algorithm
        assert isinstance(spec, FedAvg)  # checked on entering
        return spec


def _counts(samples: Any) -> tuple[int, ...]:
    """Raises UsageError."""
    try:
        counts = tuple(operator.index(count) for count in (samples if hasattr(samples, "__len__") else (samples,)))
    except TypeError:
        raise UsageError(f"{_LISTED}; for private clients one number; got {samples!r:.100}") from None
    if any(count < 0 for count in counts):
        raise UsageError(f"samples must be >= 0, got {min(counts)}")
    return counts


def _seed(spec: FedAvg, unit: str, round: int) -> int:
    if spec.training_seed is None:
        return secrets.randbits(63)
    digest = hashlib.sha256(f"client {spec.training_seed} {unit} {round}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
