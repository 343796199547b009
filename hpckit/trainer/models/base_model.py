"""The common base class of all models of `conf/model/`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """A model, called with the inputs of a micro-batch and its targets, which it may ignore."""

    blocks: nn.ModuleDict
    """Most of the model, in similar parts, each of which is gathered, recomputed, or compiled as
    one."""

    def draw(self, name: str, tensor: Tensor, generator: torch.Generator) -> None:
        """Initialize a whole parameter, or a buffer, by its name, as at the start of training."""
        raise NotImplementedError
