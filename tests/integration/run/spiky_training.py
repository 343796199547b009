"""A training function whose loss is pulled away by samples of a certain kind, as a project of one's
own. With `user_config.leave_out` it never gets the samples at these positions, with
`without_update` it makes no update in these steps, with `killed_at` a rank is killed in this step,
once, and with `fails_at` this step fails, once, in an attempt that leaves samples out."""

TRAINING = """
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from data import Loader, open_dataset
from hpckit import training_run

CRASHED = Path(__file__).with_name("crashed")
FAILED = Path(__file__).with_name("failed")


def features(batch):
    rows = [[float(byte) / 256 for byte in sample["txt"][:8]] for sample in batch.data]
    scale = [[1e3 if b"poison" in sample["txt"] else 1.0] for sample in batch.data]
    return torch.tensor(rows) * torch.tensor(scale)


def loss_of(model, given):
    return (model(given) - given.mean(1, keepdim=True)).square().mean()


def main(cfg):
    with training_run(cfg) as run:
        torch.manual_seed(cfg.train.seed)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        loader = Loader(
            open_dataset(cfg.data.shards),
            global_batch=cfg.train.global_batch,
            rank=run.rank,
            world_size=run.world_size,
            seed=cfg.train.seed,
        )
        for first, end in cfg.user_config["leave_out"]:
            loader.skip(first, end)
        run.track(model=model, optimizer=optimizer, loader=loader)
        for batch in run.steps(loader):
            fails_at = cfg.user_config.get("fails_at")
            if loader.skipped and run.step + 1 == fails_at and not FAILED.exists():
                FAILED.touch()
                raise ImportError("this step fails once")
            # steps are faster than the store: none is lost
            if cfg.checkpoint.certify is not None or fails_at is not None:
                run._checkpoints._checkpointer.wait()
            given = features(batch)
            run.note_computation(lambda given: loss_of(model, given).backward(), given)
            optimizer.zero_grad()
            loss = loss_of(model, given)
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= run.world_size
            norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
            is_update = run.should_update(loss=loss.detach(), grad_norm=norm)
            if is_update and run.step + 1 not in cfg.user_config.get("without_update", ()):
                optimizer.step()
            if run.step + 1 == cfg.user_config.get("killed_at") and not CRASHED.exists():
                CRASHED.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            run.log(loss=loss.detach(), grad_norm=norm)
"""
