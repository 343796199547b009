"""Lightning: a Trainer that can be killed at any time and resumes when it is started again.

python -m checkpointing.examples.lightning_trainer --root /tmp/ckpts
"""

import argparse
from typing import Any

import lightning.pytorch as L  # type: ignore[import-not-found, unused-ignore] # noqa: N812
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from checkpointing import Last, Minutes, Steps
from checkpointing.integrations.lightning import CheckpointerCallback


class Regression(L.LightningModule):  # type: ignore[misc, unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        print(f"step {self.global_step + 1} loss {float(loss.detach()).hex()}", flush=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        x, y = batch
        self.log("val_loss", nn.functional.mse_loss(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="the store: a folder or s3://bucket/folder")
    parser.add_argument("--epochs", type=int, default=4)
    args = parser.parse_args()
    L.seed_everything(0)
    x = torch.randn(640, 64)
    data = TensorDataset(x, x.sin().sum(1, keepdim=True))
    saver = CheckpointerCallback(
        args.root,
        run="lightning",
        metrics=["val_loss"],
        every=Steps(7) | Minutes(10),
        keep=[Last(3)],
    )
    trainer = L.Trainer(
        max_epochs=args.epochs,
        callbacks=[saver],
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), DataLoader(data, 32, shuffle=True), DataLoader(data, 128))


if __name__ == "__main__":
    main()
