"""Runs torchtitan's parts in a loop like that of its Trainer, which resumes after it was killed.

python -m checkpointing.examples.torchtitan_loop --root /tmp/titan
torchrun --nproc-per-node=2 -m checkpointing.examples.torchtitan_loop --root /tmp/titan-of-two

The Trainer itself needs GPUs. Its config only needs `checkpoint=Checkpoints.Config(...)`.
"""

import argparse
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

from checkpointing.integrations.torchtitan import Checkpoints


class Numbers(IterableDataset[torch.Tensor]):
    """The samples of one data-parallel rank, and its position in them."""

    def __init__(self, rank: int) -> None:
        self._rank, self._next = rank, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            generator = torch.Generator().manual_seed(1000 * self._next + self._rank)
            self._next += 1
            yield torch.randn(64, generator=generator)

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._next = state_dict["next"]


class TrainProgress:
    """The state that the Trainer keeps of itself."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.step = state_dict["step"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--root", required=True, help="a folder, in which `checkpoint` is the store"
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--load-step", type=int, default=-1)
    parser.add_argument("--exclude", nargs="*", default=[])
    args = parser.parse_args()
    is_distributed = "RANK" in os.environ
    if is_distributed:
        dist.init_process_group("gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if is_distributed else (0, 1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 1))
    if is_distributed:
        fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    adamw = default_adamw(lr=1e-3)
    adamw.implementation = "for-loop"
    optimizers = adamw.build(model_parts=[model])
    schedule = LRSchedulersContainer.Config(warmup_steps=5)
    schedulers = schedule.build(optimizers=optimizers, training_steps=args.steps)
    loader = ParallelAwareDataloader(Numbers(rank), rank, world, batch_size=32)

    config = Checkpoints.Config(
        enable=True, interval=10, keep_latest_k=3, exclude_from_loading=args.exclude
    )
    progress = TrainProgress()
    checkpoints = config.build(
        dataloader=loader,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": progress},
        sd_adapter=None,
        base_folder=args.root,
    )
    checkpoints.load(step=args.load_step)
    batches = iter(loader)
    while progress.step < args.steps:
        progress.step += 1
        x = next(batches)
        loss = nn.functional.mse_loss(model(x), x.sin().sum(1, keepdim=True))
        loss.backward()  # type: ignore[no-untyped-call]
        checkpoints.maybe_wait_for_staging()
        optimizers.step()
        schedulers.step()
        optimizers.zero_grad()
        if rank == 0:
            print(f"step {progress.step} loss {float(loss.detach()).hex()}", flush=True)
        checkpoints.save(progress.step, last_step=progress.step == args.steps)
    checkpoints.close()
    if is_distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
