"""Trains a small transformer on Python's own source code, by FSDP2 and a StatefulDataLoader."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

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


class CheckpointManager:
    """Saves the sharded state, and the position of each rank in its data."""

    def __init__(self, folder):
        self.folder = folder

    def save(self, step, state):
        model, optimizer = get_state_dict(state["model"], state["optimizer"])
        place = self.folder / f"step-{step}"
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=place)
        torch.save(state["loader"].state_dict(), place / f"loader-{dist.get_rank()}.pt")

    def load(self, state):
        """Loads the newest checkpoint, and returns its step."""
        steps = [int(path.parent.name[5:]) for path in self.folder.glob("step-*/.metadata")]
        if not steps:
            return 0
        place = self.folder / f"step-{max(steps)}"
        model, optimizer = get_state_dict(state["model"], state["optimizer"])
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=place)
        set_state_dict(
            state["model"],
            state["optimizer"],
            model_state_dict=model,
            optim_state_dict=optimizer,
        )
        state["loader"].load_state_dict(torch.load(place / f"loader-{dist.get_rank()}.pt"))
        return max(steps)


def windows(count):
    """Returns the source code of the json package as bytes, in windows of `BLOCK` tokens."""
    files = sorted((Path(os.__file__).parent / "json").glob("*.py"))
    tokens = torch.tensor(list(b"".join(path.read_bytes() for path in files)))
    return TensorDataset(tokens[: len(tokens) // BLOCK * BLOCK].view(-1, BLOCK)[:count])


def batches(loader, sampler, step):
    """Yields epoch after epoch, each in an order of its own."""
    while True:
        sampler.set_epoch(step // len(loader))
        for (tokens,) in loader:
            step += 1
            yield tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--save-every", type=int, default=20)
    args = parser.parse_args()

    dist.init_process_group()
    rank, world = dist.get_rank(), dist.get_world_size()
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = f"cuda:{os.environ['LOCAL_RANK']}" if kind == "cuda" else "cpu"

    torch.manual_seed(0)
    model = LanguageModel().to(device)
    mesh = init_device_mesh(kind, (world,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = windows(640)
    sampler = StatefulDistributedSampler(data, world, rank, shuffle=True)
    loader = StatefulDataLoader(data, batch_size=8, sampler=sampler)

    state = {"model": model, "optimizer": optimizer, "loader": loader}
    ckpt = CheckpointManager(args.out)
    step = ckpt.load(state)
    stream = batches(loader, sampler, step)
    while step < args.steps:
        tokens = next(stream).to(device)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if step % args.save_every == 0:
            ckpt.save(step, state)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
