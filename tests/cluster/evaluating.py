"""A function that evaluates checkpoints, whose first start does not end by itself."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from hpckit.config.spec import RunSpec


def evaluate(cfg: RunSpec, model: nn.Module, step: int) -> dict[str, Any]:
    starts = Path(cfg.user_config["starts"])
    dist.barrier()
    is_first = not starts.exists()
    dist.barrier()
    if dist.get_rank() == 0:
        with starts.open("a") as file:
            file.write(f"{step}\n")
    if is_first:
        signal.pause()
    ranks = torch.ones(())
    dist.all_reduce(ranks)
    return {"ranks": ranks, "parameters": sum(p.numel() for p in model.parameters())}
