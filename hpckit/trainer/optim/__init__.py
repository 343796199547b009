"""Optimizers, the learning rate, which `hpckit.config.learning_rate` decides, and the exponential
moving average of parameters. Of the trainer, this package imports only parallel.local_tensor. Only
`hpckit.trainer` imports it."""

from __future__ import annotations

from hpckit.config.learning_rate import lr_factor
from hpckit.trainer.optim.ema import Ema, build_ema
from hpckit.trainer.optim.optimizer_builder import build_optimizer, set_lr

__all__ = ["Ema", "build_ema", "build_optimizer", "lr_factor", "set_lr"]
