"""Optimizers, the learning-rate schedule and the exponential moving average of parameters. This
package is imported by the training functions and run_checkpoints, and imports only
parallel.local_tensor."""

from __future__ import annotations

from hpckit.trainer.optim.ema import Ema, build_ema
from hpckit.trainer.optim.lr_schedule import lr_factor, set_lr
from hpckit.trainer.optim.optimizer_builder import build_optimizer

__all__ = ["Ema", "build_ema", "build_optimizer", "lr_factor", "set_lr"]
