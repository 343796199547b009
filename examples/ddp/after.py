"""Trains a small GPT on Python's own source code, by DistributedDataParallel."""

import argparse
import math
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from checkpointing import Checkpointer, Last, Steps
from hpckit import client
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, default=Path("out"))
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--batch-size", type=int, default=8, help="of each rank and pass")
parser.add_argument("--accumulate", type=int, default=2, help="passes for one optimizer step")
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--warmup-steps", type=int, default=20)
parser.add_argument("--save-every", type=int, default=20)
args = parser.parse_args()

VOCABULARY, BLOCK, WIDTH, HEADS, LAYERS = 256, 64, 64, 4, 2


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x):
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x, y):
        h = self.layers(self.tokens(x) + self.positions.weight[: x.shape[1]])
        return F.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def prepare(path):
    """Writes the source code of the json and email packages as bytes, one token each."""
    folder = Path(os.__file__).parent
    files = sorted([*folder.glob("json/*.py"), *folder.glob("email/*.py")])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.concatenate([np.fromfile(f, np.uint8) for f in files]).astype(np.uint16).tofile(path)


def get_batch(step, micro):
    """Draws random windows of the tokens. The seed depends on the step, so nothing is kept."""
    seed = (step * args.accumulate + micro) * world + rank
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(len(tokens) - BLOCK - 1, (args.batch_size,), generator=generator)
    windows = torch.stack(
        [torch.from_numpy(tokens[i : i + BLOCK + 1].astype(np.int64)) for i in at]
    )
    return windows[:, :-1].to(device), windows[:, 1:].to(device)


def learning_rate(step):
    if step < args.warmup_steps:
        return args.learning_rate * (step + 1) / args.warmup_steps
    done = (step - args.warmup_steps) / max(args.steps - args.warmup_steps, 1)
    return args.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
if rank == 0 and not (args.out / "train.bin").exists():
    prepare(args.out / "train.bin")
dist.barrier()
tokens = np.memmap(args.out / "train.bin", dtype=np.uint16, mode="r")

torch.manual_seed(1337)
model = DistributedDataParallel(GPT().to(device))
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.1)
state = {"model": model, "optimizer": optimizer}

ckpt = Checkpointer(args.out / "store", run="gpt", every=Steps(args.save_every), keep=[Last(3)])
step = ckpt.restore(state) or 0
while step < args.steps and not client.should_stop():
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step)
    for micro in range(args.accumulate):
        model.require_backward_grad_sync = micro == args.accumulate - 1
        loss = model(*get_batch(step, micro))
        (loss / args.accumulate).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    step += 1
    if rank == 0 and step % 10 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
    client.step(step, loss=loss.detach())
    if ckpt.due(step):
        ckpt.save(step, state)
ckpt.save(step, state, is_last=True)
ckpt.close()
dist.destroy_process_group()
