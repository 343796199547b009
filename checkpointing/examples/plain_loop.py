"""Runs a loop without a framework that can be killed at any time and resumes when started again.

python -m checkpointing.examples.plain_loop --root /tmp/ckpts
torchrun --nproc-per-node=2 -m checkpointing.examples.plain_loop --root /tmp/ckpts-of-two
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from checkpointing import Checkpointer, Last, Minutes, Steps


def batch_of(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what a rank trains on in a step: a function of both, so that it has no state."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 64, generator=generator)
    return x, x.sin().sum(1, keepdim=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="the store: a folder or s3://bucket/folder")
    parser.add_argument("--steps", type=int, default=100)
    args = parser.parse_args()
    is_distributed = "RANK" in os.environ
    if is_distributed:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if is_distributed else 0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    if is_distributed:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)

    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    ckpt = Checkpointer(args.root, run="plain", every=Steps(10) | Minutes(10), keep=[Last(3)])
    done = ckpt.restore(state) or 0
    for step in range(done + 1, args.steps + 1):
        x, y = batch_of(step, rank)
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if rank == 0:
            print(f"step {step} loss {float(loss.detach()).hex()}", flush=True)
        if ckpt.due(step) or step == args.steps:
            ckpt.save(step, state, is_last=step == args.steps)
    ckpt.close()  # waits for the last save
    if is_distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
