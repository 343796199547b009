"""Optimizers, the course of the learning rate, and averages of parameters."""

from __future__ import annotations

from hpckit.training.optim.building import build_optimizer
from hpckit.training.optim.ema import Ema, build_ema
from hpckit.training.optim.schedule import lr_factor, set_lr

__all__ = ["Ema", "build_ema", "build_optimizer", "lr_factor", "set_lr"]
