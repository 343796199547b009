"""Trains a small network with Lightning.

hpckit launch launch.nproc_per_node=2 -- python lightning_program.py
"""

import argparse
import time

import lightning.pytorch as L  # type: ignore[import-not-found, unused-ignore] # noqa: N812
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from checkpointing import Last, Steps
from checkpointing.integrations.lightning import CheckpointerCallback
from hpckit.integrations.lightning import HpckitCallback, trainer_options


class Regression(L.LightningModule):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        time.sleep(arguments.step_s)
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        print(f"step {self.global_step + 1} loss {float(loss.detach()).hex()}", flush=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--output", required=True, help="the folder of the checkpoints")
parser.add_argument("--step-s", type=float, default=0.0, help="least seconds of a step")
arguments = parser.parse_args()

L.seed_everything(0)
x = torch.randn(320, 16)
data = TensorDataset(x, x.sin().sum(1, keepdim=True))
saver = CheckpointerCallback(arguments.output, run="r", every=Steps(10), keep=[Last(3)])
trainer = L.Trainer(
    **trainer_options(),
    strategy="ddp",
    callbacks=[HpckitCallback(), saver],
    max_epochs=3,
    accelerator="cpu",
    logger=False,
    enable_progress_bar=False,
)
trainer.fit(Regression(), DataLoader(data, 8, shuffle=True), DataLoader(data, 40))
print("the end of the script", flush=True)
