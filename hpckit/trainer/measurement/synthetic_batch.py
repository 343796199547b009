"""A batch without data, for steps of which only the time or the memory counts."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hpckit.config.rules.model import decoder_of
from hpckit.config.rules.precision_and_memory import masks_attention
from hpckit.config.spec import ImageSpec, RunSpec
from hpckit.trainer.batches.token_windows import TokenWindows, next_token_batch
from hpckit.trainer.images import smoothed_loss
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.parallel.pipeline_parallel import LossOf


def synthetic_batch(
    spec: RunSpec, size: int, device: torch.device | None = None
) -> tuple[Tensor, Tensor, Tensor | None, LossOf]:
    """Return a batch of `size` samples of zeros, as `StepGradients` takes it, and the function that
    computes the loss of a micro-batch."""
    if isinstance(spec.model, ImageSpec):
        shape = (size, 3, spec.model.image_size, spec.model.image_size)
        images = torch.zeros(shape, device=device)
        smoothing = spec.data.images.label_smoothing if spec.data.images else 0.0
        labels = torch.zeros(size, dtype=torch.int64, device=device)
        return images, labels, None, partial(smoothed_loss, smoothing=smoothing)
    length = decoder_of(spec).seq_len + 1
    tokens = torch.zeros(size, length, dtype=torch.int64, device=device)
    has_mask = masks_attention(spec) and spec.memory.attention != "varlen"
    windows = TokenWindows(tokens, tokens if has_mask else None)
    return *next_token_batch(windows), sample_mean
