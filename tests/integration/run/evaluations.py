"""A function that evaluates checkpoints, as a project of a user has it. It is killed once."""

EVALUATION = """
import os
import signal
from pathlib import Path

import torch


def main(cfg, model, safetensors, step, device):
    mark = Path(cfg.user_config["killed"])
    if step == cfg.user_config["killed_at"] and not mark.exists():
        mark.touch()
        os.kill(os.getpid() if mark.suffix == ".worker" else os.getppid(), signal.SIGKILL)
    assert not model.training
    assert list(Path(safetensors).glob("*.safetensors"))
    norm = sum(p.double().square().sum() for p in model.parameters()).sqrt()
    return {"norm": norm, "draw": torch.rand(()).item()}
"""
