"""What all models of `conf/model/` have in common."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """Called with the inputs of a micro-batch and its targets, which it need not look at."""

    blocks: nn.ModuleDict
    """Most of it, in parts that are alike: each is gathered, computed again, or compiled as one."""

    def draw(self, name: str, tensor: Tensor, generator: torch.Generator) -> None:
        """Fill a whole parameter, or a buffer, by its name, as at the start of training."""
        raise NotImplementedError
