"""The training function of `entry: hpckit.training.language_model:main`: a GPT on bytes of text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import Optimizer

from data import Loader, open_dataset
from hpckit.run.spec import RunSpec
from hpckit.training.gpt import GPT
from hpckit.training.optim import build_optimizer, build_scheduler, set_lr
from hpckit.training.parallel import before_micro_batch, micro_batches, spread
from hpckit.training.run import TrainingRun, training_run
from hpckit.training.text import END, PADDING, VOCAB, ByteWindow, stack


def main(cfg: RunSpec) -> None:
    """Train the model that `cfg` describes, from wherever the run stands to its last step."""
    with training_run(cfg) as run:
        model = build_model(cfg, run)
        optimizer = build_optimizer(model, cfg.optim)
        scheduler = build_scheduler(optimizer, cfg.optim, cfg.train.steps)
        loader = build_loader(cfg, run)
        run.track(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
        for batch in run.steps(loader):
            tokens = torch.from_numpy(batch.data).to(run.device, non_blocking=True)
            parts = micro_batches(len(tokens), cfg.train.micro_batch)
            lr = set_lr(optimizer, scheduler, run.lr_scale)
            loss, norm = train_step(model, optimizer, tokens.chunk(parts), cfg)
            run.log(loss=loss, grad_norm=norm, lr=lr, tokens=tokens.numel() - len(tokens))
            scheduler.step()


def build_model(cfg: RunSpec, run: TrainingRun) -> GPT:
    """The initialised model, spread over all ranks; the same on any number of them."""
    size = cfg.model
    model = GPT(
        vocab=VOCAB,
        layers=size.layers,
        heads=size.heads,
        width=size.width,
        seq_len=size.seq_len,
    )
    model.initialise(cfg.train.seed)
    spread(model, model.blocks, run.mesh, cfg.parallel, cfg.precision)
    return model


def build_loader(cfg: RunSpec, run: TrainingRun) -> Loader:
    """Windows of one token more than the context, so that each position has a successor."""
    return Loader(
        open_dataset(cfg.data.shards, cache=cfg.data.cache, cache_bytes=cfg.data.cache_gb * 10**9),
        global_batch=run.global_batch,
        rank=run.rank,
        world_size=run.world_size,
        seed=cfg.train.seed,
        streams=cfg.data.streams,
        window=cfg.data.window,
        transform=ByteWindow(cfg.model.seq_len + 1),
        collate=stack,
        prefetch=cfg.data.prefetch,
        threads=cfg.data.threads,
    )


def train_step(
    model: GPT, optimizer: Optimizer, parts: Sequence[Tensor], cfg: RunSpec
) -> tuple[Tensor, Tensor]:
    """One optimizer step over micro-batches `parts`, each (samples, length) tokens, of equal size.

    Returns this rank's mean loss and the global gradient norm before clipping.
    """
    assert isinstance(model, FSDPModule)
    optimizer.zero_grad()
    losses = []
    for number, tokens in enumerate(parts, start=1):
        before_micro_batch(model, cfg.parallel, is_last=number == len(parts))
        loss = sample_mean_loss(model, tokens)
        (loss / len(parts)).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), cfg.optim.grad_clip)
    optimizer.step()
    return torch.stack(losses).mean(), norm.full_tensor() if isinstance(norm, DTensor) else norm


def sample_mean_loss(model: GPT, tokens: Tensor) -> Tensor:
    """Cross-entropy of each next token, averaged within each sample and then over samples.

    Every sample weighs the same however much of it is padding, so the mean over ranks does not
    depend on which rank took which sample.
    """
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    logits = model(inputs.masked_fill(inputs == PADDING, END))
    each = functional.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=PADDING, reduction="none"
    ).view_as(targets)
    count = (targets != PADDING).sum(1).clamp(min=1)
    return (each.sum(1) / count).mean()
