"""A GPT-2-shaped language model in PyTorch, trained together on any text.

    python assets/examples/gpt2.py --mailbox /mnt/nas/swarm                       # on each machine
    python assets/examples/gpt2.py --mailbox /tmp/mailbox --tiny --rounds 10      # a minute on a laptop

Learned positions, blocks with the norm before attention and MLP, one projection for queries, keys and values, and a head that
shares the embedding, as in GPT-2. A token is a byte, so that no tokenizer is needed: 86 M parameters instead of 124 M.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import swarm

KJV = Path(__file__).parents[1] / "text" / "kjv.txt"
VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.c_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, length, width) → the same
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(seen.transpose(1, 2).flatten(2))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, *, layers: int, heads: int, width: int, seq_len: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, width), nn.Embedding(seq_len, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if name.endswith(("c_proj.weight", "c_out.weight")):  # what adds to the residual stream
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5)
            elif parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor) -> Tensor:  # (batch, length) → logits (batch, length, 256)
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return functional.linear(self.ln_f(x), self.wte.weight)


def batches(text: Tensor, *, size: int, seq_len: int, seed: int) -> Iterator[Tensor]:
    """Batches without end: (size, seq_len + 1) bytes from random places."""
    random = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - seq_len, (size,), generator=random)
        yield torch.stack([text[start : start + seq_len + 1] for start in starts])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mailbox", help="the shared folder; else SWARM_MAILBOX, else the one last used")
    parser.add_argument("--run", default="gpt2", help="its name; whoever comes first makes it")
    parser.add_argument("--learner-id", help="by default the host's name")
    parser.add_argument("--rounds", type=int, help="by default until `swarm stop`")
    parser.add_argument("--text", type=Path, default=KJV, help="any file; all learners should have the same one")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--sync-every", type=int, default=100)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="2 layers, 4 heads, width 64, 64 bytes: for a first try")
    args = parser.parse_args()
    if args.tiny:
        args.layers, args.heads, args.width, args.seq_len, args.lr = 2, 4, 64, 64, 3e-3

    device = torch.device(args.device)
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    train, held_out = text[: -len(text) // 20], text[-len(text) // 20 :]
    model = GPT(layers=args.layers, heads=args.heads, width=args.width, seq_len=args.seq_len).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)

    def loss_of(batch: Tensor) -> Tensor:
        batch = batch.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def train_step(batch: Tensor) -> tuple[float, int]:
        loss = loss_of(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item(), batch[:, 1:].numel()

    @torch.no_grad()
    def evaluate() -> float:
        model.eval()
        some = batches(held_out, size=args.batch_size, seq_len=args.seq_len, seed=0)
        loss = sum(loss_of(next(some)).item() for _ in range(8)) / 8
        model.train()
        return loss

    session = swarm.Session(
        model,
        algorithm=swarm.DiLoCo(sync_every=args.sync_every, delta_dtype="BF16"),
        mailbox=args.mailbox,
        run=args.run,
        rounds=args.rounds,
        learner_id=args.learner_id,
        evaluate=evaluate,
        callbacks=[swarm.narrate],
    )
    with session:
        data = batches(train, size=args.batch_size, seq_len=args.seq_len, seed=session.stream_seed)
        result = session.run(train_step, data)
    print(f"{result.reason}: {result.rounds} rounds, {result.steps} steps here, parameters {result.params_sha256}")


if __name__ == "__main__":
    main()
