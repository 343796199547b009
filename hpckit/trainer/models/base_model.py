"""The common base class of all models of `conf/model/`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """A model, which is called with the inputs and targets of a micro-batch. A model without a loss
    of its own ignores the targets."""

    blocks: nn.ModuleDict
    """The repeated parts of the model, each of which is sharded, checkpointed or compiled as one
    unit."""

    def initialize_tensor(self, name: str, tensor: Tensor, generator: torch.Generator) -> None:
        """Initialize a whole parameter or buffer by its name, in place."""
        raise NotImplementedError
