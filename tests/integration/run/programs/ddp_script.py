"""A training script without a line of hpckit: it saves every few steps, and resumes by itself."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

os.environ["TORCHDYNAMO_VERBOSE"] = "1"  # as scripts do for what torch reads at its import

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out", type=Path, default=Path())
parser.add_argument("--step-s", type=float, default=0.0)
args = parser.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
file, start = args.out / "checkpoint.pt", 0
finished = (args.out / f"finished-{rank}.txt").open("a")  # which nobody closes
if file.exists():
    state = torch.load(file, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
for step in range(start + 1, args.steps + 1):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, file=finished)
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} of {args.steps}: loss {total.item() / world!r}", flush=True)
    if rank == 0 and step % 5 == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)
    time.sleep(args.step_s)
dist.destroy_process_group()
