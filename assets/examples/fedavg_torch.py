"""FedAvg with a model and a training loop of one's own, in PyTorch. fedavg_mlx.py is the same in MLX: both train in one run.

    swarm init /tmp/mailbox
    python assets/examples/fedavg_torch.py --mailbox /tmp/mailbox --learner-id torch
    python assets/examples/fedavg_mlx.py --mailbox /tmp/mailbox --learner-id mlx    # in another terminal, if you like

Whichever comes first creates the run. In each round four of ten clients are trained, each by the learner that claims it: one
learner alone trains them all. `swarm tui` shows it.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn import functional

import swarm

SAMPLES = [200, 40, 120, 80, 160, 60, 100, 20, 140, 180]  # of each client
CENTRES = np.random.default_rng(0).normal(size=(5, 16)) * 0.8  # of five classes


def samples(index: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's data, (count, 16) and (count,): it knows two of the five classes only. The same on every machine."""
    random = np.random.default_rng([1, index])
    labels = random.choice([index % 5, (index + 1) % 5], count)
    return (CENTRES[labels] + random.normal(size=(count, 16))).astype(np.float32), labels


def held_out() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(2)
    labels = random.integers(5, size=500)
    return (CENTRES[labels] + random.normal(size=(500, 16))).astype(np.float32), labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mailbox", help="the shared folder; else SWARM_MAILBOX, else the one last used")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--learner-id", default="torch")
    args = parser.parse_args()

    torch.set_num_threads(1)
    model = torch.nn.Sequential()
    model.add_module("fc1", torch.nn.Linear(16, 32))
    model.add_module("relu", torch.nn.ReLU())
    model.add_module("fc2", torch.nn.Linear(32, 5))

    def evaluate() -> dict[str, float]:
        x, y = map(torch.from_numpy, held_out())
        with torch.no_grad():
            outputs = model(x)
        return {
            "loss": functional.cross_entropy(outputs, y).item(),
            "accuracy": (outputs.argmax(1) == y).float().mean().item(),
        }

    session = swarm.ClientSession(
        model,
        algorithm=swarm.FedAvg(clients=10, per_round=4, local_epochs=2, batch_size=20, lr=0.1, training_seed=29),
        samples=SAMPLES,
        mailbox=args.mailbox,
        run="blobs",
        rounds=args.rounds,
        learner_id=args.learner_id,
        evaluate=evaluate,
        callbacks=[swarm.narrate],
    )

    def train_client(client: swarm.Client) -> Iterator[tuple[float, int]]:
        spec = session.algorithm  # as the run has it
        optimizer = torch.optim.SGD(model.parameters(), lr=spec.lr)  # a new one for each client
        x, y = map(torch.from_numpy, samples(client.index, client.samples))
        order = np.random.default_rng(client.seed)  # the same whoever trains this client in this round
        for _ in range(spec.local_epochs):
            for batch in torch.from_numpy(order.permutation(client.samples)).split(spec.batch_size):
                loss = functional.cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                yield loss.item(), len(batch)

    result = session.run(train_client)
    print(f"{result.reason}: {result.rounds} rounds, {result.clients} clients here, parameters {result.params_sha256}")


if __name__ == "__main__":
    main()
