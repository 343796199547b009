"""Trains a small transformer on Python's own source code, by Lightning."""

import argparse
import os
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

BLOCK, WIDTH = 32, 32


class LanguageModel(L.LightningModule):
    def __init__(self, learning_rate=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embedding = nn.Embedding(256, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, 256)

    def loss(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(BLOCK - 1, device=self.device)
        h = self.encoder(self.embedding(x[:, :-1]), mask=mask, is_causal=True)
        return F.cross_entropy(self.head(h).flatten(0, 1), x[:, 1:].flatten())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch[0])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch[0]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def windows(begin, end):
    """Returns the source code of the json package as bytes, in windows of `BLOCK` tokens."""
    files = sorted((Path(os.__file__).parent / "json").glob("*.py"))
    tokens = torch.tensor(list(b"".join(path.read_bytes() for path in files)))
    return TensorDataset(tokens[: len(tokens) // BLOCK * BLOCK].view(-1, BLOCK)[begin:end])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    L.seed_everything(0)
    trainer = L.Trainer(
        devices=2,
        strategy="ddp",
        max_epochs=args.epochs,
        default_root_dir=args.out,
        callbacks=[ModelCheckpoint(dirpath=f"{args.out}/checkpoints", save_last=True)],
        enable_progress_bar=False,
    )
    trainer.fit(
        LanguageModel(),
        DataLoader(windows(0, 640), batch_size=8, shuffle=True),
        DataLoader(windows(640, 704), batch_size=8),
        ckpt_path="last",
    )


if __name__ == "__main__":
    main()
