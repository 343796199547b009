"""Trains a small transformer on Python's own source code, by FSDP2 and a StatefulDataLoader."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from checkpointing import Checkpointer, Last, PerRank, Steps
from hpckit import client
from torch import nn
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

    state = {"model": model, "optimizer": optimizer, "loader": PerRank(loader)}
    ckpt = Checkpointer(args.out, run="lm", every=Steps(args.save_every), keep=[Last(3)])
    step = ckpt.restore(state) or 0
    stream = batches(loader, sampler, step)
    while step < args.steps and not client.should_stop():
        tokens = next(stream).to(device)
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        client.step(step, loss=loss.detach())
        if ckpt.due(step):
            ckpt.save(step, state)
    ckpt.save(step, state, is_last=True)
    ckpt.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
