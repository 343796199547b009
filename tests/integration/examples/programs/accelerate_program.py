"""Trains a small network in a loop of one's own, with accelerate.

hpckit launch launch.nproc_per_node=2 -- python accelerate_program.py
"""

import argparse
from pathlib import Path

import torch
from accelerate import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
    Accelerator,
    DataLoaderConfiguration,
)
from accelerate.utils import set_seed  # type: ignore[import-not-found, import-untyped, unused-ignore]
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpckit import client

EPOCHS, EVERY = 3, 10

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", required=True, help="the folder of the checkpoints")
arguments = parser.parse_args()
output = Path(arguments.out)

set_seed(0)
inputs = torch.randn(320, 16)
data = TensorDataset(inputs, inputs.sin().sum(1, keepdim=True))
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
seedable = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(cpu=True, dataloader_config=seedable)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, 8, shuffle=True))


def save(step: int) -> None:
    with client.saving():
        accelerator.save_state(str(output / f"step-{step}"))
        accelerator.wait_for_everyone()  # every rank has written its files
        if accelerator.is_main_process:
            (output / "newest.new").write_text(str(step))
            (output / "newest.new").replace(output / "newest")
    client.checkpointed(step)


step = 0
if (output / "newest").exists():
    step = int((output / "newest").read_text())
    accelerator.load_state(str(output / f"step-{step}"))
for epoch in range(step // len(loader), EPOCHS):
    batches = accelerator.skip_first_batches(loader, step % len(loader))
    batches.set_epoch(epoch)
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        client.step(step, loss=loss.detach())
        is_asked = client.should_stop()
        if is_asked or step % EVERY == 0:
            save(step)
        if is_asked:
            raise SystemExit
