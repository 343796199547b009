"""Functions that evaluate checkpoints, as a project of a user has them. The first one is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpckit.config.spec import RunSpec
from hpckit.trainer.models.model_builder import make


def by_model(cfg: RunSpec, model: nn.Module, safetensors: Path, step: int) -> dict[str, Any]:
    """The first start kills itself, the second one the process that waits for it; with each
    later step the metric is lower."""
    starts = Path(cfg.user_config["starts"])
    with starts.open("a") as file:
        file.write(f"{step}\n")
    number = len(starts.read_text().splitlines())
    if number <= 2:
        os.kill(os.getpid() if number == 1 else os.getppid(), signal.SIGKILL)
        signal.pause()
    assert not model.training
    assert list(safetensors.glob("*.safetensors"))
    return {"norm": norm(model), "earliness": 1 / step, "draw": torch.rand(()).item()}


def by_load(
    cfg: RunSpec, load: Callable[[dict[str, Any]], None], device: torch.device
) -> dict[str, Any]:
    """As a function whose model is the user's own."""
    model = make(cfg.model, seed=0, device=device)
    load({"model": model})
    return {"norm": norm(model)}


def norm(model: nn.Module) -> torch.Tensor:
    return torch.stack([p.double().square().sum() for p in model.parameters()]).sum().sqrt()
