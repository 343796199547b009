"""A training script with four lines of hpckit: it says its steps, and saves when it is to leave.
Its first start takes its time for each step, so that it is asked to leave before the last one."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpckit import client

STEPS, STEP_S = 60, float(sys.argv[1]) if sys.argv[1:] else 0.0

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
file, start = Path("checkpoint.pt"), 0


def save(step: int) -> None:
    if rank == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, file.with_suffix(".new"))
        file.with_suffix(".new").replace(file)
    dist.barrier()
    client.checkpointed(step)


if file.exists():
    state = torch.load(file, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]
for step in range(start + 1, STEPS + 1):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    if rank == 0:
        print(f"step {step} of {STEPS}: loss {total.item() / world!r}", flush=True)
    client.step(step, loss=total / world, samples=4 * world)
    if client.should_stop():
        save(step)
        print(f"rank {rank} leaves after step {step}", flush=True)
        break
    time.sleep(0.0 if start else STEP_S)
dist.destroy_process_group()
