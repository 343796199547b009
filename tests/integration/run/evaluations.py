"""Functions that evaluate checkpoints, as a project of a user has them. The first one is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn

from hpckit.config.spec import RunSpec
from hpckit.evaluation.evaluation_jobs import MODULE
from hpckit.trainer.models.model_builder import make


def by_model(cfg: RunSpec, model: nn.Module, safetensors: Path, step: int) -> dict[str, Any]:
    """The first start kills itself, the second one the process that waits for it; with each
    later step the metric is lower."""
    starts = Path(cfg.user_config["starts"])
    with starts.open("a") as file:
        file.write(f"{step}\n")
    number = len(starts.read_text().splitlines())
    if number <= 2:
        os.kill(os.getpid() if number == 1 else waiting(cfg.root), signal.SIGKILL)
        signal.pause()
    assert not model.training
    assert list(safetensors.glob("*.safetensors"))
    return {"norm": norm(model), "earliness": 1 / step, "draw": torch.rand(()).item()}


def waiting(root: str) -> int:
    """The process that waits for the evaluations of the run below this folder. It need not be this
    one's parent: see tests/startup/shared_imports.py."""
    commands = {one.pid: one.info["cmdline"] or () for one in psutil.process_iter(["cmdline"])}
    (found,) = [
        pid
        for pid, words in commands.items()
        if MODULE in words and any(word.startswith(root) for word in words)
    ]
    return found


def by_load(
    cfg: RunSpec, load: Callable[[dict[str, Any]], None], device: torch.device
) -> dict[str, Any]:
    """As a function whose model is the user's own."""
    model = make(cfg.model, seed=0, device=device)
    load({"model": model})
    return {"norm": norm(model)}


def norm(model: nn.Module) -> torch.Tensor:
    return torch.stack([p.double().square().sum() for p in model.parameters()]).sum().sqrt()
