"""A training step in plain torch; only the module of the model is hpckit's."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from hpckit.config.spec import OptimSpec

_IGNORED = -1


def hand_step(model: nn.Module, optim: OptimSpec) -> Callable[[Tensor], Tensor]:
    """Of windows of tokens (batch, time + 1), -1 where there is none: trains `model`, over the
    ranks of this world, and gives the loss of this rank's."""
    whole = DistributedDataParallel(model) if dist.get_world_size() > 1 else model
    assert optim.beta1 is not None
    assert optim.beta2 is not None
    assert optim.eps is not None
    assert optim.grad_clip is not None
    limit = optim.grad_clip
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = AdamW(
        [
            {"params": matrices, "weight_decay": optim.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        fused=True,
    )

    def step(tokens: Tensor) -> Tensor:
        inputs, targets = tokens[:, :-1].clamp(min=0), tokens[:, 1:]
        optimizer.zero_grad()
        logits = whole(inputs)
        losses = functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED, reduction="none"
        ).view_as(targets)
        loss = (losses.sum(1) / (targets != _IGNORED).sum(1).clamp(min=1)).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        return loss.detach()

    return step
