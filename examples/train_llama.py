"""Train a small Llama-style language model with replicas that may die at any time.

    python -m slurmmesh.submit --nodes 4 --wait examples/train_llama.py -- --faults kill@3s
    python examples/train_llama.py --faults kill@3s          (on this machine alone)

The text is the source code of Python's standard library, byte by byte: nothing is downloaded.
Four parts: the model, the data, what each replica does, and what starts the replicas.
"""

from __future__ import annotations

import argparse
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import slurmmesh as sm
from slurmmesh.telemetry.report import make_writable, write_report

sm.explain_errors()  # bad input ends this with one line and an exit code, started in any way
sm.recovery.require_torch()  # says how to install it, where it is missing

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

# ---------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Shape:
    """Sizes of the model: a byte is a token, so there are 256 of them."""

    dim: int = 96
    layers: int = 3
    heads: int = 6
    kv_heads: int = 2
    context: int = 96
    vocabulary: int = 256

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of x, shaped (batch, heads, time, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


class Attention(nn.Module):
    """Causal attention in which several query heads share one key and value head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.queries = nn.Linear(shape.dim, shape.heads * shape.head_dim, bias=False)
        self.keys = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.values = nn.Linear(shape.dim, shape.kv_heads * shape.head_dim, bias=False)
        self.out = nn.Linear(shape.heads * shape.head_dim, shape.dim, bias=False)
        frequencies = 10000.0 ** -torch.linspace(0, 1, shape.head_dim // 2)
        angles = torch.arange(shape.context)[:, None] * frequencies
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape

        def split(projected: torch.Tensor) -> torch.Tensor:
            return projected.view(batch, time, -1, self.shape.head_dim).transpose(1, 2)

        queries = rotate(split(self.queries(x)), self.angles[:time])
        keys = rotate(split(self.keys(x)), self.angles[:time])
        mixed = F.scaled_dot_product_attention(
            queries, keys, split(self.values(x)), is_causal=True, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, time, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden = 8 * shape.dim // 3
        self.gate = nn.Linear(shape.dim, hidden, bias=False)
        self.up = nn.Linear(shape.dim, hidden, bias=False)
        self.down = nn.Linear(hidden, shape.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.dim)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim)
        self.head = nn.Linear(shape.dim, shape.vocabulary, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (batch, time, vocabulary) for the token after each of ``tokens``."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


# ---------------------------------------------------------------------------- the data


class Text:
    """The text in pieces of ``length`` + 1 bytes, in an order that depends only on the seed.

    Batch ``n`` is always the same pieces. Which replica trains on it in which step is for the
    session to say (``step.batch``), so nothing is read twice, and nothing is passed over in
    silence, however often replicas die. The last pieces are held out.
    """

    HELD_OUT = 64

    def __init__(self, seed: int, length: int, batch_size: int) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        raw = bytearray(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py"))))
        count = len(raw) // (length + 1)
        bytes_ = torch.frombuffer(raw, dtype=torch.uint8)[: count * (length + 1)]
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        self.pieces = bytes_.view(count, length + 1)
        self.train, self.test = order[: -self.HELD_OUT], order[-self.HELD_OUT :]
        self.batch_size = batch_size

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of a batch; after the last piece it begins with the first again."""
        first = number * self.batch_size
        places = torch.arange(first, first + self.batch_size) % len(self.train)
        return self._pieces(self.train[places])

    def held_out(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._pieces(self.test)

    def _pieces(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pieces = self.pieces[indices].long()
        return pieces[:, :-1], pieces[:, 1:]


# ---------------------------------------------------------------------------- each replica


def train(replica: sm.recovery.Replica, options: argparse.Namespace) -> float:
    """What every replica runs, also when it is started again. Returns the held-out loss."""
    shape = Shape(dim=options.dim, layers=options.layers)
    torch.manual_seed(options.seed)
    model = Llama(shape)
    text = Text(options.seed, shape.context, options.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95))

    if options.sync_every == 1:
        session = replica.ddp(model, optimizer)
    else:
        session = replica.diloco(model, optimizer, sync_every=options.sync_every)
    for step in session.steps(options.steps // options.sync_every):
        inputs, targets = text.batch(step.batch)
        session.step(loss_of(session.model(inputs), targets))

    with torch.no_grad():
        inputs, targets = text.held_out()
        return loss_of(model(inputs), targets).item()


# ---------------------------------------------------------------------------- the program


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small language model through failures.")
    add = parser.add_argument
    add("--replicas", type=int, default=4)
    add("--steps", type=int, default=60, help="optimizer steps of each replica")
    add(
        "--sync-every",
        type=int,
        default=1,
        help="1: average gradients in every step; more: train apart and average so often (DiLoCo)",
    )
    add("--faults", default="", metavar="KIND@INTERVAL", help="for example kill@3s")
    add("--seed", type=int, default=0)
    add("--out", type=Path, metavar="DIR", help="where the report goes; default: the job folder")
    add("--dim", type=int, default=96)
    add("--layers", type=int, default=3)
    add("--batch-size", type=int, default=16, help="sequences per replica and step")
    add("--lr", type=float, default=3e-3)
    options = parser.parse_args()
    if options.sync_every < 1 or options.steps < 1 or options.steps % options.sync_every:
        parser.error("--steps must be a positive multiple of --sync-every")
    if options.replicas < 1:
        parser.error("--replicas must be at least 1")
    return options


def main() -> None:
    options = parse()
    faults = sm.faults.Faults.parse(options.faults, options.seed) if options.faults else None
    job = sm.job_or_local()
    out = make_writable(options.out or job.folder)
    try:
        run = sm.recovery.train(
            train,
            options,
            hosts=job.hosts,
            replicas=options.replicas,
            procs_per_host=job.gpus_per_node,
            faults=faults,
            steps=options.steps // options.sync_every,
            mode="ddp" if options.sync_every == 1 else "diloco",
            sync_every=options.sync_every,
            seed=options.seed,
        )
        print(f"{run.steps} steps, {run.deaths} deaths, {run.recovered} recovered")
        held_out = ("-" if value is None else f"{value:.3f}" for value in run.values)
        print(f"held-out loss, by replica: {', '.join(held_out)}")
    finally:  # also of a run that failed
        print(f"report: {write_report(job.folder, out)}")


if __name__ == "__main__":
    main()
