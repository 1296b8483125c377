"""One learner of a small model, in PyTorch. mlx_learner.py is the same in MLX: both train in one run.

    swarm init /tmp/mailbox
    python assets/examples/torch_learner.py --mailbox /tmp/mailbox --rounds 6 --learner-id torch
    python assets/examples/mlx_learner.py --mailbox /tmp/mailbox --rounds 6 --learner-id mlx    # in another terminal

Whichever comes first creates the run; each round waits for both. `swarm tui` shows it.
"""

import argparse
from collections.abc import Iterator

import torch
from torch.nn import functional

import swarm


class MLP(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 32)
        self.norm = torch.nn.LayerNorm(32)
        self.fc2 = torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (batch, 16) → (batch, 4)
        return self.fc2(self.norm(self.fc1(x)).relu())


def batches(seed: int, size: int = 32) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches without end: the products of pairs of numbers, to be learned."""
    random = torch.Generator().manual_seed(seed)
    while True:
        x = torch.randn(size, 16, generator=random)
        yield x, x[:, :4] * x[:, 4:8]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mailbox", help="the shared folder; else SWARM_MAILBOX, else the one last used")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--learner-id", default="torch")
    args = parser.parse_args()

    model = MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def train_step(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, int]:
        x, y = batch
        loss = functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
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
