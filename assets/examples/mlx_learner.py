"""One learner of a small model, in MLX. torch_learner.py is the same in PyTorch: both train in one run.

    swarm init /tmp/mailbox
    python assets/examples/mlx_learner.py --mailbox /tmp/mailbox --rounds 6 --learner-id mlx
    python assets/examples/torch_learner.py --mailbox /tmp/mailbox --rounds 6 --learner-id torch    # in another terminal

Whichever comes first creates the run; each round waits for both. `swarm tui` shows it.
"""

import argparse
from collections.abc import Iterator

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim

import swarm


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.fc2 = nn.Linear(32, 4)

    def __call__(self, x: mx.array) -> mx.array:  # (batch, 16) → (batch, 4)
        return self.fc2(nn.relu(self.norm(self.fc1(x))))


def batches(seed: int, size: int = 32) -> Iterator[tuple[mx.array, mx.array]]:
    """Batches without end: the products of pairs of numbers, to be learned."""
    key = mx.random.key(seed)
    while True:
        key, now = mx.random.split(key)
        x = mx.random.normal((size, 16), key=now)
        yield x, x[:, :4] * x[:, 4:8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mailbox", help="the shared folder; else SWARM_MAILBOX, else the one last used")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--learner-id", default="mlx")
    args = parser.parse_args()

    model = MLP()
    optimizer = optim.AdamW(learning_rate=3e-3)
    loss_and_gradients = nn.value_and_grad(model, lambda x, y: nn.losses.mse_loss(model(x), y))

    def train_step(batch: tuple[mx.array, mx.array]) -> tuple[float, int]:
        x, y = batch
        loss, gradients = loss_and_gradients(x, y)
        optimizer.update(model, gradients)
        mx.eval(model.parameters(), optimizer.state)
        return loss.item(), len(x)

    session = swarm.Session(
        model,
        algorithm=swarm.DiLoCo(sync_every=20, fragments=2, quorum_size=2),
        mailbox=args.mailbox,
        rounds=args.rounds,
        learner_id=args.learner_id,
        callbacks=[swarm.narrate],
    )
    with session:
        result = session.run(train_step, batches(session.stream_seed))
    print(f"{result.reason}: {result.rounds} rounds, {result.steps} steps here, parameters {result.params_sha256}")


if __name__ == "__main__":
    main()
