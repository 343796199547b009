"""The training function `hpckit.training.language_model:main`: a decoder on bytes of text."""

from __future__ import annotations

import torch
from torch import Tensor

from data import Loader, open_dataset
from hpckit.plan.flops import per_token
from hpckit.run.spec import RunSpec
from hpckit.training.optim import build_ema, build_optimizer, set_lr
from hpckit.training.parallel.trainee import Trainee
from hpckit.training.run import TrainingRun, training_run
from hpckit.training.text import END, PADDING, ByteWindow, stack


def main(cfg: RunSpec) -> None:
    """Train the model that `cfg` describes, from wherever the run stands to its last step."""
    with training_run(cfg) as run:
        trainee = Trainee(cfg, run.mesh, run.device)
        model = trainee.module
        optimizer = build_optimizer(model, cfg.optim)
        ema = build_ema(model, cfg.optim.ema_decay)
        loader = build_loader(cfg, run)
        gradients = trainee.gradients(run.share, sample_mean, run.timed)
        token_flops = per_token(cfg.model)
        run.track(model=model, optimizer=optimizer, loader=loader, **trainee.loss_scale.tracked)
        if ema:
            run.track(ema=ema)
        run.tell("attention", backend=trainee.attention)
        for batch in run.steps(loader):
            with run.timed("host_to_device"):
                tokens = torch.from_numpy(batch.data).to(run.device, non_blocking=True)
            lr = set_lr(optimizer, cfg.optim, run.step, cfg.train.steps, run.lr_scale)
            optimizer.zero_grad()
            loss = gradients(*shifted(tokens))
            with run.timed("optimizer"):
                norm = trainee.clip(cfg.optim.grad_clip)
                trainee.loss_scale.step(optimizer, norm)
                balance = trainee.balance()
                if ema:
                    ema.update()
            count = tokens.numel() - len(tokens)
            run.log(loss=loss, grad_norm=norm, lr=lr, tokens=count, flops=count * token_flops)
            run.log(**trainee.loss_scale.metrics, **balance)


def build_loader(cfg: RunSpec, run: TrainingRun) -> Loader:
    """Windows of one token more than the context, so that each position has a successor."""
    return Loader(
        open_dataset(cfg.data.shards, cache=cfg.data.cache, cache_bytes=cfg.data.cache_gb * 10**9),
        global_batch=run.global_batch,
        rank=run.place.data,
        world_size=run.place.data_size,
        seed=cfg.train.seed,
        streams=cfg.data.streams,
        window=cfg.data.window,
        transform=ByteWindow(cfg.model.seq_len + 1),
        collate=stack,
        prefetch=cfg.data.prefetch,
        threads=cfg.data.threads,
    )


def shifted(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets: each token predicts the next one.

    Args:
        tokens: (batch, time + 1).

    Returns:
        Two of (batch, time); padding stays in the targets alone, where it counts for nothing.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    return inputs.masked_fill(inputs == PADDING, END), targets


def sample_mean(losses: Tensor, targets: Tensor) -> Tensor:
    """The losses of tokens, averaged within each sample and then over samples.

    Every sample weighs the same however much of it is padding, so the mean over ranks does not
    depend on which rank took which sample.

    Args:
        losses: (batch, time), 0 where the target is `PADDING`.
        targets: (batch, time) tokens or `PADDING`.
    """
    count = (targets != PADDING).sum(1).clamp(min=1)
    return (losses.sum(1) / count).mean()
