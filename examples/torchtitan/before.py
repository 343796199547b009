"""Trains a small transformer on Python's own source code with torchtitan's data loader,
optimizers, schedulers and checkpoints, in a loop like that of its Trainer."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import IterableDataset
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw

BLOCK, WIDTH = 32, 64


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x, y):
        h = self.embedding(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        for layer in self.layers:
            h = layer(h, src_mask=mask, is_causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), y.flatten())


class Windows(IterableDataset):
    """The windows of one rank, again and again, and the position in them."""

    def __init__(self, rank, world):
        files = sorted((Path(os.__file__).parent / "json").glob("*.py"))
        tokens = torch.tensor(list(b"".join(path.read_bytes() for path in files)))
        self.windows = tokens[: len(tokens) // BLOCK * BLOCK].view(-1, BLOCK)[rank::world]
        self.next = 0

    def __iter__(self):
        while True:
            window = self.windows[self.next % len(self.windows)]
            self.next += 1
            yield window

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state_dict):
        self.next = state_dict["next"]


class Progress:
    """The state that torchtitan's Trainer keeps of itself."""

    step = 0

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state_dict):
        self.step = state_dict["step"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = LanguageModel()
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    adamw = default_adamw(lr=1e-3)
    adamw.implementation = "for-loop"  # "fused" needs a GPU
    optimizers = adamw.build(model_parts=[model])
    schedule = LRSchedulersContainer.Config(warmup_steps=10)
    schedulers = schedule.build(optimizers=optimizers, training_steps=args.steps)
    loader = ParallelAwareDataloader(Windows(rank, world), rank, world, batch_size=8)

    progress = Progress()
    checkpoint = CheckpointManager.Config(enable=True, interval=20, keep_latest_k=3)
    checkpointer = checkpoint.build(
        dataloader=loader,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedulers,
        states={"train_state": progress},
        sd_adapter=None,
        base_folder=args.out,
    )
    checkpointer.load()
    batches = iter(loader)
    while progress.step < args.steps:
        progress.step += 1
        tokens = next(batches)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        checkpointer.maybe_wait_for_staging()
        optimizers.step()
        schedulers.step()
        optimizers.zero_grad()
        if rank == 0 and progress.step % 10 == 0:
            print(f"step {progress.step}: loss {loss.item():.4f}", flush=True)
        checkpointer.save(progress.step, last_step=progress.step == args.steps)
    checkpointer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
